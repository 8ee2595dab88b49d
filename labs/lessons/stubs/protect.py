# Exercise: protect
def protect(blocks, agents, keeps, burst):
    """Blocks for the quiet tenant, what each of its agents keeps, blocks for the loud one."""
    return blocks // 2, 0, blocks // 2
