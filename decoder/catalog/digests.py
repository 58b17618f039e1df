"""One number for what the source's catalog says of many tables: has anything of it changed since?

Each of these digests is one statement, so it sees the catalog at one moment.  It takes every field of every
row of the catalog's tables that the question at hand looks at, as they are stored, without the joins that the
question itself needs: these are what costs the server time where tables are thousands.

Invariant: a digest stands for content.  What the question is answered with is made of the fields that are in
its digest, and of nothing else that can change while they stay: so as long as the digest is the same, the
answer is, under whatever snapshot, on whatever server it is asked.  A row's digest is that of the text of the
row as a whole: sums of digests of single fields would not show names that were swapped.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import psycopg

from slotlake.decoder.types.names import FIRST_NORMAL_OID

Digest: TypeAlias = tuple[str, ...]
_FIRST_WITH_LISTS = 150000  # column lists, row filters, FOR TABLES IN SCHEMA
_SUM = """(SELECT pg_catalog.count(*)::text || ':' || coalesce(pg_catalog.sum(
    pg_catalog.hashtextextended(ROW({fields})::text COLLATE "C", 1)), 0)::text FROM {rows})"""
_PUBLICATIONS = (
    """p.oid, p.pubname, p.xmin, p.puballtables, p.pubviaroot,
    p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate""",
    "pg_catalog.pg_publication p WHERE p.pubname = ANY (%(publications)s)",
)
_ENTRIES = "pg_catalog.pg_publication_rel r WHERE r.prpubid IN (SELECT oid FROM named)"
_SCHEMAS = (
    "s.oid, s.pnpubid, s.pnnspid",
    "pg_catalog.pg_publication_namespace s WHERE s.pnpubid IN (SELECT oid FROM named)",
)
_NAMESPACES = "n.oid, n.nspname", "pg_catalog.pg_namespace n WHERE pg_catalog.left(n.nspname, 3) <> 'pg_'"
_NAMED = """named AS (
    SELECT oid, puballtables FROM pg_catalog.pg_publication WHERE pubname = ANY (%(publications)s)
)"""

# What publishes a table above a partition publishes the partition too.
_ABOVE = """above AS (
    SELECT i.inhrelid, i.inhparent, i.inhseqno, i.inhdetachpending FROM pg_catalog.pg_inherits i
    WHERE i.inhrelid = ANY (%(tables)s::oid[])
    UNION
    SELECT i.inhrelid, i.inhparent, i.inhseqno, i.inhdetachpending
    FROM above a JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.inhparent
)"""
# Of a type, `rows_of_tables` looks at typdelim too, which nothing changes.
_DESCRIBED = (
    (
        """a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.xmin, a.atthasmissing, a.atthasdef,
        a.attidentity, a.attgenerated, a.attisdropped,
        CASE WHEN a.atthasmissing THEN a.attmissingval::text END""",
        "pg_catalog.pg_attribute a WHERE a.attrelid = ANY (%(tables)s::oid[]) AND a.attnum > 0",
    ),
    (
        "c.oid, c.relname, c.relnamespace, c.relfilenode, c.relkind, c.relispartition",
        "pg_catalog.pg_class c WHERE c.oid = ANY (%(tables)s::oid[])",
    ),
    _NAMESPACES,
    _PUBLICATIONS,
    ("a.inhrelid, a.inhparent, a.inhseqno, a.inhdetachpending", "above a"),
    ("c.oid, c.relnamespace", "pg_catalog.pg_class c WHERE c.oid IN (SELECT inhparent FROM above)"),
)
_PUBLISHED_SCHEMAS = """
    SELECT s.pnnspid FROM pg_catalog.pg_publication_namespace s
    WHERE s.pnpubid IN (SELECT oid FROM named)"""
_DEPENDS = (
    "d.objid, d.refobjid, d.xmin",
    f"""pg_catalog.pg_depend d
    WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objsubid = 0
      AND d.refclassid = 'pg_catalog.pg_namespace'::regclass AND d.refobjid IN ({_PUBLISHED_SCHEMAS})""",
)

# Of a table that is neither named, nor in a tree of partitions, nor published with others, nothing is listed.
_CLASSES = "c.oid, c.relname, c.relnamespace, c.relkind, c.relpersistence, c.relispartition"
_PUBLISHABLE = f"c.relkind IN ('r', 'p') AND c.relpersistence = 'p' AND c.oid >= {FIRST_NORMAL_OID}"
_LISTED = (
    _PUBLICATIONS,
    ("r.prpubid, r.prrelid", _ENTRIES),
    (_CLASSES, f"pg_catalog.pg_class c WHERE c.oid IN (SELECT r.prrelid FROM {_ENTRIES})"),
    (
        _CLASSES,
        f"""pg_catalog.pg_class c
        WHERE EXISTS (SELECT FROM named WHERE puballtables) AND {_PUBLISHABLE}""",
    ),
    ("i.inhrelid, i.inhparent, i.inhdetachpending", "pg_catalog.pg_inherits i"),
    (
        _CLASSES,
        """pg_catalog.pg_class c
        WHERE c.oid IN (SELECT inhrelid FROM pg_catalog.pg_inherits UNION ALL
                        SELECT inhparent FROM pg_catalog.pg_inherits)""",
    ),
    _NAMESPACES,
)
_OF_SCHEMAS = (
    _CLASSES,
    f"""pg_catalog.pg_class c
    WHERE EXISTS ({_PUBLISHED_SCHEMAS}) AND c.relnamespace IN ({_PUBLISHED_SCHEMAS}) AND {_PUBLISHABLE}""",
)


def described_digest(connection: psycopg.Connection[Any], tables: str, publications: Sequence[str]) -> Digest:
    """Return the digest of all that `fingerprints.rows_of_tables` looks at.

    Args:
        connection: to the source.
        tables: OIDs, as the text of an array.
        publications: names of the publications that count.
    """
    parts = list(_DESCRIBED)
    if _has_lists(connection):
        parts += [("r.oid, r.prpubid, r.prrelid, r.prqual IS NULL, r.prattrs IS NULL", _ENTRIES)]
        parts += [_SCHEMAS, _DEPENDS]
    else:
        parts += [("r.oid, r.prpubid, r.prrelid", _ENTRIES)]
    common = f"WITH RECURSIVE {_NAMED}, {_ABOVE}"
    return _digest(connection, common, parts, {"tables": tables, "publications": list(publications)})


def listed_digest(connection: psycopg.Connection[Any], publications: Sequence[str]) -> Digest:
    """Return the digest of all that `publication_tables.published_names` looks at.

    Args:
        connection: to the source.
        publications: names of the publications.
    """
    parts = [*_LISTED, *([_SCHEMAS, _OF_SCHEMAS] if _has_lists(connection) else [])]
    return _digest(connection, f"WITH {_NAMED}", parts, {"publications": list(publications)})


def _has_lists(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.server_version >= _FIRST_WITH_LISTS


def _digest(
    connection: psycopg.Connection[Any],
    common: str,
    parts: Sequence[tuple[str, str]],
    parameters: dict[str, Any],
) -> Digest:
    sums = ",\n".join(_SUM.format(fields=fields, rows=rows) for fields, rows in parts)
    row = connection.execute(f"{common}\nSELECT {sums}".encode(), parameters).fetchone()
    assert row is not None
    return tuple(map(str, row))
