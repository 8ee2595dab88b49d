# Exercise: culprits
answers = {
    "leak": ...,  # the last command of the agent that holds the old notes
    "gap": ...,  # the command with which rita lost the rule
    "secret": ...,  # the event that published the word
    "hog": ...,  # the command whose text took the handbook's room
    "mount": ...,  # the event that gave somebody a foreign block
}
