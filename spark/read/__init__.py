"""Reads the lake at one point: rows, analysts' queries, and which queries are allowed.

Others import `chosen_rows`, `duck`, `executors`, `point`, `query`, `result`, `scan` and `table_names`.
"""
