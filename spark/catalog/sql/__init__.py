"""A table of pointers in SQLite or PostgreSQL as catalog."""
