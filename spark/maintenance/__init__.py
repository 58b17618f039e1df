"""Keeps tables small and quick: rewrites, expiry, integrity, removal.

Others import `expiry`, `integrity`, `removal`, `rewrite` and `table_files`.
"""
