"""Decides whether a statement may run in DuckDB: checks each node of its parse against `allowed`.

Invariant: what passes is one query whose every table is a table of the read point (or a name that the query
itself defines), whose every function is known to read nothing but its arguments, and in which nothing is
decided later (no parameter, no statement in a string).  A node that is not in the lists is refused.

The parse is DuckDB's own (``json_serialize_sql``), which knows only queries: what writes, loads, attaches or
sets is none, and is refused there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import LakeError
from slotlake.spark.read.duck.allowed import EXPRESSIONS, FUNCTIONS, KINDS, TABLE_FUNCTIONS
from slotlake.spark.read.duck.quoting import literal
from slotlake.spark.read.pinned import Pinned
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.table_names import find_table

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

WITH_SPARK = "or use --engine spark, which runs Spark SQL (it takes some seconds to start)"
_WAY_OUT = f"ask for rows with one SELECT of this lake's tables, {WITH_SPARK}"
_EXPLAIN = re.compile(r"\s*(EXPLAIN(?:\s+ANALYZE)?)(?=[\s(])", re.IGNORECASE)
_FIRST_WORD = re.compile(r"\s*(\w+)")
_OWN_PLACES = ({"", "system"}, {"", "main"})  # catalog and schema of DuckDB's functions
_NO_NAMES: frozenset[str] = frozenset()
_Child = tuple[Any, frozenset[str]]  # what a node holds, and the names of queries that can be used there


@dataclass
class Judged:
    """A statement that may run.

    Attributes:
        sql: the statement.
        views: namespace and name, as written, of each table that it reads.
    """

    sql: str
    views: dict[tuple[str, str], Pinned] = field(default_factory=dict)


def judged(connection: DuckDBPyConnection, sql: str, read_point: ReadPoint) -> Judged:
    """Return the statement with the tables that it reads.

    Args:
        connection: a DuckDB, which parses; nothing is executed.
        read_point: what it may read.

    Raises:
        LakeError: it is no query, or one that may not run; or it is not SQL.
    """
    explain = _EXPLAIN.match(sql)
    query = sql[explain.end() :] if explain else sql
    judge = _Judge(read_point, Judged(sql))
    unchecked: list[_Child] = [(_parsed(connection, query, sql), _NO_NAMES)]
    while unchecked:  # not by recursion: a condition of a thousand parts is a thousand nodes deep
        unchecked += judge.children(*unchecked.pop())
    return judge.judged


def _parsed(connection: DuckDBPyConnection, query: str, sql: str) -> Any:
    import duckdb

    try:
        # As a literal: a parameter would make DuckDB import pandas.
        row = connection.execute(f"SELECT json_serialize_sql({literal(query)})::VARCHAR").fetchone()
    except (duckdb.Error, UnicodeError):  # a zero byte, half of a character
        raise _no_query(sql) from None
    try:
        parsed = json.loads(row[0] if row else "{}")
    except RecursionError:
        raise _refused(sql, "such deep nesting") from None
    if parsed.get("error"):
        words = str(parsed.get("error_message", ""))
        if parsed.get("error_type") == "parser":
            raise LakeError(f"the query failed: {words}", where="in its text", way_out=_correct_it())
        raise _no_query(sql)
    statements = parsed.get("statements", ())
    if len(statements) != 1:
        raise _no_query(sql)
    return statements[0]["node"]


class _Judge:
    """Judges one value of a parse at a time, and says what it holds."""

    def __init__(self, read_point: ReadPoint, statement: Judged) -> None:
        self.read_point, self.judged = read_point, statement

    def children(self, value: Any, names: frozenset[str]) -> Iterator[_Child]:
        """What a value holds that is to be judged too.

        Raises:
            LakeError: the value itself may not stand in a query.
        """
        if isinstance(value, list):
            yield from ((each, names) for each in value)
        elif isinstance(value, dict) and "class" in value:
            yield from self._expression(value, names)
        elif isinstance(value, dict) and isinstance(value.get("type"), str):
            yield from self._kind(value["type"], value, names)
        elif isinstance(value, dict):
            yield from ((each, names) for each in value.values())

    def _expression(self, value: dict[str, Any], names: frozenset[str]) -> Iterator[_Child]:
        kind = value["class"]
        if kind not in EXPRESSIONS:
            raise _refused(self.judged.sql, str(kind))
        if kind == "CONSTANT":
            return
        if kind in {"FUNCTION", "WINDOW"}:
            _check_function(value, FUNCTIONS)
        yield from ((each, names) for each in value.values())

    def _kind(self, kind: str, value: dict[str, Any], names: frozenset[str]) -> Iterator[_Child]:
        if kind not in KINDS and not kind.endswith("_TYPE_INFO"):
            raise _refused(self.judged.sql, kind)
        if kind == "BASE_TABLE":
            self._table(value, names)
        elif kind == "TABLE_FUNCTION":
            function = value["function"]
            _check_function(function, TABLE_FUNCTIONS)
            yield from ((each, names) for each in function.values())
            value = {key: each for key, each in value.items() if key != "function"}
        elif kind == "SHOW_REF" and (value.get("table_name") or not value.get("query")):
            raise _no_query(self.judged.sql)
        yield from _scoped(kind, value, names)

    def _table(self, value: dict[str, Any], names: frozenset[str]) -> None:
        catalog, schema, table = (value[part] for part in ("catalog_name", "schema_name", "table_name"))
        if not catalog and not schema and table.lower() in names:
            return
        if value.get("at_clause"):
            raise _refused(self.judged.sql, "AT (another point): --at is for all tables")
        written = ".".join(part for part in (catalog, schema, table) if part)
        key = schema or self.read_point.lake.namespace, table
        pinned = find_table(self.read_point, *key) if catalog in {"", self.read_point.lake.catalog} else None
        if pinned is None:
            raise _no_table(self.read_point, written)
        self._add_view(key, pinned, written)

    def _add_view(self, key: tuple[str, str], pinned: Pinned, written: str) -> None:
        folded = key[0].lower(), key[1].lower()
        for other, table in self.judged.views.items():
            if folded == (other[0].lower(), other[1].lower()):
                if table.name != pinned.name:
                    raise LakeError(
                        "two tables of the query differ only in the case of letters, which DuckDB ignores",
                        where=f"tables {'.'.join(other)} and {written}",
                        way_out="use --engine spark for this query",
                    )
                return
        self.judged.views[key] = pinned


def _scoped(kind: str, value: dict[str, Any], names: frozenset[str]) -> Iterator[_Child]:
    """The parts of a node, each with the queries that WITH has named for it."""
    rest = dict(value)
    for entry in (rest.pop("cte_map", None) or {}).get("map", ()):
        yield entry["value"], names
        names |= {entry["key"].lower()}
    if kind in {"CTE_NODE", "RECURSIVE_CTE_NODE"}:
        yield rest.pop("query" if kind == "CTE_NODE" else "left"), names
        names |= {rest["cte_name"].lower()}
    yield from ((each, names) for each in rest.values())


def _check_function(function: dict[str, Any], allowed: frozenset[str]) -> None:
    place = function.get("catalog", ""), function.get("schema", "")
    name = str(function.get("function_name", "")).lower()
    if name in allowed and all(part in own for part, own in zip(place, _OWN_PLACES, strict=True)):
        return
    raise LakeError(
        f"the function {'.'.join(part for part in (*place, name) if part)} cannot be called here",
        where="DuckDB: it is unknown, or may read files, settings or other tables",
        way_out=f"use another function, {WITH_SPARK}",
    )


def _correct_it() -> str:
    return f"correct the statement, {WITH_SPARK}"


def _no_table(read_point: ReadPoint, written: str) -> LakeError:
    lake = read_point.lake
    return LakeError(
        f"this lake has no table {written}",
        where=f"catalog {lake.catalog}, namespace {lake.namespace}",
        way_out="tables are named as in the source (public.orders) or as in the lake (shop.orders); slotlake "
        "status lists them; Iceberg's metadata tables can be read with --engine spark",
    )


def _no_query(sql: str) -> LakeError:
    match = _FIRST_WORD.match(sql)
    return LakeError(
        "only queries can be run here",
        where=f"a statement beginning with {(match[1] if match else '')[:20]!r}",
        way_out=_WAY_OUT,
    )


def _refused(sql: str, what: str) -> LakeError:
    match = _FIRST_WORD.match(sql)
    return LakeError(
        f"only queries can be run here, and none with {what}",
        where=f"a statement beginning with {(match[1] if match else '')[:20]!r}",
        way_out=_WAY_OUT,
    )
