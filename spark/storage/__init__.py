"""Storage: the lake's files, in folders or in an object store; how they are read and written.

Others import `base`, `file_io`, `folder`, `keys`, `location`, `settings`, `side_by_side`, `stores` and
`uploads`.
"""
