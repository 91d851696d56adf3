"""Exact edit distances of ordered labelled trees: `distance` with unit costs, `weighted` with fractional ones."""
