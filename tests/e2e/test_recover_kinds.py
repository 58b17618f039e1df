"""A recovery of tables that are not plain: filtered, with some columns or operations, partitioned, keyless."""

# ruff: noqa: E501 - statements, one to a line
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows

pytestmark = pytest.mark.timeout(600)


def test_kinds_of_tables(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(
        "CREATE TYPE pair AS (a int, b text); CREATE DOMAIN small AS int CHECK (VALUE < 100);"
        "CREATE TABLE filtered (id int PRIMARY KEY, v text, n int); ALTER TABLE filtered REPLICA IDENTITY FULL;"
        "CREATE TABLE narrow (id int PRIMARY KEY, v text, secret text);"
        "CREATE TABLE grown (id int PRIMARY KEY, v text);"
        "CREATE TABLE parted (id int, part int, v pair, d small, a int[], PRIMARY KEY (id, part))"
        " PARTITION BY LIST (part);"
        "CREATE TABLE parted_1 PARTITION OF parted FOR VALUES IN (1);"
        "CREATE TABLE parted_2 PARTITION OF parted FOR VALUES IN (2);"
        "CREATE TABLE keyless (v text); CREATE TABLE wide (id int PRIMARY KEY, v text);"
        "CREATE TABLE leaving (id int PRIMARY KEY); INSERT INTO leaving VALUES (1);"
        "INSERT INTO filtered SELECT g, 'v', g % 10 FROM generate_series(1, 100) g;"
        "INSERT INTO narrow SELECT g, 'v', 's' FROM generate_series(1, 100) g;"
        "INSERT INTO grown SELECT g, 'v' FROM generate_series(1, 100) g;"
        "INSERT INTO parted SELECT g, 1 + g % 2, ROW(g, 'x')::pair, 1, ARRAY[g] FROM generate_series(1, 100) g;"
        "INSERT INTO keyless SELECT 'v' || g FROM generate_series(1, 100) g; INSERT INTO wide VALUES (1, 'a');"
        "CREATE PUBLICATION shop FOR TABLE filtered, narrow, grown, parted, keyless, wide, leaving"
        " WITH (publish_via_partition_root = true)"
    )
    file = pipeline_file(tmp_path, database, [])
    file.write_text(
        file.read_text()
        + "  filtered: {filter: n > 4}\n  narrow: {columns: [id, v]}\n  grown: {operations: [insert, update]}\n"
    )
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.source.slot])
        database.execute(
            "UPDATE filtered SET n = 9 WHERE id = 1; UPDATE filtered SET n = 0 WHERE id = 9;"
            "UPDATE filtered SET v = 'w' WHERE id = 8; DELETE FROM narrow WHERE id = 1;"
            "UPDATE narrow SET v = 'w', secret = 't' WHERE id = 2; INSERT INTO narrow VALUES (200, NULL, 'x');"
            "DELETE FROM grown WHERE id = 1; UPDATE grown SET v = 'w' WHERE id = 2; INSERT INTO grown VALUES (0);"
            "UPDATE parted SET v = ROW(1, NULL)::pair, a = NULL WHERE id = 1; UPDATE parted SET part = 2 WHERE id = 2;"
            "INSERT INTO keyless VALUES ('more'); ALTER TABLE wide ADD COLUMN w int DEFAULT 7;"
            "CREATE TABLE joining (id int PRIMARY KEY); INSERT INTO joining VALUES (1), (2);"
            "ALTER PUBLICATION shop ADD TABLE joining; ALTER PUBLICATION shop DROP TABLE leaving;"
            "INSERT INTO leaving VALUES (2)"
        )
        planned, report = pipeline.recover(), pipeline.recover(carry_out=True)
        how = {table.table: table.how for table in report.tables}
        assert {table.table: table.how for table in planned.tables} == how
        for each in (planned, report):
            told = [line for line in each.plan if line.startswith("public.")]
            assert sorted(line.partition(":")[0] for line in told) == sorted(how), told
            assert [line for line in told if "public.leaving: it is not published any more" in line]
        assert how == {
            "public.filtered": "rows",
            "public.narrow": "rows",
            "public.grown": "rows",
            "public.parted": "rows",
            "public.keyless": "whole",
            "public.wide": "whole",
            "public.joining": "new",
            "public.leaving": "left",
        }
        for _ in range(2):
            _equal(database, pipeline)
            database.execute(
                "UPDATE filtered SET n = 6 WHERE id = 3; UPDATE parted SET d = 2 WHERE id = 5;"
                "UPDATE narrow SET v = 'z' WHERE id = 3; INSERT INTO keyless VALUES ('last');"
                "UPDATE wide SET w = 8; DELETE FROM grown WHERE id = 3"
            )
            pipeline.sync()


def _equal(database: Database, pipeline: Any) -> None:
    wanted = {
        "filtered": "(SELECT * FROM filtered WHERE n > 4) q",
        "narrow": "(SELECT id, v FROM narrow) q",
        "parted": "parted",
        "keyless": "keyless",
        "wide": "wide",
        "joining": "joining",
        "leaving": "(SELECT 1) q",  # as it was when it left
    }
    with database.connect() as connection:
        for table, query in wanted.items():
            _, rows = source_rows(connection, query)
            assert sorted(map(str, pipeline.rows(table))) == sorted(map(str, rows.elements())), table
        _, rows = source_rows(connection, "grown")
        gone = {("1", "v"), ("3", "v")}
        kept = set(pipeline.rows("grown"))
        assert set(rows) <= kept
        assert {("1", "v")} <= kept - set(rows) <= gone
