"""The initial copy of a table: COPY under an exported snapshot, range by range, into Parquet.

Others import `files`, `parts`, `reading` and `table`.
"""
