"""What the lake takes of the source: tables, columns, types, and which tables are set aside.

Others import `aside`, `formats`, `known_tables`, `layouts`, `readers`, `tables` and `types`.
"""
