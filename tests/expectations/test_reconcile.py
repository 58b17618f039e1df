"""A lake corrupted by one value, row or duplicate is named by table, key and kind; an equal one passes.

The source is a real PostgreSQL, being written to; the lake is Arrow batches as a cut hands them out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import psycopg
import pyarrow as pa
import pytest

from slotlake.decoder.catalog.publications import source_tables
from slotlake.decoder.errors import LakeError, SourceError
from slotlake.decoder.types.table import sql_text
from slotlake.expectations import differences
from slotlake.expectations.reconcile import Report, reconcile
from slotlake.expectations.results import Difference
from slotlake.expectations.source_side import SourceTable
from slotlake.spark.names import parse_postgres_name, postgres_name

Rows = list[dict[str, str | None]]


@dataclass
class Column:
    name: str
    dropped: bool = False


@dataclass
class Table:
    schema: str
    table: str
    columns: list[Column]
    rows: Rows


@dataclass
class Lake:
    """A cut held in memory; rows come in small batches."""

    held: dict[str, Table] = field(default_factory=dict)

    def tables(self) -> list[Table]:
        return list(self.held.values())

    def text_batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        rows, names = self.held[table].rows, list(columns or ())
        for start in range(0, len(rows), 300):
            some = rows[start : start + 300]
            arrays = [pa.array([row[name] for row in some], pa.string()) for name in names]
            yield pa.RecordBatch.from_arrays(arrays, names)


@dataclass
class Pair:
    """A source, an exported snapshot of it, and a lake that is equal to it."""

    dsn: str
    snapshot: str
    published: list[Any]
    lake: Lake

    def compare(self, **options: Any) -> Report:
        return reconcile(self.dsn, self.snapshot, self.published, self.lake, lsn=0x16_B374D848, **options)

    def rows(self, table: str) -> Rows:
        return self.lake.held[table].rows

    def row(self, table: str, **key: str) -> dict[str, str | None]:
        return next(row for row in self.rows(table) if key.items() <= row.items())


SCHEMA = """
CREATE TABLE orders (id int PRIMARY KEY, note text, total numeric, at timestamptz, tags text[]);
INSERT INTO orders SELECT i, CASE i % 3 WHEN 0 THEN '' WHEN 1 THEN 'n' || i END, i * 1.10,
    timestamptz '2024-02-29 12:00+00' + i * interval '1 s',
    ARRAY['a', NULL, 'b' || i] FROM generate_series(1, 1000) i;
CREATE TABLE "Odd ""Name" ("Key A" text, b bytea, v float8, PRIMARY KEY ("Key A", b));
INSERT INTO "Odd ""Name" VALUES ('x', '\\x00', 'NaN'), ('x', '\\x01', '-0'),
    ('', '\\x', 1e300), ('1:', '\\x', 0.1);
CREATE TABLE history (who int, delta int);
INSERT INTO history SELECT i % 5, i % 3 FROM generate_series(1, 90) i;
CREATE TABLE filtered (id int PRIMARY KEY, secret text, shown bool, part text);
INSERT INTO filtered SELECT i, 'secret', i % 2 = 0, 'p' || i FROM generate_series(1, 20) i;
CREATE TABLE parent (id int PRIMARY KEY);
CREATE TABLE child () INHERITS (parent);
INSERT INTO parent VALUES (1); INSERT INTO child VALUES (2);
CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);
CREATE TABLE parts_2 PARTITION OF parts FOR VALUES FROM (10) TO (20);
INSERT INTO parts VALUES (1, 'a'), (11, 'b');
CREATE TABLE empty (id int PRIMARY KEY);
CREATE PUBLICATION p FOR TABLE orders, "Odd ""Name", history, filtered (id, shown, part) WHERE (shown),
    ONLY parent, parts, empty WITH (publish_via_partition_root);
