"""Derived tables: the history and the change log that stand next to a mirror.

Others import `changes_table`, `columns`, `layouts`, `marked`, `modes`, `new_tables` and `reserved_columns`.
"""
