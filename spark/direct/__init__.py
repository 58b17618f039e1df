"""Stages a small batch of a mirror without Spark: reads the keys it needs, writes the files of one snapshot.

Others import `stage`.
"""
