# ruff: noqa: E501  (a statement is read as a line)
"""Publications that change, and are as they were when the batch is looked at: what was not sent is copied again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows

pytestmark = pytest.mark.timeout(600)

SETUP = """
CREATE SCHEMA there; CREATE SCHEMA elsewhere;
CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE parts_1 PARTITION OF
parts FOR VALUES FROM (0) TO (1000); CREATE TABLE trunk (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE trunk_1 PARTITION OF trunk FOR VALUES FROM (0) TO (1000); CREATE TABLE there.moves (id int
PRIMARY KEY, v text); CREATE TABLE there.stays (id int PRIMARY KEY, v text); CREATE TABLE seldom (id int
PRIMARY KEY, v text); CREATE TABLE twice (id int PRIMARY KEY, v text); CREATE TABLE safe (id int PRIMARY KEY,
v text); CREATE TABLE narrow (id int PRIMARY KEY, v text); CREATE TABLE back (id int PRIMARY KEY, v text);
CREATE PUBLICATION leafy FOR TABLE parts; CREATE PUBLICATION rooted FOR TABLE trunk WITH
(publish_via_partition_root = true); CREATE PUBLICATION schemas FOR TABLES IN SCHEMA there; CREATE PUBLICATION
few FOR TABLE seldom, safe; CREATE PUBLICATION whole FOR TABLE safe; CREATE PUBLICATION low FOR TABLE twice
WHERE (id < 10); CREATE PUBLICATION high FOR TABLE twice WHERE (id > 100); CREATE PUBLICATION lists FOR TABLE
narrow (id, v) WHERE (id < 50), back
"""
TABLES = (
    "parts",
    "trunk",
    "there.moves",
    "there.stays",
    "seldom",
    "twice",
    "safe",
    "narrow",
    "back",
)
# Each statement is a transaction; between a change and the change back rows are written that are not sent.
CHANGES = """
ALTER PUBLICATION leafy SET (publish_via_partition_root = true)
UPDATE parts SET v = 'under the root' WHERE id = 1
ALTER PUBLICATION leafy SET (publish_via_partition_root = false)
ALTER PUBLICATION rooted SET (publish_via_partition_root = false)
UPDATE trunk SET v = 'under the leaf' WHERE id = 1
ALTER PUBLICATION rooted SET (publish_via_partition_root = true)
ALTER TABLE there.moves SET SCHEMA elsewhere
UPDATE elsewhere.moves SET v = 'outside' WHERE id = 1
ALTER TABLE elsewhere.moves SET SCHEMA there
ALTER PUBLICATION few SET (publish = 'insert')
UPDATE seldom SET v = 'not sent' WHERE id = 1
UPDATE safe SET v = 'sent by another' WHERE id = 1
ALTER PUBLICATION few SET (publish = 'insert, update, delete, truncate')
ALTER PUBLICATION low SET TABLE twice WHERE (id < 3)
UPDATE twice SET v = 'filtered' WHERE id = 5
ALTER PUBLICATION low SET TABLE twice WHERE (id < 10)
ALTER PUBLICATION lists SET TABLE narrow (id), back
UPDATE narrow SET v = 'not in the list' WHERE id = 1
ALTER PUBLICATION lists SET TABLE narrow (id, v) WHERE (id < 50), back
ALTER PUBLICATION lists DROP TABLE back
UPDATE back SET v = 'not held' WHERE id = 1
ALTER PUBLICATION lists ADD TABLE back
"""
SHOWN = {
    "parts_1": "parts_1",
    "trunk": "trunk",
    "there.moves": "there.moves",
    "there.stays": "there.stays",
    "seldom": "seldom",
    "twice": "twice WHERE id < 10 OR id > 100",
    "safe": "safe",
    "narrow": "narrow WHERE id < 50",
    "back": "back",
}
COPIED = {"public.parts_1", "public.trunk", "there.moves", "public.seldom", "public.twice", "public.narrow", "public.back"}  # fmt: skip


def _made(database: Database) -> None:
    database.execute(SETUP)
    for table in TABLES:
        database.execute(f"INSERT INTO {table} SELECT g, 'v' || g FROM generate_series(1, 120) g")


def _each(database: Database, statements: str) -> None:
    with database.connect() as connection:
        for statement in statements.strip().splitlines():
            connection.execute(statement.encode())


def _wrong(database: Database, pipeline: Any) -> list[str]:
    with database.connect() as connection:
        expected = {t: source_rows(connection, f"(SELECT * FROM {of}) AS t")[1] for t, of in SHOWN.items()}
    return [table for table, rows in expected.items() if Counter(pipeline.rows(table)) != rows]


def _copied(pipeline: Any) -> set[str]:
    return {entry.table for entry in pipeline.status().tables if entry.copied_again}


def test_changed_and_changed_back(database: Database, session: Any, tmp_path: Path) -> None:
    _made(database)
    file = pipeline_file(tmp_path, database, [])
    names = "leafy, rooted, schemas, few, whole, low, high, lists"
    file.write_text(file.read_text().replace("[shop]", f"[{names}]"))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        _each(database, CHANGES)
        pipeline.sync()
        assert (_wrong(database, pipeline), _copied(pipeline)) == ([], COPIED)
        _each(database, "\n".join(f"UPDATE {table} SET v = 'later' WHERE id = 2" for table in TABLES))
        pipeline.sync()
        assert _wrong(database, pipeline) == []
        assert pipeline.verify().equal


def test_all_tables(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id); CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (1000);"
        "INSERT INTO parts SELECT g, 'v' || g FROM generate_series(1, 20) g; CREATE PUBLICATION shop FOR ALL TABLES"
    )
    with Pipeline.open(pipeline_file(tmp_path, database, [])) as pipeline:
        pipeline.init()
        toggled = "ALTER PUBLICATION shop SET (publish_via_partition_root = {})"
        _each(database, f"{toggled.format('true')}\nUPDATE parts SET v = 'x'\n{toggled.format('false')}")
        pipeline.sync()
        assert set(pipeline.rows("parts_1", columns=["v"])) == {("x",)}
        assert pipeline.verify().equal


FOR_A_MOMENT = (
    ("ALTER PUBLICATION rooted ADD TABLE parts", "ALTER PUBLICATION rooted DROP TABLE parts"),
    ("ALTER PUBLICATION rooted ADD TABLES IN SCHEMA above", "ALTER PUBLICATION rooted DROP TABLES IN SCHEMA above"),
)  # fmt: skip
SPANS = (
    "UPDATE parts SET v = 'under the root' WHERE id = 1",
    "TRUNCATE parts; INSERT INTO parts VALUES (7, 'new')",
)


def test_a_root_published_for_a_moment(database: Database, session: Any, tmp_path: Path) -> None:
    """Beside its leaf, and not any more when the batch is looked at: the leaf's rows came as the root's."""
    database.execute(
        "CREATE SCHEMA above; CREATE TABLE above.parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE middle PARTITION OF above.parts FOR VALUES FROM (0) TO (2000) PARTITION BY RANGE (id);"
        "CREATE TABLE leaf PARTITION OF middle FOR VALUES FROM (0) TO (1000); CREATE TABLE other (id int PRIMARY KEY, v text);"
        "CREATE TABLE unsent PARTITION OF middle FOR VALUES FROM (1000) TO (2000);"
        "INSERT INTO leaf SELECT g, 'v' || g FROM generate_series(1, 20) g; CREATE PUBLICATION leafy FOR TABLE leaf;"
        "CREATE PUBLICATION rooted FOR TABLE other WITH (publish_via_partition_root = true)"
    )
    file = pipeline_file(tmp_path, database, [])
    file.write_text(file.read_text().replace("[shop]", "[leafy, rooted]"))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        for (added, dropped), span in zip(FOR_A_MOMENT, SPANS, strict=True):
            _each(database, "\n".join(["SET search_path = above, public", added, *span.split("; "), dropped]))
            pipeline.sync()
            told = sorted(database.execute("SELECT id::text, v FROM leaf"))
            assert sorted(pipeline.rows("leaf")) == told, added
        assert _copied(pipeline) == {"public.leaf"}
        assert pipeline.verify().equal
