"""Answers queries with DuckDB, which starts at once: in this process, on the tables of one read point.

`answer` is what others call.  A statement passes two doors: `judge` looks at DuckDB's own parse of it, and
the database that runs it (`database`) can open no file but those of the tables that it reads.
"""
