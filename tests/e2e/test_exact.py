"""Verified, and read again, at an exact LSN while transactions stay open: nobody is waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotError
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from slotlake.infra.sync.at_lsn import Advance
from slotlake.infra.sync.schema import evolution
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.meanwhile import meanwhile

pytestmark = pytest.mark.timeout(600)

SETUP = """
CREATE TABLE a (id int PRIMARY KEY, v int); CREATE TABLE b (id int PRIMARY KEY, v int);
INSERT INTO a SELECT g, 0 FROM generate_series(1, 50) g;
INSERT INTO b SELECT g, 0 FROM generate_series(1, 50) g
"""
MOVE = "UPDATE a SET v = v + 1 WHERE id = {0}; UPDATE b SET v = v - 1 WHERE id = {0}"


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedPostgres]:
    """Of its own, because commits on it are made to hang."""
    with temporary_postgres(version=18, conf={"max_prepared_transactions": "5", "fsync": "off"}) as server:
        yield server


@pytest.fixture
def shop(server: EmbeddedPostgres, session: Any, tmp_path: Path) -> Iterator[tuple[Database, Any]]:
    with fresh_database(server) as database:
        database.execute(SETUP)
        with Pipeline.open(pipeline_file(tmp_path, database, ["a", "b"])) as pipeline:
            pipeline.init()
            yield database, pipeline


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way that waits for open transactions is closed."""

    def refused(*_: Any) -> Any:
        raise AssertionError("a slot was asked for its snapshot")

    monkeypatch.setattr(Advance, "at_slot_snapshot", refused)
    monkeypatch.setattr(evolution, "create_slot", refused)


@pytest.mark.usefixtures("no_waiting")
def test_open_and_prepared_transactions_are_not_waited_for(shop: tuple[Database, Any]) -> None:
    database, pipeline = shop
    with database.connect() as one, database.connect() as two, database.connect() as three:
        one.execute("BEGIN; UPDATE a SET v = 100 WHERE id = 1")
        two.execute("BEGIN; UPDATE a SET v = 100 WHERE id = 2; PREPARE TRANSACTION 'forgotten'")
        three.execute(MOVE.format(3))
        report = pipeline.verify()
        assert report.equal
        assert_equal(database, pipeline, ["a", "b"])
        pipeline.session.sql("UPDATE lake.shop.a SET v = 7 WHERE id IN (1, 5)").collect()
        assert pipeline.backfill(["a"], where="id < 10").tables[0].changed == 2
        one.execute("UPDATE b SET v = 100 WHERE id = 1; COMMIT")
        assert pipeline.verify().equal
        assert_equal(database, pipeline, ["a", "b"])
        three.execute("COMMIT PREPARED 'forgotten'")
        assert pipeline.verify().equal
        assert_equal(database, pipeline, ["a", "b"])


REWRITTEN = {
    "a volatile default": "ALTER TABLE b ADD c int DEFAULT (random() * 1000)::int",
    "another type": "ALTER TABLE b ALTER v TYPE bigint USING v * 7",
    "a column again": "ALTER TABLE b DROP v; ALTER TABLE b ADD v int DEFAULT 3",
}


@pytest.mark.usefixtures("no_waiting")
def test_an_altered_table_is_copied_beside_open_transactions(shop: tuple[Database, Any]) -> None:
    """These have not written to it: ALTER TABLE waited for all who had; they may from then on."""
    database, pipeline = shop
    with database.connect() as one, database.connect() as two:
        one.execute("BEGIN; UPDATE a SET v = 100 WHERE id = 1")
        two.execute("BEGIN; UPDATE a SET v = 100 WHERE id = 2; PREPARE TRANSACTION 'forgotten'")
        for number, altered in enumerate(REWRITTEN.values(), 5):
            database.execute(f"{MOVE.format(number)}; {altered}; INSERT INTO b (id) VALUES ({100 + number})")
            pipeline.sync()
            assert_equal(database, pipeline, ["a", "b"])
        one.execute("UPDATE b SET v = 8 WHERE id = 1; DELETE FROM b WHERE id = 105; COMMIT")
        two.execute("COMMIT PREPARED 'forgotten'")
        pipeline.sync()
        assert_equal(database, pipeline, ["a", "b"])
        assert pipeline.verify().equal


