# Exercise: unshare
def unshare(steps):
    """The number of the call that un-shared; None if none did."""
    grown = [steps[n].own - steps[n - 1].own for n in range(1, len(steps))]
    return 1 + grown.index(max(grown))
