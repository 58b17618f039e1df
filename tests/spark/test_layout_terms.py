"""What `partition_by` and `sort_by` mean, and what Iceberg's transforms make of values, without Spark."""

from __future__ import annotations

import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyiceberg import transforms
from pyiceberg import types as iceberg

from slotlake.spark.copy.partition_values import in_manifest, transformed
from slotlake.spark.layout import Layout, SortTerm, Term, parse_partition, parse_sort, suits
from slotlake.spark.maintenance.small_files import plan_packing
from slotlake.spark.maintenance.table_files import DataFile
from slotlake.spark.tables.layout import layout_of, with_layout, without_missing_fields

_MICROS = st.integers(-62_135_596_800_000_000, 253_402_300_799_999_999)
_KINDS: dict[str, tuple[st.SearchStrategy[Any], Any, iceberg.IcebergType]] = {
    "int": (st.integers(-(2**31), 2**31 - 1), pa.int32(), iceberg.IntegerType()),
    "bigint": (st.integers(-(2**63), 2**63 - 1), pa.int64(), iceberg.LongType()),
    "date": (st.integers(-719_162, 2_932_896), pa.date32(), iceberg.DateType()),
    "timestamp_ntz": (_MICROS, pa.timestamp("us"), iceberg.TimestampType()),
    "timestamp": (_MICROS, pa.timestamp("us", "UTC"), iceberg.TimestamptzType()),
    "string": (st.text(), pa.string(), iceberg.StringType()),
    "binary": (st.binary(), pa.binary(), iceberg.BinaryType()),
    "decimal(10,2)": (
        st.decimals(-(10**7), 10**7, places=2),
        pa.decimal128(10, 2),
        iceberg.DecimalType(10, 2),
    ),
    "boolean": (st.booleans(), pa.bool_(), iceberg.BooleanType()),
}
_TRANSFORMS: dict[str, transforms.Transform[Any, Any]] = {
    "identity": transforms.IdentityTransform(),
    "year": transforms.YearTransform(),
    "month": transforms.MonthTransform(),
    "day": transforms.DayTransform(),
    "hour": transforms.HourTransform(),
    "bucket[16]": transforms.BucketTransform(16),
    "truncate[7]": transforms.TruncateTransform(7),
}


@pytest.mark.parametrize("kind", _KINDS)
@given(data=st.data())
def test_values_are_those_of_pyiceberg(kind: str, data: st.DataObject) -> None:
    strategy, arrow, of = _KINDS[kind]
    values = data.draw(st.lists(st.none() | strategy, max_size=8))
    if pa.types.is_temporal(arrow):
        width = pa.int32() if pa.types.is_date(arrow) else pa.int64()
        column = pa.array(values, width).view(arrow)
    else:
        column = pa.array(values, arrow)
    for name, transform in _TRANSFORMS.items():
        if not suits(Term("c", name), kind):
            continue
        function = transform.transform(of)
        expected = [None if value is None else function(value) for value in in_manifest(column)]
        bits = {"int": 32, "bigint": 64}.get(kind)
        if bits and name == "truncate[7]":  # next to the smallest number it goes round, as in Java
            half = 1 << (bits - 1)
            expected = [None if v is None else (v + half) % (2 * half) - half for v in expected]
        assert in_manifest(transformed(column, Term("c", name))) == expected, name


def test_the_hashes_of_the_specification() -> None:
    """Iceberg's table specification, Appendix B."""
    at = pa.array(["2017-11-16T22:31:08"]).cast(pa.timestamp("us"))
    for column, expected in (
        (pa.array([34], pa.int32()), 2017239379),
        (pa.array([34], pa.int64()), 2017239379),
        (pa.array([decimal.Decimal("14.20")], pa.decimal128(9, 2)), -500754589),
        (at.cast(pa.date32()), -653330422),
        (at, -2047944441),
        (pa.array(["iceberg"]), 1210000089),
        (pa.array([b"\x00\x01\x02\x03"]), -188683207),
    ):
        bucket = transformed(column, Term("c", "bucket[1000000]"))
        assert bucket.to_pylist() == [(expected & 0x7FFFFFFF) % 1_000_000]


