"""The source as the oracle: what it holds, in its own text, against what the lake says it holds."""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from tests.conftest import Database
from tests.storage import catalog_lines, warehouse_lines

_SETTINGS = (
    "SET TimeZone='UTC'; SET DateStyle='ISO'; SET IntervalStyle='postgres'; "
    "SET extra_float_digits=1; SET bytea_output='hex'; SET client_encoding='UTF8'"
)


def pipeline_file(
    folder: Path,
    database: Database,
    tables: list[str],
    *,
    name: str = "shop",
    extra: str = "",
    uri: str | None = None,
    source: str = "",
) -> Path:
    """A pipeline file for ``tables`` (as PostgreSQL writes them) of ``database``.

    ``extra``: more sections; ``source``: more keys of that section, one a line.
    """
    folder.mkdir(parents=True, exist_ok=True)
    listed = "".join(f"  {_quoted(table)}: {{}}\n" for table in tables)
    text = f"""name: {name}
source:
  dsn: "{database.dsn}"
  publications: [{name}]
  slot: slotlake_{database.name}_{name}
{textwrap.indent(source, "  ")}
lake:
  catalog: lake
  {catalog_lines(folder) if uri is None else f'uri: "{uri}"'}
  {warehouse_lines(folder)}
  namespace: {name}
tables:
{listed}{extra}"""
    path = folder / f"{name}.yaml"
    path.write_text(text)
    return path


def _quoted(table: str) -> str:
    return "'" + table.replace("'", "''") + "'"


def source_rows(
    connection: psycopg.Connection[Any], table: str
) -> tuple[list[str], Counter[tuple[str | None, ...]]]:
    """Column names and the bag of rows, each value in the text of PostgreSQL's output function.

    Args:
        table: its own rows, without those of its children; or a query in parentheses with a name.
    """
    connection.execute(_SETTINGS)
    one = sql.SQL("ONLY {}" if _is_plain(connection, table) else "{}").format(sql.SQL(table))
    cursor = connection.execute(sql.SQL("SELECT * FROM {}").format(one), binary=False)
    result = cursor.pgresult
    assert result is not None
    names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
    rows = Counter(
        tuple(_text(result.get_value(row, column)) for column in range(result.nfields))
        for row in range(result.ntuples)
    )
    return names, rows


def _is_plain(connection: psycopg.Connection[Any], table: str) -> bool:
    query = "SELECT relkind <> 'p' FROM pg_class WHERE oid = %s::regclass"
    return not table.startswith("(") and connection.execute(query, [table]).fetchone() == (True,)


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def differences(database: Database, pipeline: Any, tables: list[str]) -> dict[str, dict[str, Any]]:
    """Per table, what is missing from and extra in the lake; empty when all are equal."""
    found: dict[str, dict[str, Any]] = {}
    with database.connect() as connection:
        for table in tables:
            _, expected = source_rows(connection, table)
            actual = Counter(tuple(row) for row in pipeline.rows(table))
            if expected != actual:
                found[table] = {"missing": dict(expected - actual), "extra": dict(actual - expected)}
    return found


def assert_equal(database: Database, pipeline: Any, tables: list[str]) -> None:
    """Fail naming the tables and rows that differ."""
    assert differences(database, pipeline, tables) == {}
