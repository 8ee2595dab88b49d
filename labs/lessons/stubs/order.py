# Exercise: order
def apart(name):
    """The three texts in an order in which the agents share nothing."""
    return [RULES, TOOLS, sentence(name)]


def together(name):
    """The three texts in an order in which they share as much as possible."""
    return [RULES, sentence(name), TOOLS]


hits = 0  # blocks that the third agent finds with `together`