def test_a_table_that_is_published_anew_waits_for_who_wrote_to_it_before(shop: tuple[Database, Any]) -> None:
    """What they wrote then is not sent."""
    database, pipeline = shop
    with database.connect() as one:
        one.execute("BEGIN; UPDATE b SET v = 100 WHERE id = 1")
        database.execute("ALTER PUBLICATION shop DROP TABLE b")
        database.execute("ALTER PUBLICATION shop ADD TABLE b; UPDATE b SET v = 3 WHERE id = 2")
        syncing = threading.Thread(target=pipeline.sync)
        syncing.start()
        syncing.join(3.0)
        assert syncing.is_alive()
        one.execute("COMMIT")
        syncing.join()
    assert_equal(database, pipeline, ["a", "b"])


@pytest.mark.usefixtures("no_waiting")
def test_under_writers_whose_commits_overlap(shop: tuple[Database, Any]) -> None:
    database, pipeline = shop
    with _writers(database, 5) as written:
        reports = [pipeline.verify() for _ in range(3)]
        assert [report.equal for report in reports] == [True] * 3
    assert written[0] > 200
    pipeline.sync()
    assert_equal(database, pipeline, ["a", "b"])


@contextmanager
def _writers(database: Database, count: int) -> Iterator[list[int]]:
    written = [0]

    def write(number: int, over: threading.Event) -> None:
        with psycopg.connect(database.dsn, autocommit=True) as connection:
            connection.execute(f"SET synchronous_commit = {'off' if number % 2 else 'on'}")
            while not over.is_set():
                connection.execute(f"BEGIN; {MOVE.format(number + 1)}; COMMIT")
                written[0] += 1
                time.sleep(0.002)

    with meanwhile(*(partial(write, number) for number in range(count))):
        yield written


def test_a_commit_that_waits_for_a_standby_is_in_the_lake_and_not_in_snapshots(
    server: EmbeddedPostgres, shop: tuple[Database, Any]
) -> None:
    """It is sent before it can be seen: no snapshot is then what the lake is, and verify says so."""
    database, pipeline = shop
    waiting = threading.Thread()
    _synchronous(server, "nobody")
    try:
        waiting = _hanging(database, f"SET synchronous_commit = on; BEGIN; {MOVE.format(9)}; COMMIT")
        give_up = time.monotonic() + 30
        while ("9", "1") not in pipeline.rows("a"):
            assert time.monotonic() < give_up
            pipeline.sync()
        with pytest.raises(SlotError, match="open"):
            pipeline.verify(slot_timeout_seconds=2.0)
    finally:
        _synchronous(server, "")
        if waiting.ident is not None:
            waiting.join()
    assert pipeline.verify().equal
    assert_equal(database, pipeline, ["a", "b"])


def _hanging(database: Database, statements: str) -> threading.Thread:
    """Commits until one hangs: a process of the server takes a moment to see that there is a standby now."""
    waits = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'SyncRep'"
    thread = threading.Thread(target=lambda: database.execute(statements))
    thread.start()
    give_up = time.monotonic() + 30
    while not database.execute(waits):
        assert time.monotonic() < give_up
        time.sleep(0.05)
        if not thread.is_alive():
            undone = "UPDATE a SET v = 0 WHERE id = 9; UPDATE b SET v = 0 WHERE id = 9"
            database.execute(f"SET synchronous_commit = off; {undone}")
            thread = threading.Thread(target=lambda: database.execute(statements))
            thread.start()
    return thread


def _synchronous(server: EmbeddedPostgres, names: str) -> None:
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        admin.execute("SELECT pg_reload_conf()")
        give_up = time.monotonic() + 30
        while admin.execute("SHOW synchronous_standby_names").fetchone() != (names,):
            assert time.monotonic() < give_up
            time.sleep(0.05)
