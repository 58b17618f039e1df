"""Which open transactions may have written to a table, and since when that is published: to copy beside them.

Who has written to a table holds ROW EXCLUSIVE on it, or more, until the transaction ends; prepared ones too
(lock.c).  Whoever writes through a partitioned table holds it on the partition.  pg_locks shows that to
everybody.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from slotlake.decoder.catalog.fingerprints import table_fingerprints

_WRITERS = """
SELECT root.oid::bigint, l.virtualtransaction || coalesce(' pid ' || l.pid, ' prepared')
FROM unnest(%s::oid[]) root(oid)
CROSS JOIN LATERAL (
    SELECT root.oid AS relid UNION SELECT relid FROM pg_catalog.pg_partition_tree(root.oid)
) below
JOIN pg_catalog.pg_locks l ON l.relation = below.relid AND l.locktype = 'relation' AND l.granted
    AND l.database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
WHERE l.mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
  AND l.pid IS DISTINCT FROM pg_catalog.pg_backend_pid()
"""
# The row of the column tableoid is written when the table is made, and by ATTACH only after that.
_CREATORS = """
SELECT attrelid::bigint, xmin::text::bigint FROM pg_catalog.pg_attribute
WHERE attrelid = ANY (%s) AND attname = 'tableoid' AND attnum < 0
"""
_PUBLICATIONS = """
SELECT coalesce(string_agg(oid || ' ' || xmin, ',' ORDER BY oid), '')
FROM pg_catalog.pg_publication WHERE pubname = ANY (%s)
"""


@dataclass(frozen=True)
class Membership:
    """How a table is published; another text when that has changed.

    Attributes:
        by_all: nothing but publications of all tables publishes it.
        creator: id of the transaction that made it.
    """

    text: str
    by_all: bool
    creator: int | None


def open_writers(
    connection: psycopg.Connection[Any], relation_ids: Collection[int]
) -> Mapping[int, frozenset[str]]:
    """Transactions that may have written to each of these tables, or to what is below it, and are open."""
    holders_by_table: dict[int, set[str]] = {oid: set() for oid in relation_ids}
    for oid, holder in connection.execute(_WRITERS.encode(), (list(relation_ids),)).fetchall():
        holders_by_table[int(oid)].add(str(holder))
    return {oid: frozenset(holders) for oid, holders in holders_by_table.items()}


def publications_text(connection: psycopg.Connection[Any], publications: Sequence[str]) -> str:
    """These publications; another text when one was made anew or altered."""
    row = connection.execute(_PUBLICATIONS.encode(), (list(publications),)).fetchone()
    assert row is not None
    return str(row[0])


def memberships(
    connection: psycopg.Connection[Any], relation_ids: Collection[int], publications: Sequence[str]
) -> Mapping[int, Membership]:
    """Return how each of these tables is published; a table that does not exist any more is not in it.

    Args:
        relation_ids: OIDs.
        publications: names of the publications that count.
    """
    how = publications_text(connection, publications)
    fingerprints = table_fingerprints(connection, relation_ids, publications)
    creators = dict(connection.execute(_CREATORS.encode(), (list(relation_ids),)).fetchall())
    return {
        oid: Membership(
            f"{how};{','.join(sorted(fingerprint.members))}",
            all(member.startswith("all ") for member in fingerprint.members),
            creators.get(oid),
        )
        for oid, fingerprint in fingerprints.items()
    }
