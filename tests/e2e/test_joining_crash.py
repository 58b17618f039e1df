"""A half copied table that joins: killed anywhere, truncated, altered, made again; the lake is the source."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slotlake.infra.copy.joining_record import JoiningRecord
from tests.conftest import Database
from tests.e2e.joins import (
    BIG,
    COMMAND,
    LONG,
    PART_BYTES,
    SMALL,
    begun,
    big,
    interrupted,
    killed,
    ranges,
    ready,
    until_joined,
    write,
)
from tests.e2e.oracle import assert_equal
from tests.meanwhile import repeatedly

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)


def test_killed_at_each_step(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between ranges, after a batch's keys are noted, at the end before and in the publication."""
    with begun(database, tmp_path, connect) as pipeline:
        big(database)
        if LONG:
            killed(connect, pipeline.file.path, "init.part_done")
        else:
            interrupted(pipeline, monkeypatch, "init.part_done")
        write(database, 1)
        for failpoint in ("join.noted", "init.mid_copy", "publish.after_swap"):
            interrupted(pipeline, monkeypatch, failpoint)
            write(database, ranges(pipeline) + 2)
            assert ready(pipeline) == {SMALL}
        there = ranges(pipeline)
        assert there > 1
        for number, failpoint in enumerate(("init.registered", "init.before_publish", "join.published")):
            write(database, 20 + number)
            for _ in range(20):
                try:
                    interrupted(pipeline, monkeypatch, failpoint)
                    break
                except pytest.fail.Exception:  # it did not get there yet
                    assert ranges(pipeline) >= there, failpoint
            there = ranges(pipeline)
        write(database, 30)
        pipeline.sync()
        assert_equal(database, pipeline, ["big", "small"])
        assert pipeline.verify().equal
        assert not (pipeline.file.state_dir / "joining").exists()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_forgotten_keys_would_be_seen(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oracle of these tests: without the keys of one batch the lake is not the source."""
    with begun(database, tmp_path, connect) as pipeline:
        big(database, 600)
        pipeline.sync()
        write(database, 1)
        with monkeypatch.context() as patch:
            noted = JoiningRecord.note
            patch.setattr(JoiningRecord, "note", lambda self, t, p, keys: noted(self, t, p, keys.slice(0, 0)))
            pipeline.sync()
        until_joined(pipeline)
        assert not pipeline.verify().equal


# What happens to a half copied table.
EVENTS = {
    "truncated": "TRUNCATE big; INSERT INTO big SELECT i, i, 'after' FROM generate_series(1, 900) i",
    "rewritten": "VACUUM FULL big",
    "altered": "ALTER TABLE big ADD x int DEFAULT 7; UPDATE big SET x = 8 WHERE id < 50",
    "made again": (
        "DROP TABLE big; CREATE TABLE big (id int PRIMARY KEY, other text);"
        "INSERT INTO big SELECT i, 'another' FROM generate_series(1, 2000) i;"
        "ALTER PUBLICATION shop ADD TABLE big"
    ),
    "out and back": (
        "ALTER PUBLICATION shop DROP TABLE big; UPDATE big SET v = -1 WHERE id < 20;"
        "ALTER PUBLICATION shop ADD TABLE big"
    ),
    "identity full": "ALTER TABLE big REPLICA IDENTITY FULL; UPDATE big SET id = -id WHERE id < 9",
    "analyzed": "ANALYZE big; UPDATE big SET v = 0 WHERE id % 3 = 0",
}
FEW = ("truncated",)


@pytest.mark.parametrize("event", EVENTS if LONG else FEW)
def test_what_happens_meanwhile(database: Database, connect: str, tmp_path: Path, event: str) -> None:
    with begun(database, tmp_path, connect) as pipeline:
        big(database, 800)
        pipeline.sync()
        pipeline.sync()
        for statement in EVENTS[event].split(";"):
            database.execute(statement)
        database.execute("UPDATE small SET v = 5")
        pipeline.sync()
        assert_equal(database, pipeline, ["small"])
        if BIG not in ready(pipeline):
            until_joined(pipeline)
        assert_equal(database, pipeline, ["big", "small"])
        assert pipeline.verify().equal


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_killed_at_random_moments(database: Database, connect: str, tmp_path: Path) -> None:
    """The command, killed wherever it is, while the source is never still."""
    chance = random.Random(os.environ.get("SLOTLAKE_TEST_SEED", "1"))
    with begun(database, tmp_path, connect) as pipeline:
        big(database, 2500)
        numbers = itertools.cycle(range(1, 51))
        with repeatedly(lambda: write(database, next(numbers)), 0.2):
            killed_times = 0
            for _ in range(25):
                process = subprocess.Popen(
                    [sys.executable, "-c",
                     f"import sys; sys.argv[1:] = ['sync', {str(pipeline.file.path)!r}]; {COMMAND}"],
                    env={**os.environ, "SLOTLAKE_SPARK_REMOTE": connect},
                    stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                )  # fmt: skip
                time.sleep(chance.uniform(2, 15))
                killed_times += process.poll() is None
                process.kill()
                process.wait()
                if BIG in ready(pipeline):
                    break
                assert ready(pipeline) <= {SMALL}
            if BIG not in ready(pipeline):
                until_joined(pipeline)
            assert killed_times
            assert pipeline.verify().equal
        pipeline.sync()
        assert_equal(database, pipeline, ["big", "small"])
