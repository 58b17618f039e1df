"""A lake table's shape: fields, names, types, and what becomes of them when the source changes.

Others import `change`, `deletion_vectors`, `layout`, `manifests`, `metadata`, `position_deletes`, `schema`,
`settle`, `shapes`, `soft_deletes` and `type_rules`.
"""
