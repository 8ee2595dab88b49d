# Exercise: accept
def accept(found, most):
    """Whether the merged weights may become the next version."""
    return all(alone[found.new] < found.before[found.new] for alone in found.branches)
