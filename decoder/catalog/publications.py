"""What the publications publish: tables, columns, filters, and whether the stream of each table can work.

The rules are the server's own (column lists, row filters, partition roots; publication_tables.py), so that
the initial copy and the stream have the same rows and columns.  Invariant: columns come in the order in which
the stream sends them, by attribute number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.key_index import ENFORCED
from slotlake.decoder.catalog.publication_tables import (
    PUBLISHABLE,
    published_names,
    published_rows,
    unsent_partitions,
)
from slotlake.decoder.errors import SourceError
from slotlake.decoder.types.table import type_name

_FIRST_WITH_GENERATED = 180000  # generated columns can be published


@dataclass(frozen=True)
class SourceColumn:
    """A published column.

    Attributes:
        in_key: part of the replica identity.
        has_default: rows that are older than the column may have other values than NULL in it (from a
            default, also one that applies to old rows only; an identity; a generated value).
    """

    name: str
    type_oid: int
    typmod: int
    type_name: str
    not_null: bool
    in_key: bool
    has_default: bool = False


@dataclass(frozen=True)
class SourceTable:
    """A published table.

    Attributes:
        relation_id: its OID.
        kind: 'r' table, 'p' partitioned table published through its root.
        replica_identity: d (default), n (nothing), f (full) or i (index).
        primary_key: its columns; () if no primary key is enforced at every moment
            (`decoder.catalog.key_index`), or if not all its columns are published.
        key: columns that identify a row in the stream: under an index identity the index's, else the
            primary key; () when there are none.
        row_filter: SQL over the table's columns (several publications' filters OR'ed), None for all rows;
            with `publication_tables.UNREAD_FILTER` if the table is locked.
        updates, deletes: whether a publication publishes these.
    """

    relation_id: int
    schema: str
    table: str
    kind: str
    replica_identity: str
    columns: tuple[SourceColumn, ...]
    primary_key: tuple[str, ...]
    key: tuple[str, ...]
    row_filter: str | None
    updates: bool
    deletes: bool

    @property
    def quoted(self) -> str:
        """The name, quoted as in SQL."""
        return sql.Identifier(self.schema, self.table).as_string(None)

    @property
    def keyless(self) -> bool:
        """Updates or deletes are published, but nothing identifies a row: the source refuses them."""
        return (self.updates or self.deletes) and self.replica_identity != "f" and not self.key


@dataclass(frozen=True)
class TableWarning:
    """A published table on which statements of the source will fail; ``table`` is quoted as in SQL."""

    table: str
    what: str
    way_out: str


def missing_publications(connection: psycopg.Connection[Any], names: Sequence[str]) -> list[str]:
    """The names for which the connected database has no publication."""
    rows = connection.execute("SELECT pubname FROM pg_publication WHERE pubname = ANY (%s)", (list(names),))
    present = {str(row[0]) for row in rows.fetchall()}
    return [name for name in names if name not in present]


def check_publications(connection: psycopg.Connection[Any], names: Sequence[str]) -> None:
    """Check that all publications exist: from PostgreSQL 18 on the stream silently lacks their tables.

    Raises:
        SourceError: one is missing.
    """
    missing = missing_publications(connection, names)
    if missing:
        raise SourceError(
            f"the source has no publication {', '.join(map(repr, missing))}",
            where="source.publications",
            way_out="CREATE PUBLICATION … FOR TABLE … before the slot is created, or let `slotlake init` "
            "create it from `tables`. If the publication was dropped, create it and run `slotlake recover`: "
            "the stream lacks the changes made while it did not exist",
        )


def create_publication(
    connection: psycopg.Connection[Any],
    name: str,
    tables: Sequence[tuple[str, str]],
    *,
    through_root: bool = True,
) -> None:
    """Create a publication of these (schema, table) pairs.

    Args:
        through_root: changes of partitions are sent as those of the table that is named.

    Raises:
        SourceError: no table is named, one does not exist, or the role may not publish it.
    """
    if not tables:
        raise SourceError(
            f"the publication {name!r} does not exist, and the pipeline file names no tables to publish",
            where="source.publications",
            way_out="name tables in the section `tables`, or CREATE PUBLICATION at the source",
        )
    listed = sql.SQL(", ").join(sql.Identifier(schema, table) for schema, table in tables)
    how = " WITH (publish_via_partition_root = true)" if through_root else ""
    command = sql.SQL("CREATE PUBLICATION {} FOR TABLE {}" + how).format(sql.Identifier(name), listed)
    try:
        connection.execute(command)
    except (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName) as error:
        raise SourceError(
            f"the publication {name!r} cannot be created: {error.diag.message_primary}",
            where="section `tables` of the pipeline file",
            way_out="correct the table's name (with its schema, as schema.table)",
        ) from None
    except psycopg.errors.ReadOnlySqlTransaction:
        raise SourceError(
            f"the publication {name!r} cannot be created on a standby",
            where="source.dsn",
            way_out="run CREATE PUBLICATION on the primary; the standby gets it from there",
        ) from None
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"the publication {name!r} cannot be created: {error.diag.message_primary}",
            where="the role in source.dsn",
            way_out="ask a superuser, or the tables' owner (who needs CREATE on the database), to run what "
            "`slotlake init PIPELINE.yaml --print-sql` prints; then run the same command again",
        ) from None
    except psycopg.errors.InvalidParameterValue as error:
        raise SourceError(
            f"the publication {name!r} cannot be created: {error.diag.message_primary}",
            where="section `tables` of the pipeline file",
            way_out="remove what cannot be published (views, foreign, temporary and unlogged tables)",
        ) from None


def source_tables(
    connection: psycopg.Connection[Any],
    publications: Sequence[str],
    only: Collection[tuple[str, str]] | None = None,
) -> list[SourceTable]:
    """All tables that these publications publish, by schema and name.

    Raises:
        SourceError: a publication is missing, or two disagree on a table's columns.
    """
    check_publications(connection, publications)
    with one_moment(connection):
        return _source_tables(connection, publications, only)


def publishable_tables(connection: psycopg.Connection[Any]) -> list[SourceTable]:
    """All tables that could be published, each as if it were published whole; partitions under their root."""
    with one_moment(connection):
        rows = [list(row) for row in connection.execute(_PUBLISHABLE.encode()).fetchall()]
        columns = _columns(connection, [int(row[0]) for row in rows])
    return [_table([row], columns.get(int(row[0]), [])) for row in rows]


# The fields of `published_rows`.
_PUBLISHABLE = f"""
SELECT c.oid, n.nspname, c.relname, c.relkind, c.relreplident, NULL, NULL, true, true
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE {PUBLISHABLE} AND NOT c.relispartition
ORDER BY n.nspname, c.relname
"""


@contextmanager
def one_moment(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Let all queries in the block see the catalog at one moment, or a table may be dropped in between."""
    if connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
        yield
        return
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def _source_tables(
    connection: psycopg.Connection[Any],
    publications: Sequence[str],
    only: Collection[tuple[str, str]] | None,
) -> list[SourceTable]:
    rows_by_table: dict[int, list[list[Any]]] = {}
    for row in published_rows(connection, publications):
        if only is None or (row[1], row[2]) in only:
            rows_by_table.setdefault(int(row[0]), []).append(row)
    columns = _columns(connection, list(rows_by_table))
    return [_table(rows, columns.get(oid, [])) for oid, rows in rows_by_table.items()]


