"""Several connections under one snapshot give what one gives, while the source is written to and rewritten.

The source is a real PostgreSQL; the lake is Arrow batches, copied under the same snapshot by a plain SELECT.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from slotlake.decoder.catalog.publications import source_tables
from slotlake.decoder.copy import parts
from slotlake.decoder.errors import LakeError, SourceUnavailableError
from slotlake.expectations.reconcile import Manner
from slotlake.expectations.results import REWRITTEN
from slotlake.expectations.sessions.pace import Pace
from slotlake.expectations.sessions.parts import Divided, divided
from slotlake.expectations.sessions.pool import Sessions, sessions
from slotlake.expectations.sessions.threads import LakeThreads, lake_threads
from slotlake.expectations.shapes import Compared
from slotlake.expectations.source_side import SourceTable, hashes_escaped, joined_sums, snapshot_session
from slotlake.infra.local.postgres import Version
from slotlake.spark.names import postgres_name
from tests.conftest import SERVER_VERSIONS, Database, seed_of_the_run
from tests.expectations.test_reconcile import Lake, Pair, copied
from tests.meanwhile import meanwhile

VERSIONS = SERVER_VERSIONS if os.environ.get("SLOTLAKE_TEST_LONG") else (14, 18)
ROWS = 3000
SCHEMA = f"""
CREATE TABLE wide (id int PRIMARY KEY, v text, n numeric);
INSERT INTO wide SELECT i, repeat('x', i % 90), i * 0.01 FROM generate_series(1, {ROWS}) i;
CREATE TABLE bag (v int);
ALTER TABLE wide REPLICA IDENTITY FULL; ALTER TABLE bag REPLICA IDENTITY FULL;
INSERT INTO bag SELECT i % 40 FROM generate_series(1, {ROWS}) i;
CREATE TABLE "Parts" (id int, "Day" int, v text, PRIMARY KEY (id, "Day")) PARTITION BY LIST ("Day");
CREATE TABLE "Odd ""1" (v text, "Day" int NOT NULL, id int NOT NULL);
ALTER TABLE "Parts" ATTACH PARTITION "Odd ""1" FOR VALUES IN (1);
CREATE TABLE two PARTITION OF "Parts" FOR VALUES IN (2, 3) PARTITION BY LIST ("Day");
CREATE TABLE two_2 PARTITION OF two FOR VALUES IN (2);
CREATE TABLE two_3 PARTITION OF two FOR VALUES IN (3);
INSERT INTO "Parts" SELECT i, 1 + i % 3, 'p' || i FROM generate_series(1, {ROWS}) i;
CREATE TABLE small (id int PRIMARY KEY); INSERT INTO small VALUES (1), (2);
CREATE PUBLICATION p FOR TABLE wide, bag, "Parts", small WITH (publish_via_partition_root);
"""
FILTER = """ALTER PUBLICATION p SET TABLE wide WHERE (n > 3 OR id < 100), bag, "Parts", small"""
WRITES = (
    "INSERT INTO wide SELECT {a} + g, 'later', 0 FROM generate_series(1, 50) g ON CONFLICT DO NOTHING",
    "UPDATE wide SET v = v || 'y' WHERE id % 17 = {a} % 17",
    "UPDATE wide SET id = -id WHERE id = {a}",
    "DELETE FROM wide WHERE id % 31 = {a} % 31",
    "INSERT INTO bag SELECT g FROM generate_series(1, 200) g",
    "DELETE FROM bag WHERE v = {a} % 40",
    """UPDATE "Parts" SET "Day" = 1 + "Day" % 3 WHERE id % 23 = {a} % 23""",
    """DELETE FROM "Parts" WHERE id % 29 = {a} % 29""",
    "VACUUM wide, bag",
    'VACUUM FULL "Parts"',
    "VACUUM FULL wide",
    "CLUSTER wide USING wide_pkey",
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", 3 * 8192)


@contextmanager
def paired(database: Database) -> Iterator[Pair]:
    """The source, a snapshot of it, and a lake that is equal to it there."""
    with database.connect() as exporting, exporting.transaction():
        exporting.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        ((snapshot,),) = exporting.execute("SELECT pg_export_snapshot()").fetchall()
        with snapshot_session(database.dsn, snapshot) as connection:  # its locks end before others compare
            published = source_tables(connection, ["p"])
            lake = Lake({postgres_name(t.schema, t.table): copied(connection, t) for t in published})
        yield Pair(database.dsn, snapshot, published, lake)


def written(database: Database, seed: int, writes: Sequence[str] = WRITES) -> AbstractContextManager[None]:
    """Write to the tables, and rewrite them, as long as the block runs."""
    chance = random.Random(seed)

    def write(ended: threading.Event) -> None:
        with database.connect() as connection:
            connection.execute("SET lock_timeout = '1s'")
            while not ended.is_set():
                statement = chance.choice(writes).format(a=chance.randrange(1, ROWS))
                with_suppressed(connection, statement)

    return meanwhile(write)


def with_suppressed(connection: psycopg.Connection[Any], statement: str) -> None:
    """Run a statement that may be too late, or wait for too long for a lock."""
    try:
        connection.execute(statement.encode())
    except (psycopg.errors.LockNotAvailable, psycopg.errors.UniqueViolation, psycopg.errors.DeadlockDetected):
        return


@pytest.mark.parametrize("version", VERSIONS)
def test_equal_while_the_source_is_written_and_rewritten(
    version: Version, database_on: Callable[[Version], Database]
) -> None:
    database = database_on(version)
    database.execute(SCHEMA)
    if version >= 15:
        database.execute(FILTER)
    chance = random.Random(seed_of_the_run())
    for number in range(6):
        # Of a table that was rewritten, nobody can say which rows differ: every other time nobody does.
        writes = WRITES if number % 2 else WRITES[:-3]
        with paired(database) as pair, written(database, chance.randrange(1 << 30), writes):
            report = pair.compare(manner=Manner(connections=2 + number % 3))
            assert report.equal, report.as_dict()
            rows = {name: len(table.rows) for name, table in pair.lake.held.items()}
            assert {name: table.source_rows for name, table in report.tables.items()} == rows
            if writes is WRITES:
                continue
            wrong = wrong_keys(pair, chance)
            report = pair.compare(manner=Manner(connections=2 + number % 3))
            listed = report.tables["public.wide"].differences
            assert {each.key["id"] for each in listed} == wrong
            assert report.tables["public.wide"].differences_total == len(wrong)
            assert [name for name, each in report.tables.items() if not each.equal] == ["public.wide"]


def wrong_keys(pair: Pair, chance: random.Random) -> set[str | None]:
    """Change some values in the lake, and take rows away; return their keys."""
    rows = pair.rows("public.wide")
    chosen = chance.sample(rows, 7)
    for row in chosen[:4]:
        row["v"] = f"{row['v']}!"
    for row in chosen[4:]:
        rows.remove(row)
    return {row["id"] for row in chosen}


def test_parts_have_each_row_once(database: Database) -> None:
    database.execute(SCHEMA)
    with paired(database) as pair, sessions(pair.dsn, pair.snapshot, 2, Pace()) as server:
        tables = compared(pair, server)
        plan = divided(server.first, list(tables.values()))
        assert {table.name for table in plan} == {"public.wide", "public.bag", 'public."Parts"'}
        assert {part.name.rpartition(".")[2] for part in plan[tables['public."Parts"']].parts} == {
            '"Odd ""1"',
            '"two_2"',
            '"two_3"',
        }
        for table, of_table in plan.items():
            whole = SourceTable(server.first, table).sums()
            added: dict[int, tuple[int, int]] = {}
            for part in of_table.parts:
                some = SourceTable(server.first, part).sums()
                assert 0 < sum(count for count, _ in some.values()) < ROWS
                added = joined_sums(added, some)
            assert added == whole


def compared(pair: Pair, server: Sessions) -> dict[str, Compared]:
    names = {postgres_name(t.schema, t.table): t for t in pair.published}
    escaped = hashes_escaped(server.first)
    return {
        name: Compared.of(name, table, pair.lake.held[name], escaped=escaped) for name, table in names.items()
    }


@pytest.mark.parametrize(
    "rewriting", ["VACUUM FULL wide", 'VACUUM FULL "Parts"', "CLUSTER wide USING wide_pkey"]
)
def test_rows_that_move_between_two_parts(
    rewriting: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deterministic: after the second part, all rows get other places."""
    database.execute(SCHEMA)
    database.execute("UPDATE wide SET n = n + 1 WHERE id < 500; DELETE FROM wide WHERE id % 3 = 0")
    begun, rest, stood = [0], Pace.rest, []
    stands = Divided.stands

    def rested(pace: Pace, has_ended: Callable[[], bool] = bool) -> None:
        begun[0] += 1
        if begun[0] == 3:
            database.execute(rewriting)
        rest(pace, has_ended)

    def noted(table: Divided, connection: psycopg.Connection[Any]) -> bool:
        stood.append((table.table.name, stands(table, connection)))
        return stood[-1][1]

    monkeypatch.setattr(Pace, "rest", rested)
    monkeypatch.setattr(Divided, "stands", noted)
    with paired(database) as pair:
        pair.published = [t for t in pair.published if t.table in rewriting]
        report = pair.compare(manner=Manner(connections=2))
    assert report.equal, report.as_dict()
    assert stood == [(name, False) for name in report.tables]


