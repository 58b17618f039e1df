"""Nessie, a Hive Metastore and AWS Glue: killed in apply and publish, layouts, marked rows, replay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.replay.scratch import scratch_of
from tests import storage
from tests.catalogs import GLUE_URI, glue_lines
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]

SETUP = """
CREATE TABLE t (id int PRIMARY KEY, region text, ts timestamptz, v text);
CREATE TABLE u (id int PRIMARY KEY, v text); ALTER TABLE u REPLICA IDENTITY FULL;
INSERT INTO t SELECT g, 'r' || g % 3, timestamptz '2026-01-01Z' + g * interval '7 hours', 'v'
FROM generate_series(1, 60) g;
INSERT INTO u SELECT g, 'v' FROM generate_series(1, 40) g
"""
TABLES = """
  t: {partition_by: ["bucket(3, id)", region, day(ts)], sort_by: [id], mode: history}
  u: {on_delete: mark, partition_by: ["truncate(1, v)"]}
"""
# A Metastore's lock of a killed process stays for minutes: there, no kill is under it.
FAILPOINTS = {
    "nessie": ["apply.mid_merge", "apply.between_tables", "publish.before_swap", "publish.after_swap"],
    "hive": ["apply.between_tables", "publish.before_swap", "publish.after_swap"],
    "glue": [
        *("apply.mid_merge", "apply.between_tables", "publish.before_swap"),
        *("publish.between_tables", "publish.after_swap"),
    ],
}


def _file(where: str, folder: Path, database: Database, request: pytest.FixtureRequest) -> Path:
    store = request.getfixturevalue("object_store")
    lines, uri = "  publish: per_table\n", GLUE_URI
    if where == "nessie":
        uri = request.getfixturevalue("nessie").branch(f"o{database.name}")
        lines = "  staging: local\n  format: 2\n"
    elif where == "hive":
        uri = request.getfixturevalue("hive")
    else:
        lines = glue_lines(request)
    file = pipeline_file(folder, database, [], extra=TABLES.lstrip("\n"), uri=uri, name=f"o{database.name}")
    file.write_text(file.read_text().replace("lake:\n", f"lake:\n{lines}", 1))
    if where != "hive" and not storage.IN_S3:
        storage.moved_to(store, file)
    return file


def _work(database: Database, number: int) -> None:
    """Rows move to other partitions, from and to NULL; keys change; rows leave, and one comes back."""
    database.execute(
        f"UPDATE t SET region = 'r' || (id + {number}) % 4, v = 'w{number}' WHERE id % 5 = {number % 5};"
        f"UPDATE t SET region = NULL, ts = NULL WHERE id = {number + 20};"
        f"UPDATE t SET id = id + 1000 WHERE id = {number + 30}; DELETE FROM t WHERE id = {number + 40};"
        f"UPDATE u SET v = '{number}' WHERE id % 7 = {number % 7}; DELETE FROM u WHERE id = {number + 1};"
        f"UPDATE u SET id = id + 1000 WHERE id = {number + 20};"
        f"INSERT INTO u VALUES ({number}, 'again') ON CONFLICT DO NOTHING"
    )


def _assert_as_the_source(database: Database, pipeline: Any, when: str) -> None:
    with database.connect() as connection:
        expected = {table: source_rows(connection, table)[1] for table in ("t", "u")}
    seen = {"t": Counter(pipeline.rows("t"))}
    live = pipeline.query("SELECT id, v FROM u WHERE NOT _is_deleted").rows
    seen["u"] = Counter(tuple(row) for row in live)
    open_versions = pipeline.query("SELECT id, region, v FROM t__history WHERE is_open").rows
    assert seen == expected, when
    assert Counter((row[0], row[1], row[3]) for row in expected["t"].elements()) == Counter(
        tuple(row) for row in open_versions
    ), when


def _killed(file: Path, failpoint: str, remote: str | None) -> None:
    """A process of its own, by the warm Spark; that one has no keys of Glue, so there with its own."""
    environment = {**os.environ, "SLOTLAKE_FAILPOINT": failpoint}
    if remote is not None:
        environment["SLOTLAKE_SPARK_REMOTE"] = remote
    killed = subprocess.run(
        [sys.executable, "-m", "slotlake", "sync", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL, (failpoint, killed.stdout, killed.stderr)


@pytest.mark.parametrize("where", ["nessie", "hive", "glue"])
def test_killed_partitioned_marked_and_replayed(
    where: str, database: Database, session: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    database.execute(SETUP)
    file = _file(where, tmp_path, database, request)
    remote = None if where == "glue" else request.getfixturevalue("connect")
    with Pipeline.open(file) as pipeline:
        first = pipeline.init().lsn
        _assert_as_the_source(database, pipeline, "init")
        for number, failpoint in enumerate(FAILPOINTS[where]):
            _work(database, number)
            before = pipeline.position()
            _killed(file, failpoint, remote)
            assert (pipeline.position() != before) == (failpoint == "publish.after_swap"), failpoint
            _work(database, number + 10)
            pipeline.sync()
            _assert_as_the_source(database, pipeline, failpoint)
        gone = {str(row[0]) for row in pipeline.query("SELECT id FROM u WHERE _is_deleted").rows}
        assert gone >= {"20", "21"}
        pipeline.maintain()
        pipeline.backfill("t")
        _assert_as_the_source(database, pipeline, "maintain and backfill")
        assert pipeline.verify().equal
        namespace = f"again_{database.name}"
        pipeline.replay(namespace, start=first, transactions=3)
        again = ReadPoint.latest(scratch_of(pipeline.lake, namespace))
        for table in ("t", "u"):
            assert Counter(again.rows(table)) == Counter(pipeline.rows(table)), table
        pipeline.drop(lake=True)
