"""`slotlake run`: batches as the source has changes, beside other runs, and after every way to end it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, Self

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError, SlotError, SourceError
from slotlake.decoder.lsn import parse_lsn
from slotlake.expectations.scopes import key_rows
from slotlake.infra.local.postgres import temporary_postgres
from slotlake.infra.reports import RunReport, SyncReport
from slotlake.infra.source.bell import Bell
from slotlake.infra.state.journal import Journal
from slotlake.infra.sync import loop
from slotlake.infra.sync.loop import RunLimits, RunListener
from slotlake.infra.verify import background
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, differences, pipeline_file
from tests.e2e.test_crash import SYNC_FAILPOINTS
from tests.meanwhile import meanwhile

pytestmark = pytest.mark.timeout(600)
TABLES = ["a", "b"]
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG is not set")


def _tables(database: Database) -> None:
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text); CREATE TABLE b (id int PRIMARY KEY, v text);"
        "CREATE TABLE elsewhere (id int); INSERT INTO a SELECT g, 'v' FROM generate_series(1, 100) g"
    )


class Running:
    """A run in a thread of its own, with a pipeline of its own."""

    def __init__(self, file: Path, limits: RunLimits, remote: str | None = None) -> None:
        self.bell, self.reports, self.lines = Bell(), list[SyncReport](), list[str]()
        self.outcome: RunReport | BaseException | None = None
        self._file, self._limits, self._remote = file, limits, remote
        self._thread = threading.Thread(target=self._work)

    def _work(self) -> None:
        listener = RunListener(self.reports.append, self.lines.append)
        try:
            with Pipeline.open(self._file, remote=self._remote) as pipeline:
                self.outcome = pipeline.run(self._limits, bell=self.bell, listener=listener)
        except BaseException as error:  # noqa: BLE001 - the test judges it
            self.outcome = error

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *failure: object) -> None:
        self.bell.stop()
        self._thread.join(120)

    def end(self) -> RunReport:
        self._thread.join(120)
        assert isinstance(self.outcome, RunReport), self.outcome
        return self.outcome

    def until(self, true: Callable[[], bool], what: str, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            assert self.outcome is None, self.outcome
            assert time.monotonic() < deadline, (what, self.lines)
            time.sleep(0.05)


def written_all_the_time(database: Database) -> AbstractContextManager[None]:
    """Commits in both tables, one after another."""

    def write(stopped: threading.Event) -> None:
        with database.connect() as connection:
            number = 1000
            while not stopped.wait(0.01):
                number += 1
                connection.execute(
                    f"INSERT INTO a VALUES ({number}, 'n'); UPDATE a SET v = v || '.' WHERE id < 5"
                )
                connection.execute(f"INSERT INTO b VALUES ({number}, 'n')")

    return meanwhile(write)


def _confirmed(database: Database) -> int:
    (row,) = database.execute(
        "SELECT confirmed_flush_lsn FROM pg_replication_slots "
        "WHERE NOT temporary AND database = current_database()"
    )
    return parse_lsn(row[0])


def test_batches_come_and_others_get_their_turn(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_IDLE_SECONDS", 1.0)
    _tables(database)
    file = pipeline_file(tmp_path, database, TABLES)
    with Pipeline.open(file) as pipeline:
        with pytest.raises(LakeError, match="no tables in this lake yet"):
            pipeline.run()
        pipeline.init()
        with Running(file, RunLimits()) as running:
            database.execute("INSERT INTO b VALUES (1, 'x'); DELETE FROM a WHERE id = 7")
            running.until(lambda: not differences(database, pipeline, TABLES), "the lake has the change")
            running.until(lambda: bool(running.reports), "the batch is confirmed and reported")
            first = running.reports[0]
            assert (first.transactions, first.tables) == (1, {"public.a": 1, "public.b": 1})
            assert first.lag_seconds is not None
            assert set(first.seconds_by_step) >= {"pull", "apply", "publish", "confirm"}
            with written_all_the_time(database):
                report = (
                    pipeline.verify()
                )  # it waits for its turn, and gets its batch from the run's connection
                assert report.equal
                if os.environ.get("SLOTLAKE_TEST_LONG"):
                    pipeline.maintain(wait_seconds=30)
            running.until(lambda: not differences(database, pipeline, TABLES), "the lake has all")
            _broken_connection(database, pipeline, running)
            _idle(database, running)
            assert pipeline.status().batch_lag_seconds is not None
            assert pipeline.status().standing_puller == os.getpid()
            assert (pipeline.file.state_dir / loop.ALIVE).exists(), "a probe sees that it looks"
            running.bell.stop()
            ended = running.end()
        assert (ended.ended_by, ended.lsn) == ("stop", pipeline.status().last_consistent_lsn)
        assert ended.batches == len(running.reports)
        assert ended.lag_seconds_max is not None
        assert pipeline.status().standing_puller is None
        database.execute("INSERT INTO b VALUES (2, 'x')")
        assert pipeline.sync().changes == 1
        if os.environ.get("SLOTLAKE_TEST_LONG"):
            _limits(database, pipeline)


def _broken_connection(database: Database, pipeline: Pipeline, running: Running) -> None:
    database.execute(
        "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active_pid IS NOT NULL"
    )
    database.execute("INSERT INTO b VALUES (3, 'x')")
    running.until(lambda: not differences(database, pipeline, TABLES), "it has connected again")


def _idle(database: Database, running: Running) -> None:
    """WAL without changes for us: the slot moves all the same, and nothing is reported."""
    database.execute("INSERT INTO elsewhere SELECT generate_series(1, 1000)")
    (row,) = database.execute("SELECT pg_current_wal_insert_lsn()")
    running.until(lambda: _confirmed(database) >= parse_lsn(row[0]) - 100, "the idle slot has moved")
    assert all(report.transactions for report in running.reports)


def _limits(database: Database, pipeline: Pipeline) -> None:
    database.execute("INSERT INTO b VALUES (4, 'x')")
    (row,) = database.execute("SELECT pg_current_wal_lsn()")
    assert pipeline.run(RunLimits(until=parse_lsn(row[0]))).ended_by == "lsn"
    assert_equal(database, pipeline, TABLES)
    assert pipeline.run(RunLimits(seconds=0.5)).ended_by == "time"
    pipeline.source = type(pipeline.source)(**{**vars(pipeline.source), "slot": "absent"})
    vars(pipeline).pop("pulling", None)
    with pytest.raises(SlotError, match="absent"):
        pipeline.run(RunLimits(seconds=30))


@contextmanager
def command(remote: str, file: Path, *options: str, failpoint: str = "") -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "SLOTLAKE_SPARK_REMOTE": remote, "SLOTLAKE_FAILPOINT": failpoint}
    arguments = [sys.executable, "-m", "slotlake", "run", str(file), *options]
    with subprocess.Popen(
        arguments, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_command_prints_each_batch_and_ends_by_a_signal(
    database: Database, connect: str, tmp_path: Path
) -> None:
    _tables(database)
    file = pipeline_file(tmp_path, database, TABLES)
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        with command(connect, file, "--json") as process:
            database.execute("INSERT INTO b VALUES (1, 'x')")
            assert process.stdout is not None
            report = json.loads(process.stdout.readline())
            assert (report["tables"], report["transactions"]) == ({"public.b": 1}, 1)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
            assert (process.returncode, out) == (0, "")
            assert "the run has ended (stopped)" in err
        assert_equal(database, pipeline, TABLES)


@LONG
def test_killed_at_each_step_and_run_again(database: Database, connect: str, tmp_path: Path) -> None:
    _tables(database)
    file = pipeline_file(tmp_path, database, TABLES)
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        for number, failpoint in enumerate(SYNC_FAILPOINTS):
            database.execute(
                f"INSERT INTO a VALUES ({1000 + number}, 'x'); INSERT INTO b VALUES ({number}, 'x')"
            )
            with command(connect, file, failpoint=failpoint) as process:
                _, err = process.communicate(timeout=120)
                assert process.returncode == -9, (failpoint, err)
            database.execute(f"DELETE FROM a WHERE id = {10 + number}")
            (row,) = database.execute("SELECT pg_current_wal_lsn()")
            with command(connect, file, "--until-lsn", row[0]) as process:
                _, err = process.communicate(timeout=120)
                assert process.returncode == 0, err
            assert_equal(database, pipeline, TABLES)
        assert pipeline.verify().equal


@LONG
def test_it_goes_on_after_a_restart_of_the_server_but_not_for_ever(session: Any, tmp_path: Path) -> None:
    with temporary_postgres(version=18) as server, fresh_database(server) as database:
        _tables(database)
        file = pipeline_file(tmp_path, database, TABLES)
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            with Running(file, RunLimits(retry_seconds=60)) as running:
                database.execute("INSERT INTO b VALUES (1, 'x')")
                running.until(lambda: not differences(database, pipeline, TABLES), "the first change")
                server.stop()
                running.until(lambda: any("tried again" in line for line in running.lines), "it says so")
                server.start()
                database.execute("INSERT INTO b VALUES (2, 'x')")
                running.until(lambda: not differences(database, pipeline, TABLES), "the second change")
            with Running(file, RunLimits(retry_seconds=3)) as running:
                running.until(lambda: bool(running.lines), "it follows the slot")
                server.stop()
                running._thread.join(60)
                assert isinstance(running.outcome, SourceError), running.outcome
            server.start()


@LONG
def test_trouble_of_one_table_does_not_end_it(database: Database, session: Any, tmp_path: Path) -> None:
    _tables(database)
    file = pipeline_file(tmp_path, database, TABLES)
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        with Running(file, RunLimits()) as running:
            database.execute("ALTER TABLE a REPLICA IDENTITY NOTHING; INSERT INTO b VALUES (1, 'x')")
            database.execute("ALTER TABLE a DROP COLUMN v, DROP COLUMN id")
            # Without a row of it, a batch leaves a table as it is (infra/sync/schema/rules.py).
            database.execute("INSERT INTO a DEFAULT VALUES; INSERT INTO b VALUES (2, 'x')")
            running.until(lambda: not differences(database, pipeline, ["b"]), "the other table goes on")
            running.until(
                lambda: any(r.set_aside for r in running.reports), "the run says that a is set aside"
            )


def test_changed_rows_are_verified_after_batches(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run compares in the background what changed, and batches go on meanwhile."""
    _tables(database)
    file = pipeline_file(
        tmp_path, database, TABLES, extra="verify: {changed: every_batch, source_load: 0.5}\n"
    )
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        remote = pipeline.remote
    journal = Journal(pipeline.file.state_dir)
    waiting, go_on, compare = threading.Event(), threading.Event(), key_rows.compare_keys

    def slow(*arguments: Any) -> Any:
        waiting.set()
        assert go_on.wait(60)
        return compare(*arguments)

    monkeypatch.setattr("slotlake.infra.verify.comparing.compare_keys", slow)
    monkeypatch.setattr(background, "_LOOP_SHARE", 1.0)  # the next one begins at once
    with Running(file, RunLimits(), remote) as running:
        database.execute("UPDATE a SET v = 'w' WHERE id <= 50")
        running.until(waiting.is_set, "a verification")
        database.execute("UPDATE a SET v = 'meanwhile' WHERE id <= 60")
        before = len(running.reports)
        running.until(lambda: len(running.reports) > before, "a batch while a verification reads")
        assert journal.verifications.newest() == []
        go_on.set()
        running.until(lambda: len(journal.verifications.newest(9)) > 1, "two verifications")
        lines = journal.verifications.newest(9)
        assert [(line["equal"], line["scope"]) for line in lines] == [(True, "changed")] * len(lines)
        assert sum(line["rows"] for line in lines) >= 110
        with Pipeline.open(file, remote=remote) as other, other.exclusively(30):
            other.session.sql("UPDATE lake.shop.a SET v = 'wrong' WHERE id = 7").collect()
        database.execute("UPDATE a SET v = 'again' WHERE id = 8")  # 7 did not change since
        database.execute("INSERT INTO b SELECT g, 'v' FROM generate_series(1, 9) g")
        running.until(lambda: len(journal.verifications.newest(99)) > len(lines), "one more")
        assert all(line["equal"] for line in journal.verifications.newest(99))
        running.bell.stop()
        running.end()
    assert not [line for line in running.lines if "verified" in line or "differ" in line]
