"""What the source's catalog says about a table and the stream does not: identity, storage, columns.

A Relation message names columns.  It does not show that a column of the same name is a new one, or that the
rows were rewritten.  The catalog shows both:

- An attribute number is never used twice in a table.
- A command that changes a column writes a new version of its row of pg_attribute (its xmin).
- A command that rewrites rows gives the table another file (relfilenode).
- ALTER TABLE, where it rewrites rows, also gives it another TOAST table.  VACUUM FULL, CLUSTER, TRUNCATE and
  SET TABLESPACE keep that one (tablecmds.c, ATRewriteTables; cluster.c, copy_table_data: swapped by content).
- A table that left a publication and came back has another row in pg_publication_rel.
- A publication whose options changed has a new version of its row of pg_publication.
- A table that was moved to another schema has a new version of its dependency on the schema (pg_depend).

The last two are visible even if the change was undone.  Invariant: nothing here is newer than the snapshot:
in a transaction that imports one, these are plain queries of the catalog's tables, as of that snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psycopg

from slotlake.decoder.catalog.publication_tables import not_excepted
from slotlake.decoder.catalog.type_texts import printed_by

WHOLE = "*"
_FIRST_WITH_SCHEMAS = 150000  # FOR TABLES IN SCHEMA, column lists, row filters


@dataclass(frozen=True)
class Attribute:
    """A column, also a dropped one.

    Attributes:
        number: its attribute number.
        since: the transaction that last changed its description.
        missing: rows older than the column show a constant that the catalog stores (attmissingval).
        has_default: it has a default now, an identity, or a generated value.
        constant: that constant, as PostgreSQL writes it; None if it is not known.
        generated: its value is computed from others; such a column may be there and not be published.
        texts: what decides how values of its type are printed (`decoder.catalog.type_texts`).
    """

    number: int
    name: str
    type_oid: int
    typmod: int
    since: str
    missing: bool
    has_default: bool
    dropped: bool
    constant: str | None = None
    generated: bool = False
    texts: frozenset[str] = frozenset()


@dataclass(frozen=True)
class TableFingerprint:
    """A table as the catalog describes it.

    Attributes:
        storage: its file; another file means that rows were rewritten, truncated or only compacted.
        toast: OID of its TOAST table; 0 if it has none.
        members: the entries of the publications that publish it; an entry that was removed and added again
            is another entry.
        ways: per entry, how it publishes the table.  The text differs if this changed, also if it changed
            back.  It ends in `WHOLE` if the entry publishes every change of every row and column under the
            table's own name, whatever other entries do.
        attributes: all columns that the table ever had, by number.
    """

    relation_id: int
    schema: str
    table: str
    storage: int
    members: frozenset[str]
    attributes: Mapping[int, Attribute]
    ways: Mapping[str, str] = field(default_factory=dict)
    toast: int = 0

    @property
    def numbers(self) -> dict[str, int]:
        """The present columns' numbers by name."""
        return {each.name: number for number, each in self.attributes.items() if not each.dropped}


