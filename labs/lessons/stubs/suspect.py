# Exercise: suspect
def suspect(held):
    """Whether nobody will come back for this block."""
    return held.unmoved > 20
