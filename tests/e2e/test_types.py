"""Types in the lake, from the source's first row to `verify`: what became what, and what is kept how."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from decoder.errors import ApplyError, PipelineFileError
from infra.cli import main
from infra.pipeline import Pipeline
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)
KINDS = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, "B c" text, d date);
CREATE TABLE kinds (
    id bigint PRIMARY KEY, n numeric(10,2), d date, t timestamptz, w varchar(20), f numeric,
    a int[], b text[], c numeric(6,2)[], e timestamptz[], g mood[], x bytea[], y float8[], z boolean[],
    r int4range, s tstzrange, u numrange, p pair, q pair[], j jsonb);
CREATE TABLE bag (a int[], r daterange, p pair, y float8[], n numeric(10,2));
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE strict (id int PRIMARY KEY, d date, a int[]);
"""
ROWS = r"""
INSERT INTO kinds VALUES
(1, 'NaN', 'infinity', '2026-11-21 12:00:00.5+00', 'w', 1.50, '{1,NULL,3}', '{a,"b c",NULL,"NULL","q\"u\\o","",ü}',
 '{1.50,NULL}', '{"2026-11-21 12:00:00+00",NULL}', '{sad,ok}', '{"\\x00ff","\\x"}', '{1.5,NaN,-0,Infinity}', '{t,f,NULL}',
 '[1,5)', '["2026-11-21 12:00:00+00",)', '(1.5,2.50]', '(1,"a ""b"", (c)",2026-11-21)', '{"(1,x,)"}', '{"b": 1, "a": 1.0}'),
(2, 1, '2026-11-21', 'infinity', 'w', 'NaN', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', 'empty', 'empty', 'empty',
 '(,"",)', '{}', '[1.50, "x"]'),
(3, 'NaN', 'today', now(), 'w', 0, '{{1,2},{3,4}}', '[0:1]={a,b}', '{NaN}', '{infinity}', '{{sad}}', '[2:2]={"\\x"}',
 '{{1}}', '{{t}}', '(,)', '[-infinity,infinity]', '(,)', '(,,infinity)', '{{"(1,2,)"}}', 'null'),
(4, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO bag VALUES ('{1}', '[2026-01-01,2026-02-01)', '(1,x,)', '{0}', 1), ('{1}', '[2026-01-01,2026-02-01)', '(1,x,)', '{0}', 1),
('{1}', '[2026-01-01,2026-02-01)', '(1,x,)', '{-0}', 1), ('{{1}}', '(,infinity)', '(,,infinity)', NULL, 'NaN'),
('{{2}}', '(,infinity)', '(,,infinity)', NULL, 'NaN'), (NULL, NULL, NULL, NULL, NULL), (NULL, NULL, '(,,)', NULL, NULL);
INSERT INTO strict VALUES (1, '2026-11-21', '{1}');
"""
CHANGES = [
    "UPDATE kinds SET id = id + 10; UPDATE kinds SET a = '{{9}}', d = '-infinity' WHERE id = 11;"
    "UPDATE kinds SET a = '{7}', d = '2026-01-01' WHERE id = 13; INSERT INTO kinds SELECT * FROM kinds WHERE false;"
    "DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE y::text = '{0}' LIMIT 1);"
    "DELETE FROM bag WHERE a::text = '{{2}}'; UPDATE bag SET n = 2 WHERE y::text = '{-0}';"
    "DELETE FROM bag WHERE p IS NULL AND p::text IS NULL; INSERT INTO bag VALUES ('{}', 'empty', NULL, '{NaN}', 0)",
    "DELETE FROM bag WHERE y::text = '{NaN}'; UPDATE kinds SET id = 5 WHERE id = 12;"
    "ALTER TABLE kinds ADD k int[]; INSERT INTO kinds (id, k, p) VALUES (20, '{4,5}', '(9,z,2026-11-21)'), (21, '{{4}}', NULL)",
]
EXTRA = """types: {arrays: list, ranges: struct, composites: struct}
on_conflict: fail
"""


@pytest.fixture(scope="module")
def lake(pg: Any, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Path]]:
    """Tables of every kind, arrays as lists, ranges and composites as structs; brought up to date twice."""
    folder = tmp_path_factory.mktemp("types")
    with fresh_database(pg) as database:
        database.execute(KINDS + ROWS)
        file = pipeline_file(folder, database, ["kinds", "bag"], extra=EXTRA)
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            assert_equal(database, pipeline, ["kinds", "bag"])
            for changes in CHANGES:
                database.execute(changes)
                pipeline.sync()
                assert_equal(database, pipeline, ["kinds", "bag"])
        yield database, file


def test_lists_and_structs_equal_the_source(lake: tuple[Database, Path]) -> None:
    database, file = lake
    with Pipeline.open(file) as pipeline:
        assert pipeline.verify().equal
        found = pipeline.query("SELECT sum(size(a)), max(get(b, 1)), max(r.upper), max(p.a) FROM kinds").rows
        assert found == [("4", "b c", "5", "9")]