def test_words_are_read() -> None:
    texts = ["day(at)", 'bucket( 16 , "Odd, ""Name""")', "region", "TRUNCATE(3,x)", "months(b)"]
    assert parse_partition(texts) == (
        Term("at", "day"),
        Term('Odd, "Name"', "bucket[16]"),
        Term("region"),
        Term("x", "truncate[3]"),
        Term("b", "month"),
    )
    sorts = ["a", "b desc", "c NULLS LAST", "day(d) DESC nulls first"]
    assert parse_sort(sorts) == (
        SortTerm("a"),
        SortTerm("b", descending=True, nulls_last=True),
        SortTerm("c", nulls_last=True),
        SortTerm("d", "day", descending=True, nulls_last=False),
    )
    assert [str(term) for term in parse_sort(sorts)] == [
        "a",
        "b desc",
        "c nulls last",
        "day(d) desc nulls first",
    ]


@pytest.mark.parametrize(
    "texts", [["day(a"], ["week(a)"], ["a", "a"], ["day(a)", "hour(a)"], ["bucket(a)"], [""]]
)
def test_words_that_are_none_are_refused(texts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"is no|is there twice|two times"):
        parse_partition(texts)


def _metadata(*names: str) -> dict[str, Any]:
    fields = [{"id": i, "name": name, "required": False, "type": "int"} for i, name in enumerate(names, 1)]
    return {
        "location": "file:///x",
        "schemas": [{"schema-id": 0, "type": "struct", "fields": fields}],
        "current-schema-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "default-spec-id": 0,
        "last-partition-id": 999,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "default-sort-order-id": 0,
    }


def test_a_layout_comes_goes_and_comes_again() -> None:
    first = Layout((Term("a"), Term("b", "bucket[4]")), (SortTerm("a", descending=True),))
    table = with_layout(_metadata("a", "b"), first)
    assert layout_of(table) == first
    assert with_layout(table, first) is table
    second = with_layout(table, Layout((Term("b", "bucket[4]"), Term("b", "bucket[8]"))))
    assert [[f["field-id"] for f in spec["fields"]] for spec in second["partition-specs"]] == [
        [],
        [1000, 1001],
        [1001, 1002],
    ]
    assert (second["default-spec-id"], second["last-partition-id"], second["default-sort-order-id"]) == (
        2,
        1002,
        0,
    )
    assert with_layout(second, first)["default-spec-id"] == 1
    assert with_layout(second, Layout())["default-spec-id"] == 0
    assert second["properties"]["write.merge.distribution-mode"] == "hash"
    assert with_layout(second, Layout())["properties"]["write.merge.distribution-mode"] == "none"


def test_no_column_can_have_a_partition_fields_name() -> None:
    """Iceberg would refuse the table; DuckDB reads no Avro file with other than ASCII letters in a name."""
    names = ["a", "größe", "1st"]
    table = with_layout(
        _metadata(*names), Layout(tuple(Term(name, how) for name in names for how in ("identity", "day")))
    )
    given_names = [field["name"] for field in table["partition-specs"][-1]["fields"]]
    assert len(set(given_names)) == len(given_names)
    for name in given_names:
        assert name.isascii()
        assert name.isidentifier()
        assert "_x0_" in name


def test_a_shape_of_the_past_has_no_spec_of_later_fields() -> None:
    table = with_layout(_metadata("a", "b"), Layout((Term("a"),), (SortTerm("b"),)))
    table = with_layout(table, Layout((Term("b"),), (SortTerm("b"),)))
    table["schemas"][0]["fields"].pop()
    past = without_missing_fields(table)
    assert [spec["spec-id"] for spec in past["partition-specs"]] == [0, 1]
    assert past["default-spec-id"] == 1
    assert past["default-sort-order-id"] == 0


def test_only_files_of_one_partition_are_packed_together() -> None:
    def files(partitions: int, each: int) -> list[DataFile]:
        return [DataFile(f"{p}-{i}", 10_000, 10, 0, (1, p)) for p in range(partitions) for i in range(each)]

    assert plan_packing(files(50, 4), 1 << 27) is None
    options = plan_packing(
        [*files(50, 4), *(DataFile(f"x{i}", 9_000, 10, 0, (1, 99)) for i in range(6))], 1 << 27
    )
    assert options is not None
    assert options["min-input-files"] == "5"
