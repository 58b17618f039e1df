"""Which indexes of a table guarantee, at every moment, that no two rows have the same key.

These indexes do not guarantee it:

- A deferrable key: within a statement, or until the commit, two rows may have the same key, and the stream
  brings them in that order (``UPDATE t SET id = id + 1``).  PostgreSQL itself does not accept such an index
  as a replica identity (RelationGetIndexList, relcache.c), also not one that became deferrable after it was
  chosen (ADD CONSTRAINT … USING INDEX … DEFERRABLE).
- The key of a partitioned table that was created with ONLY and is not valid until each partition has it.
- A key of a partitioned table with a partition whose own key is deferrable; ATTACH PARTITION allows that.

Invariant: nothing here locks a table of the user; only catalogs are read.
"""

from __future__ import annotations

# A condition on the row ``i`` of pg_index.
ENFORCED = """(i.indimmediate AND i.indisvalid AND NOT EXISTS (
    WITH RECURSIVE below (oid) AS (
        SELECT h.inhrelid FROM pg_catalog.pg_inherits h WHERE h.inhparent = i.indexrelid
        UNION ALL
        SELECT h.inhrelid FROM below JOIN pg_catalog.pg_inherits h ON h.inhparent = below.oid
    )
    SELECT FROM below JOIN pg_catalog.pg_index x ON x.indexrelid = below.oid
    WHERE NOT (x.indimmediate AND x.indisvalid)
))"""
