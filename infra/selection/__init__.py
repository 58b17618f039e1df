"""What the lake takes of the source: tables, columns, types, and which tables are set aside.

Others import `aside`, `derived_gone`, `file_tables`, `known_tables`, `layouts`, `pending`, `readers`,
`tables` and `types`.
"""
