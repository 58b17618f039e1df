# ruff: noqa: E501  (a statement is read as a line)
"""A partitioned table through its root and, on a second pipeline, leaf by leaf: both equal to the source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import differences, pipeline_file
from tests.e2e.scenario import big

pytestmark = pytest.mark.timeout(600)

SETUP = f"""
CREATE TABLE sales (id int, day int, v text, big text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
CREATE TABLE sales_1 PARTITION OF sales FOR VALUES FROM (0) TO (10);
CREATE TABLE sales_2 (gone int, big text, v text, id int NOT NULL, day int NOT NULL); ALTER TABLE sales_2 DROP COLUMN gone;
ALTER TABLE sales ATTACH PARTITION sales_2 FOR VALUES FROM (10) TO (20);
CREATE TABLE sales_3 PARTITION OF sales FOR VALUES FROM (20) TO (30) PARTITION BY LIST (id);
CREATE TABLE sales_3_rest PARTITION OF sales_3 DEFAULT;
INSERT INTO sales SELECT g, g % 30, 'v' || g, CASE WHEN g < 10 THEN {big(31)} END FROM generate_series(1, 90) g;
CREATE TABLE heap (id int, day int, v text) PARTITION BY RANGE (day); ALTER TABLE heap REPLICA IDENTITY FULL;
CREATE TABLE heap_1 PARTITION OF heap FOR VALUES FROM (0) TO (10); ALTER TABLE heap_1 REPLICA IDENTITY FULL;
CREATE TABLE heap_2 PARTITION OF heap FOR VALUES FROM (10) TO (20); ALTER TABLE heap_2 REPLICA IDENTITY FULL;
INSERT INTO heap SELECT g % 3, g % 20, 'same' FROM generate_series(1, 80) g;
CREATE TABLE loose (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE loose_1 (id int PRIMARY KEY DEFERRABLE, v text); ALTER TABLE loose ATTACH PARTITION loose_1 FOR VALUES FROM (0) TO (100);
CREATE TABLE topped (id int NOT NULL, v text) PARTITION BY RANGE (id);
CREATE TABLE topped_1 PARTITION OF topped FOR VALUES FROM (0) TO (100); ALTER TABLE ONLY topped ADD PRIMARY KEY (id);
ALTER TABLE loose REPLICA IDENTITY FULL; ALTER TABLE loose_1 REPLICA IDENTITY FULL; ALTER TABLE topped REPLICA IDENTITY FULL; ALTER TABLE topped_1 REPLICA IDENTITY FULL;
INSERT INTO loose SELECT g, 'v' || g FROM generate_series(1, 5) g; INSERT INTO topped SELECT g / 2, 'v' || g FROM generate_series(1, 5) g;
CREATE PUBLICATION root FOR TABLE sales, heap, loose, topped WITH (publish_via_partition_root = true);
CREATE PUBLICATION leaf FOR TABLE sales, heap, loose, topped;
"""
ROOTS = ["sales", "heap", "loose", "topped"]
# Keys that do not hold at any moment: of a partition, deferrable; of the root alone.
OTHERS = ["loose_1", "topped_1"]
LEAVES = ["sales_1", "sales_2", "sales_3_rest", "heap_1", "heap_2", *OTHERS]
CHANGES = [
    "UPDATE sales SET v = 'changed' WHERE id % 4 = 0",
    "UPDATE sales SET day = (day + 10) % 30 WHERE id <= 6",
    "UPDATE sales SET day = 12, v = 'moved on' WHERE id = 30; UPDATE sales SET day = 25 WHERE id = 30",
    "DELETE FROM sales WHERE id BETWEEN 40 AND 44",
    "INSERT INTO sales VALUES (100, 1, 'new', NULL), (101, 11, 'new', NULL), (102, 21, 'new', NULL)",
    "DELETE FROM heap WHERE ctid = '(0,1)'",
    "UPDATE heap SET day = 15 WHERE day = 3 AND id = 0",
    "UPDATE heap SET v = 'other' WHERE day IN (4, 14)",
    "UPDATE loose SET id = id + 1",
    "UPDATE topped SET v = 'x' || v WHERE id = 1; DELETE FROM topped WHERE v = 'v4'",
]
# (what happens, leaves that are published then)
WITHOUT_EVENTS = [
    ("CREATE TABLE sales_4 PARTITION OF sales FOR VALUES FROM (30) TO (40); INSERT INTO sales VALUES (200, 31, 'born', NULL)", [*LEAVES, "sales_4"]),
    ("CREATE TABLE sales_5 (LIKE sales INCLUDING ALL); INSERT INTO sales_5 VALUES (300, 41, 'before', NULL); ALTER TABLE sales ATTACH PARTITION sales_5 FOR VALUES FROM (40) TO (50); UPDATE sales SET v = 'after' WHERE day = 41", [*LEAVES, "sales_4", "sales_5"]),
    ("ALTER TABLE sales DETACH PARTITION sales_1; UPDATE sales_1 SET v = 'alone'; DROP TABLE sales_4", ["sales_2", "sales_3_rest", "heap_1", "heap_2", "sales_5", *OTHERS]),
    ("ALTER TABLE sales ATTACH PARTITION sales_1 FOR VALUES FROM (0) TO (10); TRUNCATE sales_2, heap_1", [*LEAVES, "sales_5"]),
    ("TRUNCATE sales; INSERT INTO sales VALUES (1, 1, 'x', NULL)", [*LEAVES, "sales_5"]),
]  # fmt: skip


def _pipeline(folder: Path, database: Database, name: str) -> Any:
    return Pipeline.open(pipeline_file(folder, database, [], name=name))


def _rewritten(pipeline: Any) -> int:
    return sum(row["kind"] == "backfill" for row in ReadPoint.latest(pipeline.lake).commits())


def test_through_the_root_and_by_leaf(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(SETUP)
    with _pipeline(tmp_path, database, "root") as root, _pipeline(tmp_path, database, "leaf") as leaf:
        for pipeline in (root, leaf):
            pipeline.init()
        wrong = {"copied": (_different(database, root, ROOTS), _different(database, leaf, LEAVES))}
        for statement in CHANGES:
            database.execute(statement)
        reports = [root.sync(), leaf.sync()]
        wrong["changed"] = (_different(database, root, ROOTS), _different(database, leaf, LEAVES))
        assert [report.conflicts for report in reports] == [{}, {}]
        for number, (statement, leaves) in enumerate(WITHOUT_EVENTS):
            database.execute(statement)
            root.sync()
            leaf.sync()
            wrong[statement] = (
                _different(database, root, ROOTS),
                _different(database, leaf, leaves),
            )
            if number == 0:  # a partition that was born empty needs no copy
                assert (_rewritten(root), _rewritten(leaf)) == (0, 0)
        assert {when: found for when, found in wrong.items() if any(found)} == {}
        assert root.verify().equal
        assert leaf.verify().equal


def _different(database: Database, pipeline: Any, tables: list[str]) -> list[str]:
    return list(differences(database, pipeline, tables))
