"""One number for what the source's catalog says of many tables: has anything of it changed since?

Each of these digests is one statement, so it sees the catalog at one moment.  It takes the rows of the
catalog's tables that the question at hand looks at, without the joins that the question itself needs: these
are what costs the server time where tables are thousands.  Of a row it takes its place and `xmin`, the
transaction that wrote it, not its fields: to print these takes twice the time of reading them.

Invariant: as long as a digest is the same, so is all that the question is answered with, under whatever
snapshot, on whatever server it is asked.  For a row of a table never changes: an UPDATE writes another, in a
place of its own, with the xmin of its transaction, which no row had that was seen before.  Two things could
break this, and have an answer of their own.  `VACUUM`, `ANALYZE` and `CREATE INDEX` write some fields of
pg_class in place: no question is about those.  And a server that crashed with `synchronous_commit = off` has
lost transactions whose numbers it gives again, as has one that was promoted or restored: each of these has
started since, or made a checkpoint when its recovery ended, so :data:`_SERVER` is in each digest.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any, TypeAlias

import psycopg

from slotlake.decoder.types.names import FIRST_NORMAL_OID

Digest: TypeAlias = tuple[str, ...]
_FIRST_WITH_LISTS = 150000  # column lists, row filters, FOR TABLES IN SCHEMA
_SERVER = """SELECT pg_catalog.pg_postmaster_start_time()::text, checkpoint_lsn::text, timeline_id::text
FROM pg_catalog.pg_control_checkpoint()"""
_MAY_ASK = "SELECT pg_catalog.has_function_privilege('pg_catalog.pg_control_checkpoint()', 'EXECUTE')"
_SUM = """(SELECT pg_catalog.count(*)::text || ':' || coalesce(pg_catalog.sum(
    pg_catalog.hash_record_extended(ROW(r.ctid, r.xmin), 1)), 0)::text FROM {rows})"""
_PUBLICATIONS = "pg_catalog.pg_publication r WHERE r.pubname = ANY (%(publications)s)"
_ENTRIES = "pg_catalog.pg_publication_rel r WHERE r.prpubid IN (SELECT oid FROM named)"
_SCHEMAS = "pg_catalog.pg_publication_namespace r WHERE r.pnpubid IN (SELECT oid FROM named)"
_NAMESPACES = "pg_catalog.pg_namespace r WHERE pg_catalog.left(r.nspname, 3) <> 'pg_'"
_NAMED = """named AS (
    SELECT oid FROM pg_catalog.pg_publication WHERE pubname = ANY (%(publications)s)
)"""
# To plan with 10,000 OIDs as a constant, once per place, takes the server a third of the whole question.
_ASKED = "asked AS (SELECT unnest(%(tables)s::oid[]) AS oid)"

# What publishes a table above a partition publishes the partition too.
_ABOVE = """above AS (
    SELECT i.inhrelid, i.inhparent, i.inhseqno, i.ctid, i.xmin FROM pg_catalog.pg_inherits i
    WHERE i.inhrelid = ANY (ARRAY(SELECT oid FROM asked))
    UNION
    SELECT i.inhrelid, i.inhparent, i.inhseqno, i.ctid, i.xmin
    FROM above a JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.inhparent
)"""
_DESCRIBED = (
    "pg_catalog.pg_attribute r WHERE r.attrelid = ANY (ARRAY(SELECT oid FROM asked)) AND r.attnum > 0",
    "pg_catalog.pg_class r WHERE r.oid = ANY (ARRAY(SELECT oid FROM asked))",
    _NAMESPACES,
    _PUBLICATIONS,
    _ENTRIES,
    "above r",
    "pg_catalog.pg_class r WHERE r.oid IN (SELECT inhparent FROM above)",
)
_DEPENDS = """pg_catalog.pg_depend r
    WHERE r.classid = 'pg_catalog.pg_class'::regclass AND r.objsubid = 0
      AND r.refclassid = 'pg_catalog.pg_namespace'::regclass AND r.refobjid IN (
          SELECT s.pnnspid FROM pg_catalog.pg_publication_namespace s
          WHERE s.pnpubid IN (SELECT oid FROM named))"""

# All that could be published, or be a partition of such a table: to tell which are takes longer.
_PUBLISHABLE = f"r.relkind IN ('r', 'p', 'f') AND r.relpersistence <> 't' AND r.oid >= {FIRST_NORMAL_OID}"
_LISTED = (
    _PUBLICATIONS,
    _ENTRIES,
    f"pg_catalog.pg_class r WHERE {_PUBLISHABLE}",
    "pg_catalog.pg_inherits r",
    _NAMESPACES,
)


def described_digest(connection: psycopg.Connection[Any], tables: str, publications: Sequence[str]) -> Digest:
    """Return the digest of all that `fingerprints.rows_of_tables` looks at.

    Args:
        tables: OIDs, as the text of an array.
    """
    parts = [*_DESCRIBED, *([_SCHEMAS, _DEPENDS] if _has_lists(connection) else [])]
    common = f"WITH RECURSIVE {_ASKED}, {_NAMED}, {_ABOVE}"
    return _digest(connection, common, parts, {"tables": tables, "publications": list(publications)})


def listed_digest(connection: psycopg.Connection[Any], publications: Sequence[str]) -> Digest:
    """Return the digest of all that `publication_tables.published_names` looks at."""
    parts = [*_LISTED, *([_SCHEMAS] if _has_lists(connection) else [])]
    return _digest(connection, f"WITH {_NAMED}", parts, {"publications": list(publications)})


def _has_lists(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.server_version >= _FIRST_WITH_LISTS


def _digest(
    connection: psycopg.Connection[Any], common: str, parts: Sequence[str], parameters: dict[str, Any]
) -> Digest:
    sums = ",\n".join(_SUM.format(rows=rows) for rows in parts)
    row = connection.execute(f"{common}\nSELECT {sums}".encode(), parameters).fetchone()
    assert row is not None
    return (*_server(connection), *map(str, row))


def _server(connection: psycopg.Connection[Any]) -> Digest:
    """What tells this life of this server from others; if that may not be asked, each is another."""
    allowed = connection.execute(_MAY_ASK).fetchone()
    row = connection.execute(_SERVER).fetchone() if allowed == (True,) else (uuid.uuid4(),)
    assert row is not None
    return tuple(map(str, row))
