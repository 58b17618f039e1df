"""Writers whose transactions keep invariants, a reader of every published cut, and the judge of what it read.

A transaction moves an amount between two accounts, writes two rows of a table without a key, and appends its
number to a list in each of two tables.  So of each cut of the lake it can be said whether it is a state of
the source: sums, transactions that are seen whole, and lists that are beginnings of the lists at the end, as
Elle asks it of lists.  The reader takes all pointers by one statement of the catalog, and shares no code with
slotlake.
"""

from __future__ import annotations

import json
import random
import sqlite3
import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psycopg

from tests.e2e.readers import duckdb_connection
from tests.roads.lake_files import LakeFiles

TABLES: Final = ("account", "entry", "settled", "left_list", "right_list")
ACCOUNTS: Final = 40
_PER_WINDOW, _LISTS = 200, 4
SCHEMA: Final = f"""
CREATE TABLE account (id int PRIMARY KEY, balance bigint NOT NULL, note text);
CREATE TABLE entry (account int, amount bigint, txn int);
ALTER TABLE entry REPLICA IDENTITY FULL;
CREATE TABLE settled (account int PRIMARY KEY, amount bigint NOT NULL);
CREATE TABLE left_list (k int PRIMARY KEY, items text NOT NULL);
CREATE TABLE right_list (k int PRIMARY KEY, items text NOT NULL);
INSERT INTO account SELECT g, 0, repeat('toast ', 600) || g FROM generate_series(1, {ACCOUNTS}) g;
CREATE SEQUENCE txn;
"""


def write(dsn: str, log: Path, seed: int, pause_seconds: float) -> None:
    """Write transactions until the process ends; a server that is away is waited for.

    Args:
        log: gets a line for each transaction: its number, and when it began and was known to be committed.
    """
    chance = random.Random(seed)
    with log.open("a", buffering=1) as lines:
        while True:
            try:
                with psycopg.connect(dsn, autocommit=True) as connection:
                    while True:
                        _transaction(connection, chance, lines)
                        time.sleep(pause_seconds * chance.random())
            except psycopg.Error:
                time.sleep(0.1)


def _transaction(connection: psycopg.Connection[Any], chance: random.Random, lines: Any) -> None:
    ((number,),) = connection.execute("SELECT nextval('txn')").fetchall()
    window = number // _PER_WINDOW * _LISTS
    one, other = sorted(chance.sample(range(1, ACCOUNTS + 1), 2))
    amount = chance.randint(-100, 100)
    lines.write(f'["begun", {number}, {time.monotonic()}]\n')
    with connection.transaction(), connection.cursor() as cursor:
        for account, signed in ((one, amount), (other, -amount)):
            cursor.execute("UPDATE account SET balance = balance + %s WHERE id = %s", (signed, account))
            if cursor.rowcount != 1:  # another transaction deleted the row and wrote it anew meanwhile
                raise psycopg.OperationalError
            cursor.execute("INSERT INTO entry VALUES (%s, %s, %s)", (account, signed, number))
        if chance.random() < 0.05:
            _settle(cursor, one)
        if chance.random() < 0.02:
            cursor.execute("DELETE FROM account WHERE id = %s RETURNING balance, note", (one,))
            balance, note = cursor.fetchall()[0]
            cursor.execute("INSERT INTO account VALUES (%s, %s, %s)", (one, balance, note))
        for table in ("left_list", "right_list"):
            cursor.execute(
                f"INSERT INTO {table} VALUES (%s, %s) ON CONFLICT (k)"
                f" DO UPDATE SET items = {table}.items || ',' || excluded.items",
                (window + chance.randrange(_LISTS), str(number)),
            )
    lines.write(f'["ended", {number}, {time.monotonic()}]\n')


def _settle(cursor: Any, account: int) -> None:
    """Replace the rows of an account in the table without a key by their sum."""
    cursor.execute("DELETE FROM entry WHERE account = %s RETURNING amount", (account,))
    total = sum(amount for (amount,) in cursor.fetchall())
    cursor.execute(
        "INSERT INTO settled VALUES (%s, %s) ON CONFLICT (account)"
        " DO UPDATE SET amount = settled.amount + excluded.amount",
        (account, total),
    )


