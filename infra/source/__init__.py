"""How a pipeline asks its source: history, catalog fingerprints, and batches from its slot.

Others import `bell`, `ddl_trigger`, `fingerprints`, `grants`, `history`, `own_puller`, `own_slot`,
`partitions`, `pulling`, `snapshots`, `standing_puller` and `wal_notes`.
"""
