"""The table of types, and all conversions between PostgreSQL's values and Arrow's.

Others import `binary`, `catalog`, `column_type`, `floats`, `names`, `oids`, `parsing`, `representations`,
`row_kernels`, `shortest`, `slices`, `table` and `text_error`.
"""
