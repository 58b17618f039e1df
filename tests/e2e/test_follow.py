"""The standing puller, and what a transaction that stays open costs with and without it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import BusyError
from slotlake.infra.source import standing_puller
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(300)
TABLES = ["a", "b"]
ROWS, BATCHES = 10_000, 7


@pytest.fixture
def pipeline(database: Database, session: Any, tmp_path: Path) -> Iterator[Pipeline]:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
        f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'"
    )
    with Pipeline.open(pipeline_file(tmp_path, database, TABLES, source="two_phase: true")) as opened:
        opened.init()
        yield opened


@contextmanager
def following(pipeline: Pipeline) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "slotlake", "pull", str(pipeline.file.path), "--follow"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    try:
        assert b"following" in process.stderr.readline()
        yield process
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def decoded(database: Database) -> int:
    """Bytes of transactions in progress that the server has decoded, to its disk or to a reader."""
    rows = database.execute(
        "SELECT coalesce(sum(spill_bytes + stream_bytes), 0) FROM pg_stat_replication_slots "
        "JOIN pg_replication_slots USING (slot_name) WHERE database = current_database()"
    )
    return int(rows[0][0])


def open_and_sync(database: Database, pipeline: Pipeline) -> None:
    """A transaction that stays open, micro-batches beside it, then its end."""
    with psycopg.connect(database.dsn) as writer:
        writer.execute(
            f"INSERT INTO a SELECT g, repeat('x', 100) FROM generate_series(1, {ROWS}) g "
            "ON CONFLICT (id) DO UPDATE SET v = a.v || 'y'"
        )
        for number in range(BATCHES):
            database.execute("INSERT INTO b VALUES ((SELECT count(*) FROM b), %s)", [str(number)])
            assert pipeline.sync().transactions == 1
        writer.commit()
    assert pipeline.sync().changes == ROWS
    assert_equal(database, pipeline, TABLES)


def test_a_transaction_that_stays_open_is_sent_once(database: Database, pipeline: Pipeline) -> None:
    open_and_sync(database, pipeline)  # from the second batch on this process keeps its connection
    once = ROWS * 200
    assert once < decoded(database) < 4 * once < BATCHES * once
    with following(pipeline) as process:
        open_and_sync(database, pipeline)
        with pytest.raises(BusyError):
            standing_puller.serve(pipeline, print)
        assert decoded(database) < 6 * once
        assert pipeline.verify().equal
        _prepared_meanwhile(database, pipeline)
        process.kill()  # no farewell: the next run connects by itself
        process.wait()
        database.execute("COMMIT PREPARED 'held'")
        database.execute("INSERT INTO b VALUES (-1, 'after')")
        assert pipeline.sync().changes == 1001
        assert_equal(database, pipeline, TABLES)


def _prepared_meanwhile(database: Database, pipeline: Pipeline) -> None:
    with psycopg.connect(database.dsn) as writer:
        writer.execute("INSERT INTO a SELECT g, 'prepared' FROM generate_series(100001, 101000) g")
        writer.execute("PREPARE TRANSACTION 'held'")
    database.execute("INSERT INTO b VALUES (-2, 'beside')")
    assert pipeline.sync().changes == 1


def test_it_ends_when_told(database: Database, pipeline: Pipeline) -> None:
    with following(pipeline) as process:
        assert standing_puller.stop(pipeline.file)
        assert process.wait(timeout=20) == 0
    assert not standing_puller.stop(pipeline.file)
    database.execute("INSERT INTO b VALUES (1, 'x')")
    assert pipeline.sync().changes == 1


def test_it_notices_that_its_connection_broke(database: Database, pipeline: Pipeline) -> None:
    with following(pipeline):
        database.execute("INSERT INTO b VALUES (1, 'x')")
        assert pipeline.sync().changes == 1
        database.execute(
            "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
        )
        time.sleep(0.3)
        database.execute("INSERT INTO b VALUES (2, 'x')")
        for _ in range(2):  # the first may be the one that learns it
            try:
                pipeline.sync()
            except Exception as error:  # noqa: BLE001 - it is judged
                assert getattr(error, "retryable", False), error
        assert_equal(database, pipeline, TABLES)
