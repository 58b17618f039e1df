"""Folds a batch's changes: one final image per key, or counts of equal rows without a key.

Others import `batch`, `columns`, `conflicts`, `keys`, `segments`, `slices` and `walk`.
"""
