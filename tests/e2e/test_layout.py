"""A pipeline whose tables are partitioned and sorted: followed, proven, changed in shape and in layout."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.status.validation import validate
from slotlake.spark import lake_files
from slotlake.spark.storage.location import Location
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file, source_rows
from tests.e2e.readers import duckdb_connection, duckdb_secret, pyiceberg_catalog
from tests.storage import IN_NESSIE, ON_REST, files_folder, files_in, local_file

pytestmark = pytest.mark.timeout(900)

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
LAYOUTS = {
    "items": {"partition_by": '[day(ts), "bucket(4, id)"]', "sort_by": '["region desc nulls first", id]'},
    "bag": {"partition_by": "region"},
    '"Odd"': {"partition_by": '["größe, x", "truncate(10, n)"]', "sort_by": "hour(at) desc"},
}
TABLES = list(LAYOUTS)
SETUP = """
CREATE TABLE items (id int PRIMARY KEY, ts timestamptz, region text, n numeric(10,2), big text);
CREATE TABLE bag (region text, n int); ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE "Odd" (n int PRIMARY KEY, "größe, x" text, at timestamp);
INSERT INTO items SELECT g, timestamptz '1969-12-28 20:00Z' + g * interval '3 hours', 'r' || g % 3, g, 'x'
FROM generate_series(1, 60) g;
INSERT INTO items VALUES (100, NULL, NULL, 'NaN', 'x'), (101, 'infinity', 'r1', 0, 'x'),
    (102, '-infinity', 'r1', -0.01, 'x'), (103, '20000-01-01Z', 'r2', 1, 'x'),
    (-7, '4000-01-01 BC', '', 1, 'x');
