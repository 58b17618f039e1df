"""Readers in a loop while pgbench writes and batches are published: no cut is ever broken, on any catalog.

SLOTLAKE_READER_SECONDS makes it longer than the few seconds of an ordinary run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.local.postgres import USER
from tests.catalogs import postgres_uri
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.spark.rest_catalog import LocalRestCatalog

pytestmark = pytest.mark.timeout(600)

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
ROOT = Path(__file__).resolve().parents[2]
SECONDS = float(os.environ.get("SLOTLAKE_READER_SECONDS", "6"))
SYNCS_MIN = 3
TABLES = ["accounts", "tellers", "branches", "history"]
_SETUP = """
CREATE TABLE branches (bid int PRIMARY KEY, bbalance int NOT NULL);
CREATE TABLE tellers (tid int PRIMARY KEY, bid int NOT NULL, tbalance int NOT NULL);
CREATE TABLE accounts (aid int PRIMARY KEY, bid int NOT NULL, abalance int NOT NULL);
CREATE TABLE history (tid int, bid int, aid int, delta int);
INSERT INTO branches SELECT g, 0 FROM generate_series(1, 2) g;
INSERT INTO tellers SELECT g, 1, 0 FROM generate_series(1, 20) g;
INSERT INTO accounts SELECT g, 1, 0 FROM generate_series(1, 2000) g;
"""
_TRANSACTION = r"""
\set aid random(1, 2000)
\set tid random(1, 20)
\set bid random(1, 2)
\set delta random(-5000, 5000)
BEGIN;
UPDATE accounts SET abalance = abalance + :delta WHERE aid = :aid;
UPDATE tellers SET tbalance = tbalance + :delta WHERE tid = :tid;
UPDATE branches SET bbalance = bbalance + :delta WHERE bid = :bid;
INSERT INTO history VALUES (:tid, :bid, :aid, :delta);
END;
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgresql", "rest"] if LONG else ["sqlite", "rest"])
def test_no_reader_sees_a_broken_cut(kind: str, database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(_SETUP)
    if kind == "rest":
        with LocalRestCatalog(tmp_path / "rest") as server:
            _read_while_writing(database, tmp_path, server.uri, reads_min=50)
    elif kind == "postgresql":
        url = postgres_uri(database)
        _read_while_writing(database, tmp_path, url, reads_min=200)
    else:
        _read_while_writing(database, tmp_path, f"sqlite:///{tmp_path}/lake.db", reads_min=200)


def _read_while_writing(database: Database, folder: Path, uri: str, reads_min: int) -> None:
    file = pipeline_file(folder, database, TABLES, uri=uri)
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        writer, reader = _pgbench(database, folder), _reader(file)
        try:
            assert reader.stdout is not None
            reader.stdout.readline()  # it has begun
            until, syncs = time.monotonic() + SECONDS, 0
            while (syncs < SYNCS_MIN or time.monotonic() < until) and reader.poll() is None:
                pipeline.sync()
                syncs += 1
                if syncs == SYNCS_MIN - 1:
                    maintained = pipeline.maintain("accounts").tables
            output, errors = reader.communicate("stop\n", timeout=120)
        finally:
            reader.kill()
            writer.terminate()
            writer.wait(60)
        report = json.loads(output) if output else errors
        assert isinstance(report, dict), report
        print(report)
        assert report["torn"] == []
        assert len(maintained) == 1
        assert report["reads"] >= reads_min
        assert report["cuts"] >= SYNCS_MIN
        pipeline.sync()
        assert_equal(database, pipeline, TABLES)


def _pgbench(database: Database, folder: Path) -> subprocess.Popen[bytes]:
    script = folder / "transaction.sql"
    script.write_text(_TRANSACTION)
    server = database.server
    command = [
        server.program("pgbench"), "-n", "-f", str(script), "-c", "2", "-R", "100",
        "-T", str(int(SECONDS) + 300), "-h", "127.0.0.1", "-p", str(server.port), "-U", USER, database.name,
    ]  # fmt: skip
    environment = {**os.environ, "PGPASSWORD": server.password}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet)


def _reader(file: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.spark.read_child", str(file)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
