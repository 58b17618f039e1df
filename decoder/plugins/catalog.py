"""Facts about a table that a plugin does not send: OID, replica identity, key, types, from the catalog.

pgoutput describes its tables itself.  The other plugins do not, so their readers ask this module.  The answer
is the catalog of *now*, not of the time of the change: it is used only if it agrees with everything that the
plugin sends (names and types of the columns), and never for a value.  Only a replica identity that was
changed in between cannot be noticed; docs/plugins.md says so.

A recording contains the answers that came while it was made, so reading it gives the same result anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import psycopg

from slotlake.decoder.catalog.key_index import ENFORCED
from slotlake.decoder.protocol.relations import Column, Relation
from slotlake.decoder.server.source import connect, source_errors
from slotlake.decoder.types.table import type_name

_QUERY = f"""
WITH RECURSIVE base (oid, base) AS (
    SELECT oid, oid FROM pg_catalog.pg_type WHERE typtype <> 'd'
    UNION ALL
    SELECT t.oid, b.base FROM pg_catalog.pg_type t JOIN base b ON t.typbasetype = b.oid WHERE t.typtype = 'd'
)
SELECT c.oid::bigint, c.relreplident::text, a.attname::text, a.atttypid::bigint, a.atttypmod,
       CASE c.relreplident
            WHEN 'f' THEN true WHEN 'n' THEN false
            ELSE coalesce(a.attnum = ANY (i.indkey::int2[]), false) END,
       CASE WHEN a.atttypid >= 16384 THEN tn.nspname || '.' || t.typname ELSE '' END,
       pg_catalog.format_type(a.atttypid, NULL), a.attlen = -1
FROM pg_catalog.pg_class c
JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
LEFT JOIN base b ON b.oid = a.atttypid
LEFT JOIN pg_catalog.pg_type t ON t.oid = b.base
LEFT JOIN pg_catalog.pg_namespace tn ON tn.oid = t.typnamespace
LEFT JOIN pg_catalog.pg_index i ON i.indrelid = c.oid
     AND CASE c.relreplident WHEN 'i' THEN i.indisreplident ELSE i.indisprimary END
     AND {ENFORCED}
WHERE n.nspname = %s AND c.relname = %s
ORDER BY a.attnum
"""


@dataclass(frozen=True)
class ColumnFacts:
    """One column: as pgoutput describes it, its type's name in SQL, and whether it can be TOASTed."""

    column: Column
    sql_type: str
    toastable: bool


@dataclass(frozen=True)
class TableFacts:
    """One table in the catalog."""

    oid: int
    replica_identity: str
    columns: tuple[ColumnFacts, ...]

    def relation(self, schema: str, table: str) -> Relation:
        """The same facts as in pgoutput's Relation message."""
        return Relation(
            self.oid, schema, table, self.replica_identity, tuple(facts.column for facts in self.columns)
        )


class Catalog(Protocol):
    """Answers about tables and origins."""

    def table(self, schema: str, table: str) -> TableFacts | None:
        """The table, None if it is not known."""

    def origin(self, number: int) -> str | None:
        """Name of a replication origin by its number (wal2json), None if it is not known."""


class LiveCatalog:
    """Asks the source, once for each description of a table that the plugin sends."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection: psycopg.Connection[Any] | None = None

    def table(self, schema: str, table: str) -> TableFacts | None:
        """The table as it is now."""
        rows = self._rows(_QUERY, (schema, table))
        return table_facts(rows) if rows else None

    def origin(self, number: int) -> str | None:
        """The origin's name now."""
        rows = self._rows("SELECT roname FROM pg_catalog.pg_replication_origin WHERE roident = %s", (number,))
        return str(rows[0][0]) if rows else None

    def close(self) -> None:
        """End the session."""
        if self._connection is not None:
            self._connection.close()

    def _rows(self, query: str, parameters: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        with source_errors(self._dsn, "looking a table up"):
            if self._connection is None:
                self._connection = connect(self._dsn)
            return self._connection.execute(query.encode(), parameters).fetchall()


class RecordedCatalog:
    """Earlier answers, read from a recording."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], TableFacts | None] = {}
        self.origins: dict[int, str | None] = {}

    def table(self, schema: str, table: str) -> TableFacts | None:
        """The last answer about this table."""
        return self.answers.get((schema, table))

    def origin(self, number: int) -> str | None:
        """The answer about this origin."""
        return self.origins.get(number)


class NotingCatalog:
    """Forwards questions, and reports each answer to a recording."""

    def __init__(self, catalog: Catalog, note: Callable[[dict[str, Any]], None]) -> None:
        self._catalog, self._note = catalog, note

    def table(self, schema: str, table: str) -> TableFacts | None:
        """The catalog's answer about a table."""
        facts = self._catalog.table(schema, table)
        rows = facts_rows(facts) if facts is not None else []
        self._note({"schema": schema, "table": table, "columns": rows})
        return facts

    def origin(self, number: int) -> str | None:
        """The catalog's answer about an origin."""
        name = self._catalog.origin(number)
        self._note({"origin": number, "name": name})
        return name


def table_facts(rows: list[tuple[Any, ...]] | list[list[Any]]) -> TableFacts:
    """The facts from rows of the catalog query, or of a recording."""
    columns = tuple(
        ColumnFacts(Column(name, oid, typmod, in_key, user_name or type_name(oid) or ""), sql_type, toastable)
        for _, _, name, oid, typmod, in_key, user_name, sql_type, toastable in rows
        if name is not None  # a table without columns
    )
    return TableFacts(int(rows[0][0]), str(rows[0][1]), columns)


def facts_rows(facts: TableFacts) -> list[list[Any]]:
    """The inverse of `table_facts`."""
    if not facts.columns:
        return [[facts.oid, facts.replica_identity, *[None] * 7]]
    rows: list[list[Any]] = []
    for each in facts.columns:
        c = each.column
        described = [c.name, c.type_oid, c.typmod, c.in_key, c.type_name]
        rows.append([facts.oid, facts.replica_identity, *described, each.sql_type, each.toastable])
    return rows
