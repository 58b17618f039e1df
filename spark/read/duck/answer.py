"""An analyst's SQL in DuckDB, with every table pinned to one point."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from slotlake.decoder.errors import LakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.spark.maintenance.unreadable import damage_behind_query, require_manifests
from slotlake.spark.read.duck.database import new_database, reading
from slotlake.spark.read.duck.judge import WITH_SPARK, judged
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.result import QueryResult

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_SHOW_TABLES = re.compile(r"\s*SHOW\s+(?:ALL\s+)?TABLES[\s;]*", re.IGNORECASE)
_MESSAGE_LINES, _MESSAGE_CHARS_MAX = 3, 500


def query(read_point: ReadPoint, sql: str) -> QueryResult:
    """Run an analyst's SELECT.

    Args:
        read_point: the point, at which every table is read.

    Raises:
        LakeError: the SQL is wrong, or no query of this lake's tables, or DuckDB cannot run it.
        DamagedError: a file of a table that is read is missing or damaged.
        SetupError: DuckDB is not installed.
    """
    if _SHOW_TABLES.fullmatch(sql):
        return _tables(read_point)
    with new_database() as connection:
        import duckdb

        statement = judged(connection, sql, read_point)
        read = [(each.name, each.metadata, each.snapshot) for each in statement.views.values()]
        require_manifests(read)
        try:
            with reading(connection, read_point.lake, statement.views):
                return _run(connection, statement.sql, read_point.position)
        except (duckdb.Error, RuntimeError) as error:  # RuntimeError: interrupted
            if isinstance(error.__context__, KeyboardInterrupt) or "INTERRUPT" in str(error):
                raise KeyboardInterrupt from None
            mistakes = (
                duckdb.ParserException,
                duckdb.BinderException,
                duckdb.CatalogException,
                duckdb.DataError,
            )
            if not isinstance(error, mistakes) and (damaged := damage_behind_query(error, read)) is not None:
                raise damaged from error
            raise LakeError(
                f"the query failed: {_message(error)}",
                where=f"DuckDB, at {format_lsn(read_point.position)}",
                way_out=f"correct the statement, {WITH_SPARK}",
            ) from error


def _run(connection: DuckDBPyConnection, sql: str, position: int) -> QueryResult:
    (statement,) = connection.extract_statements(sql)
    connection.execute(statement)
    columns = [str(column[0]) for column in connection.description or ()]
    return QueryResult.of(columns, connection.to_arrow_table(), position)


def _tables(read_point: ReadPoint) -> QueryResult:
    """The tables of the lake's own namespace, in the columns in which Spark lists them."""
    namespace = read_point.lake.namespace
    names = sorted(
        each.name.table
        for each in read_point.pinned.values()
        if each.name.namespace == namespace and each.snapshot
    )
    rows: list[tuple[str | None, ...]] = [(namespace, name, "f") for name in names]
    return QueryResult(["namespace", "tableName", "isTemporary"], rows, read_point.position)


def _message(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:_MESSAGE_LINES])[:_MESSAGE_CHARS_MAX] or type(error).__name__
