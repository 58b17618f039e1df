"""Killed inside a recovery, by SIGKILL: the next one ends it, and no reader ever saw half of it.

SLOTLAKE_TEST_LONG=1 kills at each step, on an atomic catalog and on one that publishes table by table, and
SLOTLAKE_TEST_KILLS times (25 unless given) at a random moment.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.local.postgres import temporary_postgres
from slotlake.spark.catalog.rest.catalog import RestPointers
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database, fresh_database, seed_of_the_run
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.test_crash import Watcher, _fill, _transfer

pytestmark = pytest.mark.timeout(3600)

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
TABLES = ["accounts", "history"]
STEPS = [
    "recover.slot_dropped",
    "recover.slot_made",
    "recover.lowered",
    "recover.batch_written",
    "evolve.copied",
    "evolve.noted",
    "apply.mid_merge",
    "apply.between_tables",
    "publish.before_swap",
    "publish.after_swap",
    "recover.published",
]
# Where tables are published one after another: behind which of them.
HALF = [f"half {what}@1" for what in ("lowered:1", "lowered:4", "published:1", "published:2", "published:4")]
# A server that cannot publish together, where the pipeline file accepts that.
COMMAND = """
import os, signal, sys
from slotlake.infra.cli.main import main
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.spark.catalog.rest.catalog import RestPointers
if load_pipeline(sys.argv[2]).lake.publish == "per_table":
    RestPointers.together = False
behind, of = map(int, os.environ.get("SLOTLAKE_TEST_DIES_BEHIND", "0@0").split("@"))
commit, points = RestPointers._commit, []
def dies(self, changes):
    if "commits" in [change["identifier"]["name"] for change in changes]:
        points.append(changes)
        if len(points) == of:
            commit(self, changes[:behind])
            os.kill(os.getpid(), signal.SIGKILL)
    return commit(self, changes)
