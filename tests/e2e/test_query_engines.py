"""DuckDB and Spark answer alike: the same columns, rows and text, for every type and at every point."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.expectations.executors.side import kind_of
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.shapes import Compared
from slotlake.infra.cli.main import main
from slotlake.spark.read.duck.database import has_early_moments
from slotlake.spark.read.executors import ClusterReadPoint
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database, fresh_database
from tests.decoder.binary_values import VALUES
from tests.e2e.oracle import assert_equal, pipeline_file, source_rows

pytestmark = pytest.mark.timeout(600)
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
NESTED = {
    "int[]": ["{1,NULL,3}", "{}", "{{1,2}}", "[0:1]={4,5}"],
    "text[]": [r'{a,"b c",NULL,"NULL","q\"u\\o","",ü}', '{"line\nline"}'],
    "numeric(6,2)[]": ["{1.50,NULL}", "{NaN}", "{-0.01}"],
    "real[]": ["{0.1,NaN,-Infinity,-0,1e22,123456}", "{}"],
    "double precision[]": ["{0.1,NaN,Infinity,-0,1e22,1e23,9007199254740993}"],
    "boolean[]": ["{t,f,NULL}"],
    "bytea[]": [r'{"\\xdeadbeef",NULL,"\\x"}'],
    "date[]": ["{2000-02-29,NULL}", "{infinity}"],
    "timestamptz[]": ['{"2026-11-21 12:00:00.5+00","0001-01-01 00:00:00+00"}'],
    "timestamp[]": ['{"2026-11-21 12:00:00.000001"}'],
    "uuid[]": ["{a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11}"],
    "int4range": ["[1,5)", "empty", "(,)", "(,7]"],
    "tstzrange": ['["2026-11-21 12:00:00+00",)', "[-infinity,infinity]"],
    "numrange": ["[1.50,2.5]"],
    "pair": ['(1,"a ""b"", (c)",2026-11-21)', "(,,)", "(,,infinity)"],
    "pair[]": ['{"(1,x,)"}'],
}
EXTRA = "types: {arrays: list, ranges: struct, composites: struct}\n"
TIMELINE = [
    "INSERT INTO t VALUES (5, 'five', 5.5), (6, NULL, NULL); UPDATE t SET v = 'x' WHERE id = 1",
    "DELETE FROM t WHERE id IN (2, 5); UPDATE t SET id = 20 WHERE id = 3",
    "ALTER TABLE t ADD added timestamptz DEFAULT '2026-01-01 00:00:00+00'; INSERT INTO t (id) VALUES (30)",
    "ALTER TABLE t RENAME v TO w; UPDATE t SET w = 'renamed' WHERE id = 1",
    "ALTER TABLE t ALTER n TYPE numeric(20,2); INSERT INTO t (id, n) VALUES (31, 123456789012.34)",
    "ALTER TABLE t DROP w; INSERT INTO t (id) VALUES (32)",
    "TRUNCATE t",
    "INSERT INTO t (id, n) VALUES (40, 'NaN')",
]


@pytest.fixture(scope="module")
def types(pg: Any, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Path]]:
    """A table with a column for each type, and in its rows every edge of the type, beside rows of NULLs."""
    with fresh_database(pg) as database:
        database.execute("CREATE TYPE pair AS (a int, b text, d date)")
        kinds = VALUES | NESTED
        columns = ", ".join(f"c{i} {kind}" for i, kind in enumerate(kinds))
        database.execute(f"CREATE TABLE kinds (id int PRIMARY KEY, {columns})")
        with database.connect() as connection:
            for number, values in enumerate(zip_longest(*kinds.values()), 1):
                places = sql.SQL(", ").join(sql.Literal(value) for value in values)
                connection.execute(sql.SQL("INSERT INTO kinds VALUES ({}, {})").format(number, places))
        file = pipeline_file(tmp_path_factory.mktemp("types"), database, ["kinds"], extra=EXTRA)
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            database.execute(
                "UPDATE kinds SET id = id + 100 WHERE id % 2 = 0"
            )  # written by Spark, not the copy
            pipeline.sync()
            assert_equal(database, pipeline, ["kinds"])
        yield database, file


def test_every_type(types: tuple[Database, Path]) -> None:
    database, file = types
    asked = "SELECT * FROM kinds ORDER BY id"
    with Pipeline.open(file) as pipeline:
        by_duckdb = pipeline.query(asked, engine="duckdb")
        by_spark = pipeline.query(asked, engine="spark")
    assert by_duckdb.columns == by_spark.columns
    names = list(by_duckdb.columns)
    differing = {
        (name, ours, theirs)
        for row, other in zip(by_duckdb.rows, by_spark.rows, strict=True)
        for name, ours, theirs in zip(names, row, other, strict=True)
        if ours != theirs
    }
    assert differing == set()
    with database.connect() as connection:
        columns, rows = source_rows(connection, "kinds")
    source = {row[0]: dict(zip(columns, row, strict=True)) for row in rows}
    wrong = set()
    for row in by_duckdb.rows:
        values = dict(zip(names, row, strict=True))
        for i, kind in enumerate(VALUES):
            if kind.endswith("range") and "multi" not in kind:  # structs in this lake
                continue
            found = values[f"c{i}"] if values[f"c{i}"] is not None else values.get(f"c{i}__exact")
            if found != source[values["id"]][f"c{i}"]:
                wrong.add((kind, source[values["id"]][f"c{i}"], found))
    assert wrong == set()


def test_executors_hash_every_type_as_slotlake_does(types: tuple[Database, Path]) -> None:
    """All but lists and structs, which executors leave to slotlake."""
    _, file = types
    with Pipeline.open(file) as pipeline:
        point = ReadPoint.latest(pipeline.lake)
        columns = [column for column in point.schema("public.kinds").live if kind_of(column)]
        assert len(columns) > len(VALUES) - 15
        named = tuple((column.name, column.type_oid) for column in columns)
        by_executors = ClusterReadPoint(point, pipeline.session, rows_min=0)
        for escaped in (False, True):
            table = Compared("public.kinds", named[:1], named[1:], (), None, escaped=escaped)
            assert LakeTable(by_executors, table).by_executors
            assert LakeTable(by_executors, table).sums() == LakeTable(point, table).sums()
        assert not by_executors.given_up


def test_nested_values_are_json(types: tuple[Database, Path]) -> None:
    _, file = types
    number = {kind: f"c{i}" for i, kind in enumerate(VALUES | NESTED)}
    asked = ", ".join(
        number[kind] for kind in ("int[]", "real[]", "bytea[]", "pair", "int4range", "timestamp[]")
    )
    with Pipeline.open(file) as pipeline:
        for engine in ("duckdb", "spark"):
            (row,) = pipeline.query(f"SELECT {asked} FROM kinds WHERE id = 1", engine=engine).rows
            assert row == (
                "[1,null,3]",
                '[0.1,"NaN","-Infinity",-0,1e+22,123456]',
                r'["\\xdeadbeef",null,"\\x"]',
                r'{"a":1,"b":"a \"b\", (c)","d":"2026-11-21"}',
                '{"lower":1,"upper":5,"lower_inc":true,"upper_inc":false,"empty":false}',
                '["2026-11-21 12:00:00.000001"]',
            ), engine


@pytest.mark.parametrize(
    "asked",
    [
        "SELECT count(*) AS n, sum(id) AS s, min(c11) AS a, max(c11) AS b FROM kinds",
        "SELECT CAST(1.50 AS decimal(10,2)) AS a, CAST(NULL AS int) AS b, 'x' AS c, true AS d, -0.0e0 AS e",
        "SELECT CAST('2026-11-21' AS date) AS a, CAST('1.5' AS double) AS b, CAST(1e22 AS double) AS c",
        "SELECT id % 7 AS g, count(*) AS n, avg(id) AS a FROM kinds GROUP BY 1 ORDER BY 1",
        "SELECT kind, changes, tables, changed FROM commits ORDER BY position",
        "SELECT k.id AS id, o.id AS other FROM kinds k JOIN public.kinds o ON o.id = k.id + 2 ORDER BY 1",
        "SELECT upper('ü') AS u, substr('abc', 2) AS s, coalesce(NULL, 3) AS c, 7 / 2 AS q, 7 % 3 AS r",
        "SELECT CAST(c17 AS double) AS f FROM kinds WHERE c17 IS NOT NULL ORDER BY id",
        "SHOW TABLES",
    ],
)
def test_the_same_statement(types: tuple[Database, Path], asked: str) -> None:
    _, file = types
    with Pipeline.open(file) as pipeline:
        found = [pipeline.query(asked, engine=engine) for engine in ("duckdb", "spark")]
    assert list(found[0].columns) == list(found[1].columns)
    assert list(found[0].rows) == list(found[1].rows)
    assert found[0].lsn == found[1].lsn
    assert found[0].numeric == found[1].numeric


def test_csv_is_what_copy_writes(types: tuple[Database, Path], capsys: pytest.CaptureFixture[str]) -> None:
    database, file = types
    asked = """SELECT 'a,b' AS "x, y", '' AS e, NULL AS n, 'q"q' AS q, 'l\nm' AS l, 'plain' AS p, 1.50 AS d"""
    copied = f"COPY ({asked}) TO STDOUT (FORMAT csv, HEADER)"
    with database.connect() as connection, connection.cursor() as cursor, cursor.copy(copied) as copy:
        expected = b"".join(bytes(part) for part in copy).decode()
    assert main(["query", str(file), asked, "--csv"]) == 0
    assert capsys.readouterr().out == expected
    assert main(["query", str(file), asked, "--csv", "--json"]) == 2
    assert "choose one of --csv and --json" in capsys.readouterr().err


def test_numbers_stand_at_the_right(types: tuple[Database, Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["query", str(types[1]), "SELECT 7 AS the_number, '7' AS the_text"]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "7" in line)
    assert row.split("│")[1:3] == ["          7 ", " 7        "]


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("kept_as", ["format: 3", "format: 2"] if LONG else ["format: 3"])
def test_every_point_of_a_table_that_changes(
    database: Database, session: Any, tmp_path: Path, kept_as: str
) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10,2)); "
        "INSERT INTO t SELECT g, 'v' || g, g FROM generate_series(1, 4) g"
    )
    file = pipeline_file(tmp_path, database, ["t"], extra="mode: [history, append]\non_drop: drop\n")
    file.write_text(file.read_text().replace("'t': {}", f"'t': {{{kept_as}}}"))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        points = [pipeline.status().last_consistent_lsn]
        for step in TIMELINE:
            database.execute(step)
            pipeline.sync()
            points.append(pipeline.status().last_consistent_lsn)
        assert len(set(points)) == len(points)
        for at in [*points, *reversed(points)]:
            for table in ("t", "t__history", "public.t__changes", "commits"):
                asked = f"SELECT * FROM {table}"
                ours, theirs = (pipeline.query(asked, at=at, engine=engine) for engine in ("duckdb", "spark"))
                assert ours.columns == theirs.columns, (at, table)
                assert sorted(ours.rows, key=repr) == sorted(theirs.rows, key=repr), (at, table)
        with pytest.raises(LakeError, match="has not reached"):
            pipeline.query("SELECT 1", at="F/0", engine="duckdb")


def test_moments_before_1970_in_partitions(database: Database, tmp_path: Path) -> None:
    """DuckDB by itself leaves out their files when a condition names the column; slotlake query does not."""
    database.execute(
        """CREATE TABLE days (id int PRIMARY KEY, t timestamp); CREATE TABLE months (LIKE days INCLUDING ALL);
           CREATE TABLE late (LIKE days INCLUDING ALL); INSERT INTO late VALUES (1, '1970-01-01');
           INSERT INTO days VALUES (1, '1969-12-31 12:00'), (2, '1968-02-29 23:59:59.999999'),
               (3, '1970-01-01');
           INSERT INTO months TABLE days"""
    )
    file = pipeline_file(tmp_path, database, ["days", "months", "late"])
    text = file.read_text().replace("'late': {}", "late: {partition_by: day(t)}")
    text = text.replace("'days': {}", "days: {partition_by: day(t)}")
    file.write_text(text.replace("'months': {}", "months: {partition_by: month(t)}"))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        point = ReadPoint.latest(pipeline.lake)
        early = {name.table for name, pinned in point.pinned.items() if has_early_moments(pinned)}
        assert early == {"days", "months"}
        for table in ("days", "months"):
            for condition, expected in (
                ("t = TIMESTAMP '1969-12-31 12:00:00'", [1]),
                ("t >= TIMESTAMP '1968-02-29 23:59:59.999999' AND t < TIMESTAMP '1970-01-01'", [1, 2]),
            ):
                statement = f"SELECT id FROM {table} WHERE {condition} ORDER BY 1"
                rows = pipeline.query(statement, engine="duckdb").rows
                assert [row[0] for row in rows] == [str(each) for each in expected], (table, condition)
