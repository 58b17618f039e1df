"""Tables that join: cut into many small ranges, while a sync has time for one.

So whatever can happen between two syncs does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder import failpoints
from slotlake.infra.reports import PullReport
from slotlake.infra.sync.joining_tables import JoiningTables
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.e2e.test_init_resumed import Killed

PART_BYTES = 50_000
SLOW = "copy_seconds_per_sync: 0.001\ncopy_workers: 1\n"
COMMAND = (
    f"import slotlake.decoder.copy.parts as p; p.PART_BYTES = {PART_BYTES}; "
    "from slotlake.infra.cli.main import main; main()"
)
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
BIG, SMALL = "public.big", "public.small"


def begun(
    database: Database,
    folder: Path,
    connect: str,
    *,
    extra: str = "",
    source: str = "",
    uri: str | None = None,
    lake: str = "lake:\n",
) -> Pipeline:
    """A pipeline of one small table; ``lake``: the beginning of that section."""
    database.execute("CREATE TABLE small (id int PRIMARY KEY, v int); INSERT INTO small VALUES (1, 0)")
    file = pipeline_file(folder, database, ["small"], source=SLOW + source, extra=extra, uri=uri)
    text = file.read_text().replace("lake:\n", lake, 1)
    if uri is not None:  # a catalog that other tests may share
        text = text.replace("namespace: shop", f"namespace: shop_{database.name}")
    file.write_text(text)
    pipeline = Pipeline.open(file, remote=connect)
    pipeline.init()
    return pipeline


def big(database: Database, rows: int = 1200, name: str = "big", key: str = "PRIMARY KEY (id)") -> None:
    """A table of several ranges, with values out of line, that joins."""
    database.execute(
        f"""
        CREATE TABLE {name} (id int, v int, t text, {key});
        ALTER TABLE {name} ALTER t SET STORAGE EXTERNAL;
        INSERT INTO {name} SELECT i, i, CASE WHEN i % 40 = 0 THEN repeat(md5(i::text), 100) ELSE 'x' || i END
        FROM generate_series(1, {rows}) i;
        ALTER PUBLICATION shop ADD TABLE {name}
        """
    )


def write(database: Database, number: int, name: str = "big") -> None:
    """Rows that move between ranges, change their key, go, come, and come again; values out of line stay."""
    database.execute(
        f"""
        UPDATE small SET v = {number};
        UPDATE {name} SET v = v + 1 WHERE id % 40 = {number % 8 * 5};
        UPDATE {name} SET id = id + 1000000 WHERE id % 101 = {number} AND id < 10000;
        DELETE FROM {name} WHERE id % 53 = {number};
        INSERT INTO {name} SELECT {10000 * number} + i, -{number}, 'new' FROM generate_series(0, 50) i
        ON CONFLICT DO NOTHING;
        DELETE FROM {name} WHERE id = {10000 * number};
        INSERT INTO {name} VALUES ({10000 * number}, 0, 'again')
        """
    )
    database.execute(f"VACUUM {name}")
    database.execute(f"UPDATE {name} SET v = -v WHERE id % 29 = {number}")  # back into the room that was made


def until_joined(pipeline: Pipeline, table: str = BIG, syncs_max: int = 40) -> int:
    """How many syncs it took."""
    for number in range(1, syncs_max):
        if table in pipeline.sync().added_tables:
            return number
    raise AssertionError(pipeline.status().tables)


def stepped(pipeline: Pipeline) -> PullReport:
    """One sync, step by step, as Airflow's tasks do it."""
    pulled = pipeline.pull()
    if pulled.batch is not None:
        pipeline.apply(pulled.batch)
        pipeline.publish(pulled.batch)
    pipeline.confirm()
    return pulled


def ready(pipeline: Pipeline) -> set[str]:
    """The tables that a reader sees."""
    return {entry.table for entry in pipeline.status().tables if entry.state == "ready"}


def ranges(pipeline: Pipeline, table: str = BIG) -> int:
    """How many of its ranges are there."""
    return int(JoiningTables(pipeline).progress_by_table().get(table, "0").split(" ")[0])


def killed(connect: str, file: Path, failpoint: str) -> None:
    environment = {**os.environ, "SLOTLAKE_SPARK_REMOTE": connect, "SLOTLAKE_FAILPOINT": failpoint}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.argv[1:] = ['sync', {str(file)!r}]; {COMMAND}"],
        check=False, env=environment, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == -9, (failpoint, done.stderr)


def interrupted(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch, failpoint: str) -> None:
    """A sync in this process that ends at a failpoint, as if it had been killed there."""
    ended_at(monkeypatch, failpoint, pipeline.sync)


def ended_at(monkeypatch: pytest.MonkeyPatch, failpoint: str, doing: Callable[[], object]) -> None:
    """Likewise of anything."""

    def end(*of: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setenv("SLOTLAKE_FAILPOINT", failpoint)
        patch.setattr(failpoints, "_reached", {})
        patch.setattr("slotlake.decoder.failpoints.os.kill", end)
        with pytest.raises(Killed):
            doing()
