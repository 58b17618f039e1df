"""A lake table's shape: fields, names, types, and what becomes of them when the source changes."""
