"""What a notebook holds: the lab, its agents, groups and tenants, also those of other processes."""
