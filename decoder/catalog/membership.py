"""Whether tables that somebody names are at the source and in its publications; puts them in, takes them out.

A table is *covered* if a publication names it, its schema, or a partitioned table above it, or publishes all
tables.  The names that the stream uses may be others: those of the root, or of the partitions
(publication_tables.py).  Only what a publication names itself can be taken out of it by ALTER PUBLICATION.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, LiteralString, TypeAlias

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publication_tables import PUBLISHABLE
from slotlake.decoder.errors import LockedError, SourceError
from slotlake.decoder.types.names import FIRST_NORMAL_OID

Name: TypeAlias = tuple[str, str]
_FIRST_WITH_SCHEMAS = 150000  # FOR TABLES IN SCHEMA
_LOCK_SECONDS = 10
_KINDS = {"v": "a view", "m": "a materialized view", "f": "a foreign table", "S": "a sequence"}
_PERSISTENCES = {"u": "an unlogged table", "t": "a temporary table"}
_NAMED = """
WITH RECURSIVE named AS (
    SELECT c.oid, n.nspname, c.relname, c.relkind, c.relpersistence, c.relowner
    FROM unnest(%(schemas)s::text[], %(tables)s::text[]) AS asked (schema, name)
    JOIN pg_catalog.pg_namespace n ON n.nspname = asked.schema
    JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = asked.name
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f', 'S')
), above AS (
    SELECT oid, oid AS relid FROM named
    UNION
    SELECT a.oid, i.inhparent FROM above a
    JOIN pg_catalog.pg_class c ON c.oid = a.relid AND c.relispartition
    JOIN pg_catalog.pg_inherits i ON i.inhrelid = a.relid
), pub AS (
    SELECT oid, pubname, puballtables FROM pg_catalog.pg_publication WHERE pubname = ANY (%(publications)s)
)
SELECT t.oid, t.nspname, t.relname, t.relkind, t.relpersistence,
    array(SELECT p.pubname::text FROM pub p JOIN pg_catalog.pg_publication_rel r ON r.prpubid = p.oid
          WHERE r.prrelid = t.oid ORDER BY 1),
    array(SELECT p.pubname::text FROM pub p WHERE p.puballtables OR EXISTS (
              SELECT FROM above a JOIN pg_catalog.pg_publication_rel r ON r.prrelid = a.relid
              WHERE a.oid = t.oid AND a.relid <> t.oid AND r.prpubid = p.oid){in_schema} ORDER BY 1),
    pg_catalog.pg_has_role(t.relowner, 'USAGE')
FROM named t
"""
_IN_SCHEMA = """ OR EXISTS (
              SELECT FROM above a JOIN pg_catalog.pg_class c ON c.oid = a.relid
              JOIN pg_catalog.pg_publication_namespace s ON s.pnnspid = c.relnamespace
              WHERE a.oid = t.oid AND s.pnpubid = p.oid)"""
_ALL_NAMES = f"""
SELECT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
WHERE {PUBLISHABLE} LIMIT 20000
"""
_MATCHING = f"""
SELECT DISTINCT n.nspname, c.relname
FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
JOIN unnest(%s::text[], %s::text[]) AS p (of_schema, of_table)
  ON n.nspname ~ ('^(?:' || p.of_schema || ')$') AND c.relname ~ ('^(?:' || p.of_table || ')$')
