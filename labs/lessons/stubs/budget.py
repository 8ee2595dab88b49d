# Exercise: budget
def budget(writers, block_bytes, most_bytes, most_wait):
    """Blocks that a step may copy, or None if no budget keeps both bounds."""
    return writers // max(1, most_wait)