def _columns(connection: psycopg.Connection[Any], oids: list[int]) -> dict[int, list[tuple[Any, ...]]]:
    """The columns of all these tables, by one query: a thousand tables must not cost a thousand queries."""
    generated = connection.info.server_version >= _FIRST_WITH_GENERATED
    parameters = {"tables": oids, "generated": generated}
    by_table: dict[int, list[tuple[Any, ...]]] = {}
    for oid, *column in connection.execute(_COLUMNS.encode(), parameters).fetchall():
        by_table.setdefault(int(oid), []).append(tuple(column))
    return by_table


_COLUMNS = (
    f"""
WITH keys AS MATERIALIZED (
    SELECT i.indrelid, i.indkey, i.indisprimary, i.indisreplident FROM pg_index i
    WHERE i.indrelid = ANY (%(tables)s) AND (i.indisprimary OR i.indisreplident) AND {ENFORCED}
)"""
    """
SELECT a.attrelid, a.attname, a.atttypid, a.atttypmod, a.attnotnull, bn.nspname, bt.typname,
       coalesce(a.attnum = ANY (pk.indkey), false), coalesce(a.attnum = ANY (ri.indkey), false),
       a.atthasmissing OR a.atthasdef OR a.attidentity <> '' OR a.attgenerated <> ''
FROM pg_attribute a
JOIN pg_type ty ON ty.oid = a.atttypid
JOIN pg_type bt ON bt.oid = CASE WHEN ty.typtype = 'd' THEN ty.typbasetype ELSE ty.oid END
JOIN pg_namespace bn ON bn.oid = bt.typnamespace
LEFT JOIN keys pk ON pk.indrelid = a.attrelid AND pk.indisprimary
LEFT JOIN keys ri ON ri.indrelid = a.attrelid AND ri.indisreplident
WHERE a.attrelid = ANY (%(tables)s) AND a.attnum > 0 AND NOT a.attisdropped
  AND (a.attgenerated = '' OR %(generated)s)
ORDER BY a.attrelid, a.attnum
"""
)


