"""What it costs to use KV behind another context than its own, measured: contexts.py lays texts."""
