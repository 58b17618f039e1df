"""The parts of PostgreSQL's catalog that slotlake reads: publications, tables, keys, types, row filters.

Others import `condition`, `ddl_trigger`, `fingerprints`, `key_index`, `membership`, `publication_tables`,
`publications`, `reg_texts`, `remembered_fingerprints`, `row_filters`, `source_types`, `type_texts` and
`vanished`.
"""
