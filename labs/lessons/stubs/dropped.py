# Exercise: dropped
breaks = {
    "label": ...,  # a letter, "A" to "F"
    "tokens": ...,
    "position": ...,
    "pending": ...,
}
