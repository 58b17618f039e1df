"""What the source's catalog says of a table that its stream of changes does not: identity, storage, columns.

A Relation message names columns; it says neither that a column of the same name is another one, nor that the
rows were rewritten.  The catalog does: an attribute number is never used twice in a table; a command that
changes a column writes its row of pg_attribute anew (its xmin); a command that rewrites rows gives the table
another file (relfilenode); a table that left a publication and came back is another row of
pg_publication_rel.  Invariant: nothing here is read from the future of a snapshot: inside a transaction that
imports one, these are plain queries of the catalog's tables, as of that snapshot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

_FIRST_WITH_SCHEMAS = 150000  # FOR TABLES IN SCHEMA


@dataclass(frozen=True)
class Attribute:
    """A column, or what is left of one.

    Attributes:
        number: its attribute number.
        since: the transaction that last changed its description.
        missing: rows from before the column hold a constant that is kept beside the table.
        has_default: it has a default now, an identity, or a generated value.
        constant: what those rows hold, as PostgreSQL writes it; None if that is not known.
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


@dataclass(frozen=True)
class TableMark:
    """A table as the catalog has it.

    Attributes:
        storage: its file; another one means that rows were rewritten, truncated or only moved together.
        members: what of the publications holds it: entries that are gone and back are others.
        attributes: all columns ever, by number.
    """

    relation_id: int
    schema: str
    table: str
    storage: int
    members: frozenset[str]
    attributes: Mapping[int, Attribute]

    @property
    def numbers(self) -> dict[str, int]:
        """The present columns' numbers by name."""
        return {each.name: number for number, each in self.attributes.items() if not each.dropped}


_ATTRIBUTES = """
SELECT c.oid, n.nspname, c.relname, c.relfilenode, a.attnum, a.attname, a.atttypid, a.atttypmod, a.xmin::text,
       a.atthasmissing, a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> '', a.attisdropped,
       CASE WHEN a.atthasmissing AND t.typdelim = ',' THEN (a.attmissingval::text::text[])[1] END
FROM pg_class c
JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_type t ON t.oid = a.atttypid
WHERE c.oid = ANY (%(tables)s)
"""
# A partition is published by what publishes a table above it, too.
_MEMBERS = """
WITH held AS (
    SELECT oid AS leaf, oid AS member, relnamespace FROM pg_class WHERE oid = ANY (%(tables)s)
    UNION
    SELECT c.oid, above.relid, c.relnamespace
    FROM pg_class c, pg_partition_ancestors(c.oid) above
    WHERE c.oid = ANY (%(tables)s) AND c.relispartition
), named AS (SELECT oid, puballtables FROM pg_publication WHERE pubname = ANY (%(publications)s))
SELECT leaf, 'table ' || r.oid FROM held JOIN pg_publication_rel r ON r.prrelid = member
WHERE r.prpubid IN (SELECT oid FROM named)
UNION ALL
SELECT leaf, 'all ' || named.oid FROM held, named WHERE puballtables AND leaf = member
"""
_SCHEMAS = """
UNION ALL
SELECT leaf, 'schema ' || s.oid
FROM held JOIN pg_class c ON c.oid = member JOIN pg_publication_namespace s ON s.pnnspid = c.relnamespace
WHERE s.pnpubid IN (SELECT oid FROM named)
"""


def table_marks(
    connection: psycopg.Connection[Any], tables: Collection[int], publications: Sequence[str]
) -> dict[int, TableMark]:
    """The tables with these OIDs that are there, in two queries for all of them."""
    asked = {"tables": list(tables), "publications": list(publications)}
    schemas = _SCHEMAS if connection.info.server_version >= _FIRST_WITH_SCHEMAS else ""
    members: dict[int, set[str]] = {}
    for oid, member in connection.execute((_MEMBERS + schemas).encode(), asked).fetchall():
        members.setdefault(int(oid), set()).add(str(member))
    tables_found: dict[int, tuple[str, str, int]] = {}
    attributes: dict[int, dict[int, Attribute]] = {}
    for oid, schema, table, storage, number, name, *rest in connection.execute(
        _ATTRIBUTES.encode(), asked
    ).fetchall():
        tables_found[int(oid)] = schema, table, int(storage)
        attributes.setdefault(int(oid), {})[int(number)] = Attribute(int(number), name, *rest)
    return {
        oid: TableMark(
            oid,
            schema,
            table,
            storage,
            frozenset(members.get(oid, ())),
            dict(sorted(attributes[oid].items())),
        )
        for oid, (schema, table, storage) in tables_found.items()
    }
