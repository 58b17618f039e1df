"""Reads the lake at one point: rows, analysts' queries, and which queries are allowed.

Others import `chosen_rows`, `duck`, `executors`, `newest`, `pinned`, `point`, `query`, `result`, `scan` and
`table_names`.
"""
