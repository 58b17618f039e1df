"""Rows from the source become tables or replace rows: first copy, replacement, amendment.

Others import `amend`, `files`, `initial`, `owner`, `replace`, `replacement`, `spread` and `table_format`.
"""
