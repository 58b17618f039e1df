"""Rows from the source become tables or replace rows: first copy, replacement, amendment.

Others import `amend`, `files`, `initial`, `replace` and `replace_ranged`.
"""
