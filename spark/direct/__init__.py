"""Writes snapshots without Spark: of small batches, and of files that were rewritten meanwhile.

Others import `rewritten` and `stage`.
"""
