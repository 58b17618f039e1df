"""Spark starts when a statement needs it, and not before: what starts is counted, here and in processes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.lsn import parse_lsn
from slotlake.infra.airflow import steps
from slotlake.infra.local.java import find_java
from slotlake.infra.opened import engine
from slotlake.infra.sync.loop import RunLimits
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.sources import ROOT

pytestmark = pytest.mark.timeout(300)
# WAL that brings the lake nothing: a table that nobody follows, a transaction without changes, messages, what
# was rolled back, another database.
NOTHING = (
    "INSERT INTO elsewhere SELECT generate_series(1, 100)",
    "SELECT pg_current_xact_id()",
    "SELECT pg_logical_emit_message(true, 'hello', 'world'), pg_logical_emit_message(false, 'a', 'b')",
    "BEGIN; INSERT INTO t VALUES (99, 'no'); ROLLBACK",
)


def _java_that_counts(folder: Path) -> tuple[Path, Callable[[], int]]:
    """A folder for JAVA_HOME, and how many Sparks were started with it."""
    program, calls = folder / "bin" / "java", folder / "calls"
    program.parent.mkdir(parents=True)
    calls.touch()
    call = f'#!/bin/sh\necho "$*" >> {calls}\nexec {shlex.quote(find_java().program)} "$@"\n'
    program.write_text(call)
    program.chmod(0o755)
    return folder, lambda: calls.read_text().count("org.apache.spark.launcher.Main")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The pipelines of this process that have opened Spark."""
    names: list[str] = []

    def in_process(file: Any, *others: Any) -> Any:
        names.append(file.name)
        return original(file, *others)

    original = engine._in_process
    monkeypatch.setattr(engine, "_in_process", in_process)
    return names


def _confirmed(database: Database) -> int:
    sql = "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE database = current_database()"
    with database.connect() as connection:
        return parse_lsn(str(connection.execute(sql).fetchall()[0][0]))


def _by_airflow(file: Path) -> None:
    pulled = steps.pull(str(file))
    if pulled["batch"] is not None:
        steps.apply(str(file), pulled["batch"])
        steps.publish(str(file), pulled["batch"])
    steps.confirm(str(file), pulled["batch"])


def test_what_needs_no_spark_starts_none(
    database: Database, tmp_path: Path, session: Any, opened: list[str]
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE u (id int PRIMARY KEY);"
        "CREATE TABLE elsewhere (id int); INSERT INTO t VALUES (1, 'one')"
    )
    file = pipeline_file(tmp_path, database, ["t", "u"])
    with Pipeline.open(file) as pipeline:
        pipeline.init()
    opened.clear()
    with Pipeline.open(file) as pipeline:
        assert not any(each.rewritten_files for each in pipeline.maintain().tables)
    java, started = _java_that_counts(tmp_path / "java")

    def by_command(*arguments: str) -> None:
        command = [sys.executable, "-P", "-m", "slotlake", arguments[0], str(file), *arguments[1:]]
        subprocess.run(command, check=True, cwd=ROOT, env=os.environ | {"JAVA_HOME": str(java)})

    def until_now() -> str:
        with database.connect() as connection:
            return str(connection.execute("SELECT pg_current_wal_lsn()").fetchall()[0][0])

    def by_run(_: Path) -> None:
        with Pipeline.open(file) as pipeline:
            pipeline.run(RunLimits(until=parse_lsn(until_now())))

    ways: dict[str, Callable[[Path], Any]] = {
        "Pipeline.sync": _synced,
        "Pipeline.run": by_run,
        "Airflow's steps": _by_airflow,
        "Airflow's step sync": lambda file: steps.sync(str(file)),
        "sync": lambda _: by_command("sync"),
        "run": lambda _: by_command("run", "--until-lsn", until_now()),
    }
    for number, (way, go) in enumerate(ways.items()):
        some = (f"INSERT INTO t VALUES ({10 + number}, 'n')", f"INSERT INTO u VALUES ({number})")
        for few in ((), some) if way != "run" else ((),):
            with database.connect() as connection:
                for statement in (*NOTHING, *few):
                    connection.execute(statement)
            with Pipeline.open(file) as pipeline:
                before = pipeline.position()
            go(file)
            with Pipeline.open(file) as pipeline:
                position = pipeline.position()
                assert position > before, way
                assert _confirmed(database) == position, way
                if few:
                    assert_equal(database, pipeline, ["t", "u"])
            assert (opened, started()) == ([], 0), way
    with Pipeline.open(file) as pipeline:
        pipeline.status()
        pipeline.query("SELECT * FROM t")
        assert pipeline.verify().equal
        assert opened == []
        pipeline.query("SELECT * FROM t", engine="spark")
    by_command("validate")
    assert started() == 0
    by_command("query", "SELECT * FROM t", "--engine", "spark")
    assert (opened, started()) == (["shop"], 1), "what needs Spark is counted"


def _synced(file: Path) -> None:
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
