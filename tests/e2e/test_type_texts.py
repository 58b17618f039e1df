# ruff: noqa: E501  (a statement is read as a line)
"""Types whose text changes under rows that nobody touches: labels, attributes, names of what is referred to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import differences, pipeline_file

pytestmark = pytest.mark.timeout(600)

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'fine', 'glad'); CREATE TYPE size AS ENUM ('s', 'm'); CREATE TYPE swing AS
RANGE (subtype = mood); CREATE TYPE pair AS (m mood, n int); CREATE DOMAIN moods AS mood[]; CREATE TYPE thing
AS (n int, v text); CREATE SCHEMA old_home; CREATE TABLE old_home.referred (id int); CREATE TABLE other (id
int); CREATE FUNCTION told() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE TABLE moody (id int PRIMARY KEY, m
mood, v text); CREATE TABLE nested (id int PRIMARY KEY, d moods, r swing, p pair[], w swing[]); CREATE TABLE
by_mood (m mood PRIMARY KEY, v text); CREATE TABLE bag (m mood, v text); ALTER TABLE bag REPLICA IDENTITY
FULL; CREATE TABLE things (id int PRIMARY KEY, t thing); CREATE TABLE sizes (id int PRIMARY KEY, s size);
CREATE TABLE named (id int PRIMARY KEY, c regclass, n regnamespace[], f regprocedure); CREATE TABLE plain (id
int PRIMARY KEY, v text); INSERT INTO moody SELECT g, (enum_range(NULL::mood))[1 + g % 3], 'v' FROM
generate_series(1, 30) g; INSERT INTO by_mood SELECT unnest(enum_range(NULL::mood)), 'v'; INSERT INTO nested
SELECT g, '{sad,fine}', '[sad,glad]', ARRAY[ROW('sad', g)::pair], '{"[sad,fine]"}' FROM generate_series(1, 30)
g; INSERT INTO bag SELECT 'sad', 'x' FROM generate_series(1, 3); INSERT INTO bag VALUES ('fine', 'y'); INSERT
INTO things SELECT g, ROW(g, 'v')::thing FROM generate_series(1, 9) g; INSERT INTO sizes SELECT g, 's' FROM
generate_series(1, 9) g; INSERT INTO named SELECT g, 'old_home.referred', '{old_home}', 'told()' FROM
generate_series(1, 9) g; INSERT INTO plain VALUES (1, 'v')
"""
TABLES = ["moody", "nested", "by_mood", "bag", "things", "sizes", "named", "plain"]
# One batch each; a statement a transaction.
FIRST = """
UPDATE moody SET v = 'before' WHERE id < 4
ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'
UPDATE moody SET v = 'after' WHERE id IN (1, 6); DELETE FROM moody WHERE id = 3; INSERT INTO moody VALUES
(100, 'blue', 'new') DELETE FROM nested WHERE id = 2; UPDATE nested SET d = '{blue}' WHERE id = 3; UPDATE
by_mood SET v = 'w' WHERE m = 'blue'; DELETE FROM by_mood WHERE m = 'glad' DELETE FROM bag WHERE ctid =
'(0,1)'; UPDATE bag SET v = 'z' WHERE v = 'x' ALTER TYPE thing ADD ATTRIBUTE more text
UPDATE things SET t.more = 'm' WHERE id = 1; DELETE FROM things WHERE id = 2
ALTER TYPE size ADD VALUE 'l'
INSERT INTO sizes VALUES (20, 'l'); UPDATE sizes SET s = 'm' WHERE id = 1; UPDATE plain SET v = 'w'
ALTER TABLE old_home.referred RENAME TO found; ALTER SCHEMA old_home RENAME TO new_home; ALTER FUNCTION told()
RENAME TO said UPDATE named SET id = -id WHERE id = 1; DELETE FROM named WHERE id = 2; INSERT INTO named
VALUES (20, 'other')
"""
# There and back, and what joined lately.
SECOND = """
ALTER TYPE mood RENAME VALUE 'fine' TO 'so so'
UPDATE moody SET m = 'so so' WHERE id = 5; INSERT INTO bag VALUES ('so so', 'u')
ALTER TYPE mood RENAME VALUE 'so so' TO 'fine'
ALTER TYPE size RENAME VALUE 'l' TO 'xl'
"""
# No row changes.
THIRD = "ALTER TYPE thing DROP ATTRIBUTE v; ALTER TABLE other RENAME TO another; ALTER TYPE size RENAME VALUE 's' TO 'xs'"


def _run(database: Database, statements: str) -> None:
    with database.connect() as connection:
        for statement in statements.strip().splitlines():
            connection.execute(statement.encode())


def _copied(pipeline: Any) -> dict[str, str]:
    return {entry.table.removeprefix("public."): entry.copied_again for entry in pipeline.status().tables}


def test_tables_whose_text_changed_are_copied_again(database: Database, session: Any, tmp_path: Path) -> None:
    _run(database, SETUP)
    with Pipeline.open(pipeline_file(tmp_path, database, TABLES)) as pipeline:
        pipeline.init()
        _run(database, FIRST)
        pipeline.sync()
        assert differences(database, pipeline, TABLES) == {}
        first = _copied(pipeline)
        assert {table for table, why in first.items() if not why} == {"sizes", "plain"}
        _run(database, SECOND)
        pipeline.sync()
        assert differences(database, pipeline, TABLES) == {}
        second = _copied(pipeline)
        assert {table for table in TABLES if first[table] != second[table]} == {
            "moody",
            "nested",
            "by_mood",
            "bag",
            "sizes",
        }
        _run(database, THIRD)
        assert pipeline.verify().equal
        assert differences(database, pipeline, TABLES) == {}
        _run(
            database,
            "CREATE TABLE one_more (id int); UPDATE moody SET v = 'last'; UPDATE named SET id = id + 100",
        )
        third = _copied(pipeline)
        pipeline.sync()
        assert (differences(database, pipeline, TABLES), _copied(pipeline)) == ({}, third)
