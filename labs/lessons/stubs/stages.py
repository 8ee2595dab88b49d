# Exercise: stages
def choose(table, max_leak, min_quality):
    """The name of the row to serve with, or None; `table` as of `stages(readers)`."""
    allowed = table[(table.leak <= max_leak) & (table.quality >= min_quality)]
    return allowed.memory.idxmin()
