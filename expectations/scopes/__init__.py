"""Comparisons of some rows of a table, at a chosen pace: rows with given keys, slices.

Others import `key_rows`, `pace` and `slices`.
"""
