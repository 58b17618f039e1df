"""Writes snapshots without Spark: of small batches, of packed files, of files rewritten meanwhile.

Others import `packing`, `rewritten` and `stage`.
"""
