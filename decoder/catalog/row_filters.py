"""The meaning of a row filter, as the table's server explains it; nothing is executed, nothing is written.

The server analyses the expression over the table (EXPLAIN, which needs only SELECT and works on a standby
too).  It prints what it understood: names, operators and functions resolved in pg_catalog, every implicit
cast written out, constants folded.  Invariant: the result is true for the table as it is in the catalog now;
code that stores the result must ask again before it uses it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.key_index import ENFORCED
from slotlake.decoder.catalog.publication_tables import LEAVES
from slotlake.decoder.errors import ChangedMeanwhileError, PipelineFileError

_COLLATE = re.compile(r"\bcollate\b", re.IGNORECASE)
_LITERAL = re.compile(r"'(?:[^']|'')*'|\"(?:[^\"]|\"\")*\"")
_BEGIN = "EXPLAIN (VERBOSE, COSTS OFF, FORMAT JSON) SELECT ("


@dataclass(frozen=True)
class FilterColumn:
    """A column as a filter sees it.

    Attributes:
        equal: equal texts have equal bytes (the collation is deterministic).
        order: texts are ordered by their bytes (collations C, POSIX, C.UTF-8).
        letters: upper and lower case exist for ASCII letters only (collations C, POSIX).
    """

    name: str
    type_oid: int
    typmod: int
    type_name: str
    equal: bool = True
    order: bool = False
    letters: bool = False


def analysed(connection: psycopg.Connection[Any], schema: str, table: str, expression: str) -> str:
    """The expression as the server prints it after it has analysed and simplified it.

    Args:
        expression: SQL over its columns.

    Raises:
        PipelineFileError: it is not a condition over this table.
        ChangedMeanwhileError: the table does not exist any more.
        psycopg.errors.LockNotAvailable: the table is locked.
    """
    where = f"the filter of {schema}.{table}: {expression}"
    if _COLLATE.search(_LITERAL.sub("", expression)):
        raise PipelineFileError(
            "a filter in the lake may not name a collation",
            where=where,
            way_out="leave COLLATE out; texts are compared by the collation of their column",
        )
    target = sql.Identifier(schema, table).as_string(None)
    command = f"{_BEGIN}{expression}\n) AND true FROM ONLY {target}"
    try:
        with connection.transaction():
            connection.execute("SET LOCAL search_path = pg_catalog")
            # The server prepares one statement only, so the text cannot add another.
            row = connection.execute(command.encode(), prepare=True).fetchone()
    except psycopg.errors.LockNotAvailable:
        raise
    except psycopg.errors.UndefinedTable:
        raise ChangedMeanwhileError(
            "the table was dropped or renamed while its filter was read", where=where, way_out="run again"
        ) from None
    except psycopg.Error as error:
        raise _not_understood(error, where) from None
    plan = row[0][0]["Plan"] if row is not None else {}
    output = plan.get("Output", [])
    if len(output) != 1:
        raise PipelineFileError(
            "the filter is not a single condition", where=where, way_out="write one SQL expression"
        )
    understood = str(output[0])
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8" and "octet_length(" in _LITERAL.sub("", understood):
        raise PipelineFileError(
            f"octet_length() counts bytes in the source's encoding, {encoding}; the lake's texts are UTF-8",
            where=where,
            way_out="use length(), which counts characters",
        )
    return understood


def _not_understood(error: psycopg.Error, where: str) -> PipelineFileError:
    position = error.diag.statement_position
    if position is not None and int(position) > len(_BEGIN):
        where = f"character {int(position) - len(_BEGIN)} of {where}"
    return PipelineFileError(
        f"PostgreSQL does not accept the filter: {error.diag.message_primary}",
        where=where,
        way_out="write a condition over the table's columns, with functions and operators of pg_catalog",
    )


def filter_columns(connection: psycopg.Connection[Any], relation_id: int) -> dict[str, FilterColumn]:
    """All columns of a table, by name."""
    rows = connection.execute(_COLUMNS.encode(), (relation_id,)).fetchall()
    return {row[0]: _column(*row) for row in rows}


def partition_identities(connection: psycopg.Connection[Any], relation_id: int) -> dict[str, set[str] | None]:
    """Per partition that has rows: the columns of its replica identity, None for all.

    The columns of an old row depend on the row's partition, not on the root (a partition does not inherit
    its root's replica identity); the stream describes the root alone.
    """
    rows = connection.execute(_PARTITIONS.encode(), (relation_id,)).fetchall()
    return {row[0]: None if row[1] == "f" else set(row[2]) for row in rows}


_PARTITIONS = f"""WITH RECURSIVE root AS (SELECT oid, relkind FROM pg_class WHERE oid = %s), {LEAVES}
SELECT c.oid::regclass::text, c.relreplident,
       coalesce(array_agg(a.attname::text) FILTER (WHERE a.attname IS NOT NULL), '{{}}')
FROM leaf
JOIN pg_class c ON c.oid = leaf.relid
LEFT JOIN pg_index i ON i.indrelid = c.oid
     AND CASE c.relreplident WHEN 'd' THEN i.indisprimary WHEN 'i' THEN i.indisreplident ELSE false END
     AND {ENFORCED}
LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = ANY (i.indkey)
WHERE leaf.relid <> leaf.root
GROUP BY c.oid, c.relreplident
"""

# Read as JSON, because the catalogs' columns differ between versions: pg_database has a provider since 15,
# pg_collation since 10, and the column of the locale has had three names.
_COLUMNS = """
SELECT a.attname, a.atttypid, a.atttypmod, pg_catalog.format_type(a.atttypid, a.atttypmod),
       to_jsonb(c), to_jsonb(d), pg_catalog.pg_encoding_to_char(d.encoding)
FROM pg_attribute a
JOIN pg_database d ON d.datname = current_database()
LEFT JOIN pg_collation c ON c.oid = a.attcollation
WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
"""
_BYTEWISE = {"C", "POSIX", "C.UTF-8", "C.UTF8"}
_ASCII = {"C", "POSIX"}


def _column(
    name: str,
    type_oid: int,
    typmod: int,
    type_name: str,
    collation: dict[str, Any] | None,
    database: dict[str, Any],
    encoding: str,
) -> FilterColumn:
    # A text that is cast from a type without a collation has the database's collation.
    collation = collation or {"collprovider": "d"}
    provider, order, letters = _locales(collation, database)
    # In other encodings the order of the bytes is not the order of the code points.
    utf8 = encoding == "UTF8"
    return FilterColumn(
        name,
        type_oid,
        typmod,
        type_name,
        equal=bool(collation.get("collisdeterministic", True)) and encoding != "SQL_ASCII",
        order=utf8 and (provider == "b" or (provider == "c" and order.upper() in _BYTEWISE)),
        letters=utf8 and provider in "bc" and letters in _ASCII,
    )


def _locales(collation: dict[str, Any], database: dict[str, Any]) -> tuple[str, str, str]:
    """Provider, locale of the order, locale of upper and lower case."""
    if collation.get("collprovider") != "d":
        locale = collation.get("colllocale") or collation.get("colliculocale") or ""
        return (
            str(collation.get("collprovider")),
            collation.get("collcollate") or locale,
            collation.get("collctype") or locale,
        )
    provider = str(database.get("datlocprovider", "c"))
    if provider == "b":
        return provider, database["datlocale"], database["datlocale"]
    return provider, str(database["datcollate"]), str(database["datctype"])


__all__ = ["FilterColumn", "analysed", "filter_columns", "partition_identities"]