_ATTRIBUTES = """
SELECT c.oid, n.nspname, c.relname, c.relfilenode, a.attnum, a.attname, a.atttypid, a.atttypmod, a.xmin::text,
       a.atthasmissing, a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '', a.attisdropped,
       CASE WHEN a.atthasmissing AND t.typdelim = ',' THEN (a.attmissingval::text::text[])[1] END,
       a.attgenerated <> '', c.reltoastrelid
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_type t ON t.oid = a.atttypid
WHERE c.oid = ANY (%(tables)s)
"""
# What publishes a table above a partition publishes the partition too; all of them together decide under
# which name.
_MEMBERS = """
WITH held AS (
    SELECT oid AS leaf, oid AS member, relkind = 'r' AND NOT relispartition AS alone
    FROM pg_class WHERE oid = ANY (%(tables)s)
    UNION
    SELECT c.oid, above.relid, false
    FROM pg_class c, pg_partition_ancestors(c.oid) above
    WHERE c.oid = ANY (%(tables)s) AND c.relispartition
), named AS (
    SELECT oid, puballtables, xmin::text AS since,
           pubinsert AND pubupdate AND pubdelete AND pubtruncate AS every
    FROM pg_publication WHERE pubname = ANY (%(publications)s))
SELECT leaf, 'table ' || r.oid, p.since || CASE WHEN alone AND every{whole} THEN %(mark)s ELSE '' END
FROM held JOIN pg_publication_rel r ON r.prrelid = member JOIN named p ON p.oid = r.prpubid
WHERE NOT p.puballtables
UNION ALL
SELECT leaf, 'all ' || p.oid, p.since || CASE WHEN alone AND every THEN %(mark)s ELSE '' END
FROM held, named p, pg_class c WHERE puballtables AND leaf = member AND c.oid = leaf{except}
"""
_WITHOUT_LISTS = " AND r.prqual IS NULL AND r.prattrs IS NULL"
_SCHEMAS = """
UNION ALL
SELECT leaf, 'schema ' || s.oid, p.since || '/' || coalesce(
           (SELECT d.xmin::text FROM pg_depend d
            WHERE d.classid = 'pg_catalog.pg_class'::regclass AND d.objid = member AND d.objsubid = 0
              AND d.refclassid = 'pg_catalog.pg_namespace'::regclass AND d.refobjid = c.relnamespace
            LIMIT 1), '')
       || CASE WHEN alone AND every THEN %(mark)s ELSE '' END
FROM held JOIN pg_class c ON c.oid = member JOIN pg_publication_namespace s ON s.pnnspid = c.relnamespace
JOIN named p ON p.oid = s.pnpubid
"""


def table_fingerprints(
    connection: psycopg.Connection[Any], tables: Collection[int], publications: Sequence[str]
) -> dict[int, TableFingerprint]:
    """Return what the catalog says about those tables that exist, with two or three queries for all."""
    attributes_query, members_query, parameters = rows_of_tables(connection, tables, publications)
    ways: dict[int, dict[str, str]] = {}
    for oid, member, way in connection.execute(members_query.encode(), parameters).fetchall():
        ways.setdefault(int(oid), {})[str(member)] = str(way)
    names: dict[int, tuple[str, str, int, int]] = {}
    attributes: dict[int, dict[int, Attribute]] = {}
    rows = connection.execute(attributes_query.encode(), parameters).fetchall()
    texts = printed_by(connection, {row[6] for row in rows})
    for oid, schema, table, storage, number, name, type_oid, *rest, toast in rows:
        names[int(oid)] = schema, table, int(storage), int(toast)
        printed = texts.get(type_oid, frozenset())
        described = Attribute(*[int(number), name, type_oid, *rest, printed])
        attributes.setdefault(int(oid), {})[int(number)] = described
    return {
        oid: TableFingerprint(
            oid,
            schema,
            table,
            storage,
            frozenset(ways.get(oid, ())),
            dict(sorted(attributes[oid].items())),
            ways.get(oid, {}),
            toast,
        )
        for oid, (schema, table, storage, toast) in names.items()
    }


def rows_of_tables(
    connection: psycopg.Connection[Any], tables: Collection[int], publications: Sequence[str]
) -> tuple[str, str, dict[str, Any]]:
    """Return the query of the columns, that of the publications' entries, and their parameters.

    Besides the texts of types (`decoder.catalog.type_texts`), a `TableFingerprint` is made of nothing else.
    The first column of either is the table's OID.

    Args:
        connection: to the source, whose version decides.
    """
    lists = connection.info.server_version >= _FIRST_WITH_SCHEMAS
    excepted = {"except": not_excepted(connection, "p", "c")}
    members = _MEMBERS.format(whole=_WITHOUT_LISTS if lists else "", **excepted) + (_SCHEMAS if lists else "")
    return (
        _ATTRIBUTES,
        members,
        {"tables": list(tables), "publications": list(publications), "mark": WHOLE},
    )
