"""Which open transactions may have written to a table, and whether its publication has changed.

A copy that does not wait for open transactions needs this.  A transaction that has written to a table holds
ROW EXCLUSIVE on it, or more, until it ends; a prepared one too (lock.c).  A transaction that writes through a
partitioned table holds the lock on the partition.  pg_locks shows that to every role.
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
# The row of the column tableoid is written when the table is created, and later only by ATTACH.
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
    """How a table is published; ``text`` differs if this has changed.

    Attributes:
        by_all: only publications FOR ALL TABLES publish it.
        creator: id of the transaction that created the table.
    """

    text: str
    by_all: bool
    creator: int | None


def open_writers(
    connection: psycopg.Connection[Any], relation_ids: Collection[int]
) -> Mapping[int, frozenset[str]]:
    """Open transactions that may have written to each of these tables, or to its partitions."""
    holders_by_table: dict[int, set[str]] = {oid: set() for oid in relation_ids}
    for oid, holder in connection.execute(_WRITERS.encode(), (list(relation_ids),)).fetchall():
        holders_by_table[int(oid)].add(str(holder))
    return {oid: frozenset(holders) for oid, holders in holders_by_table.items()}


def publications_text(connection: psycopg.Connection[Any], publications: Sequence[str]) -> str:
    """A text for these publications that differs if one was altered, or dropped and created again."""
    row = connection.execute(_PUBLICATIONS.encode(), (list(publications),)).fetchone()
    assert row is not None
    return str(row[0])


def memberships(
    connection: psycopg.Connection[Any], relation_ids: Collection[int], publications: Sequence[str]
) -> Mapping[int, Membership]:
    """Return how each of these tables is published; tables that do not exist any more are left out."""
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
