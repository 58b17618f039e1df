"""Which rows, columns and operations the lake takes, evaluated as PostgreSQL would.

Others import `plan` and `selection`.
"""
