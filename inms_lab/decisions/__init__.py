"""Pure functions of the books: their answers are plans, or values that say why there is none."""
