"""Archived batches once more, in a scratch copy of the lake.

Others import `rebatch` and `scratch`.
"""
