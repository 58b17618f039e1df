"""Derived tables: the history and the change log that stand next to a mirror.

Others import `changes_table`, `columns`, `fold`, `layouts`, `marked`, `modes`, `new_tables`,
`reserved_columns` and `table`.
"""