"""


@pytest.fixture
def pair(database: Any) -> Iterator[Pair]:
    database.execute(SCHEMA)
    with psycopg.connect(database.dsn, options="-c TimeZone=UTC") as connection:
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        (snapshot,) = connection.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        published = source_tables(connection, ["p"])
        lake = Lake({postgres_name(t.schema, t.table): copied(connection, t) for t in published})
        database.execute(
            "UPDATE orders SET note = 'later';INSERT INTO history VALUES (0, 0); INSERT INTO empty VALUES (1)"
        )
        yield Pair(database.dsn, snapshot, published, lake)


def copied(connection: psycopg.Connection[Any], table: Any) -> Table:
    names = [column.name for column in table.columns]
    texts = ", ".join(sql_text(f'"{column.name}"', column.type_oid) for column in table.columns)
    only = "" if table.kind == "p" else "ONLY"
    rows = connection.execute(f"SELECT {texts} FROM {only} {table.quoted} WHERE {table.row_filter or 'true'}")
    held = [dict(zip(names, row, strict=True)) for row in rows]
    return Table(table.schema, table.table, [*map(Column, names), Column("gone", dropped=True)], held)


def test_an_equal_lake_is_equal_while_the_source_is_written(pair: Pair) -> None:
    report = pair.compare()
    assert report.equal
    assert report.lsn == "16/B374D848"
    counts = {name: (table.source_rows, table.lake_rows) for name, table in report.tables.items()}
    assert counts == {
        'public."Odd ""Name"': (4, 4),
        "public.empty": (0, 0),
        "public.filtered": (10, 10),
        "public.history": (90, 90),
        "public.orders": (1000, 1000),
        "public.parent": (1, 1),
        "public.parts": (2, 2),
    }


def change_a_value(pair: Pair) -> None:
    pair.row("public.orders", id="900")["total"] = "990.01"


def change_a_scale(pair: Pair) -> None:
    pair.row("public.orders", id="900")["total"] = "990.0"


def null_for_empty(pair: Pair) -> None:
    assert pair.row("public.orders", id="3")["note"] == ""
    pair.row("public.orders", id="3")["note"] = None


def empty_for_null(pair: Pair) -> None:
    assert pair.row("public.orders", id="2")["note"] is None
    pair.row("public.orders", id="2")["note"] = ""


def lose_a_row(pair: Pair) -> None:
    pair.rows("public.orders").remove(pair.row("public.orders", id="17"))


def invent_a_row(pair: Pair) -> None:
    pair.rows("public.orders").append(pair.row("public.orders", id="17") | {"id": "1001"})


def double_a_row(pair: Pair) -> None:
    pair.rows("public.orders").append(dict(pair.row("public.orders", id="17")))


def swap_values(pair: Pair) -> None:
    one, two = pair.row("public.orders", id="4"), pair.row("public.orders", id="7")
    one["note"], two["note"] = two["note"], one["note"]


def negative_zero(pair: Pair) -> None:
    pair.row('public."Odd ""Name"', b="\\x01")["v"] = "0"


def regroup_a_key(pair: Pair) -> None:
    row = pair.row('public."Odd ""Name"', **{"Key A": "1:"})
    row["Key A"] = "1"


ORDERS, ODD, HISTORY = "public.orders", 'public."Odd ""Name"', "public.history"
CORRUPTIONS: list[tuple[Callable[[Pair], None], str, list[Difference]]] = [
    (change_a_value, ORDERS, [Difference("different", {"id": "900"}, ("total",))]),
    (change_a_scale, ORDERS, [Difference("different", {"id": "900"}, ("total",))]),
    (null_for_empty, ORDERS, [Difference("different", {"id": "3"}, ("note",))]),
    (empty_for_null, ORDERS, [Difference("different", {"id": "2"}, ("note",))]),
    (lose_a_row, ORDERS, [Difference("missing in lake", {"id": "17"})]),
    (invent_a_row, ORDERS, [Difference("extra in lake", {"id": "1001"})]),
    (double_a_row, ORDERS, [Difference("duplicated in lake", {"id": "17"})]),
    (
        swap_values,
        ORDERS,
        [Difference("different", {"id": "4"}, ("note",)), Difference("different", {"id": "7"}, ("note",))],
    ),
    (negative_zero, ODD, [Difference("different", {"Key A": "x", "b": "\\x01"}, ("v",))]),
    (
        regroup_a_key,
        ODD,
        [
            Difference("extra in lake", {"Key A": "1", "b": "\\x"}),
            Difference("missing in lake", {"Key A": "1:", "b": "\\x"}),
        ],
    ),
]


@pytest.mark.parametrize(
    ("corrupt", "table", "expected"), CORRUPTIONS, ids=[corrupt.__name__ for corrupt, _, _ in CORRUPTIONS]
)
def test_each_corruption_is_named(
    pair: Pair, corrupt: Callable[[Pair], None], table: str, expected: list[Difference]
) -> None:
    corrupt(pair)
    report = pair.compare()
    assert [name for name, result in report.tables.items() if not result.equal] == [table]
    assert sorted(report.tables[table].differences, key=str) == expected
    assert report.tables[table].differences_total == len(expected)
    assert json.loads(json.dumps(report.as_dict()))["equal"] is False


def test_a_bag_counts_equal_rows(pair: Pair) -> None:
    rows = pair.rows(HISTORY)
    rows.remove({"who": "1", "delta": "2"})
    rows += [{"who": "2", "delta": "1"}, {"who": "2", "delta": "1"}, {"who": "9", "delta": None}]
    result = pair.compare().tables[HISTORY]
    assert {str(difference) for difference in result.differences} == {
        "missing in lake: who=1, delta=2",
        "duplicated in lake: who=2, delta=1 (2 rows)",
        "extra in lake: who=9, delta=NULL",
    }
    assert result.totals == {"missing in lake": 1, "duplicated in lake": 2, "extra in lake": 1}


@pytest.mark.parametrize("at_once", [differences.ROWS_AT_ONCE, 50])
def test_the_list_is_capped_and_the_totals_are_not(
    pair: Pair, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(differences, "ROWS_AT_ONCE", at_once)
    pair.lake.held[ORDERS].rows = pair.rows(ORDERS)[:100]
    result = pair.compare(differences_max=7).tables[ORDERS]
    assert len(result.differences) == 7
    assert result.totals == {"missing in lake": 900}
    assert (result.source_rows, result.lake_rows) == (1000, 100)


def test_a_table_and_a_column_that_the_lake_lacks_are_named(pair: Pair) -> None:
    del pair.lake.held[HISTORY]
    pair.lake.held[ORDERS].columns.pop(1)
    report = pair.compare()
    assert report.tables[HISTORY].totals == {"table missing in lake": 1}
    assert report.tables[ORDERS].differences == (Difference("column missing in lake", columns=("note",)),)


def test_nothing_is_compared_beyond_the_filter_and_the_column_list(pair: Pair) -> None:
    pair.lake.held["public.filtered"].rows.append({"id": "1", "shown": "f", "part": "p1"})
    assert pair.compare().tables["public.filtered"].differences == (Difference("extra in lake", {"id": "1"}),)


def test_a_snapshot_that_is_gone_is_one_clear_error(pair: Pair) -> None:
    pair.snapshot = "00000003-0000001B-1"
    with pytest.raises(SourceError):
        pair.compare()


@pytest.mark.parametrize("begun", [False, True])
def test_when_the_lake_fails_nobody_waits_for_the_server(
    pair: Pair, begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the server has begun with its sums when the lake fails, or begins a moment later."""

    class Broken(Lake):
        def text_batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
            time.sleep(2 if begun else 0)
            raise LakeError("a file is gone")

    sums = SourceTable.sums

    def late_sums(table: SourceTable) -> Any:
        time.sleep(0 if begun else 2)
        return sums(table)

    monkeypatch.setattr(SourceTable, "sums", late_sums)
    slow = "pg_sleep(60) IS NOT NULL"
    pair.published = [replace(t, row_filter=slow) for t in pair.published if t.table == "parent"]
    pair.lake = Broken(pair.lake.held)
    started = time.monotonic()
    with pytest.raises(LakeError, match="a file is gone"):
        pair.compare()
    assert time.monotonic() - started < 30


@pytest.mark.fast
def test_names_are_read_back() -> None:
    assert parse_postgres_name(ODD) == ("public", 'Odd "Name')
