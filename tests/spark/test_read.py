"""Readers get PostgreSQL's own text, at one position, with or without Spark."""

from __future__ import annotations

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import query
from tests.spark.lake_lab import Lab, delete, insert, relation, update

KINDS = relation(
    "kinds",
    ["id"],
    id="int4",
    n="numeric(10,2)",
    f="float8",
    d="date",
    t="timestamp",
    z="timestamptz",
    b="bytea",
    o="bool",
    s="text",
)
ROW = {
    "id": "1", "n": "-0.50", "f": "1e+100", "d": "2024-02-29", "t": "2024-05-01 10:00:00.5",
    "z": "2024-05-01 10:00:00+00", "b": "\\x00ff", "o": "t", "s": "it's",
}  # fmt: skip
STRANGE = ROW | {
    "id": "2", "n": "NaN", "f": "-Infinity", "d": "0044-03-15 BC", "t": "infinity",
    "z": "294276-12-31 23:59:59+00", "b": "\\x", "o": None, "s": "",
}  # fmt: skip
OTHER = relation("Sales.Odd Name", ["id"], id="int4", v="int4")


def test_rows_are_postgresql_text(lab: Lab) -> None:
    lab.init({KINDS: [ROW]})
    lab.sync(insert(KINDS, **STRANGE))
    assert lab.rows("kinds") == [tuple(ROW.values()), tuple(STRANGE.values())]
    cut = ReadPoint.latest(lab.lake)
    assert sorted(cut.rows("public.kinds", ["n", "id"])) == [("-0.50", "1"), ("NaN", "2")]
    names = next(cut.arrow_batches("kinds", ["id", "n"])).schema.names
    assert names == ["id", "n", "n__exact"]
    for table, columns in (("nothing", None), ("kinds", ["nope"]), ("a.b.c", None)):
        with pytest.raises(KeyError):
            list(cut.rows(table, columns))


def test_positions_of_the_past(lab: Lab) -> None:
    lab.init({KINDS: [ROW]})
    lab.sync(update(KINDS, **ROW | {"s": "second"}))
    lab.sync(delete(KINDS, id="1"), insert(KINDS, **STRANGE))
    assert lab.rows("kinds", at=0x1000) == [tuple(ROW.values())]
    assert lab.rows("kinds", at=0x11FF)[0][-1] == "second"
    assert ReadPoint.at(lab.lake, 0x11FF).position == 0x1100
    assert [row[0] for row in lab.rows("kinds")] == ["2"]
    with pytest.raises(LakeError, match="nothing as old as 0/FFF"):
        ReadPoint.at(lab.lake, 0xFFF)
    with pytest.raises(LakeError, match="has not reached 0/1201"):
        ReadPoint.at(lab.lake, 0x1201)


def test_deleted_rows_stay_deleted_over_many_batches(lab: Lab) -> None:
    table = relation("many", ["id"], id="int4", v="text")
    lab.init({table: [{"id": str(i), "v": "a"} for i in range(200)]})
    expected = {str(i): "a" for i in range(200)}
    for number in range(4):
        gone = [str(i) for i in range(number, 200, 7) if str(i) in expected]
        changed = [str(i) for i in range(number, 200, 11) if str(i) in expected and str(i) not in gone]
        lab.sync(
            *(delete(table, id=i) for i in gone), *(update(table, id=i, v=f"b{number}") for i in changed)
        )
        for i in gone:
            del expected[i]
        expected |= dict.fromkeys(changed, f"b{number}")
    assert {row[0]: row[1] for row in lab.rows("many")} == expected
    by_spark = lab.session.sql("SELECT CAST(id AS STRING), v FROM lake.shop.many").collect()
    assert {row[0]: row[1] for row in by_spark} == expected


def test_a_query_is_pinned_and_printed_as_postgresql_would(lab: Lab) -> None:
    lab.init({KINDS: [ROW], OTHER: [{"id": "1", "v": "1"}]})
    lab.sync(update(KINDS, **ROW | {"s": "second"}), insert(OTHER, id="2", v="2"))
    result = query(lab.session, lab.lake, "SELECT id, n, f, d, t, z, b, o, s FROM public.kinds")
    assert result.columns == list(ROW)
    assert result.rows == [tuple((ROW | {"s": "second"}).values())]
    assert result.position == 0x1100
    odd = query(lab.session, lab.lake, "SELECT v FROM shop__Sales.Odd_x20_Name ORDER BY id")
    assert odd.rows == [("1",), ("2",)]
    for name in ("kinds", "shop.kinds", "lake.shop.kinds", "public.kinds"):
        assert query(lab.session, lab.lake, f"SELECT s FROM {name}", at=0x1000).rows == [("it's",)]
    points = query(lab.session, lab.lake, "SELECT kind, tables FROM commits ORDER BY position")
    assert [row[0] for row in points.rows] == ["copy", "batch"]
    assert '"shop.kinds":' in (points.rows[0][1] or "")
    joined = "SELECT a.id, b.id, count(*), sum(b.n) FROM kinds a JOIN kinds b USING (o) GROUP BY ALL"
    assert query(lab.session, lab.lake, joined).rows == [("1", "1", "1", "-0.50")]


def test_a_query_cannot_write(lab: Lab) -> None:
    lab.init({KINDS: [ROW]})
    for sql in ("DELETE FROM kinds", "INSERT INTO kinds SELECT * FROM kinds", "DROP TABLE kinds", ""):
        with pytest.raises(LakeError, match="only queries"):
            query(lab.session, lab.lake, sql)
    with pytest.raises(LakeError, match="only queries"):
        query(lab.session, lab.lake, "WITH x AS (SELECT * FROM kinds) INSERT INTO kinds SELECT * FROM x")
    with pytest.raises(LakeError, match="TABLE_OR_VIEW_NOT_FOUND"):
        query(lab.session, lab.lake, "SELECT * FROM nothing")
    assert lab.rows("kinds") == [tuple(ROW.values())]
    with pytest.raises(LakeError, match="the query failed"):
        query(lab.session, lab.lake, "SELECT no_such_column FROM kinds")
    assert not list((lab.lake.warehouse_path / "_slotlake" / "cuts").iterdir())
