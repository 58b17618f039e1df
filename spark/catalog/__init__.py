"""Catalogs: SQLite and PostgreSQL, REST; pointers and the changes of many tables at once.

Others import `base`, `open`, `pointers`, `probe`, `sql` and `tags`.
"""