INSERT INTO bag SELECT CASE WHEN g % 5 > 0 THEN 'r' || g % 5 END, g % 7 FROM generate_series(1, 60) g;
INSERT INTO "Odd" SELECT g, chr(200 + g % 4), timestamp '1970-01-01' - g * interval '1 hour'
FROM generate_series(-20, 20) g
"""
# Each followed by a sync.
STEPS = [
    # Rows move to other partitions, from and to NULL; keys change, and with them the bucket.
    """
    UPDATE items SET ts = ts + interval '2 days' WHERE id % 4 = 0; UPDATE items SET ts = NULL WHERE id = 7;
    UPDATE items SET ts = 'infinity' WHERE id = 8; UPDATE items SET ts = '2020-01-01Z' WHERE id IN (100, 101);
    UPDATE items SET id = id + 1000 WHERE id BETWEEN 20 AND 25; DELETE FROM items WHERE id % 13 = 0;
    UPDATE items SET id = -id WHERE id = 31; INSERT INTO items VALUES (31, '1960-06-01Z', NULL, NULL, NULL);
    DELETE FROM bag WHERE region IS NULL AND n = 1; DELETE FROM bag WHERE region = 'r2';
    UPDATE bag SET region = NULL WHERE ctid = (SELECT min(ctid) FROM bag WHERE region = 'r1');
    INSERT INTO bag VALUES ('r1', 1), ('r1', 1), (repeat('long/', 999), 2);
    UPDATE "Odd" SET "größe, x" = NULL WHERE n < -10;
    UPDATE "Odd" SET n = n + 100 WHERE n > 10
    """,
    # Columns of a layout get another name, and others come with the old one; one becomes wider.
    """
    ALTER TABLE items RENAME ts TO moment; ALTER TABLE items ADD ts timestamptz; UPDATE items SET ts = now();
    ALTER TABLE items ALTER id TYPE bigint; ALTER TABLE items ADD ts_day int, ADD id_bucket int;
    INSERT INTO items (id, moment, ts_day) VALUES (3000000000, '2021-05-05Z', 5);
    ALTER TABLE "Odd" ALTER n TYPE bigint; INSERT INTO "Odd" VALUES (5000000000, 'y', '1950-01-01 10:30')
    """,
    # Columns that tables are partitioned by leave, and come again; another gets a type of another kind.
    """
    TRUNCATE bag; INSERT INTO bag VALUES ('again', 1), ('again', 1), (NULL, NULL);
    ALTER TABLE bag DROP region; INSERT INTO bag VALUES (5);
    ALTER TABLE "Odd" ALTER n TYPE text; UPDATE "Odd" SET at = NULL WHERE n LIKE '1%'
    """,
    """
    ALTER TABLE bag ADD region text; INSERT INTO bag VALUES (6, 'new'), (6, 'new');
    DELETE FROM bag WHERE n = 5;
    TRUNCATE items; INSERT INTO items (id, moment, region) VALUES (1, '2022-01-01Z', 'a'), (2, NULL, 'b')
    """,
]


def _file(
    folder: Path,
    database: Database,
    layouts: Mapping[str, Mapping[str, str]],
    *,
    lake: str = "",
    more: str = "",
) -> Path:
    extra = ""
    for table in TABLES:
        extra += f"  '{table}':\n    mode: [{'mirror, history, append' if table == 'items' else 'mirror'}]\n"
        extra += "".join(f"    {key}: {value}\n" for key, value in layouts.get(table, {}).items())
    file = pipeline_file(folder, database, [], extra=extra + more)
    file.write_text(file.read_text().replace("lake:\n", f"lake:\n{lake}", 1))
    return file


def _count_by_others(pipeline: Any, table: str, condition: str) -> list[int]:
    """How many rows Spark, pyiceberg and DuckDB see."""
    loaded = pyiceberg_catalog(pipeline.lake).load_table(f"shop.{table}")
    with duckdb_connection("httpfs", "avro", "iceberg") as connection:
        duckdb_secret(connection)
        location = loaded.metadata_location
        (duck,) = connection.execute(
            f"SELECT count(*) FROM iceberg_scan('{location}') WHERE {condition}"
        ).fetchall()
    (by_spark,) = pipeline.session.sql(f"SELECT count(*) FROM lake.shop.{table} WHERE {condition}").collect()
    arrow = loaded.scan(condition).to_arrow() if condition != "true" else loaded.scan().to_arrow()
    return [by_spark[0], arrow.num_rows, duck[0]]


def _equal_for_all_readers(pipeline: Any, database: Database) -> None:
    assert_equal(database, pipeline, TABLES)
    for table, name in zip(TABLES, ("items", "bag", "Odd"), strict=True):
        ((rows,),) = database.execute(f"SELECT count(*) FROM {table}")
        assert _count_by_others(pipeline, name, "true") == [rows] * 3, table


def _files(pipeline: Any, table: str, condition: str = "true", at: str = "") -> int:
    """How many files pyiceberg plans to read."""
    scan = pyiceberg_catalog(pipeline.lake).load_table(f"shop.{table}{at}")
    planned = scan.scan() if condition == "true" else scan.scan(condition)
    return len(list(planned.plan_files()))


def _one_partition_per_file(pipeline: Any) -> None:
    """Each row stands in a file of its partition, as Spark computes that; and files are sorted."""
    wrong = """
    SELECT count(*) FROM lake.shop.items WHERE NOT (
        _partition.`ts_x0_day` <=> CAST(CAST(ts AS DATE) AS DATE)
        AND _partition.`id_x0_bucket_4` <=> lake.system.bucket(4, id))
    """
    assert pipeline.session.sql(wrong).collect()[0][0] == 0
    columns = ["region", "id"]
    for (path,) in pipeline.session.sql("SELECT file_path FROM lake.shop.items.data_files").collect():
        with lake_files.open_to_read(Location(path)) as file:
            stored = pq.read_table(file, columns=columns)
        rows = [tuple(row.values()) for row in stored.to_pylist()]
        by_id = sorted(rows, key=lambda row: row[1])
        by_region = sorted(by_id, key=lambda row: row[0] or "", reverse=True)
        assert rows == [row for empty in (True, False) for row in by_region if (row[0] is None) == empty]


@pytest.mark.skipif(IN_NESSIE, reason="test_other_catalogs has such a life")
@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("table_format", [3, 2])
def test_followed_and_proven(database: Database, session: Any, tmp_path: Path, table_format: int) -> None:
    database.execute(SETUP)
    dropped = {3: "", 2: "on_drop: drop\n"}[table_format]
    file = _file(tmp_path, database, LAYOUTS, lake=f"  format: {table_format}\n", more=dropped)
    with Pipeline.open(file) as pipeline:
        points = {pipeline.init().lsn: _source(database)}
        _equal_for_all_readers(pipeline, database)
        _one_partition_per_file(pipeline)
        assert _files(pipeline, "items", "id = 5") == 1 < _files(pipeline, "items") / 5
        for i, step in enumerate(STEPS):
            database.execute(step)
            report = pipeline.sync()
            assert report.set_aside == {}, step
            points[report.lsn] = _source(database)
            _equal_for_all_readers(pipeline, database)
            assert pipeline.verify().equal
            assert bool(report.warnings) == (i > 0), report.warnings
            if i == 0:
                _one_partition_per_file(pipeline)
        for lsn, expected in points.items():
            assert {t: sorted(pipeline.rows(t, at=lsn), key=repr) for t in TABLES} == expected
        first = next(iter(points))
        pipeline.replay("scratch", start=first, transactions=1000)
        pipeline.maintain()
        for table in TABLES:
            pipeline.backfill(table)
        pipeline.backfill("items", where="id < 20")
        assert pipeline.verify().equal
        _recovered(pipeline, database)
        _equal_for_all_readers(pipeline, database)


def _source(database: Database) -> dict[str, Any]:
    with database.connect() as connection:
        return {t: sorted(source_rows(connection, t)[1].elements(), key=repr) for t in TABLES}


def _recovered(pipeline: Any, database: Database) -> None:
    database.execute(f"SELECT pg_drop_replication_slot('{pipeline.source.slot}')")
    database.execute(
        "INSERT INTO items (id, moment) VALUES (77, '2022-02-02Z'); DELETE FROM items WHERE id = 1"
    )
    pipeline.recover(carry_out=True)
    assert pipeline.verify().equal


@pytest.mark.skipif(ON_REST or IN_NESSIE, reason="it lowers a format too, which a REST server does not")
@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_changed_by_a_command_only(database: Database, session: Any, tmp_path: Path) -> None:
    """A layout, another one, none, and old files rewritten: the same rows at every point."""
    database.execute(SETUP)
    before = {"items": {"partition_by": "day(ts)"}}
    after = {
        "items": {"partition_by": '["bucket(2, id)", month(ts)]', "sort_by": "id desc"},
        "bag": LAYOUTS["bag"],
    }
    with Pipeline.open(_file(tmp_path, database, before)) as pipeline:
        points = {pipeline.init().lsn: _source(database)}
        database.execute(STEPS[0])
        points[pipeline.sync().lsn] = _source(database)
        assert pipeline.change_layout().tables == {}
    with Pipeline.open(_file(tmp_path, database, after)) as pipeline:
        assert any(
            each.result == "warning" and each.name == "lake" for each in validate(pipeline.file.path).checks
        )
        database.execute("UPDATE items SET n = 5 WHERE id % 2 = 0; INSERT INTO bag VALUES ('r9', 1)")
        report = pipeline.sync()
        points[report.lsn] = _source(database)
        (warning,) = report.warnings
        assert (
            "shop.items is partitioned by day(ts), the file says partitioned by bucket(2, id), month"
            in warning
        )
        assert "slotlake layout" in warning
        assert warning in pipeline.status().warnings
    _killed(tmp_path / "shop.yaml")
    with Pipeline.open(tmp_path / "shop.yaml") as pipeline:
        assert pipeline.sync().warnings == [warning]
        assert pipeline.change_layout().tables.keys() == {"shop.items", "shop.items__history", "shop.bag"}
        assert pipeline.status().warnings == []
        database.execute("UPDATE items SET n = 6 WHERE id % 3 = 0; DELETE FROM bag WHERE region = 'r3'")
        points[pipeline.sync().lsn] = _source(database)
        specs = "SELECT count(DISTINCT spec_id) FROM lake.shop.items.files"
        assert pipeline.session.sql(specs).collect()[0][0] == 2
        assert pipeline.verify().equal
        pipeline.maintain(rewrite_layout=True)
        assert pipeline.session.sql(specs).collect()[0][0] == 1
        assert _files(pipeline, "items", "id = 5") < _files(pipeline, "items")
        _proven(pipeline, database, points)
    if not LONG:
        return
    with Pipeline.open(_file(tmp_path, database, {})) as pipeline:
        assert pipeline.change_layout(["items"]).tables.keys() == {"shop.items", "shop.items__history"}
        database.execute("UPDATE items SET n = 7")
        points[pipeline.sync().lsn] = _source(database)
        _proven(pipeline, database, points)
        for number in (2, 3):
            file = _file(tmp_path, database, {}, lake=f"  format: {number}\n")
            with Pipeline.open(file) as again:
                assert again.change_format().tables
                database.execute("UPDATE items SET n = n + 1; UPDATE bag SET n = n + 1")
                points[again.sync().lsn] = _source(database)
                _proven(again, database, points)


def _proven(pipeline: Any, database: Database, points: Mapping[str, Any]) -> None:
    assert pipeline.verify().equal
    _equal_for_all_readers(pipeline, database)
    for lsn, expected in points.items():
        assert {t: sorted(pipeline.rows(t, at=lsn), key=repr) for t in TABLES} == expected
        answer = pipeline.query("SELECT count(*) FROM shop.items", at=lsn)
        assert [tuple(row) for row in answer.rows] == [(str(len(expected["items"])),)]


def _killed(file: Path, command: str = "layout", failpoint: str = "layout.before_swap") -> None:
    """The command, ended before the catalog learns of anything."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "slotlake", command, str(file)],
        env={**os.environ, "SLOTLAKE_FAILPOINT": failpoint},
        check=False,
    )
    assert done.returncode == -signal.SIGKILL


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("publish", ["atomic", "per_table"])
def test_on_a_rest_catalog(session: Any, rest: str, database: Database, tmp_path: Path, publish: str) -> None:
    database.execute(SETUP)
    name = f"r{database.name}{publish[0]}"

    def file(layouts: Mapping[str, Mapping[str, str]]) -> Path:
        extra = "".join(
            f"  '{table}':\n    mode: [mirror, history]\n"
            + "".join(f"    {key}: {value}\n" for key, value in layouts.get(table, {}).items())
            for table in TABLES[::2]
        )
        made = pipeline_file(tmp_path, database, [], extra=extra, uri=rest, name=name)
        made.write_text(made.read_text().replace("lake:\n", f"lake:\n  publish: {publish}\n", 1))
        return made

    specs = f"SELECT count(DISTINCT spec_id), min(spec_id), max(spec_id) FROM lake.{name}.items.files"
    with Pipeline.open(file(LAYOUTS)) as pipeline:
        pipeline.init()
        assert tuple(pipeline.session.sql(specs).collect()[0]) == (1, 1, 1)
        for step in STEPS[:2]:
            database.execute(step)
            assert pipeline.sync().set_aside == {}
            assert pipeline.verify().equal
    with Pipeline.open(file({"items": {"partition_by": "year(moment)", "sort_by": "id"}})) as pipeline:
        assert len(pipeline.sync().warnings) == 1
        assert len(pipeline.change_layout().tables) == 4
        database.execute(STEPS[3].partition("TRUNCATE")[2].join(["TRUNCATE", ""]))
        assert pipeline.sync().warnings == []
        assert pipeline.verify().equal
        pipeline.maintain(rewrite_layout=True)
        assert tuple(pipeline.session.sql(specs).collect()[0]) == (1, 2, 2)
        assert pipeline.verify().equal


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_marked_rows_stay_in_their_partitions(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(SETUP)
    marked = {**LAYOUTS, "items": {**LAYOUTS["items"], "on_delete": "mark"}}
    with Pipeline.open(_file(tmp_path, database, marked)) as pipeline:
        pipeline.init()
        _one_partition_per_file(pipeline)
        database.execute(STEPS[0])
        pipeline.sync()
        assert pipeline.verify().equal
        pipeline.backfill("items")
        assert pipeline.verify().equal
        _one_partition_per_file(pipeline)
        deleted = "SELECT count(*) FROM lake.shop.items WHERE _is_deleted"
        assert pipeline.session.sql(deleted).collect()[0][0] > 0


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("failpoint", ["init.part_done", "init.registered", "init.before_publish"])
def test_an_initial_copy_that_was_killed_is_continued(
    database: Database, session: Any, tmp_path: Path, failpoint: str
) -> None:
    database.execute(SETUP)
    file = _file(tmp_path, database, LAYOUTS)
    _killed(file, "init", failpoint)
    database.execute(STEPS[0])
    with Pipeline.open(file) as pipeline:
        report = pipeline.init()
        if failpoint != "init.part_done":  # the first range may be of the table that has no key
            assert sum(copy.ranges_kept for copy in report.tables) > 0
        _equal_for_all_readers(pipeline, database)
        assert files_in(files_folder(tmp_path) / "_slotlake" / "copying" / "shop") == []
        referenced = {local_file(row[0]) for row in _data_files(pipeline)}
        assert set((files_folder(tmp_path) / "shop/items/data").rglob("*.parquet")) == referenced
        assert pipeline.verify().equal
    database.execute(
        "UPDATE items SET ts = ts + interval '1 day', id = id + 5000; UPDATE bag SET region = 'x'"
    )
    _killed(file, "sync", "apply.mid_merge")
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        _equal_for_all_readers(pipeline, database)
        assert pipeline.verify().equal


def _data_files(pipeline: Any) -> list[Any]:
    files: list[Any] = pipeline.session.sql("SELECT file_path FROM lake.shop.items.data_files").collect()
    return files


BAD = {
    '"n2"': (r"no column 'n2' that the lake takes", "partition_by"),
    "day(region)": (
        r"day\(region\) is not possible: the column 'region' is string.*date or timestamp",
        "partition_by",
    ),
    "truncate(10, ts)": (r"the column 'ts' is timestamp in the lake, and truncate", "partition_by"),
    "hour(big)": (r"no column 'big' that the lake takes", "partition_by"),
    "bucket(0, id)": (r"between 1 and", "partition_by"),
    "[id, id]": (r"id is there twice", "partition_by"),
    "[day(ts), hour(ts)]": (r"two times of one column", "partition_by"),
    "week(ts)": (r"no column or transform", "partition_by"),
    "id upwards": (r"no column 'id upwards'", "sort_by"),
    "day(n)": (r"'n' is decimal\(10,2\)", "sort_by"),
}


def test_bad_input_is_refused_before_anything_is_written(database: Database, tmp_path: Path) -> None:
    database.execute(SETUP)
    for text, (expected, key) in BAD.items():
        value = text if text.startswith("[") else f"'{text}'"
        tables = f"  items:\n    columns: [id, ts, region, n]\n    {key}: {value}\n"
        file = pipeline_file(tmp_path, database, ["bag"], extra=tables)
        (check,) = [check for check in validate(file).checks if check.result == "error"]
        assert "items" in f"{check.what}{check.way_out}", text
        assert key in f"{check.what}{check.way_out}", text
        assert check.way_out
        with pytest.raises(PipelineFileError, match=expected), Pipeline.open(file) as pipeline:
            pipeline.init()
    assert database.execute(
        "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    ) == [(0,)]
