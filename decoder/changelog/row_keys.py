"""By which columns a relation version's changes name their row, for the manifest of a batch.

The stream itself says so under a default or index identity.  Under FULL every column is marked, and
the primary key must be asked from the catalog, which answers for now and not for when the changes were
made: a key that is newer than a change may be no key of the rows there were then.  So it counts only if
it, and its columns' names, are older than anything the slot can still decode: made by a transaction before
the slot's ``catalog_xmin``, which was over for every snapshot that changes are decoded with.  A younger key
is left out; the changes carry whole rows, and are exact without it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import psycopg

from slotlake.decoder.catalog.key_index import ENFORCED
from slotlake.decoder.protocol.relations import RelationVersion
from slotlake.decoder.server.source import SourceSettings, source_session

_KEY = f"""
SELECT a.attname, age(i.xmin) > age(s.catalog_xmin) AND age(a.xmin) > age(s.catalog_xmin)
FROM pg_index i
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
JOIN pg_replication_slots s ON s.slot_name = %s
WHERE i.indrelid = %s AND i.indisprimary AND {ENFORCED}
ORDER BY a.attnum
"""


def keys_of(
    source: SourceSettings, versions: Sequence[RelationVersion]
) -> Mapping[RelationVersion, tuple[str, ...]]:
    """The columns that identify a row, per relation version; () for none.

    Under NOTHING no change names a row, and the key is told for what it is worth.  A key with a column
    that the version does not publish is none.
    """
    keys = {v: tuple(c.name for c in v.columns if c.in_key) for v in versions if v.replica_identity in "di"}
    asked = [version for version in versions if version.replica_identity in "fn"]
    if not asked:
        return keys
    with source_session(source.dsn, "looking up primary keys") as connection:
        for version in asked:
            key = _primary_key(connection, source.slot, version.relation_id)
            published = {column.name for column in version.columns}
            keys[version] = key if published.issuperset(key) else ()
    return keys


def _primary_key(connection: psycopg.Connection[Any], slot: str, relation_id: int) -> tuple[str, ...]:
    rows = connection.execute(_KEY.encode(), (slot, relation_id)).fetchall()
    return tuple(str(name) for name, _ in rows) if all(old for _, old in rows) else ()
