"""Rows from the source become tables or replace rows: first copy, replacement, amendment.

Others import `amend`, `files`, `initial`, `manifests`, `owner`, `replace`, `replace_ranged`, `spread` and
`table_format`.
"""
