# Exercise: labels
def join(before, own):
    """The label of a text: `before` is that of all that stands before it, `own` whose it is."""
    return own


def may_hold(label, clearance):
    """Whether a reader with this clearance may hold a block with this label."""
    return True
