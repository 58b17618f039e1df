"""A pipeline whose lake has Iceberg's format 2: followed, proven, repaired, brought to format 3 and back."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pytest

from slotlake import Pipeline
from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.lsn import parse_lsn
from slotlake.infra.status.validation import validate
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import LakeName
from slotlake.spark.tables.position_deletes import PositionDeletes
from tests.conftest import LONG, Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.readers import duckdb_connection, duckdb_secret, pyiceberg_catalog
from tests.e2e.scenarios import big
from tests.e2e.test_modes import MODES, _source, _told
from tests.storage import IN_NESSIE, ON_REST

pytestmark = pytest.mark.timeout(900)

TABLES = ["items", "bag", "ddl"]
SETUP = f"""
CREATE TABLE items (a int, valid_from_lsn text, v numeric, big text, PRIMARY KEY (a, valid_from_lsn));
CREATE TABLE bag (v text, n int); ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE ddl (id int PRIMARY KEY, a text, b int);
INSERT INTO items SELECT g, 'k', g, {big(1)} FROM generate_series(1, 200) g;
INSERT INTO bag SELECT 'x', g % 7 FROM generate_series(1, 60) g;
INSERT INTO ddl SELECT g, 'a', g FROM generate_series(1, 50) g
"""
# Each followed by a sync.
STEPS = [
    f"""
    INSERT INTO items VALUES (300, 'k', 'NaN', {big(2)}); UPDATE items SET v = -v WHERE a % 5 = 0;
    DELETE FROM items WHERE a % 11 = 0; UPDATE items SET a = a + 1000 WHERE a BETWEEN 40 AND 50;
    DELETE FROM bag WHERE n = 3; INSERT INTO bag VALUES (NULL, NULL), ('y', 1), ('y', 1)
    """,
    """
    ALTER TABLE ddl ADD c int DEFAULT 7; ALTER TABLE ddl RENAME a TO z;
    UPDATE ddl SET z = 'after' WHERE id < 9; UPDATE items SET v = 0 WHERE a < 100;
    DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag)
    """,
    """
    TRUNCATE bag; INSERT INTO bag VALUES ('again', 1); ALTER TABLE ddl ALTER b TYPE bigint;
    ALTER TABLE ddl DROP c; DELETE FROM ddl WHERE id > 45; UPDATE items SET a = -a WHERE a > 1000
    """,
]


def _file(folder: Path, database: Database, table_format: int) -> Path:
    """The pipeline file, with modes for two tables; the third's columns change."""
    tables = "  ddl: {mode: [mirror]}\n"
    file = pipeline_file(folder, database, TABLES[:2], extra=tables + MODES)
    file.write_text(file.read_text().replace("lake:\n", f"lake:\n  format: {table_format}\n", 1))
    return file


def _formats(pipeline: Any) -> dict[str, int]:
    with open_catalog(pipeline.lake) as catalog:
        pointers = catalog.pointers()
        return {name.table: load(pointers, name).metadata["format-version"] for name in pointers}


def _suffixes(pipeline: Any) -> set[str]:
    """The kinds of the files in the tables' folders of data."""
    files = [each.location for each in lake_files.files(pipeline.lake.root)]
    return {PurePath(each).suffix for each in files if "/data/" in each and each.name[0] != "."}


def _read_by_others(pipeline: Any, database: Database) -> dict[str, bool]:
    """Whether Spark, pyiceberg and DuckDB see the keys of the source's rows of `items`."""
    with database.connect() as connection:
        expected = sorted(int(row[0]) for row in connection.execute("SELECT a FROM items").fetchall())
    table = pyiceberg_catalog(pipeline.lake).load_table("shop.items")
    with duckdb_connection("httpfs", "avro", "iceberg") as connection:
        duckdb_secret(connection)
        duckdb = connection.execute(f"SELECT a FROM iceberg_scan('{table.metadata_location}')").fetchall()
    rows = pipeline.session.sql("SELECT a FROM lake.shop.items").collect()
    return {
        "spark": sorted(row[0] for row in rows) == expected,
        "pyiceberg": sorted(python_values(table.scan().to_arrow()["a"])) == expected,
        "duckdb": sorted(row[0] for row in duckdb) == expected,
    }


ALL_RIGHT = {"spark": True, "pyiceberg": True, "duckdb": True}


