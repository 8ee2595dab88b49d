# Exercise: afresh
def choose(deviation, budget):
    """Numbers of the blocks to compute afresh, `budget` at most; `deviation[layer, block]`."""
    return list(range(budget))
