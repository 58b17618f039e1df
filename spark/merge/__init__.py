"""Brings a fold into a table's branch `stage`: the SQL of the MERGE, and the run of it.

Others import `bag_sql`, `bounds`, `during_statements`, `failures`, `fields`, `representation`, `rows`, `run`,
`schema_changes`, `sizes`, `slices`, `sql` and `stage`.
"""
