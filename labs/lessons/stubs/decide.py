# Exercise: decide
def decide(case):
    if case.found:
        return ("shared", 0)
    return ("computed", 1)
