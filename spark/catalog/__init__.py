"""Catalogs: SQLite, PostgreSQL, REST, AWS Glue, Hive Metastore; pointers, and changes of many tables at once.

Others import `base`, `fence`, `listing`, `looks`, `open`, `probe`, `sql` and `tags`.
"""
