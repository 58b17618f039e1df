"""Writes snapshots without Spark: of small batches, of packed files, of files rewritten meanwhile.

Others import `compaction`, `rewritten` and `stage`.
"""
