"""Keeps tables small and quick: rewrites, packing of small files, expiry, integrity, removal.

Others import `expiry`, `integrity`, `removal`, `rewrite`, `shared_warehouse`, `small_files` and
`table_files`.
"""
