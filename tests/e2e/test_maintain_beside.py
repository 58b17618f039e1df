"""Batches go on while `maintain` works, which may be killed at any moment."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import BusyError
from slotlake.decoder.failpoints import happening
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.maintenance.integrity import find_damage
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.storage import IN_NESSIE, ON_REST

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        ON_REST or IN_NESSIE, reason="behind a REST server files are rewritten under the lock (ADR 69)"
    ),
]

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
COMMAND = "from slotlake.infra.cli.main import main; main()"
SETTINGS = "maintenance: {in_sync: false}\n"


def _worn(database: Database, pipeline: Pipeline) -> None:
    for number in range(7):
        first = 1000 + number * 40
        database.execute(
            f"UPDATE stock SET n = {number} WHERE id % 50 = {number};"
            f"INSERT INTO stock SELECT g, 0 FROM generate_series({first}, {first + 39}) g"
        )
        pipeline.sync()


def _init(database: Database, pipeline: Pipeline) -> None:
    database.execute(
        "CREATE TABLE stock (id int PRIMARY KEY, n int);"
        "INSERT INTO stock SELECT g, 0 FROM generate_series(1, 400) g"
    )
    pipeline.init()
    _worn(database, pipeline)


def test_batches_go_on_while_files_are_rewritten(database: Database, connect: str, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, database, ["stock"], extra=SETTINGS)
    rewritten, goes_on = threading.Event(), threading.Event()

    def long_work() -> None:
        rewritten.set()
        assert goes_on.wait(120)

    with (
        Pipeline.open(file, remote=connect) as pipeline,
        Pipeline.open(file, remote=connect) as other,
        ThreadPoolExecutor(1) as thread,
    ):
        _init(database, pipeline)
        with happening("maintain.written", long_work):
            at_work = thread.submit(other.maintain, "public.stock", wait_seconds=60.0)
            assert rewritten.wait(120)
            try:
                with pytest.raises(BusyError):
                    pipeline.maintain()
                started = time.monotonic()
                for number in range(3):
                    database.execute(f"INSERT INTO stock VALUES ({5000 + number}, {number})")
                    assert pipeline.sync().changes == 1  # does not wait for the lock
                    assert ("5000", "0") in set(pipeline.rows("stock"))
                assert pipeline.verify().equal
                print(f"three batches beside maintenance: {time.monotonic() - started:.2f} s")
            finally:
                goes_on.set()
            report = at_work.result()
        (table,) = report.tables
        assert table.rewritten_files >= 5
        assert table.given_up_files == 0
        assert_equal(database, pipeline, ["stock"])
        assert pipeline.verify().equal
        assert find_damage(pipeline.lake, "shop", files=True) == []


@pytest.mark.skipif(not LONG, reason="starts five processes")
@pytest.mark.parametrize("step", ["maintain.written", "maintain.rewritten", "maintain.expired"])
def test_killed_it_leaves_the_lake_right(database: Database, connect: str, tmp_path: Path, step: str) -> None:
    file = pipeline_file(tmp_path, database, ["stock"], extra=SETTINGS)
    with Pipeline.open(file, remote=connect) as pipeline:
        _init(database, pipeline)
        assert _maintain(file, connect, step) == -9
        assert_equal(database, pipeline, ["stock"])
        database.execute("UPDATE stock SET n = -1 WHERE id % 3 = 0; DELETE FROM stock WHERE id % 5 = 0")
        pipeline.sync()
        assert pipeline.verify().equal
        assert bool(_clones(pipeline)) == (step == "maintain.written")
        assert _maintain(file, connect, "") == 0
        assert_equal(database, pipeline, ["stock"])
        assert not _clones(pipeline)
        assert find_damage(pipeline.lake, "shop", files=True) == []
        assert _maintain(file, connect, step) in {-9, 0}
        pipeline.drop(lake=True)
        assert not _clones(pipeline)


def _clones(pipeline: Any) -> list[str]:
    with open_catalog(pipeline.lake) as catalog:
        return [str(name) for name in catalog.names() if name.namespace.startswith("slotlake_rewriting")]


def _maintain(file: Path, remote: str, failpoint: str) -> int:
    environment = {**os.environ, "SLOTLAKE_SPARK_REMOTE": remote, "SLOTLAKE_FAILPOINT": failpoint}
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, "maintain", str(file), "--table", "stock"],
        check=False,
        env=environment,
        timeout=300,
    )
    return done.returncode