@pytest.mark.parametrize("connections", [1, 3])
@pytest.mark.parametrize(
    "rewriting", ["TRUNCATE bag", "ALTER TABLE bag ALTER v TYPE bigint", "TRUNCATE two_2"]
)
def test_rows_that_no_older_snapshot_sees_any_more(
    connections: int, rewriting: str, database: Database
) -> None:
    """They are no differences: the table is not compared.  What VACUUM FULL leaves is seen, and equal."""
    database.execute(SCHEMA)
    with paired(database) as pair:
        database.execute(rewriting)
        database.execute("VACUUM FULL wide")
        report = pair.compare(manner=Manner(connections=connections))
        (different,) = [table for table in report.tables.values() if not table.equal]
        assert different.table == ('public."Parts"' if "two_2" in rewriting else "public.bag")
        assert different.totals == {REWRITTEN: 1}
        pair.rows("public.small").clear()
        again = pair.compare(manner=Manner(connections=connections))
    assert again.tables["public.small"].totals == {"missing in lake": 2}


def test_a_connection_that_dies_is_named(database: Database) -> None:
    database.execute(SCHEMA)
    pid, started = None, time.monotonic()
    with (
        paired(database) as pair,
        pytest.raises(SourceUnavailableError) as raised,
        sessions(pair.dsn, pair.snapshot, 3, Pace()) as server,
    ):
        tables = compared(pair, server)
        asleep = [server.ask(tables["public.small"], sleeping) for _ in range(3)]
        while pid is None:
            ((pid,),) = database.execute(AT_SLEEP)
        database.execute("SELECT pg_terminate_backend(%s)", [pid])
        wait_for_one(asleep)
    assert time.monotonic() - started < 30
    assert f"of 3 (server process {pid})" in raised.value.where
    assert "table public.small" in raised.value.where
    assert raised.value.__context__ is None


