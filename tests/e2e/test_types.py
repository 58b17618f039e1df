"""Types in the lake, from the source's first row to `verify`: what became what, and what is kept how."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from slotlake import Pipeline
from slotlake.decoder.errors import ApplyError, LakeError, PipelineFileError
from slotlake.infra.cli.main import main
from slotlake.infra.copy.tables import published_tables
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file, source_rows
from tests.e2e.readers import duckdb_connection, duckdb_secret
from tests.storage import pyiceberg_properties

pytestmark = pytest.mark.timeout(600)
KINDS = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TYPE pair AS (a int, "B c" text, d date);
CREATE TABLE kinds (
    id bigint PRIMARY KEY, n numeric(10,2), d date, t timestamptz, w varchar(20), f numeric,
    a int[], b text[], c numeric(6,2)[], g mood[], r int4range, s tstzrange, p pair, q pair[], j jsonb);
CREATE TABLE bag (a int[], r daterange, p pair, y float8[], n numeric(10,2));
ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE strict (id int PRIMARY KEY, d date, n numeric(10,2), a int[]);
"""
ROWS = r"""
INSERT INTO kinds VALUES
(1, 'NaN', 'infinity', '2026-11-21 12:00:00.5+00', 'w', 1.50, '{1,NULL,3}',
 '{a,"b c",NULL,"NULL","q\"u\\o","",ü}', '{1.50,NULL}', '{sad,ok}', '[1,5)',
 '["2026-11-21 12:00:00+00",)', '(1,"a ""b"", (c)",2026-11-21)',
 '{"(1,x,)"}', '{"b": 1, "a": 1.0}'),
(2, 1, '2026-11-21', 'infinity', 'w', 'NaN',
 '{}', '{}', '{}', '{}', 'empty', 'empty', '(,"",)', '{}', '[1.50, "x"]'),
(3, 'NaN', 'today', now(), 'w', 0, '{{1,2},{3,4}}', '[0:1]={a,b}', '{NaN}', '{{sad}}', '(,)',
 '[-infinity,infinity]', '(,,infinity)', '{{"(1,2,)"}}', 'null');
INSERT INTO kinds (id) VALUES (4);
INSERT INTO bag SELECT '{1}', '[2026-01-01,2026-02-01)', '(1,x,)', y::float8[], 1 FROM unnest(
    ARRAY['{0}', '{0}', '{-0}']) y;
INSERT INTO bag SELECT a::int[], '(,infinity)', '(,,infinity)', NULL, 'NaN' FROM unnest(
    ARRAY['{{1}}', '{{2}}']) a;
INSERT INTO bag (p) VALUES (NULL), ('(,,)');
INSERT INTO strict VALUES (1, '2026-11-21', 'NaN', '{1}');
"""
CHANGES = """
UPDATE kinds SET id = id + 10;
UPDATE kinds SET a = '{{9}}', d = '-infinity' WHERE id = 11;
UPDATE kinds SET a = '{7}', d = '2026-01-01' WHERE id = 13;
DELETE FROM bag WHERE ctid = (SELECT ctid FROM bag WHERE y::text = '{0}' LIMIT 1);
DELETE FROM bag WHERE a::text = '{{2}}';
UPDATE bag SET n = 2 WHERE y::text = '{-0}';
DELETE FROM bag WHERE p::text IS NULL;
INSERT INTO bag VALUES ('{}', 'empty', NULL, '{NaN}', 0);
ALTER TABLE kinds ADD k int[];
INSERT INTO kinds (id, k, p) VALUES (20, '{4,5}', '(9,z,2026-11-21)'), (21, '{{4}}', NULL);
"""
MORE = """
DELETE FROM bag WHERE y::text = '{NaN}';
UPDATE kinds SET id = 5 WHERE id = 12;
INSERT INTO kinds (id) VALUES (30);
INSERT INTO strict VALUES (2, 'infinity', 'NaN', '{1,2}'), (3, NULL, NULL, '{{5}}');
"""
STRICT = "mode: [history, append], on_trouble: stop, on_lossy: {d: fail, n: text}, types: {a: list}"
EXTRA = """types: {arrays: list, ranges: struct, composites: struct}
on_conflict: fail
"""
TABLES = ["kinds", "bag", "strict"]
Lake = tuple[Database, Path]


