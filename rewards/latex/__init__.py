"""LaTeX as the formula reward reads it: `published` has the form of the paper, `reader` the robust one."""