@dataclass
class LakeReader:
    """Reads one cut of a lake: the catalog's own tables, then each table by DuckDB.

    Args:
        catalog: the path of an SQLite file, or a URL of PostgreSQL.
        secret: the statement that tells DuckDB the keys of a bucket.
        torn: take one pointer after another, as a reader that is no cut does; it is to be noticed.
    """

    catalog: str
    namespace: str
    secret: str = ""
    torn: bool = False

    def __post_init__(self) -> None:
        self._duckdb = duckdb_connection(*(["httpfs"] if self.secret else []), "avro", "iceberg")
        if self.secret:
            self._duckdb.execute(self.secret)

    def pointers(self) -> dict[str, str]:
        """Table → its metadata file, all by one statement."""
        query = "SELECT table_name, metadata_location FROM iceberg_tables WHERE table_namespace = "
        if self.catalog.startswith("postgresql"):
            with psycopg.connect(self.catalog) as connection:
                return dict(connection.execute(query + "%s", (self.namespace,)).fetchall())
        # Not read-only: after a kill, who comes first has to roll the journal of the file back.
        with sqlite3.connect(f"file:{self.catalog}?mode=rw", uri=True, timeout=30) as connected:
            return dict(connected.execute(query + "?", (self.namespace,)).fetchall())

    def cut(self) -> dict[str, Any]:
        """The tables of the workload at one cut, with the LSN that the lake gives it."""
        at = time.monotonic()
        pointers = self.pointers()
        found: dict[str, Any] = {"at": at, "lsn": self._lsn(pointers["commits"])}
        for table in TABLES:
            if self.torn:
                time.sleep(0.3)
                pointers = self.pointers()
            found[table] = self._rows(table, pointers[table])
        return found

    def left_behind(self, place: Callable[[str], Path]) -> list[str]:
        """The files in the folders of the tables that no metadata leads to.

        Args:
            place: a location → where that is on this machine's disk.
        """
        files, left = LakeFiles(place, self._duckdb), []
        for location in self.pointers().values():
            metadata = files.metadata(location)
            named = json.dumps(metadata) + location
            for snapshot in metadata["snapshots"]:
                read = files.snapshot(metadata, snapshot)
                named += json.dumps(read.manifests, default=str) + " ".join(e.path for e in read.entries)
            there = [path for path in place(metadata["location"]).rglob("*") if path.is_file()]
            left += [str(path) for path in there if _of_checksum(path.name) not in named]
        return left

    def _rows(self, table: str, location: str) -> list[Any]:
        columns = {
            "account": "id, balance",
            "entry": "account, sum(amount)::BIGINT",
            "settled": "account, amount",
        }.get(table, "k, items")
        group = " GROUP BY account" if table == "entry" else ""
        query = f"SELECT {columns} FROM iceberg_scan('{location}'){group}"
        return list(self._duckdb.execute(query).fetchall())

    def _lsn(self, location: str) -> int:
        ((newest,),) = self._duckdb.execute(
            f"SELECT max(position) FROM iceberg_scan('{location}')"
        ).fetchall()
        return int(newest)


def wrong_with(cut: Mapping[str, Any]) -> Iterator[str]:
    """What of a cut alone shows that it is no state of the source."""
    balances = dict(cut["account"])
    if len(balances) != ACCOUNTS or len(cut["account"]) != ACCOUNTS:
        yield f"{len(cut['account'])} rows of {len(balances)} accounts"
    if total := sum(balances.values()):
        yield f"the sum of all balances is {total}"
    entries, settled = dict(cut["entry"]), dict(cut["settled"])
    for account, balance in balances.items():
        if balance != entries.get(account, 0) + settled.get(account, 0):
            yield f"account {account}: {balance} is not {entries.get(account, 0)} + {settled.get(account, 0)}"
    left, right = (_numbers(cut[table]) for table in ("left_list", "right_list"))
    if len(left) != len(set(left)) or len(right) != len(set(right)):
        yield "a transaction is twice in a list"
    if set(left) != set(right):
        yield f"transactions that are seen in half: {sorted(set(left) ^ set(right))[:9]}"


def wrong_between(
    cuts: Sequence[Mapping[str, Any]], final: Mapping[str, Any], log: Sequence[tuple[str, int, float]]
) -> Iterator[str]:
    """What of all cuts, in the order in which they were read, shows that they are no states in order.

    Args:
        final: the source at the end, of the same shape.
        log: what the writers noted.
    """
    begun = {number: at for what, number, at in log if what == "begun"}
    ended = sorted((at, number) for what, number, at in log if what == "ended")
    last = {table: dict(final[table]) for table in ("left_list", "right_list")}
    if lost := {number for _, number in ended} - set(_numbers(final["left_list"])):
        yield f"the source itself lost {sorted(lost)[:9]}"
    for before, cut in zip((None, *cuts), cuts, strict=False):
        seen = set(_numbers(cut["left_list"]))
        for table, lists in last.items():
            if others := [k for k, items in cut[table] if not f"{lists.get(k, '')},".startswith(f"{items},")]:
                yield f"{cut['lsn']}: lists {others[:9]} of {table} are no beginnings of those at the end"
        if before is not None and cut["lsn"] < before["lsn"]:
            yield f"the lake went back from {before['lsn']} to {cut['lsn']}"
        if before is not None and (gone := set(_numbers(before["left_list"])) - seen):
            yield f"{cut['lsn']}: transactions are gone again: {sorted(gone)[:9]}"
        newest = max((begun[number] for number in seen & begun.keys()), default=0.0)
        before_it = ended[: bisect_left(ended, (newest, 0))]
        if late := [number for _, number in before_it if number not in seen]:
            yield f"{cut['lsn']}: {late[:9]} ended before another began that is seen"


def _of_checksum(name: str) -> str:
    """The name of the file of which Hadoop's local file system keeps a checksum in this one."""
    return name[1:-4] if name.startswith(".") and name.endswith(".crc") else name


def _numbers(lists: Sequence[Any]) -> list[int]:
    return [int(each) for _, items in lists for each in items.split(",")]


def held(dsn: str) -> dict[str, Any]:
    """The source now, in the shape of a cut."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        queries = {
            "account": "SELECT id, balance FROM account",
            "entry": "SELECT account, sum(amount)::bigint FROM entry GROUP BY account",
            "settled": "SELECT account, amount FROM settled",
            "left_list": "SELECT k, items FROM left_list",
            "right_list": "SELECT k, items FROM right_list",
        }
        return {table: connection.execute(query.encode()).fetchall() for table, query in queries.items()}


def read_lines(path: Path) -> list[Any]:
    """The JSON lines of a file; the last may be cut by a kill."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