@pytest.fixture(scope="module")
def lake(pg: Any, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lake]:
    """Tables of every kind, arrays as lists, ranges and composites as structs; brought up to date once."""
    folder = tmp_path_factory.mktemp("types")
    with fresh_database(pg) as database:
        database.execute(KINDS + ROWS)
        file = pipeline_file(folder, database, TABLES, extra=EXTRA)
        _edit(file, "'strict': {}", f"'strict': {{{STRICT}}}")
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            assert_equal(database, pipeline, TABLES)
            database.execute(CHANGES)
            pipeline.sync()
            assert_equal(database, pipeline, TABLES)
        yield database, file


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_lists_and_structs_equal_the_source_and_can_be_queried(lake: Lake) -> None:
    _, file = lake
    with Pipeline.open(file) as pipeline:
        assert pipeline.verify().equal
        asked = "SELECT sum(size(a)), max(get(b, 1)), max(r.upper), max(p.a), max(p.`B c`) FROM kinds"
        with pytest.raises(LakeError, match="B c"):
            pipeline.query(asked, engine="spark")
        found = pipeline.query(asked.replace("`B c`", "B_x20_c"), engine="spark").rows
        assert found == [("1", "b c", "5", "9", "z")]


def test_other_readers_have_lists_and_structs(lake: Lake) -> None:
    """pyiceberg and DuckDB read what Spark wrote and what the copy wrote."""
    _, file = lake
    with Pipeline.open(file) as pipeline:
        cut = ReadPoint.latest(pipeline.lake)
        where = cut.pinned[cut.find("kinds")].location
    columns = ("id", "a", "r", "p")
    rows = (
        StaticTable.from_metadata(where, pyiceberg_properties())
        .scan(selected_fields=columns)
        .to_arrow()
        .to_pylist()
    )
    expected = {
        11: (None, {"lower": 1, "upper": 5}, {"a": 1, "B_x20_c": 'a "b", (c)', "d": date(2026, 11, 21)}),
        13: ([7], {"lower": None, "upper": None}, None),
        20: (None, None, {"a": 9, "B_x20_c": "z", "d": date(2026, 11, 21)}),
    }
    assert {row["id"]: _seen(row) for row in rows if row["id"] in expected} == expected
    with duckdb_connection("httpfs", "avro", "iceberg") as connection:
        duckdb_secret(connection)
        found = connection.execute(f"SELECT id, a, r, p FROM iceberg_scan('{where}')").fetchall()
    assert {
        row[0]: _seen(dict(zip(columns, row, strict=True))) for row in found if row[0] in expected
    } == expected


def _seen(row: dict[str, Any]) -> tuple[Any, ...]:
    bounds = None if row["r"] is None else {name: row["r"][name] for name in ("lower", "upper")}
    return row["a"], bounds, row["p"]


def test_status_types(lake: Lake, capsys: pytest.CaptureFixture[str]) -> None:
    _, file = lake
    assert main(["status", "--types", "--json", str(file)]) == 0
    tables = {table["table"]: table for table in json.loads(capsys.readouterr().out)["tables"]}
    kinds, strict = (
        {column["column"]: column for column in tables[f"public.{name}"]["columns"]}
        for name in ("kinds", "strict")
    )
    assert tables["public.kinds"]["lake_table"] == "shop.kinds"
    types = {name: (c["postgres"], c["arrow"], c["iceberg"]) for name, c in kinds.items()}
    flags = "lower_inc: boolean, upper_inc: boolean, empty: boolean"
    assert types["id"] == ("int8", "int64", "long")
    assert types["n"] == ("numeric(10,2)", "decimal128(10, 2)", "decimal(10,2)")
    assert types["d"] == ("date", "date32[day]", "date")
    assert types["t"] == ("timestamptz", "timestamp[us, tz=UTC]", "timestamptz")
    assert types["w"] == ("varchar(20)", "string", "string")
    assert types["f"] == ("numeric", "string", "string")
    assert types["c"] == ("numeric(6,2)[]", "list<element: decimal128(6, 2)>", "list<decimal(6,2)>")
    assert types["k"][2] == "list<int>"
    assert types["r"][2] == f"struct<lower: int, upper: int, {flags}>"
    assert types["p"][::2] == ("public.pair", "struct<a: int, B_x20_c: string, d: date>")
    assert types["j"][2] == "string"
    counted = {name: c["exact_texts"] for name, c in kinds.items() if c["companion"]}
    # Of a and d one each in a row that was deleted since, and is in its file still.
    assert (counted["a"], counted["k"], counted["d"]) == (2, 1, 2)
    assert not kinds["a"]["exact"]
    assert kinds["a"]["otherwise"] == "NULL, its text in a__exact"
    assert (kinds["id"]["on_lossy"], kinds["n"]["on_lossy"]) == (None, "quarantine")
    assert (strict["d"]["on_lossy"], strict["d"]["otherwise"]) == ("fail", "refused with its batch")
    assert (strict["n"]["iceberg"], strict["n"]["exact"], strict["n"]["on_lossy"]) == ("string", True, "text")
    assert main(["status", "--types", str(file)]) == 0
    assert "n__exact" in capsys.readouterr().out


