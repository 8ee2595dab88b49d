# Exercise: turn
def turn(q, inv_freq, shift):
    """The query [heads, 64] for keys that are read `shift` positions behind their own place."""
    return q