@pytest.mark.skipif(IN_NESSIE, reason="test_nessie has such a life; DuckDB reads what Nessie says only")
@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_followed_proven_and_repaired(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(SETUP)
    with Pipeline.open(_file(tmp_path, database, 2)) as pipeline:
        points = {pipeline.init().lsn: _source(database)}
        for step in STEPS:
            database.execute(step)
            report = pipeline.sync()
            assert report.warnings == []
            points[report.lsn] = _source(database)
            assert_equal(database, pipeline, TABLES)
            assert _read_by_others(pipeline, database) == ALL_RIGHT
        _as_of(pipeline, points)
        assert set(_formats(pipeline).values()) == {2}
        assert ".puffin" not in _suffixes(pipeline)
        assert pipeline.verify().equal
        told = {table: _told(pipeline, pipeline.lake, table) for table in TABLES[:2]}
        for lsn, expected in points.items():
            for table in TABLES[:2]:
                assert told[table].at(parse_lsn(lsn)) == expected[table], (table, lsn)
        with monkeypatch.context() as broken:
            broken.setattr(PositionDeletes, "positions", lambda *_: np.empty(0, np.int64))
            assert not pipeline.verify().tables["public.items"].equal
        _maintained_replayed_and_filled(pipeline, database, next(iter(points)), told)
        _recovered(pipeline, database)


def _maintained_replayed_and_filled(pipeline: Any, database: Database, first: str, told: Any) -> None:
    pipeline.replay("scratch", start=first, transactions=1000)
    scratch = replace(pipeline.lake, namespace="scratch")
    assert {table: _told(pipeline, scratch, table) for table in TABLES[:2]} == told
    pipeline.maintain()
    assert pipeline.verify().equal
    pipeline.session.sql("DELETE FROM lake.shop.items WHERE a < 20").collect()
    assert not pipeline.verify().equal
    pipeline.backfill("items", where="a < 20")
    assert pipeline.verify().equal
    pipeline.backfill("ddl")
    assert pipeline.verify().equal


def _recovered(pipeline: Any, database: Database) -> None:
    database.execute(f"SELECT pg_drop_replication_slot('{pipeline.source.slot}')")
    database.execute("UPDATE items SET v = 5 WHERE a % 3 = 0; DELETE FROM items WHERE a % 13 = 0")
    pipeline.recover(carry_out=True)
    assert pipeline.verify().equal
    assert set(_formats(pipeline).values()) == {2}


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.skipif(ON_REST or IN_NESSIE, reason="a REST server lowers no format")
def test_changed_by_a_command_only(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(SETUP)
    with Pipeline.open(_file(tmp_path, database, 3)) as pipeline:
        points = {pipeline.init().lsn: _source(database)}
        database.execute(STEPS[0])
        points[pipeline.sync().lsn] = _source(database)
        assert ".puffin" in _suffixes(pipeline)
    with Pipeline.open(_file(tmp_path, database, 2)) as pipeline:
        database.execute(STEPS[1])
        report = pipeline.sync()
        points[report.lsn] = _source(database)
        (warning,) = report.warnings
        assert "shop.bag has 3, the file says 2" in warning
        assert warning in pipeline.status().warnings
        checks = [check for check in validate(pipeline.file.path).checks if check.name == "lake"]
        found = next(f"{check.result}: {check.what}: {check.way_out}" for check in checks)
        assert found == f"warning: {warning}"
        assert set(_formats(pipeline).values()) == {2, 3}
        with pytest.raises(PipelineFileError, match=r"the lake has no table public\.none"):
            pipeline.change_format(["public.none"])
        assert pipeline.change_format(["bag"]).tables.keys() == {
            "shop.bag", "shop.bag__history", "shop.bag__changes",
        }  # fmt: skip
    _killed(tmp_path / "shop.yaml")
    with Pipeline.open(tmp_path / "shop.yaml") as pipeline:
        assert _formats(pipeline)["items"] == 3
        changed = pipeline.change_format().tables
        assert set(changed.values()) == {(3, 2)}
        assert set(_formats(pipeline).values()) == {2}
        assert pipeline.change_format().tables == {}
        assert pipeline.status().warnings == []
        assert pipeline.verify().equal
        assert _read_by_others(pipeline, database) == ALL_RIGHT
        database.execute(STEPS[2])
        points[pipeline.sync().lsn] = _source(database)
        assert pipeline.verify().equal
        _as_of(pipeline, points)
    with Pipeline.open(_file(tmp_path, database, 3)) as pipeline:
        assert set(pipeline.change_format().tables.values()) == {(2, 3)}
        database.execute("UPDATE items SET v = 9 WHERE a % 2 = 0; DELETE FROM items WHERE a % 3 = 0")
        points[pipeline.sync().lsn] = _source(database)
        assert pipeline.verify().equal
        assert _read_by_others(pipeline, database) == ALL_RIGHT
        _as_of(pipeline, points)
        pipeline.maintain()
        assert pipeline.verify().equal
        _as_of(pipeline, points)


def _as_of(pipeline: Any, points: dict[str, Any]) -> None:
    for lsn, expected in points.items():
        for table in TABLES[:2]:
            rows = list(pipeline.rows(table, at=lsn))
            assert len(rows) == sum(expected[table].values()), (table, lsn)
            assert set(rows) == set(expected[table]), (table, lsn)
            answer = pipeline.query(f"SELECT count(*) FROM shop.{table}", at=lsn)
            assert [tuple(row) for row in answer.rows] == [(str(len(rows)),)], (table, lsn)


def _killed(file: Path) -> None:
    """The command, ended before the catalog learns of anything."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "slotlake", "format", str(file)],
        env={**os.environ, "SLOTLAKE_FAILPOINT": "format.before_swap"},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


def test_a_table_may_have_a_format_of_its_own(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute("CREATE TABLE one (id int PRIMARY KEY); CREATE TABLE two (id int PRIMARY KEY)")
    file = pipeline_file(tmp_path, database, ["one"], extra="  public.two: {format: 2, mode: [history]}\n")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        assert _formats(pipeline) == {"commits": 2, "one": 3, "two": 2, "two__history": 2}
        assert pipeline.status().warnings == []
        assert LakeName("shop", "two").table in _formats(pipeline)
