"""Keeps tables small and quick: rewrites, packing of small files, expiry, integrity, removal.

Others import `expiry`, `integrity`, `removal`, `plan`, `rewrite`, `shared_warehouse`, `small_files`,
`table_files`, `turns` and `unreadable`.
"""
