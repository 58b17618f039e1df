"""Which index of a table says that no two of its rows are the same, at any moment.

A key that is deferrable does not: within a statement, or up to the commit, two rows may have the same key,
and the stream has them in that order (``UPDATE t SET id = id + 1``).  PostgreSQL itself takes no such index
for a replica identity (RelationGetIndexList, relcache.c), also not one that became deferrable after it was
chosen (ADD CONSTRAINT … USING INDEX … DEFERRABLE).  Nor does the key of a partitioned table that was made on
it ONLY, and is not valid before each partition has it; nor one under which a partition was attached whose own
key is deferrable, which ATTACH PARTITION allows.

Invariant: nothing here locks a table of the user; only catalogs are read.
"""

from __future__ import annotations

# Of the row ``i`` of pg_index.
ENFORCED = """(i.indimmediate AND i.indisvalid AND NOT EXISTS (
    WITH RECURSIVE below (oid) AS (
        SELECT h.inhrelid FROM pg_catalog.pg_inherits h WHERE h.inhparent = i.indexrelid
        UNION ALL
        SELECT h.inhrelid FROM below JOIN pg_catalog.pg_inherits h ON h.inhparent = below.oid
    )
    SELECT FROM below JOIN pg_catalog.pg_index x ON x.indexrelid = below.oid
    WHERE NOT (x.indimmediate AND x.indisvalid)
))"""
