"""Reads the lake at one point: rows, analysts' queries, and which queries are allowed.

Others import `point`, `query` and `scan`.
"""
