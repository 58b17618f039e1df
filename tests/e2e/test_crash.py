"""Killed at each failpoint, run again: the lake equals the source, and no reader ever saw half of a batch."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, Self

import pytest

from slotlake import Pipeline
from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)

TABLES = ["accounts", "history"]
SYNC_FAILPOINTS = [
    "pull.mid",
    "pull.renamed",
    "apply.mid_merge",
    "apply.between_tables",
    "publish.before_swap",
    "publish.after_swap",
]
INIT_FAILPOINTS = ["init.mid_copy", "init.before_publish"]


def run_cli(remote: str, arguments: list[str], failpoint: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own, against the warm Spark."""
    environment = {**os.environ, "SLOTLAKE_SPARK_REMOTE": remote, "SLOTLAKE_FAILPOINT": failpoint}
    return subprocess.run(
        [sys.executable, "-m", "slotlake", *arguments],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )


def _fill(database: Database) -> None:
    database.execute(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL);"
        "CREATE TABLE history (account int, delta int);"
        "INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 1000) g"
    )


def _transfer(database: Database, seed: int) -> None:
    """Transactions that keep sum(balance) = sum(delta), with inserts, updates, deletes and a key change."""
    with database.connect() as connection:
        for number in range(20):
            account = (seed * 31 + number * 7) % 900 + 1
            connection.execute(
                "BEGIN; "
                f"UPDATE accounts SET balance = balance + {number + 1} WHERE id = {account}; "
                f"INSERT INTO history VALUES ({account}, {number + 1}); COMMIT"
            )
        connection.execute(f"UPDATE accounts SET id = id + 10000 WHERE id = {901 + seed}")
        connection.execute(f"DELETE FROM accounts WHERE id = {950 + seed}")


class Watcher(threading.Thread):
    """Reads all tables at one cut, over and over, and keeps every sight that is not a whole one."""

    def __init__(self, pipeline: Any) -> None:
        super().__init__(daemon=True)
        self.lake = pipeline.lake
        self.stopped = threading.Event()
        self.sights = 0
        self.torn: list[tuple[int, int, int]] = []

    def run(self) -> None:
        while not self.stopped.is_set():
            cut = ReadPoint.latest(self.lake)
            balance = sum(int(row[0] or 0) for row in cut.rows("accounts", ["balance"]))
            delta = sum(int(row[0] or 0) for row in cut.rows("history", ["delta"]))
            self.sights += 1
            if balance != delta:
                self.torn.append((cut.position, balance, delta))
            self.stopped.wait(0.1)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.stopped.set()
        self.join(60)


def test_killed_in_sync_and_run_again(database: Database, connect: str, tmp_path: Path) -> None:
    _fill(database)
    file = pipeline_file(tmp_path, database, TABLES)
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        with Watcher(pipeline) as watcher:
            for seed, failpoint in enumerate(SYNC_FAILPOINTS):
                _transfer(database, seed)
                before = ReadPoint.latest(pipeline.lake).position
                killed = run_cli(connect, ["sync", str(file)], failpoint)
                assert killed.returncode == -9, (failpoint, killed.stderr)
                moved = ReadPoint.latest(pipeline.lake).position != before
                assert moved == (failpoint == "publish.after_swap")
                _transfer(database, seed + len(SYNC_FAILPOINTS))
                pipeline.sync()
                assert_equal(database, pipeline, TABLES)
        assert watcher.sights > 3
        assert watcher.torn == []
        report = pipeline.verify()
        assert report.equal
        assert pipeline.status().state == "ready"
        confirmed = database.execute(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE NOT temporary"
        )
        assert parse_lsn(confirmed[0][0]) == ReadPoint.latest(pipeline.lake).position


@pytest.mark.parametrize("failpoint", INIT_FAILPOINTS)
def test_killed_in_init_and_run_again(
    database: Database, connect: str, tmp_path: Path, failpoint: str
) -> None:
    _fill(database)
    file = pipeline_file(tmp_path, database, TABLES)
    killed = run_cli(connect, ["init", str(file)], failpoint)
    assert killed.returncode == -9, killed.stderr
    database.execute("INSERT INTO accounts VALUES (5000, 5); INSERT INTO history VALUES (5000, 5)")
    with Pipeline.open(file, remote=connect) as pipeline:
        assert not pipeline.init().already
        assert_equal(database, pipeline, TABLES)
        _transfer(database, 1)
        pipeline.sync()
        assert_equal(database, pipeline, TABLES)
    slots = database.execute("SELECT count(*) FROM pg_replication_slots WHERE database = current_database()")
    assert slots == [(1,)]
