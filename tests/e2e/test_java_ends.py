"""A Java that ends is named and started again; one table that ends it stops neither others nor pipelines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import LONG, Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.test_quiet import NOISE
from tests.sources import ROOT

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
TABLES = ["large", "small"]


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_java_that_ends_is_named_and_begun_again(database: Database, tmp_path: Path, session: Any) -> None:
    database.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text); CREATE TABLE small (id int PRIMARY KEY, v text);"
        "INSERT INTO large VALUES (1, 'one'); INSERT INTO small VALUES (1, 'one')"
    )
    files = [pipeline_file(tmp_path / name, database, TABLES, name=name) for name in ("shop", "other")]
    for file in files:
        with Pipeline.open(file) as pipeline:
            pipeline.init()
    for number, (way, times) in enumerate((("killed", 1), ("memory", 2)), 2):
        database.execute(
            f"UPDATE large SET v = v || '.'; INSERT INTO small VALUES ({number}, 'n'); DELETE FROM small"
            f" WHERE id = {number - 2}"
        )
        done = subprocess.run(
            [sys.executable, "-P", "-m", "tests.e2e.java_ends", *map(str, files), way, str(times)],
            check=False,
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "SLOTLAKE_DIRECT": "never"},
        )
        assert done.returncode == 0, done.stderr
        said = json.loads(done.stdout)
        assert said["left"] == 0
        assert said["rows"] == [["1"]], "the other pipeline goes on in the new Java"
        ended = "it was killed, as a machine without memory does it" if way == "killed" else "out of memory"
        told = "the tables one by one" if way == "killed" else "Java ended: out of memory"
        assert f"Java ended: {ended}" in done.stderr, done.stderr
        assert told in done.stderr
        assert not NOISE.search(done.stderr), done.stderr
        aside = {table: reason for table, reason in said["aside"].items() if "out of memory" in reason}
        assert list(aside) == ([] if way == "killed" else ["public.large"]), said
        with Pipeline.open(files[0]) as pipeline:
            assert_equal(database, pipeline, TABLES if way == "killed" else ["small"])
    with Pipeline.open(files[0]) as pipeline:
        pipeline.resume("large")
        assert_equal(database, pipeline, TABLES)
