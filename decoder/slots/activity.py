"""Has the source changes that a slot has not confirmed?  Asked once a second, with one small query.

The end of the server's WAL does not tell it: checkpoints, vacuum and other databases move it too. Two signs
together do:

- *Which transactions have ended.* ``pg_current_snapshot()`` changes when a transaction with an id ends, in
  any database of the server, and at no other event. The WAL position of the first look with this snapshot
  is after all their commit records: a slot that is confirmed up to there lacks nothing.
- *Counters of the published tables*: rows inserted, updated, deleted (pg_stat_get_tuples_…), and their files,
  because TRUNCATE makes new ones. A session reports its counters when it commits, but not twice within a
  second: then up to ten seconds later (pgstat.c: PGSTAT_MIN_INTERVAL, PGSTAT_IDLE_INTERVAL), or at its end.

A server without counters (``track_counts = off``), and a standby, whose counters are its own, have only the
first sign.  Invariant: nothing is changed, no transaction id is taken, the slot is not touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.server.position import page_floor

RELATIONS_MAX = 2000  # of more tables the counters of the whole database are read, which are one row
Counters = tuple[Any, ...]

_LOOK = """
SELECT pg_current_snapshot()::text,
       CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END::text,
       (SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %(slot)s),
       NOT pg_is_in_recovery() AND current_setting('track_counts')::boolean,
"""
_OF_TABLES = """
       (SELECT ARRAY[coalesce(sum(pg_stat_get_tuples_inserted(o) + pg_stat_get_tuples_updated(o)
                                  + pg_stat_get_tuples_deleted(o)), 0)::numeric,
                     coalesce(sum(pg_relation_filenode(o)::bigint), 0)::numeric, count(*)::numeric]
        FROM unnest(%(relations)s::oid[]) o)
"""
_OF_DATABASE = """
       (SELECT ARRAY[tup_inserted + tup_updated + tup_deleted]::numeric[]
        FROM pg_stat_database WHERE datname = current_database())
"""
_RELATIONS = """
WITH RECURSIVE published(oid) AS (
    SELECT c.oid FROM pg_publication_tables p
    JOIN pg_namespace n ON n.nspname = p.schemaname
    JOIN pg_class c ON c.relnamespace = n.oid AND c.relname = p.tablename
    WHERE p.pubname = ANY(%s)
    UNION
    SELECT inhrelid FROM pg_inherits JOIN published ON inhparent = published.oid)
SELECT oid::bigint FROM published ORDER BY 1
"""


@dataclass(frozen=True)
class Look:
    """What one look found.

    Attributes:
        snapshot: which transactions have ended.
        wal: the end of the WAL, after the commit records of these transactions.
        confirmed: the slot's position; None if there is no such slot.
        counters: of the published tables; None if the server has none.
    """

    snapshot: str
    wal: int
    confirmed: int | None
    counters: Counters | None


async def published_relations(
    connection: psycopg.AsyncConnection[Any], publications: Sequence[str]
) -> list[int]:
    """Return the object ids of the published tables and of their partitions."""
    cursor = await connection.execute(_RELATIONS.encode(), (list(publications),))
    return [int(row[0]) for row in await cursor.fetchall()]


async def look(connection: psycopg.AsyncConnection[Any], slot: str, relations: Sequence[int]) -> Look:
    """Look at the source once.

    Args:
        relations: of `published_relations`.
    """
    few = len(relations) <= RELATIONS_MAX
    query = _LOOK + (_OF_TABLES if few else _OF_DATABASE)
    parameters: dict[str, Any] = {"slot": slot, **({"relations": list(relations)} if few else {})}
    row = await (await connection.execute(query.encode(), parameters)).fetchone()
    assert row is not None
    snapshot, wal, confirmed, counts, counters = row
    return Look(
        snapshot=str(snapshot),
        wal=page_floor(parse_lsn(str(wal))),
        confirmed=None if confirmed is None else parse_lsn(str(confirmed)),
        counters=tuple(counters) if counts else None,
    )
