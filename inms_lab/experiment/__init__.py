"""The experiment: what do modes of sharing save, and what do they cost in the quality of a task?"""
