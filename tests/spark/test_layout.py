"""Partitioned and sorted tables against Spark's own answer, type by type; and copies larger than memory."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.copy import spread
from slotlake.spark.layout import Layout, Term, parse_partition, parse_sort, suits
from slotlake.spark.maintenance.small_files import pack_table
from slotlake.spark.names import LakeName
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import PIPELINE, Lab, insert, relation, update

pytestmark = pytest.mark.timeout(300)

TYPES = relation(
    "types", ["id"],
    id="int8", i="int4", n="numeric(10,2)", d="date", t="timestamp", tz="timestamptz", s="text", b="bytea",
    f="bool", h="numeric(38,0)", p="numeric(18,9)",
)  # fmt: skip
VALUES: dict[str, list[str | None]] = {
    "i": ["0", "-1", "2147483647", "-2147483648", "7", None],
    "n": ["0.00", "-0.01", "14.20", "-12345678.99", "NaN", None],
    "d": ["1970-01-01", "1969-12-31", "0001-01-01", "9999-12-31", "infinity", None, "4000-01-01 BC"],
    "t": [
        "1970-01-01 00:00:00",
        "1969-12-31 23:59:59.999999",
        "0001-01-01 00:00:00",
        "2017-11-16 22:31:08.000001",
    ],
    "tz": [
        "1970-01-01 00:00:00+00",
        "1969-12-31 22:59:59.999999+00",
        "9999-12-31 23:00:00+00",
        "-infinity",
        None,
    ],
    "s": ["", "iceberg", "größe 😀 x", "r", None, "\U0010ffff" * 11, "\ud7ff" * 11, "\uffff" * 10],
    "b": ["\\x", "\\x00010203", "\\xff", None, "\\x" + "ff" * 11],
    "f": ["t", "f", None],
    "h": ["9" * 38, "-" + "9" * 37 + "0", "-128", "-32768", "10000000000000000000000000001", "0"],
    "p": ["999999999.999999999", "-999999999.999999990", "-0.000000128", "0.000000001"],
}
KINDS = ("identity", "year", "month", "day", "hour", "bucket[16]", "truncate[10]")
# How Spark says it; a day is a date there.
SPARK = {
    "identity": "{0}", "bucket[16]": "lake.system.bucket(16, {0})",
    "truncate[10]": "lake.system.truncate(10, {0})",
    "year": "lake.system.years({0})", "month": "lake.system.months({0})", "hour": "lake.system.hours({0})",
    "day": "lake.system.days({0})",
}  # fmt: skip


def _rows() -> list[dict[str, str | None]]:
    most = max(map(len, VALUES.values()))
    return [
        {"id": str(i), **{c: values[i % len(values)] for c, values in VALUES.items()}}
        for i in range(5 * most)
    ]


def test_each_value_stands_in_the_partition_that_spark_computes(lab: Lab) -> None:
    """Copied without Spark, and changed by Spark, one column of each type by each transform that suits it."""
    columns = {c.name: c.spark_type for c in TableSchema.of(TYPES).live}
    terms = [Term(name, kind) for name in columns for kind in KINDS if suits(Term(name, kind), columns[name])]
    lab.lake = replace(lab.lake, layouts={"public.types": Layout(tuple(terms))})
    lab.init({TYPES: _rows()})
    right = [
        f"count_if(_partition.`{t.column}_x0_{_suffix(t)}` <=> {SPARK[t.transform].format(t.column)})"
        for t in terms
    ]
    for _ in range(2):
        (counts,) = lab.session.sql(f"SELECT {', '.join(right)} FROM lake.shop.types").collect()
        assert dict(zip(terms, counts, strict=True)) == dict.fromkeys(terms, len(_rows()))
        columns_of_3 = {c: v[(3 + 1) % len(v)] for c, v in VALUES.items()}
        lab.sync(update(TYPES, {"id": "3"}, id="-3", **columns_of_3))


def _suffix(term: Term) -> str:
    return "" if term.transform == "identity" else f"{term.kind}{f'_{term.number}' if term.number else ''}"


FACTS = relation("facts", ["id"], id="int8", k="int4", s="text")


def test_memory_and_files_stay_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy in pieces of a few rows: each file has one partition and is sorted, and there are few files."""
    monkeypatch.setattr(spread, "CHUNK_BYTES", 8192)
    monkeypatch.setattr(spread, "_BATCH_ROWS", 128)
    lab.lake = replace(
        lab.lake,
        layouts={"public.facts": Layout(parse_partition(["k"]), parse_sort(["s desc nulls first", "id"]))},
    )
    rows = [
        {
            "id": str(i),
            "k": None if i % 41 == 0 else str(i % 20),
            "s": None if i % 7 == 0 else f"v{i * 37 % 101}",
        }
        for i in range(3000)
    ]
    lab.init({FACTS: rows})
    assert len(lab.rows("facts")) == len(rows)
    files = lab.session.sql(
        "SELECT file_path, partition.k_x0_, sort_order_id FROM lake.shop.facts.files"
    ).collect()
    assert 21 <= len(files) <= 60
    for path, k, order in files:
        assert order == 1
        stored = [tuple(row) for row in lab.session.read.parquet(path).select("k", "s", "id").collect()]
        assert {row[0] for row in stored} == {k}
        by_id = sorted(stored, key=lambda row: row[2])
        by_s = sorted(by_id, key=lambda row: row[1] or "", reverse=True)
        assert stored == [row for empty in (True, False) for row in by_s if (row[1] is None) == empty]
    assert not list(Path(lab.lake.warehouse_path).glob("_slotlake/copying/shop/facts/*"))


