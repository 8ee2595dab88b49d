"""The door, the step and the thread: plans become facts, tokens become text."""
