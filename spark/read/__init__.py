"""Reads the lake at one point: rows, analysts' queries, and which queries are allowed.

Others import `duck`, `executors`, `point`, `query`, `result`, `scan` and `table_names`.
"""
