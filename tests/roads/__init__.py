"""The matrix: drawn histories go down every road into the lake, and one judge sees all (docs/roads.md).

`kinds` has the tables and the values at the limits of their types, `histories` draws what is done to them.
`road` lists the roads and combines them, `travel` takes one pipeline down one road.  `lake_files` reads a
lake's files by no code of slotlake's, `judge` compares, and `rules` are Iceberg's own.
"""
