"""Rows from the source become tables or replace rows: first copy, replacement, amendment.

Others import `amend`, `files`, `initial`, `replace`, `replace_ranged` and `table_format`.
"""
