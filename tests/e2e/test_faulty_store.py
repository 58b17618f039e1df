"""An object store that fails: each command goes on, or stops in words and goes on the next time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.spark import lake
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.storage import requests
from tests.conftest import Database, seed_of_the_run
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.faulty_store import Fault, FaultyStore
from tests.storage import moved_to

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.server,
    pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it"),
]
TABLES = ["accounts", "history"]


@pytest.fixture
def faulty(object_store: LocalObjectStore) -> Iterator[FaultyStore]:
    """A way to the store that fails when it is asked to."""
    with FaultyStore(object_store.endpoint, seed_of_the_run()) as way:
        yield way


def _pipeline(
    folder: Path, database: Database, store: LocalObjectStore, way: FaultyStore, connect: str
) -> Pipeline:
    file = pipeline_file(folder, database, TABLES, extra="maintenance: {unused_minutes: 0.01}\n")
    moved_to(store, file)
    file.write_text(file.read_text().replace(json.dumps(store.endpoint), json.dumps(way.endpoint)))
    return Pipeline.open(file, remote=connect)


def _fill(database: Database) -> None:
    database.execute(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL);"
        "CREATE TABLE history (account int, delta int);"
        "INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 3000) g"
    )


def _change(database: Database, seed: int) -> None:
    database.execute(
        f"UPDATE accounts SET balance = balance + {seed} WHERE id % 7 = {seed % 7};"
        f"INSERT INTO history SELECT id, {seed} FROM accounts WHERE id % 7 = {seed % 7};"
        f"UPDATE accounts SET id = id + 100000 WHERE id = {seed};"
        f"DELETE FROM accounts WHERE id = {1000 + seed}"
    )


def _faults(way: FaultyStore, share: float) -> None:
    for fault in (Fault.SLOW_DOWN, Fault.ERROR, Fault.RESET_BEFORE, Fault.RESET_AFTER, Fault.CUT):
        way.add(fault, probability=share)


def test_every_command_bears_faults_at_random(
    database: Database, object_store: LocalObjectStore, faulty: FaultyStore, connect: str, tmp_path: Path
) -> None:
    _fill(database)
    _faults(faulty, 0.04)
    with _pipeline(tmp_path, database, object_store, faulty, connect) as pipeline:
        pipeline.init()
        for seed in range(1, 6):
            _change(database, seed)
            pipeline.sync()
        assert_equal(database, pipeline, TABLES)
        assert pipeline.verify().equal
        pipeline.maintain()
        _change(database, 6)
        pipeline.sync()
        assert pipeline.verify().equal
        met = faulty.heal()
        assert all(met[fault] for fault in met), met
        assert_equal(database, pipeline, TABLES)
        assert pipeline.status().state == "ready"


@pytest.fixture
def soon_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits that a test can wait for."""
    monkeypatch.setattr(requests, "REQUEST_SECONDS", 2)
    monkeypatch.setattr(requests, "RETRY_SECONDS", 2)
    fewer = {"s3.retry.num-retries": "1", "http-client.apache.socket-timeout-ms": "2000"}
    monkeypatch.setattr(lake, "_LIMITS", lake._LIMITS | fewer)


_STEPS = {
    "slotlake writes a metadata file": (Fault.SLOW_DOWN, ["PUT"], r"metadata\.json"),
    "Spark writes a data file": (Fault.ERROR, ["PUT"], r"/data/"),
    "Spark's write is done and not answered": (Fault.RESET_AFTER, ["PUT"], r"/data/"),
    "keys end while Spark writes": (Fault.EXPIRED, ["PUT"], r"/data/"),
    "keys end while slotlake publishes": (Fault.EXPIRED, ["PUT"], r"commits/metadata"),
    "a data file that Spark reads is cut": (Fault.CUT, ["GET"], r"accounts/data/.*parquet"),
    "nothing answers": (Fault.SILENT, [], ""),
}


@pytest.mark.usefixtures("soon_given_up")
def test_a_store_that_fails_for_good_stops_a_sync_in_words(
    database: Database, object_store: LocalObjectStore, faulty: FaultyStore, connect: str, tmp_path: Path
) -> None:
    _fill(database)
    with _pipeline(tmp_path, database, object_store, faulty, connect) as pipeline:
        pipeline.init()
        for seed, (step, (fault, methods, path)) in enumerate(_STEPS.items(), 1):
            _change(database, seed)
            before = ReadPoint.latest(pipeline.lake).position
            rule = faulty.add(fault, *methods, path=path)
            with pytest.raises(LakeError) as raised:
                pipeline.sync()
            text = str(raised.value)
            assert "the object store" in text, (step, text)
            assert "shop/" in text, (step, text)
            assert "lake.storage" in text, (step, text)
            assert raised.value.retryable == (fault is not Fault.EXPIRED), (step, text)
            assert rule.met, step
            faulty.heal()
            assert ReadPoint.latest(pipeline.lake).position == before
            pipeline.sync()
            assert_equal(database, pipeline, TABLES)
        assert pipeline.verify().equal