def _table(rows: list[list[Any]], columns: list[tuple[Any, ...]]) -> SourceTable:
    oid, schema, name, kind, identity, *_ = rows[0]
    attnames = rows[0][5]
    if any(row[5] != attnames for row in rows):
        quoted = sql.Identifier(schema, name).as_string(None)
        raise SourceError(
            f"the publications have different column lists for {quoted}",
            where=f"source.publications, table {quoted}",
            way_out="give the table the same column list in all of them (the server refuses this too)",
        )
    filters = [row[6] for row in rows]
    published = [column for column in columns if attnames is None or column[0] in attnames]
    primary = _whole([str(c[0]) for c in columns if c[6]], published)
    index = _whole([str(c[0]) for c in columns if c[7]], published)
    return SourceTable(
        relation_id=int(oid),
        schema=schema,
        table=name,
        kind=kind,
        replica_identity=identity,
        columns=tuple(_column(column, identity) for column in published),
        primary_key=primary,
        key=index if identity == "i" else primary,
        row_filter=None if None in filters else " OR ".join(f"({each})" for each in dict.fromkeys(filters)),
        updates=any(row[7] for row in rows),
        deletes=any(row[8] for row in rows),
    )


def _whole(key: list[str], published: list[tuple[Any, ...]]) -> tuple[str, ...]:
    names = {column[0] for column in published}
    return tuple(key) if names.issuperset(key) else ()


def _column(row: tuple[Any, ...], identity: str) -> SourceColumn:
    name, oid, typmod, not_null, type_schema, type_named, primary, index, default = row
    in_key = {"d": primary, "i": index, "f": True}.get(identity, False)
    named = type_name(int(oid)) or f"{type_schema}.{type_named}"
    return SourceColumn(name, int(oid), int(typmod), named, bool(not_null), bool(in_key), bool(default))


def unfit_tables(tables: Sequence[SourceTable]) -> list[TableWarning]:
    """Tables whose updates and deletes the source itself refuses, or whose key is not published."""
    return [
        TableWarning(
            table.quoted,
            "it has no key (a deferrable key does not count), and its updates and deletes are published: "
            "PostgreSQL refuses every UPDATE and DELETE on it (INSERT works)",
            "ALTER TABLE … ADD PRIMARY KEY, or REPLICA IDENTITY FULL, or publish only inserts "
            "(WITH (publish = 'insert'))",
        )
        for table in tables
        if table.keyless
    ]


def unsent_warnings(connection: psycopg.Connection[Any], publications: Sequence[str]) -> list[TableWarning]:
    """Foreign and unlogged partitions of published tables: the server sends nothing of them."""
    warnings = []
    for name, is_foreign, root in unsent_partitions(connection, publications):
        kind = "a foreign table" if is_foreign else "unlogged"
        mend = "detach it" if is_foreign else "ALTER TABLE … SET LOGGED"
        if root is None:
            what = f"it is {kind}, and a partition of a published table: nothing of it is sent or copied"
            warnings.append(TableWarning(_quoted(name), what, f"{mend}, or read it in another way"))
            continue
        what = (
            f"it is {kind}, and a partition of {_quoted(root)}: a copy reads its rows, but no change of them "
            "is sent, so the lake keeps them as the last copy has read them"
        )
        again = f"slotlake backfill --table {'.'.join(root)} reads them again"
        warnings.append(TableWarning(_quoted(name), what, f"{mend}; or {again}"))
    return warnings


def _quoted(name: tuple[str, str]) -> str:
    return sql.Identifier(*name).as_string(None)


__all__ = [
    "SourceColumn",
    "SourceTable",
    "TableWarning",
    "check_publications",
    "create_publication",
    "missing_publications",
    "publishable_tables",
    "published_names",
    "source_tables",
    "unfit_tables",
    "unsent_warnings",
]