WHERE {PUBLISHABLE} AND (%s OR NOT c.relispartition)
"""
_PUBLICATIONS = """
SELECT pubname, pg_catalog.pg_has_role(pubowner, 'USAGE') FROM pg_catalog.pg_publication
WHERE pubinsert AND pubupdate AND pubdelete AND pubtruncate AND pubname = ANY (%s) AND NOT puballtables
"""


@dataclass(frozen=True)
class Membership:
    """A table, or something else of that name, at the source.

    Attributes:
        relation_id: its OID.
        obstacle: what it is, if that cannot be published: "a view"; "" for a table that can.
        named_by: the publications that name it.
        covered_by: those that publish it all the same: with all tables, its schema, or a table above it.
        is_owned: this role may put it into a publication that it owns.
    """

    relation_id: int
    obstacle: str
    named_by: tuple[str, ...]
    covered_by: tuple[str, ...]
    is_owned: bool

    @property
    def is_published(self) -> bool:
        """Whether its rows are published."""
        return not self.obstacle and bool(self.named_by or self.covered_by)


def memberships(
    connection: psycopg.Connection[Any], publications: Sequence[str], names: Collection[Name]
) -> dict[Name, Membership]:
    """Return what there is of these names; a name that is missing is of nothing at the source."""
    if not names:
        return {}
    schemas = connection.info.server_version >= _FIRST_WITH_SCHEMAS
    query = _NAMED.replace("{in_schema}", _IN_SCHEMA if schemas else "")
    ordered = sorted(names)
    rows = connection.execute(
        query.encode(),
        {
            "schemas": [schema for schema, _ in ordered],
            "tables": [table for _, table in ordered],
            "publications": list(publications),
        },
    ).fetchall()
    return {
        (str(schema), str(table)): Membership(
            int(oid), _obstacle(int(oid), kind, persistence), tuple(named), tuple(covered), bool(owned)
        )
        for oid, schema, table, kind, persistence, named, covered, owned in rows
    }


def _obstacle(oid: int, kind: str, persistence: str) -> str:
    if oid < FIRST_NORMAL_OID:
        return "a table of the system"
    return _KINDS.get(kind, "") or _PERSISTENCES.get(persistence, "")


def names_of_tables(connection: psycopg.Connection[Any]) -> list[Name]:
    """Return schema and name of tables that could be published, for who asks what a wrong name may mean."""
    return [(str(schema), str(table)) for schema, table in connection.execute(_ALL_NAMES.encode()).fetchall()]


def matching_tables(
    connection: psycopg.Connection[Any], patterns: Sequence[tuple[str, str]], *, partitions: bool
) -> set[Name]:
    """Return schema and name of the tables that could be published and that one of the patterns matches.

    Args:
        patterns: regular expressions for the whole schema and the whole name.
        partitions: also partitions, not only the table above them.
    """
    of_schemas, of_tables = [schema for schema, _ in patterns], [table for _, table in patterns]
    rows = connection.execute(_MATCHING.encode(), (of_schemas, of_tables, partitions)).fetchall()
    return {(str(schema), str(table)) for schema, table in rows}


def publication_for(
    connection: psycopg.Connection[Any], publications: Sequence[str]
) -> tuple[str, bool] | None:
    """Return the first of these publications that can take a table, and whether this role owns it.

    None if there is none: each publishes all tables anyway, or leaves out updates, deletes, ….
    """
    owned = {str(name): bool(own) for name, own in connection.execute(_PUBLICATIONS, (list(publications),))}
    return next(((name, owned[name]) for name in publications if name in owned), None)


def adding(publication: str, tables: Sequence[Name]) -> str:
    """Return the statement that puts tables into a publication."""
    return _statement("ALTER PUBLICATION {} ADD TABLE {}", publication, tables)


def removing(publication: str, tables: Sequence[Name]) -> str:
    """Return the statement that takes tables out of a publication."""
    return _statement("ALTER PUBLICATION {} DROP TABLE {}", publication, tables)


def _statement(text: LiteralString, publication: str, tables: Sequence[Name]) -> str:
    listed = sql.SQL(", ").join(sql.Identifier(*table) for table in tables)
    return sql.SQL(text).format(sql.Identifier(publication), listed).as_string(None)


def alter_publications(connection: psycopg.Connection[Any], statements: Mapping[str, Name]) -> None:
    """Run statements of `adding` and `removing`, all or none of them.

    Args:
        connection: to the source, not in a transaction.
        statements: each with a table that it is about.

    Raises:
        SourceError: the role may not; the error has the statements.
        LockedError: a table is locked.
    """
    by_hand = "; ".join(statements)
    try:
        with connection.transaction():
            connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_SECONDS}s'".encode())
            for statement in statements:
                connection.execute(statement.encode())
    except psycopg.errors.InsufficientPrivilege as error:
        raise SourceError(
            f"this role may not change the publication: {error.diag.message_primary}",
            where="the role in source.dsn",
            way_out=f"have its owner (who must own the tables too), or a superuser, run: {by_hand}",
        ) from None
    except psycopg.errors.ReadOnlySqlTransaction:
        raise SourceError(
            "a publication cannot be changed on a standby",
            where="source.dsn",
            way_out=f"run on the primary: {by_hand}",
        ) from None
    except psycopg.errors.LockNotAvailable:
        raise LockedError(
            "a table is locked, so the publication cannot be changed now",
            where=", ".join(sql.Identifier(*table).as_string(None) for table in statements.values()),
            way_out="a transaction holds the lock (see pg_locks): end it, then run the same command again",
        ) from None
    except (psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidParameterValue) as error:
        raise SourceError(
            f"the server refuses to change the publication: {error.diag.message_primary}",
            where=by_hand,
            way_out="publish the table by another publication, and name that in source.publications too",
        ) from None
