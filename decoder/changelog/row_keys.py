"""The columns that identify a row in a relation version's changes, for the manifest of a batch.

Under a default or index identity the stream itself names them.  Under FULL every column is marked, and the
catalog must be asked for the primary key.  But the catalog describes the present, not the time of the
changes: a key that is newer than a change may not have been a key for the rows of that time.  So a key counts
only if the key and the names of its columns are older than everything that the slot can still decode: a
transaction before the slot's ``catalog_xmin`` created them, which had ended for every snapshot used in
decoding.  A newer key is left out; the changes have whole rows, and are exact without it.
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
    """The columns that identify a row, per relation version; () if there are none.

    Under NOTHING no change identifies a row; the key is listed for information.  A key with a column that
    the version does not publish does not count.
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