def test_a_value_that_does_not_fit_is_refused_before_anything_is_staged(lake: Lake) -> None:
    database, file = lake
    with Pipeline.open(file) as pipeline:
        before = pipeline.status().last_consistent_lsn
        database.execute(
            "INSERT INTO kinds (id) VALUES (30); INSERT INTO strict VALUES (2, 'infinity', 'NaN')"
        )
        for _ in range(2):
            with pytest.raises(ApplyError, match="column 'd'") as error:
                pipeline.sync()
            assert "public.strict" in str(error.value)
            assert "quarantine" in str(error.value)
            assert "infinity" not in str(error.value)
            assert pipeline.status().last_consistent_lsn == before
    _edit(file, "d: fail", "d: quarantine")
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        assert_equal(database, pipeline, TABLES)
        kept = "id, d, d__exact, n, a, a__exact"
        mirror = f"SELECT {kept} FROM strict"
        versions = f"SELECT {kept} FROM strict__history WHERE is_open"
        images = ", ".join(f"new.{name}" for name in kept.split(", "))
        changes = f"SELECT {images} FROM strict__changes WHERE op <> 'C'"
        for beside in (versions, changes):
            assert (
                pipeline.query(f"({mirror} EXCEPT {beside}) UNION ALL ({beside} EXCEPT {mirror})").rows == []
            )


def test_a_replay_gives_the_same(lake: Lake) -> None:
    """In one batch, over a column that was added and rows that were moved."""
    database, file = lake
    with Pipeline.open(file) as pipeline:
        pipeline.replay("again", transactions=1000)
        again = ReadPoint.latest(replace(pipeline.lake, namespace="again"))
        with database.connect() as connection:
            for table in TABLES:
                assert Counter(again.rows(table)) == source_rows(connection, table)[1], table


def test_what_the_lake_has_changes_by_a_backfill_alone(lake: Lake) -> None:
    database, file = lake
    _edit(file, "'bag': {}", "'bag': {types: {a: text}, on_lossy: {n: text}}")
    with Pipeline.open(file) as pipeline:
        with pytest.raises(PipelineFileError, match="chooses other types for a table"):
            pipeline.sync()
        assert any("other types" in warning for warning in pipeline.status().warnings)
        pipeline.backfill("bag")
        database.execute("DELETE FROM bag WHERE n = 'NaN'; INSERT INTO bag (a, n) VALUES ('{{5}}', 'NaN')")
        pipeline.sync()
        assert_equal(database, pipeline, TABLES)
        (bag,) = [table for table in pipeline.types().tables if table.table == "public.bag"]
        types = {column.column: column.iceberg.partition("<")[0] for column in bag.columns}
        assert types == {"a": "string", "r": "struct", "p": "struct", "y": "list", "n": "string"}


def test_a_copy_is_refused_too(lake: Lake) -> None:
    database, file = lake
    _edit(file, "d: quarantine", "d: fail")
    with Pipeline.open(file) as pipeline:
        with pytest.raises(ApplyError, match="a row that the copy read"):
            pipeline.backfill("strict")
        assert_equal(database, pipeline, TABLES)
    _edit(file, "d: fail", "d: quarantine")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("a: list}", "d: list}", "column 'd' is of type date"),
        ("a: list}", "nothing: text}", "no published column 'nothing'"),
        ("a: list}", "a: struct}", "arrays can be lists"),
        ("types: {arrays: list", "types: {jsonb: variant, arrays: list", "VARIANT"),
        ("types: {arrays: list", "types: {uuid: uuid, arrays: list", "Iceberg's type uuid"),
        ("types: {arrays: list", "types: {time: time, arrays: list", "Iceberg's type time"),
        ("d: quarantine", "d: ignore", "on_lossy"),
        ("d: quarantine", "a: text", "cannot be text"),
    ],
)
def test_what_cannot_be_is_refused_by_name(lake: Lake, old: str, new: str, said: str) -> None:
    _, file = lake
    wrong = file.with_name("wrong.yaml")
    wrong.write_text(file.read_text().replace(old, new))
    with pytest.raises(PipelineFileError, match=said), Pipeline.open(wrong) as pipeline:
        published_tables(pipeline)