RestPointers._commit = dies
sys.exit(main(sys.argv[1:]))
"""
KILLS = int(os.environ.get("SLOTLAKE_TEST_KILLS", "25")) if LONG else 0


def dying_at(step: str) -> dict[str, str]:
    """For the environment of ``COMMAND``: a failpoint, or ``half …:<tables>@<which point>``."""
    if step.startswith("half"):
        return {"SLOTLAKE_TEST_DIES_BEHIND": step.partition(":")[2]}
    return {"SLOTLAKE_FAILPOINT": step}


@dataclass
class Day:
    """A pipeline whose source is one of two clusters; the second counts from lower numbers."""

    file: Path
    remote: str
    clusters: list[Database]
    seed: int = 0
    told: list[str] = field(default_factory=list)
    moments: dict[str, list[Any]] = field(default_factory=dict)  # time → the accounts then, all in the lake

    @property
    def database(self) -> Database:
        return self.clusters[0]

    def change(self) -> None:
        self.seed += 1
        _transfer(self.database, self.seed % 40)

    def lose(self, *, cluster: bool) -> None:
        """The slot; or the whole cluster, in whose place there is one that counts from lower numbers."""
        if not cluster:
            self.database.execute("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
            return
        while _position(self.clusters[1]) + (64 << 20) > _position(self.database):
            self.database.execute("SELECT txid_current(); SELECT pg_switch_wal()")
        self.sync()
        self.note()
        left = self.clusters.pop(0)
        self.clusters.append(left)
        self.file.write_text(self.file.read_text().replace(left.dsn, self.database.dsn))

    def note(self) -> None:
        """What there is now, which the lake has."""
        ((now,),) = self.database.execute("SELECT clock_timestamp()::timestamptz(6) AT TIME ZONE 'UTC'")
        rows = self.database.execute("SELECT id::text, balance::text FROM accounts")
        self.moments[f"{now}+00:00"] = sorted(rows)

    def open(self) -> Pipeline:
        return Pipeline.open(self.file, remote=self.remote)

    def sync(self) -> None:
        with self.open() as pipeline:
            pipeline.sync()

    def recover(self, failpoint: str = "", seconds: float | None = None) -> int:
        """In a process of its own, which is killed; its exit code."""
        environment = {**os.environ, "SLOTLAKE_SPARK_REMOTE": self.remote, **dying_at(failpoint)}
        command = [sys.executable, "-c", COMMAND, "recover", str(self.file), "--yes"]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) as process:
            try:
                said = process.communicate(timeout=seconds or 900)
            except subprocess.TimeoutExpired:
                process.kill()
                said = process.communicate()
            self.told = [text.decode() for text in said]
            return process.returncode


def _position(database: Database) -> int:
    ((position,),) = database.execute("SELECT (pg_current_wal_lsn() - '0/0')::bigint")
    return int(position)


@pytest.fixture(params=["sqlite", "per_table"] if LONG else ["sqlite"])
def day(request: pytest.FixtureRequest, pg: Any, connect: str, tmp_path: Path) -> Iterator[Day]:
    with ExitStack() as stack:
        first = stack.enter_context(fresh_database(pg))
        second = Database(stack.enter_context(temporary_postgres(version=18)), "postgres")
        uri = f"sqlite:///{tmp_path}/lake.db"
        if request.param == "per_table":
            uri = request.getfixturevalue("rest")
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(RestPointers, "together", False)
        for database in (first, second):
            _fill(database)
        file = pipeline_file(tmp_path, first, TABLES, uri=uri, name=f"k{first.name}")
        text = file.read_text().replace("'accounts': {}", "'accounts': {mode: [mirror, history, append]}")
        if request.param == "per_table":
            text = text.replace("lake:\n", "lake:\n  publish: per_table\n", 1)
        file.write_text(text)
        made = Day(file, connect, [first, second])
        with made.open() as pipeline:
            pipeline.init()
        yield made


def test_killed_in_recover_and_recovered(day: Day) -> None:
    seed = seed_of_the_run()
    print(f"SLOTLAKE_SEED={seed}")
    dice = random.Random(seed)
    with day.open() as pipeline, Watcher(pipeline) as watcher:
        for step in _steps(pipeline):
            _lost(day, cluster="lowered" in step)
            assert day.recover(step) == -9, (step, day.told)
            _ended(day, step, done=step in ("publish.after_swap", "recover.published"))
            if step == "recover.lowered":  # the first time: rows of the copy have higher numbers
                _keeps_higher_numbers(day, pipeline)
        for number in range(KILLS):
            _lost(day, cluster=number % 3 == 0)
            started = time.monotonic()
            seconds = dice.uniform(0.5, 14.0)
            code = day.recover(seconds=seconds)
            assert code in (0, -9), day.told
            taken = time.monotonic() - started
            _ended(day, f"kill {number} after {seconds:.2f} s ({taken:.2f}, {code})", done=None)
    assert watcher.sights > 3
    assert watcher.torn == []


def _steps(pipeline: Pipeline) -> list[str]:
    if not LONG:
        return ["recover.lowered", "publish.before_swap"]
    some = os.environ.get("SLOTLAKE_TEST_STEPS")
    if some:
        return some.split(",")
    return [*STEPS, *HALF] if pipeline.lake.publish == "per_table" else STEPS


def _lost(day: Day, *, cluster: bool) -> None:
    day.change()
    day.sync()
    day.change()
    day.lose(cluster=cluster)
    day.change()


def _ended(day: Day, when: str, *, done: bool | None) -> None:
    """What `status` says is done, and then all is well."""
    with day.open() as pipeline:
        told = [alarm for alarm in pipeline.status().alarms if alarm.way_out == "slotlake recover"]
        day.change()
        try:
            pipeline.sync()
        except SlotlakeError as error:
            assert done is not True, (when, error)
            assert "slotlake recover" in error.way_out, (when, error)
            assert told, (when, "status knows nothing", str(error))
            day.change()
            assert pipeline.recover(carry_out=True).carried_out
        else:
            assert done is not False, when
        pipeline.sync()
        assert_equal(day.database, pipeline, TABLES)
        assert pipeline.recover().plan == [], when
        assert [alarm for alarm in pipeline.status().alarms if alarm.way_out == "slotlake recover"] == []
        slots = day.database.execute(
            "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
        )
        assert slots == [(pipeline.source.slot,)], when
        left = [path.name for path in pipeline.file.changelog_dir.iterdir() if path.name[0] == "."]
        assert left == [], when
        cut = ReadPoint.latest(pipeline.lake)
        names = [column.name for column in cut.schema("accounts").live]
        versions = list(cut.open_versions("accounts", names) or ())
        assert sum(batch.num_rows for batch in versions) == cut.count("accounts"), when


def _keeps_higher_numbers(day: Day, pipeline: Pipeline) -> None:
    """What docs/runbook/restored-backup.md says of histories and change logs: LSNs do not order, times do."""
    day.note()
    table = f"{pipeline.lake.namespace}.accounts"
    last = list(day.moments.items())[-2:]
    above = f"SELECT id FROM {table}__history WHERE is_open AND valid_from_lsn > {pipeline.position()}"
    assert pipeline.query(above).rows
    commits = f"SELECT position FROM {pipeline.lake.namespace}.commits ORDER BY"
    newest = [pipeline.query(f"{commits} {by} DESC LIMIT 1").rows for by in ("position", "published_at")]
    assert newest[0] != newest[1] == [(str(pipeline.position()),)]
    for when, held in last:
        at = f"TIMESTAMP '{when}'"
        holds = f"valid_from_time <= {at} AND (valid_to_time IS NULL OR valid_to_time > {at})"
        history = pipeline.query(f"SELECT id, balance FROM {table}__history WHERE {holds}")
        assert sorted(history.rows) == held, when
        log = f"SELECT op, old.id, new.id, new.balance FROM {table}__changes WHERE commit_time <= {at}"
        assert _replayed(pipeline, f"{log} ORDER BY commit_time, commit_lsn, seq") == held, when
    with pytest.raises(KeyError):  # a row goes before it came
        assert _replayed(pipeline, f"{log} ORDER BY commit_lsn, seq") == held


def _replayed(pipeline: Pipeline, log: str) -> list[Any]:
    held: dict[Any, Any] = {}
    changes: Any = pipeline.query(log).rows
    for op, old, new, balance in changes:
        if op == "C":
            held.clear()
        if op in "UD":
            del held[old or new]
        if op in "RIU":
            held[new] = balance
    return sorted(held.items())