def test_too_many_partitions_are_refused(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spread, "PARTITIONS_MAX", 10)
    lab.lake = replace(lab.lake, layouts={"public.facts": Layout(parse_partition(["id"]))})
    with pytest.raises(LakeError, match="more than 10 partitions") as raised:
        lab.init({FACTS: [{"id": str(i), "k": "1", "s": "x"} for i in range(11)]})
    assert raised.value.table == ("public", "facts")
    assert "bucket" in raised.value.way_out


def test_a_number_that_has_no_partition_is_refused(lab: Lab) -> None:
    """Rounded down, it has a digit more than its type; Iceberg's own writers fail, too."""
    sums = relation("sums", ["id"], id="int8", n="numeric(10,2)")
    lab.lake = replace(lab.lake, layouts={"public.sums": Layout(parse_partition(["truncate(10, n)"]))})
    with pytest.raises(LakeError, match="no partition") as raised:
        lab.init({sums: [{"id": "1", "n": "-99999999.99"}]})
    assert raised.value.table == ("public", "sums")
    lab.lake = replace(
        lab.lake, namespace="other", layouts={"public.sums": Layout(parse_partition(["truncate(10, n)"]))}
    )
    lab.init({sums: [{"id": "1", "n": "-99999999.90"}]})
    with pytest.raises(LakeError, match="no partition") as raised:
        lab.apply(lab.batch(insert(sums, id="2", n="-99999999.99")))
    assert raised.value.table == ("public", "sums")


def test_a_batch_writes_one_file_of_each_partition_that_it_touches(lab: Lab) -> None:
    lab.lake = replace(lab.lake, layouts={"public.facts": Layout(parse_partition(["k"]))})
    lab.init({FACTS: [{"id": str(i), "k": str(i % 8), "s": "x"} for i in range(400)]})
    before = _paths(lab)
    assert len(before) == 8
    batch: list[Any] = [update(FACTS, id=str(i), k=str(i % 3), s="new") for i in range(0, 200, 2)]
    lab.sync(*batch, *(insert(FACTS, id=str(1000 + i), k=str(i % 3), s="come") for i in range(50)))
    assert len(_paths(lab) - before) == 3
    assert len(lab.rows("facts")) == 450


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_batch_that_touches_a_thousand_partitions_needs_no_more_memory(lab: Lab) -> None:
    """In a heap of 1 GB; a thousand files that are open at once need more."""
    lab.lake = replace(lab.lake, layouts={"public.facts": Layout(parse_partition(["k"]))})
    lab.init({FACTS: [{"id": str(i), "k": str(i % 1000), "s": "x"} for i in range(4000)]})
    before = _paths(lab)
    lab.sync(*(update(FACTS, id=str(i), k=str((i + 1) % 1000), s="new") for i in range(4000)))
    assert len(_paths(lab) - before) == 1000
    assert len(lab.rows("facts")) == 4000


def _paths(lab: Lab) -> set[str]:
    return {row[0] for row in lab.session.sql("SELECT file_path FROM lake.shop.facts.data_files").collect()}


def test_only_a_partition_with_many_small_files_is_packed(lab: Lab) -> None:
    """Six batches change one of four partitions: its files become one, the other files stay."""
    lab.lake = replace(
        lab.lake, layouts={"public.facts": Layout(parse_partition(["k"]), parse_sort(["id desc"]))}
    )
    lab.init({FACTS: [{"id": str(i), "k": str(i % 4), "s": "x"} for i in range(400)]})
    copied = _paths(lab)
    for turn in range(6):
        lab.sync(insert(FACTS, id=str(1000 + turn), k="1", s="come"))
    rows, before = lab.rows("facts"), _paths(lab)
    packed = pack_table(lambda: lab.session, lab.lake, LakeName("shop", "facts"), PIPELINE, 128 << 20)
    assert packed is not None
    assert (packed.rewritten_files, packed.written_files) == (7, 1)
    assert len(_paths(lab) & copied) == 3
    assert len(before) == 10
    assert lab.rows("facts") == rows
    assert pack_table(lambda: lab.session, lab.lake, LakeName("shop", "facts"), PIPELINE, 128 << 20) is None
