"""How a pipeline asks its source: history, catalog fingerprints, and batches from its slot.

Others import `ddl_trigger`, `fingerprints`, `grants`, `history`, `partitions`, `pulling`, `snapshots`,
`standing_puller` and `wal_notes`.
"""
