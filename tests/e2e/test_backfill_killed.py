"""Killed by SIGKILL while chosen rows are read again: as it was, or done; the same command again does it.

The stream goes on meanwhile.  SLOTLAKE_TEST_LONG=1 kills at every step, on every kind of catalog.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.spark.catalog.rest.catalog import RestPointers
from slotlake.spark.read.point import ReadPoint
from tests.catalogs import postgres_uri
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.test_backfill import _replayed
from tests.e2e.test_beside import mirrors
from tests.e2e.test_modes import _told
from tests.e2e.test_recover_killed import COMMAND, dying_at

pytestmark = pytest.mark.timeout(3600)

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
TABLES = ["items", "other"]
# The first visits are those of the micro-batch that brings the lake to the snapshot's position.
STEPS = [
    "backfill.compared:1",
    "pull.renamed",
    *(f"apply.mid_merge:{n}" for n in (1, 3, 4)),
    *(f"apply.between_modes:{n}" for n in (1, 3, 4)),
    "init.mid_copy",
    "publish.before_swap:1",
    "publish.after_swap:1",
    "publish.before_swap:2",
    "publish.after_swap:2",
]
# Where tables are published one after another: of the micro-batch, and of the backfill itself.
HALF = ["half published:1@1", "half published:3@1", "half published:1@2", "half published:2@2"]
FEW = ["apply.between_modes:4"]
WHERE = "id <= 20 OR n >= 400"


@pytest.fixture(params=["sqlite", "postgresql", "rest", "per_table"] if LONG else ["postgresql"])
def shop(
    request: pytest.FixtureRequest, pg: Any, connect: str, tmp_path: Path
) -> Iterator[tuple[Database, Pipeline, str]]:
    with ExitStack() as stack:
        database = stack.enter_context(fresh_database(pg))
        database.execute(
            "CREATE TABLE items (id int PRIMARY KEY, v text, n int);"
            "INSERT INTO items SELECT g, 'v' || g, g FROM generate_series(1, 100) g;"
            "CREATE TABLE other (id int PRIMARY KEY, v text); INSERT INTO other VALUES (0, 'a')"
        )
        uri = f"sqlite:///{tmp_path}/lake.db"
        if request.param == "postgresql":
            catalog = stack.enter_context(fresh_database(pg))
            uri = postgres_uri(catalog)
        elif request.param != "sqlite":
            uri = request.getfixturevalue("rest")
        file = pipeline_file(tmp_path, database, TABLES, uri=uri, name=f"b{database.name}")
        text = file.read_text().replace("'items': {}", "'items': {mode: [mirror, history, append]}")
        if request.param == "per_table":
            text = text.replace("lake:\n", "lake:\n  publish: per_table\n", 1)
            stack.enter_context(pytest.MonkeyPatch.context()).setattr(RestPointers, "together", False)
        file.write_text(text)
        with Pipeline.open(file, remote=connect) as pipeline:
            pipeline.init()
            yield database, pipeline, connect


def test_killed_at_each_step(shop: tuple[Database, Pipeline, str]) -> None:
    database, pipeline, remote = shop
    steps = STEPS if LONG else FEW
    if pipeline.lake.publish == "per_table":
        steps = [*HALF, *STEPS]
    steps = os.environ.get("SLOTLAKE_TEST_STEPS", ",".join(steps)).split(",")
    killed = []
    for number, step in enumerate(steps):
        _change(database, number)
        pipeline.sync()
        _damaged(pipeline, number)
        _change(database, number + 100)
        dry = LONG and step in ("pull.renamed", "publish.after_swap:1")
        for options in (["--dry-run"], []) if dry else ([],):
            code = _backfill(pipeline, remote, step, options)
            killed += [step] if code == -9 else []
            assert code == -9 or LONG, step
            half = not dry and pipeline.lake.publish == "per_table"
            assert half or len(_wrong(pipeline)) != 1, (step, "half of it")
            _change(database, number + 200)
        pipeline.backfill("items", where=WHERE, dry_run=True)
        pipeline.backfill("items", where=WHERE)
        _sound(database, pipeline, step)
        pipeline.sync()
        _sound(database, pipeline, step)
    assert steps[-1] != STEPS[-1] or {"pull.renamed", "apply.between_modes:4", "publish.after_swap:2"} <= set(
        killed
    ), killed


def _change(database: Database, number: int) -> None:
    database.execute(
        f"UPDATE items SET v = 'at {number}' WHERE id % 10 = {number % 10};"
        f"INSERT INTO items SELECT max(id) + 1, NULL, {number} FROM items;"
        f"INSERT INTO other VALUES ({number + 1}, 'b') ON CONFLICT (id) DO UPDATE SET v = 'c'"
    )


def _damaged(pipeline: Pipeline, number: int) -> None:
    """As a person might: rows of the mirror that are chosen in the lake, in the source, or in both."""
    table = f"{pipeline.lake.catalog}.{pipeline.lake.namespace}.items"
    for statement in (
        f"UPDATE {table} SET v = 'wrong {number}' WHERE id IN (3, 4)",
        f"UPDATE {table} SET n = 500 WHERE id = 60",
        f"DELETE FROM {table} WHERE id = 5",
        f"INSERT INTO {table} VALUES (9999, 'nobody', 400)",
    ):
        pipeline.session.sql(statement).collect()


def _wrong(pipeline: Pipeline) -> set[str]:
    """What no change of the stream mends: of one that is gone, and one that nobody has."""
    keys = {str(row[0]) for row in pipeline.rows("items", ["id"])}
    return {key for key, there in (("5", False), ("9999", True)) if (key in keys) == there}


def _backfill(pipeline: Pipeline, remote: str, failpoint: str, options: list[str]) -> int:
    environment = {**os.environ, "SLOTLAKE_SPARK_REMOTE": remote, **dying_at(failpoint)}
    arguments = ["backfill", str(pipeline.file.path), "--table", "items", "--where", WHERE, *options]
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        check=False,
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode


def _sound(database: Database, pipeline: Pipeline, when: str) -> None:
    with database.connect() as connection:
        held = {table: source_rows(connection, table)[1] for table in TABLES}
    cut = ReadPoint.latest(pipeline.lake)
    behind = Counter(cut.rows("items")) != held["items"]
    if behind:  # changes that came after the backfill's snapshot
        pipeline.sync()
    assert mirrors(pipeline, held) == {}, when
    told, position = _told(pipeline, pipeline.lake, "items"), pipeline.position()
    assert told.at(position) == held["items"], when
    assert _replayed(told, position) == held["items"], when
    temporary = database.execute("SELECT slot_name FROM pg_replication_slots WHERE temporary")
    assert temporary == [], when
    assert pipeline.recover().plan == [], when
    assert [a for a in pipeline.status().alarms if a.way_out == "slotlake recover"] == [], when
