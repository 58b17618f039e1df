# ruff: noqa: E501, ISC004  (a statement is read as a line)
"""What is published of a source changes: generated columns, children, tables that move, partitions that come and go."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import psycopg
import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.test_beside import mirrors

pytestmark = pytest.mark.timeout(900)

SETUP = """
CREATE TABLE made (id int PRIMARY KEY, a int, s int GENERATED ALWAYS AS (a * 2) STORED, x int GENERATED ALWAYS AS (a * 3) VIRTUAL, v text);
CREATE TABLE sifted (id int PRIMARY KEY, a int, s int GENERATED ALWAYS AS (a * 2) STORED); ALTER TABLE sifted REPLICA IDENTITY FULL;
CREATE TABLE named (a int, s int GENERATED ALWAYS AS (a * 2) STORED PRIMARY KEY, v text);
CREATE TABLE above (id int PRIMARY KEY, v text); CREATE TABLE below (PRIMARY KEY (id), w int) INHERITS (above);
CREATE TABLE wanders (id int PRIMARY KEY, v text); CREATE SCHEMA far;
CREATE TABLE parts (id int, day int, v text, PRIMARY KEY (day, id)) PARTITION BY RANGE (day);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
INSERT INTO made (id, a) SELECT g, g FROM generate_series(1, 9) g; INSERT INTO sifted (id, a) SELECT g, g FROM generate_series(1, 9) g;
INSERT INTO named (a) SELECT g FROM generate_series(1, 9) g; INSERT INTO wanders SELECT g, 'v' FROM generate_series(1, 9) g;
INSERT INTO above SELECT g, 'above' FROM generate_series(1, 9) g; INSERT INTO below SELECT g, 'below', g FROM generate_series(5, 15) g;
INSERT INTO parts SELECT g, g % 20, 'v' FROM generate_series(1, 40) g;
CREATE PUBLICATION one FOR TABLE made, sifted, named, above WITH (publish_generated_columns = stored);
CREATE TABLE calm (id int PRIMARY KEY, a int, s int GENERATED ALWAYS AS (a * 2) STORED); INSERT INTO calm VALUES (1, 1), (2, 2);
CREATE TABLE calmer (LIKE calm INCLUDING ALL); INSERT INTO calmer VALUES (1, 1), (2, 2); CREATE PUBLICATION still FOR TABLE calm, calmer;
CREATE PUBLICATION two FOR TABLE wanders; CREATE PUBLICATION root FOR TABLE parts WITH (publish_via_partition_root = true)
"""
MADE, MADE_WITHOUT = "SELECT id, a, s, v FROM made", "SELECT id, a, v FROM made"
SIFTED = "SELECT id, a, s FROM sifted WHERE s > 6 AND a < 100"
FIRST = {
    "made": MADE,
    "sifted": SIFTED,
    "named": "SELECT * FROM named",
    "above": "SELECT * FROM ONLY above",
    "below": "SELECT * FROM below",
    "wanders": "SELECT * FROM wanders",
    "parts": "SELECT * FROM parts",
    "calm": "SELECT id, a FROM calm",
}
# What happens, and what is then another query.
STEPS: list[tuple[str, dict[str, str]]] = [
    (
        "UPDATE made SET a = 50 WHERE id = 1; UPDATE sifted SET a = a - 2; UPDATE sifted SET a = 100 WHERE id = 9; UPDATE named SET a = a + 100 WHERE a < 4; DELETE FROM named WHERE a = 5; "
        "UPDATE above SET v = 'both' WHERE id IN (6, 7); ALTER TABLE above ADD u int; UPDATE above SET u = 1, id = id + 100 WHERE id = 8; "
        "BEGIN; ALTER PUBLICATION two DROP TABLE wanders; UPDATE wanders SET v = 'between' WHERE id = 1; ALTER PUBLICATION one ADD TABLE wanders; COMMIT; UPDATE wanders SET v = 'there' WHERE id = 2; "
        "BEGIN; UPDATE parts SET v = 'before' WHERE day = 1; ALTER TABLE parts DETACH PARTITION parts_1; UPDATE parts_1 SET v = 'alone'; INSERT INTO parts VALUES (100, 11, 'in'); COMMIT; ALTER TABLE calm ALTER s DROP EXPRESSION",
        {"calm": "SELECT * FROM calm"},
    ),
    (
        "ALTER TABLE made ALTER s SET EXPRESSION AS (a * 5); UPDATE made SET v = 'w' WHERE id = 2; "
        "BEGIN; INSERT INTO parts VALUES (101, 12, 'in'); ALTER TABLE parts ATTACH PARTITION parts_1 FOR VALUES FROM (0) TO (10); UPDATE parts SET v = 'back' WHERE day = 2; UPDATE parts SET day = 15, id = 999 WHERE day = 3 AND id = 3; COMMIT; "
        "CREATE TABLE parts_3 (LIKE parts INCLUDING ALL); INSERT INTO parts_3 VALUES (1, 25, 'born'); BEGIN; ALTER TABLE parts ATTACH PARTITION parts_3 FOR VALUES FROM (20) TO (30); DELETE FROM parts WHERE day = 25; INSERT INTO parts VALUES (2, 26, 'new'); COMMIT; "
        "DROP TABLE below; UPDATE above SET v = 'only' WHERE id = 1; ALTER TABLE wanders SET SCHEMA far; UPDATE far.wanders SET v = 'far' WHERE id = 3",
        {"far.wanders": "SELECT * FROM far.wanders", "wanders": "", "below": ""},
    ),
    (
        "ALTER PUBLICATION one DROP TABLE sifted, named; ALTER PUBLICATION one SET (publish_generated_columns = none); UPDATE made SET a = 60 WHERE id = 3; ALTER TABLE far.wanders SET SCHEMA public; UPDATE wanders SET v = 'home' WHERE id = 4",
        {"made": MADE_WITHOUT, "wanders": "SELECT * FROM wanders", "far.wanders": "", "sifted": "", "named": ""},
    ),
    (
        "UPDATE made SET a = 70 WHERE id = 4; ALTER PUBLICATION one SET (publish_generated_columns = stored); UPDATE made SET a = 80 WHERE id = 5",
        {"made": MADE},
    ),
    ("ALTER TABLE made ALTER s DROP EXPRESSION; UPDATE made SET s = 7 WHERE id = 6; ALTER TABLE made DROP x", {"made": "SELECT * FROM made"}),
]  # fmt: skip


def test_what_is_published_changes(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(SETUP)
    kept = "tables:\n  made: {mode: [history, append]}\n"
    chosen = kept + "  sifted: {filter: s > 6 AND a < 100, mode: history}\n"
    file = pipeline_file(tmp_path, database, [])
    file.write_text(
        file.read_text().replace("[shop]", "[one, two, root, still]").replace("tables:\n", chosen)
    )
    queries, wrong = dict(FIRST), {}
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        wrong["copied"] = mirrors(pipeline, _held(database, queries))
    for number, (statements, others) in enumerate(STEPS):
        _run(database, statements)
        if "DROP TABLE sifted" in statements:
            file.write_text(file.read_text().replace(chosen, kept))
        with Pipeline.open(file) as pipeline:
            pipeline.sync()
            queries |= others
            wrong[f"step {number}"] = mirrors(pipeline, _held(database, queries))
    database.execute("ALTER PUBLICATION one SET (publish_generated_columns = none)")
    database.execute("ALTER TABLE calmer ALTER s DROP EXPRESSION")
    with Pipeline.open(file) as pipeline:
        assert pipeline.verify().equal
    assert {when: found for when, found in wrong.items() if found} == {}


def _run(database: Database, statements: str) -> None:
    with database.connect() as connection:
        for statement in statements.split("; "):
            connection.execute(statement.encode())


def _held(database: Database, queries: dict[str, str]) -> dict[str, Counter[Any]]:
    with psycopg.connect(database.dsn, autocommit=True) as connection:
        return {t: source_rows(connection, f"({sql}) AS t")[1] for t, sql in queries.items() if sql}
