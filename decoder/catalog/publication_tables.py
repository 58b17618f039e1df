"""Which tables the publications publish, read from the catalog alone, without opening (locking) any table.

The server's own view (pg_publication_tables) opens every table.  So it waits for a table that an ALTER TABLE,
also a prepared one, has locked, and it fails if a table is dropped at that moment.  Here each query sees the
catalog at one moment.  The rules are those of pg_get_publication_tables (pg_publication.c); the tests compare
with the view.  If several publications publish a partition, the one that publishes through the topmost root
decides: all changes below that root come under its name (get_rel_sync_entry, pgoutput.c).  A table below it
that another publication names gets no changes, and is not listed.

Only the text of a row filter needs more: the server opens the table to print it.  Invariant: the text is
either read, or replaced by `UNREAD_FILTER`, with which every query fails, so that nobody uses it by mistake.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import psycopg

from slotlake.decoder.errors import SourceUnavailableError
from slotlake.decoder.types.names import FIRST_NORMAL_OID

_FIRST_WITH_LISTS = 150000  # column lists, row filters, FOR TABLES IN SCHEMA
_FIRST_WITH_GENERATED = 180000  # generated columns can be published
_FIRST_WITH_EXCEPT = 190000  # FOR ALL TABLES EXCEPT
_FILTER_LOCK_MILLISECONDS = 200
UNREAD_FILTER = '"the row filter of a locked table"'

# Tables that nobody can open now: a session that waits for ACCESS EXCLUSIVE makes all later ones wait.
LOCKED = """locked AS MATERIALIZED (
    SELECT relation FROM pg_catalog.pg_locks
    WHERE locktype = 'relation' AND mode = 'AccessExclusiveLock'
      AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database())
)"""
# Below a partitioned table: its partitions that have rows. `root` gives oid and relkind.
LEAVES = """tree AS (
    SELECT oid AS root, oid AS relid, relkind FROM root WHERE relkind = 'p'
    UNION ALL
    SELECT t.root, c.oid, c.relkind
    FROM tree t JOIN pg_catalog.pg_inherits i ON i.inhparent = t.relid AND NOT i.inhdetachpending
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE t.relkind = 'p'
), leaf AS (
    SELECT oid AS root, oid AS relid FROM root WHERE relkind <> 'p'
    UNION ALL
    SELECT root, relid FROM tree WHERE relkind <> 'p'
)"""

PUBLISHABLE = f"c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= {FIRST_NORMAL_OID}"
_IN_SCHEMAS = f"""
    UNION
    SELECT p.oid, p.pubviaroot, c.oid, c.relkind
    FROM pub p JOIN pg_catalog.pg_publication_namespace s ON s.pnpubid = p.oid
    JOIN pg_catalog.pg_class c ON c.relnamespace = s.pnnspid
    WHERE NOT p.puballtables AND {PUBLISHABLE}"""
_LISTED = """WITH RECURSIVE pub AS (
    SELECT * FROM pg_catalog.pg_publication WHERE pubname = ANY (%(publications)s)
), named AS (
    SELECT p.oid AS pub, p.pubviaroot, c.oid AS relid, c.relkind
    FROM pub p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
    JOIN pg_catalog.pg_class c ON c.oid = r.prrelid
    WHERE NOT p.puballtables{schemas}
), below AS (
    SELECT pub, relid, relkind FROM named WHERE NOT pubviaroot
    UNION
    SELECT b.pub, c.oid, c.relkind
    FROM below b JOIN pg_catalog.pg_inherits i ON i.inhparent = b.relid AND NOT i.inhdetachpending
    JOIN pg_catalog.pg_class c ON c.oid = i.inhrelid
    WHERE b.relkind = 'p'
), above AS (
    SELECT pub, relid AS named, relid FROM named WHERE pubviaroot
    UNION
    SELECT a.pub, a.named, i.inhparent
    FROM above a JOIN pg_catalog.pg_class c ON c.oid = a.relid AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.relid
), entry AS (
    SELECT b.pub, b.relid FROM below b JOIN pg_catalog.pg_class c ON c.oid = b.relid AND {publishable}
    WHERE b.relkind = 'r'
    UNION
    SELECT n.pub, n.relid FROM named n
    WHERE n.pubviaroot AND NOT EXISTS (
        SELECT FROM above a JOIN named o ON o.pub = a.pub AND o.relid = a.relid
        WHERE a.pub = n.pub AND a.named = n.relid AND a.relid <> n.relid)
    UNION
    SELECT p.oid, c.oid FROM pub p JOIN pg_catalog.pg_class c ON {publishable}
    WHERE p.puballtables AND CASE WHEN p.pubviaroot THEN NOT c.relispartition ELSE c.relkind = 'r' END{except}
), climb AS (
    SELECT relid AS low, relid FROM entry
    UNION
    SELECT b.low, i.inhparent
    FROM climb b JOIN pg_catalog.pg_class c ON c.oid = b.relid AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = b.relid AND NOT i.inhdetachpending
), listed AS (
    SELECT pub, relid FROM entry e WHERE NOT EXISTS (
        SELECT FROM climb b JOIN entry o ON o.relid = b.relid WHERE b.low = e.relid AND b.relid <> e.relid)
)"""
_NAMES = """
SELECT DISTINCT n.nspname, c.relname
FROM listed l JOIN pg_catalog.pg_class c ON c.oid = l.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
"""
# A copy reads these with their root; they have no WAL.
_UNSENT = f"""
, root AS (
    SELECT DISTINCT c.oid, c.relkind
    FROM listed l JOIN pg_catalog.pg_class c ON c.oid = l.relid AND c.relkind = 'p'
), {LEAVES}, partition AS (
    SELECT root, relid FROM leaf
    UNION
    SELECT NULL, relid FROM below WHERE relkind <> 'p'
)
SELECT DISTINCT n.nspname, c.relname, c.relkind = 'f', rn.nspname, r.relname
FROM partition p JOIN pg_catalog.pg_class c ON c.oid = p.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_class r ON r.oid = p.root
LEFT JOIN pg_catalog.pg_namespace rn ON rn.oid = r.relnamespace
WHERE c.relkind = 'f' OR c.relpersistence <> 'p'
ORDER BY 1, 2
"""
_TABLES = """
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, {attnames}, {filter}, p.pubupdate, p.pubdelete
FROM listed l
JOIN pub p ON p.oid = l.pub
JOIN pg_catalog.pg_class c ON c.oid = l.relid
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
{entry}
ORDER BY n.nspname, c.relname, p.pubname
"""
# A publication's column list and filter for a table do not count if it also publishes the table's schema.
_ENTRY = """LEFT JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
     AND NOT p.puballtables AND NOT EXISTS (
         SELECT FROM pg_catalog.pg_publication_namespace s
         WHERE s.pnpubid = p.oid AND s.pnnspid = c.relnamespace)"""
# No column at all, as of a table with nothing but generated ones, is an empty array; NULL would mean all.
_ATTNAMES = """(SELECT coalesce(pg_catalog.array_agg(a.attname::text ORDER BY a.attnum), '{{}}')
        FROM pg_catalog.pg_attribute a
        WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
          AND CASE WHEN r.prattrs IS NULL THEN {unlisted} ELSE a.attnum = ANY (r.prattrs) END)"""
_UNLISTED = "a.attgenerated = ''"
_UNLISTED_GENERATED = "(a.attgenerated = '' OR a.attgenerated = 's' AND p.pubgencols = 's')"
_HAS_FILTER = "CASE WHEN r.prqual IS NOT NULL THEN r.oid END"

_FILTERS = """
SELECT r.oid, pg_catalog.pg_get_expr(r.prqual, r.prrelid) FROM pg_catalog.pg_publication_rel r
WHERE r.oid = ANY (%s)
"""
_NOT_LOCKED = f"""WITH {LOCKED}
SELECT r.oid FROM pg_catalog.pg_publication_rel r
WHERE r.oid = ANY (%s) AND r.prrelid NOT IN (SELECT relation FROM locked)
"""


def published_names(connection: psycopg.Connection[Any], names: Sequence[str]) -> set[tuple[str, str]]:
    """Schema and name of every table that these publications publish."""
    query = _listed(connection) + _NAMES
    rows = connection.execute(query.encode(), {"publications": list(names)})
    return {(str(schema), str(table)) for schema, table in rows.fetchall()}


def published_rows(connection: psycopg.Connection[Any], names: Sequence[str]) -> list[list[Any]]:
    """A row per table and publication, by schema, name and publication.

    OID, schema, name, relkind, relreplident, column names (None: all), row filter, pubupdate, pubdelete.
    """
    version = connection.info.server_version
    lists = version >= _FIRST_WITH_LISTS
    unlisted = _UNLISTED_GENERATED if version >= _FIRST_WITH_GENERATED else _UNLISTED
    query = _listed(connection) + _TABLES.format(
        attnames=_ATTNAMES.format(unlisted=unlisted) if lists else "NULL",
        filter=_HAS_FILTER if lists else "NULL",
        entry=_ENTRY if lists else "",
    )
    rows = [list(r) for r in connection.execute(query.encode(), {"publications": list(names)}).fetchall()]
    filters = _filters(connection, [row[6] for row in rows if row[6] is not None])
    for row in rows:
        row[6] = None if row[6] is None else filters.get(row[6], UNREAD_FILTER)
    return rows


def unsent_partitions(
    connection: psycopg.Connection[Any], names: Sequence[str]
) -> list[tuple[tuple[str, str], bool, tuple[str, str] | None]]:
    """Find partitions of published tables of which the server sends nothing.

    Returns:
        Schema and name; whether it is a foreign table, else it is unlogged; and the published table whose
        copy reads it, None if it would be published under its own name.
    """
    query = _listed(connection) + _UNSENT
    rows = connection.execute(query.encode(), {"publications": list(names)}).fetchall()
    return [
        ((str(schema), str(table)), bool(foreign), None if root is None else (str(root_schema), str(root)))
        for schema, table, foreign, root_schema, root in rows
    ]


def require_filter(row_filter: str | None, table: str) -> None:
    """Check that a table's row filter could be read.

    Raises:
        SourceUnavailableError: the table is locked, so the filter is unknown.
    """
    if row_filter is not None and UNREAD_FILTER in row_filter:
        raise SourceUnavailableError(
            f"the row filter of {table} cannot be read now: the table is locked",
            where=f"table {table}",
            way_out="an open transaction, perhaps a prepared one, holds the lock (ALTER TABLE, LOCK TABLE): "
            "end it (see pg_locks, pg_prepared_xacts), then run the same command again",
        )


def _listed(connection: psycopg.Connection[Any]) -> str:
    schemas = _IN_SCHEMAS if connection.info.server_version >= _FIRST_WITH_LISTS else ""
    return _LISTED.format(
        schemas=schemas, publishable=PUBLISHABLE, **{"except": not_excepted(connection, "p", "c")}
    )


def not_excepted(connection: psycopg.Connection[Any], publication: str, table: str) -> str:
    """Return the condition that a publication of all tables does not except a table, or a root above it.

    Args:
        connection: to the source, whose version decides.
    """
    if connection.info.server_version < _FIRST_WITH_EXCEPT:
        return ""
    return f""" AND NOT EXISTS (
        SELECT FROM pg_catalog.pg_publication_rel x
        WHERE x.prpubid = {publication}.oid AND x.prexcept AND (x.prrelid = {table}.oid
            OR x.prrelid IN (SELECT relid FROM pg_catalog.pg_partition_ancestors({table}.oid))))"""


def _filters(connection: psycopg.Connection[Any], entries: Collection[int]) -> dict[int, str]:
    """The filters' texts by entry of pg_publication_rel, for those tables that can be opened now."""
    if not entries:
        return {}
    rows = connection.execute(_NOT_LOCKED.encode(), (list(entries),)).fetchall()
    free = [int(oid) for (oid,) in rows]
    texts_by_entry = _texts(connection, free)
    if texts_by_entry is None:  # a table was locked after the first query
        one_by_one = [_texts(connection, [oid]) or {} for oid in free]
        texts_by_entry = {oid: text for texts in one_by_one for oid, text in texts.items()}
    return texts_by_entry


def _texts(connection: psycopg.Connection[Any], entries: list[int]) -> dict[int, str] | None:
    """The texts of these filters; None if one of the tables is locked."""
    set_wait = "SELECT pg_catalog.set_config('lock_timeout', %s, true)"
    try:
        with connection.transaction():
            usual = connection.execute("SELECT pg_catalog.current_setting('lock_timeout')").fetchone()
            connection.execute(set_wait, [str(_FILTER_LOCK_MILLISECONDS)])
            rows = connection.execute(_FILTERS.encode(), (entries,)).fetchall()
            connection.execute(set_wait, usual)  # for a transaction around this one
    except psycopg.errors.LockNotAvailable:
        return None
    return {int(oid): str(text) for oid, text in rows if text is not None}
