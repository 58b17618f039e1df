"""What the lake takes of the source: tables, columns, types, and which tables are set aside.

Others import `absent`, `aside`, `derived_gone`, `file_tables`, `known_tables`, `layouts`, `named`,
`pending`, `readers`, `roots`, `tables` and `types`.
"""