AT_SLEEP = "SELECT max(pid) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep%' AND state = 'active'"


def sleeping(source: SourceTable) -> None:
    source.connection.execute("SELECT pg_sleep(60)")


def wait_for_one(futures: Sequence[Any]) -> None:
    while not any(each.done() for each in futures):
        time.sleep(0.05)
    for each in futures:
        if each.done():
            each.result()


def test_a_connection_that_dies_ends_a_comparison(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(SCHEMA)
    sums, asked = SourceTable.sums, [0]

    def dying_sums(source: SourceTable) -> Any:
        asked[0] += 1
        if asked[0] == 4:
            database.execute("SELECT pg_terminate_backend(%s)", [source.connection.info.backend_pid])
        return sums(source)

    monkeypatch.setattr(SourceTable, "sums", dying_sums)
    with (
        paired(database) as pair,
        pytest.raises(SourceUnavailableError) as raised,
    ):
        pair.compare(manner=Manner(connections=3))
    assert "of 3 (server process " in raised.value.where


def test_with_fewer_connections_than_asked_for(database: Database, caplog: pytest.LogCaptureFixture) -> None:
    database.execute(SCHEMA)
    database.execute(
        "CREATE ROLE few LOGIN PASSWORD 'few' CONNECTION LIMIT 2;"
        "GRANT SELECT ON ALL TABLES IN SCHEMA public TO few"
    )
    try:
        with paired(database) as pair, caplog.at_level(logging.WARNING):
            pair.dsn = psycopg.conninfo.make_conninfo(pair.dsn, user="few", password="few")
            assert pair.compare(manner=Manner(connections=4)).equal
    finally:
        database.execute("DROP OWNED BY few; DROP ROLE few")
    assert "2 of 4 connections are used" in caplog.text


def test_when_the_lake_fails_nobody_waits(database: Database) -> None:
    class Broken(Lake):
        def text_batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
            if table == "public.wide":
                raise LakeError("a file is gone")
            yield from super().text_batches(table, columns)

    database.execute(SCHEMA)
    with paired(database) as pair:
        pair.lake = Broken(pair.lake.held)
        started = time.monotonic()
        with pytest.raises(LakeError, match="a file is gone"):
            pair.compare(manner=Manner(connections=4, pace=Pace(share=0.001)))
    assert time.monotonic() - started < 20


@pytest.mark.fast
def test_the_pace_counts_over_all_connections() -> None:
    pace, began, worked = Pace(share=0.5), time.monotonic(), []

    def work() -> None:
        for _ in range(4):
            pace.rest()
            with pace.working():
                time.sleep(0.05)
            worked.append(time.monotonic())

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pace.rest()
    assert len(worked) == 12
    assert pace.worked >= 0.6
    assert time.monotonic() - began >= 0.95 * pace.worked / 0.5


@pytest.mark.fast
def test_batches_come_in_their_order_and_few_at_a_time() -> None:
    ahead, most, lock = [0], [0], threading.Lock()

    def batches(count: int) -> Iterator[int]:
        for number in range(count):
            with lock:
                ahead[0] += 1
                most[0] = max(most[0], ahead[0])
            yield number

    def work(number: int) -> int:
        time.sleep(0.001 * (number % 3))
        return number * 2

    def table(threads: LakeThreads, count: int) -> list[int]:
        got = []
        for doubled in threads.mapped(work, batches(count)):
            with lock:
                ahead[0] -= 1
            got.append(doubled)
        return got

    with lake_threads(3) as threads:
        assert threads is not None
        tables = [threads.tables.submit(table, threads, 40 + i) for i in range(3)]
        assert [each.result() for each in tables] == [[2 * n for n in range(40 + i)] for i in range(3)]
    assert most[0] <= 3 + 2 + 3  # places, and the batch that each table holds until it has one
    with lake_threads(1) as threads:
        assert threads is None
