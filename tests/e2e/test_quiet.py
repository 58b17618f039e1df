"""No log line of Spark, Java or a library reaches a person: what each command says on standard error."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.sources import ROOT

pytestmark = pytest.mark.timeout(600)
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
# What Spark, Java, log4j, ivy, py4j and Python's own warnings begin their lines with, or have in them.
NOISE = re.compile(
    r"\b(WARN|WARNING|ERROR|INFO|DEBUG|Exception|SLF4J|log4j2?|ivy|incubator|Traceback)\b|Warning:|"
    r"Spark's default|log level|^\s+at |\.(java|scala|py):\d+",
    re.MULTILINE,
)

_OF_THIS_PROCESS = ("SPARK_CONF_DIR", "SPARK_HOME", "SPARK_SUBMIT_OPTS", "SPARK_LOCAL_IP")


def _run(file: Path, command: str, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    outside = {name: value for name, value in os.environ.items() if name not in _OF_THIS_PROCESS}
    return subprocess.run(
        [sys.executable, "-P", "-m", "slotlake", command, str(file), *more],
        check=False,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
        env={**outside, **variables},
    )


@pytest.mark.slow
def test_commands_with_a_spark_of_their_own(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one')")
    file = pipeline_file(tmp_path, database, ["t"])
    said: dict[str, str] = {}
    for command in ("validate", "init", "sync", "verify") if LONG else ("init", "sync"):
        if command == "sync":
            database.execute("INSERT INTO t VALUES (2, 'two')")
        done = _run(file, command)
        assert done.returncode == 0, (command, done.stderr)
        said[command] = done.stderr
    failing = "SELECT id / (id - 1), v FROM t"  # fails in a task, which Spark logs with the row's plan
    with ThreadPoolExecutor(2) as two_at_once:  # these take no lock
        harmless = {
            "status": two_at_once.submit(_run, file, "status"),
            "query": two_at_once.submit(_run, file, "query", "SELECT * FROM t"),
        }
        if LONG:
            by_spark = two_at_once.submit(_run, file, "query", "SELECT * FROM t", "--engine", "spark")
            harmless["query by Spark"] = by_spark
        failed = two_at_once.submit(_run, file, "query", failing, "--engine", "spark")
        asked = LONG and two_at_once.submit(
            _run, file, "query", failing, "--engine", "spark", SLOTLAKE_SPARK_LOG_LEVEL="error"
        )
    for name, run in harmless.items():
        assert run.result().returncode == 0, (name, run.result().stderr)
        said[name] = run.result().stderr
    assert failed.result().returncode == 7
    assert failed.result().stderr.startswith("slotlake: the query failed: [DIVIDE_BY_ZERO]")
    said["a query that fails"] = failed.result().stderr
    assert {command: text for command, text in said.items() if NOISE.search(text)} == {}
    assert not asked or " ERROR Executor: " in asked.result().stderr


def test_a_query_over_connect(database: Database, connect: str, tmp_path: Path, session: Any) -> None:
    from slotlake import Pipeline

    database.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)")
    file = pipeline_file(tmp_path, database, ["t"])
    with Pipeline.open(file) as pipeline:
        pipeline.init()
    done = _run(
        file, "query", "SELECT id FROM t", "--engine", "spark", "--json", SLOTLAKE_SPARK_REMOTE=connect
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["rows"] == [["1"]]
