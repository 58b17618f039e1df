"""Comparisons of some rows of a table: rows with given keys, slices.

Others import `key_rows` and `slices`.
"""
