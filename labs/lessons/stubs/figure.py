# Exercise: figure
row = ...  # the number of the row whose figure its own inputs do not give
gib = ...  # what they give, in GiB: a calculation is fine, and so is a number
