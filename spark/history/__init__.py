"""Derived tables: the history and the change log that stand next to a mirror.

Others import `columns`, `layouts`, `marked`, `modes`, `new_tables` and `reserved_columns`.
"""
