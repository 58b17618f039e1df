# ruff: noqa: E501  (a statement is read as a line)
"""Objects renamed there and back, or made and dropped, between two batches: rows that named them meanwhile are mended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import differences, pipeline_file

pytestmark = pytest.mark.timeout(600)

SETUP = """
CREATE TABLE referred (id int); CREATE TABLE other (id int); CREATE FUNCTION told() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TYPE mood AS ENUM ('sad');
CREATE FUNCTION twice(int) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE FUNCTION twice(text) RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE DOMAIN naming AS regclass;
CREATE TABLE classes (id int PRIMARY KEY, c regclass, v text); CREATE TABLE procs (id int PRIMARY KEY, c regproc); CREATE TABLE kinds (id int PRIMARY KEY, c regtype);
CREATE TABLE many (id int PRIMARY KEY, c regclass[]); CREATE TABLE domains (id int PRIMARY KEY, c naming); CREATE TABLE keyed (c regclass PRIMARY KEY, v text);
CREATE TABLE bag (c regclass, v text); ALTER TABLE bag REPLICA IDENTITY FULL; CREATE TABLE quiet (id int PRIMARY KEY, c regclass); CREATE TABLE busy (id int PRIMARY KEY, c regclass, p regproc);
CREATE TABLE hidden (id int PRIMARY KEY, c regclass); CREATE TABLE brief (id int PRIMARY KEY, c regclass);
INSERT INTO classes SELECT g, 'referred', 'v' FROM generate_series(1, 9) g; INSERT INTO procs VALUES (1, 'told'); INSERT INTO kinds VALUES (1, 'mood'), (2, 'mood[]');
INSERT INTO many VALUES (1, '{referred,other}'); INSERT INTO domains VALUES (1, 'referred'); INSERT INTO keyed VALUES ('referred', 'v'), ('other', 'v');
INSERT INTO bag VALUES ('referred', 'x'), ('referred', 'x'), ('other', 'y'); INSERT INTO quiet VALUES (1, 'referred'); INSERT INTO busy VALUES (1, 'referred', 'told');
INSERT INTO hidden VALUES (1, 'referred'); INSERT INTO brief VALUES (1, 'other')
"""
TABLES = ["classes", "procs", "kinds", "many", "domains", "keyed", "bag", "quiet", "busy", "brief"]
THERE = """
ALTER TABLE referred RENAME TO found; ALTER FUNCTION told() RENAME TO said; ALTER TYPE mood RENAME TO temper
UPDATE classes SET v = 'w' WHERE id = 2; INSERT INTO classes VALUES (20, 'found', 'new'), (21, NULL, 'none'); DELETE FROM classes WHERE id = 3
INSERT INTO procs VALUES (2, 'said'); UPDATE kinds SET id = -id WHERE id = 2; INSERT INTO many VALUES (2, '{other,found}'); INSERT INTO domains VALUES (2, 'found')
UPDATE keyed SET v = 'w' WHERE c = 'found'::regclass; DELETE FROM bag WHERE ctid = '(0,1)'; INSERT INTO hidden VALUES (2, 'found')
"""
BACK = "ALTER TABLE found RENAME TO referred; ALTER FUNCTION said() RENAME TO told; ALTER TYPE temper RENAME TO mood"
# None of these is printed otherwise today.
BUSY = """
INSERT INTO busy VALUES (2, 'other', 'twice(int)'::regprocedure::oid); INSERT INTO busy VALUES (3, 'pg_class', 'now'), (4, '0', '0'), (5, '4000000000', NULL); DELETE FROM busy WHERE id = 1
CREATE TABLE lasting (id int); INSERT INTO busy VALUES (6, 'lasting', 'pg_backend_pid'); CREATE TEMP TABLE passing (id int); UPDATE quiet SET id = 2
"""


def _run(database: Database, statements: str) -> None:
    with database.connect() as connection:
        for statement in statements.strip().splitlines():
            connection.execute(statement.encode())


def _copied(pipeline: Any) -> dict[str, str]:
    return {entry.table.removeprefix("public."): entry.copied_again for entry in pipeline.status().tables}


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_rows_written_between_there_and_back(database: Database, session: Any, tmp_path: Path) -> None:
    """They have the names of today at the next point; no other table is copied for it, nor again later."""
    _run(database, SETUP)
    file = pipeline_file(tmp_path, database, TABLES, extra="  hidden: {columns: [id]}\n")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        _run(database, BUSY)
        pipeline.sync()
        assert differences(database, pipeline, TABLES) == {}
        assert set(_copied(pipeline).values()) == {""}

        _run(database, THERE + BACK)
        pipeline.sync()
        assert differences(database, pipeline, TABLES) == {}
        copied = _copied(pipeline)
        assert {table for table, why in copied.items() if not why} == {"quiet", "busy", "hidden", "brief"}
        assert copied["classes"].endswith("an object that they name had another name")

        _run(
            database,
            "UPDATE classes SET v = 'last'; UPDATE keyed SET v = 'last'; DELETE FROM bag; INSERT INTO many VALUES (3, '{referred}')",
        )
        pipeline.sync()
        assert (differences(database, pipeline, TABLES), _copied(pipeline)) == ({}, copied)

        # Made and dropped: what has no name any more is printed as a number.
        _run(database, "CREATE TABLE gone (id int)\nINSERT INTO brief VALUES (2, 'gone')\nDROP TABLE gone")
        assert pipeline.verify().equal
        assert differences(database, pipeline, TABLES) == {}
        copied = _copied(pipeline)
        assert copied["brief"].endswith("an object that they name had another name")
        _run(database, "UPDATE brief SET id = id + 10")
        pipeline.sync()
        assert (differences(database, pipeline, TABLES), _copied(pipeline)) == ({}, copied)
