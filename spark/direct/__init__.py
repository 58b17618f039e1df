"""Writes snapshots without Spark: of batches, of packed files, of files rewritten meanwhile.

Others import `change_log`, `history`, `packing`, `rewritten` and `stage`.
"""
