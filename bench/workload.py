"""The source that is measured on: a server of its own, the six-column table, the backlog.

SLOTLAKE_BENCH_ROWS makes every benchmark smaller, for a quick look; figures for the docs are taken
without it.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.server.position import settled_position
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres

DATABASE = "bench"
_TABLES_MIN = 10
PUBLICATION = "bench"
SLOT = "bench"
COLUMNS = (
    "id bigint PRIMARY KEY, quantity int, price numeric(12,2), note text, changed timestamptz, paid boolean"
)
ROWS_VARIABLE = "SLOTLAKE_BENCH_ROWS"
RUNS_VARIABLE = "SLOTLAKE_BENCH_RUNS"
TABLES_VARIABLE = "SLOTLAKE_BENCH_TABLES"
CATALOG_VARIABLE = "SLOTLAKE_BENCH_CATALOG"
_CATALOGS = ("sqlite", "postgresql", "http://", "https://")
IN_ORDER, IN_NO_ORDER = "{}", "hashint8extended({}, 0)"  # keys of rows 1, 2, 3, …
_ROWS = (
    "SELECT {key}, i % 1000, round((i % 100000) * 1.37, 2), 'a note on order ' || i, "
    "'2026-01-01 00:00:00+00'::timestamptz + i * interval '1.000001 s', i % 3 = 0"
)


def rows_asked(usual: int) -> int:
    """How many rows: the usual number, or what the environment says.

    Raises:
        PipelineFileError: the variable holds no number.
    """
    return _asked(ROWS_VARIABLE, usual, 1000, "rows")


def runs_asked(usual: int) -> int:
    """How many pairs of runs: the usual number, or what the environment says.

    Raises:
        PipelineFileError: the variable holds no number.
    """
    return _asked(RUNS_VARIABLE, usual, 1, "runs")


def tables_asked(usual: Sequence[int]) -> list[int]:
    """How many tables the pipelines have, the fewest first: the usual numbers, or what the environment says.

    Raises:
        PipelineFileError: the variable holds something else, or a number below ten.
    """
    texts = [each.strip() for each in os.environ.get(TABLES_VARIABLE, "").split(",") if each.strip()]
    if not all(text.isdecimal() and int(text) >= _TABLES_MIN for text in texts):
        raise PipelineFileError(
            f"{', '.join(texts)!r} is not a list of numbers of tables",
            where=f"--tables, or {TABLES_VARIABLE}",
            way_out=f"write whole numbers from {_TABLES_MIN} on with commas between them: 10,100,1000",
        )
    return sorted({int(text) for text in texts} or set(usual))


def catalog_asked() -> str:
    """Which catalog: sqlite, postgresql, or the address of a REST server.

    Raises:
        PipelineFileError: the variable holds something else.
    """
    text = os.environ.get(CATALOG_VARIABLE, "") or _CATALOGS[0]
    if text not in _CATALOGS[:2] and not text.startswith(_CATALOGS[2:]):
        raise PipelineFileError(
            f"there is no catalog {text!r}",
            where=f"--catalog, or {CATALOG_VARIABLE}",
            way_out="sqlite, postgresql, or the http:// or https:// address of a REST catalog",
        )
    return text


def _asked(variable: str, usual: int, least: int, of: str) -> int:
    text = os.environ.get(variable, "")
    if not text:
        return usual
    if not text.isdecimal() or int(text) < least:
        raise PipelineFileError(
            f"{variable} is not a number of {of}",
            where=variable,
            way_out=f"unset it, or give a whole number from {least} on",
        )
    return int(text)


@contextmanager
def bench_folder() -> Iterator[Path]:
    """A folder for files of one benchmark, removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="slotlake-bench-") as folder:
        yield Path(folder)


@contextmanager
def bench_server() -> Iterator[EmbeddedPostgres]:
    """A fresh server with a database; durability off, for the peer as for us."""
    conf = {
        "max_wal_size": "8GB",
        "checkpoint_timeout": "1h",
        "synchronous_commit": "off",
        "autovacuum": "off",
    }
    with temporary_postgres(conf=conf) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {DATABASE}")
        yield server


def make_table(connection: psycopg.Connection[Any], name: str, rows: int, key: str = IN_ORDER) -> None:
    """Make a table of six mixed columns with rows 1 to ``rows``.

    Args:
        key: SQL for a row's key, from its number.
    """
    connection.execute(f"CREATE TABLE {name} ({COLUMNS})".encode())
    insert_rows(connection, name, 1, rows, key)


def insert_rows(
    connection: psycopg.Connection[Any], name: str, first: int, last: int, key: str = IN_ORDER
) -> None:
    """Insert rows in one transaction.

    Args:
        first, last: the rows' numbers, both included.
        key: SQL for a row's key, from its number.
    """
    if first <= last:
        selected = _ROWS.format(key=key.format("i"))
        connection.execute(f"INSERT INTO {name} {selected} FROM generate_series({first}, {last}) i".encode())


@dataclass(frozen=True)
class Backlog:
    """What waits in slot ``SLOT``, all of it between two positions.

    Attributes:
        changes: row changes.
        transactions: that hold them.
    """

    start: int
    until: int
    changes: int
    transactions: int


_ONE_ROW_UPDATES = """
CREATE PROCEDURE update_one_by_one(first bigint, last bigint) LANGUAGE plpgsql AS $$
BEGIN
  FOR i IN first..last LOOP
    UPDATE orders SET quantity = quantity + 1, changed = changed + interval '1 s' WHERE id = i;
    COMMIT;
  END LOOP;
END $$
"""


def make_backlog(server: EmbeddedPostgres, inserts: int) -> Backlog:
    """Inserts, half as many updates and a tenth deletes in three transactions; then one-row updates."""
    updates, deletes, singles = inserts // 2, inserts // 10, inserts * 3 // 5
    with connect(server.dsn(DATABASE)) as connection:
        make_table(connection, "orders", 0)
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE orders".encode())
        start = _make_slot(connection)
        insert_rows(connection, "orders", 1, inserts)
        connection.execute(
            f"UPDATE orders SET paid = NOT paid, price = price + 1 WHERE id <= {updates}".encode()
        )
        connection.execute(f"DELETE FROM orders WHERE id > {inserts - deletes}".encode())
        connection.execute(_ONE_ROW_UPDATES)
        connection.execute(f"CALL update_one_by_one(1, {singles})".encode())
        until = settled_position(connection)
        # What follows the end tells every reader at once that the end is reached.
        connection.execute("UPDATE orders SET quantity = 0 WHERE id = 1")
        settled_position(connection)
    return Backlog(start, until, inserts + updates + deletes + singles, 3 + singles)


def _make_slot(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(
        "SELECT lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,)
    ).fetchone()
    assert row is not None
    return parse_lsn(str(row[0]))


@contextmanager
def slot_copy(server: EmbeddedPostgres, name: str) -> Iterator[str]:
    """The backlog's slot once more, under a name of its own: each reader starts where the first did."""
    with connect(server.dsn(DATABASE)) as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot(%s, %s)", (SLOT, name))
        try:
            yield name
        finally:
            connection.execute(
                "SELECT pg_terminate_backend(active_pid, 10000) FROM pg_replication_slots "
                "WHERE slot_name = %s AND active",
                (name,),
            )
            connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))


def source_of(dsn: str, slot: str) -> SourceSettings:
    """How slotlake reads the backlog."""
    return SourceSettings(dsn, (PUBLICATION,), slot)
