# ruff: noqa: E501  (a damaged value to a line)
"""Binary values on their own: what is refused, that anything ends, that kernels and printers agree."""

from __future__ import annotations

import os
import struct
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotlake.decoder.types.binary import columns as binary_columns
from slotlake.decoder.types.binary import containers as binary_containers
from slotlake.decoder.types.binary.values import binary_text, withheld_from_binary
from slotlake.decoder.types.catalog import BUILTIN_TYPES, Kind, TypeCatalog, TypeEntry
from slotlake.decoder.types.slices import Slices, slices_of
from slotlake.decoder.types.table import (
    column_type,
    parse_binary_slices,
    parse_mixed_slices,
    parse_slices,
    to_text,
)
from slotlake.decoder.types.text_error import TextError
from tests.decoder.test_types import BESIDE, HELD, REFUSED, numeric

pytestmark = pytest.mark.fast
EXAMPLES = int(os.environ.get("SLOTLAKE_TYPE_EXAMPLES", "300"))  # 20,000 take some minutes

OIDS = {entry.name: oid for oid, entry in BUILTIN_TYPES.items()}
COMPOSITE, ENUM, HSTORE, VECTOR, LTREE, CUBE, DOMAIN, UNKNOWN = range(20_000, 20_008)
CATALOG = TypeCatalog(lc_monetary="C")
CATALOG.add(
    [
        TypeEntry(COMPOSITE, "public.pair", Kind.COMPOSITE),
        TypeEntry(ENUM, "public.mood", Kind.ENUM),
        TypeEntry(HSTORE, "public.hstore", Kind.BASE, send="hstore_send"),
        TypeEntry(VECTOR, "public.vector", Kind.BASE, send="vector_send"),
        TypeEntry(LTREE, "public.ltree", Kind.BASE, send="ltree_send"),
        TypeEntry(CUBE, "public.cube", Kind.BASE, send="cube_send"),
        TypeEntry(DOMAIN, "public.age", Kind.DOMAIN, 23),
    ]
)
INT4_ONE = "00000004 00000001"
SAMPLES = {
    "bool": "01", "int2": "8000", "int4": "7fffffff", "int8": "8000000000000000", "oid": "ffffffff", "xid8": "ff" * 8,
    "float4": "3dcccccd", "float8": "3fb999999999999a", "date": "00000000", "timestamp": "0000000000000001",
    "timestamptz": "fffffffffffffffe", "time": "0000000000000000", "timetz": "0000000000000000 00000e10",
    "interval": "0000000000000001 00000002 00000003", "uuid": "00" * 16, "numeric": "0002 0000 4000 0002 0001 1388",
    "inet": "02 20 00 04 0a000001", "cidr": "03 40 01 10" + "20010db8" + "00" * 12, "macaddr": "08002b010203",
    "macaddr8": "08002b0102030405", "bit": "00000003 a0", "varbit": "00000009 ff80", "money": "0000000000000064",
    "pg_lsn": "00000016b374d848", "tid": "00000001 0002", "pg_snapshot": "00000001 0000000000000001 0000000000000003 0000000000000002",
    "jsonb": "01 7b7d", "jsonpath": "01 24", "tsvector": "00000001 6100 0001 c001", "char": "61", "text": "c3bc", "bytea": "00ff",
    "tsquery": "00000003 02 02 01 00 00 6100 01 0f 01 6200", "point": "00" * 16, "path": "01 00000001" + "00" * 16,
    "polygon": "00000001" + "00" * 16, "circle": "00" * 24, "line": "00" * 24, "box": "00" * 32, "lseg": "00" * 32,
    "_int4": f"00000001 00000000 00000017 00000001 00000001 {INT4_ONE}", "int2vector": "00000001 00000000 00000015 00000001 00000000 00000002 0007",
    "int4range": f"02 {INT4_ONE} 00000004 00000002", "int4multirange": f"00000001 00000011 02 {INT4_ONE} 00000004 00000002",
    "_box": "00000000 00000000 0000025b",
}  # fmt: skip
USER_SAMPLES = {
    COMPOSITE: f"00000002 00000017 {INT4_ONE} 00000019 ffffffff", ENUM: "6f6b", DOMAIN: "00000005",
    HSTORE: "00000001 00000001 61 ffffffff", VECTOR: "0001 0000 3f800000", LTREE: "01 61", CUBE: "80000001 3ff0000000000000",
}  # fmt: skip
TEXTS = {"tsquery": "'b':*ABCD & 'a'", "interval": "3 mons 2 days 00:00:00.000001", "numeric": "-1.50", "cidr": "2001:db8::/64",
         "int4range": "[1,2)", "tsvector": "'a':1A", "timetz": "00:00:00-01"}  # fmt: skip


def data_of(sample: str) -> bytes:
    return bytes.fromhex(sample)


ALL = {**{OIDS[name]: data_of(sample) for name, sample in SAMPLES.items()}} | {
    oid: data_of(sample) for oid, sample in USER_SAMPLES.items()
}


def test_samples_are_read() -> None:
    for oid, data in ALL.items():
        assert isinstance(binary_text(data, oid, CATALOG), str)
        assert withheld_from_binary(oid, CATALOG) == ""
    for name, text in TEXTS.items():
        assert binary_text(data_of(SAMPLES[name]), OIDS[name], CATALOG) == text


# What was written by servers for modules that not every server has.
GOLDEN = [
    (HSTORE, "", "00000000"),
    (HSTORE, '"a"=>"1", "b"=>NULL', "00000002000000016100000001310000000162ffffffff"),
    (HSTORE, '""=>"", "ü"=>"=>,", "q\\"uo"=>"back\\\\slash"', "00000003000000000000000000000002c3bc000000033d3e2c000000047122756f0000000a6261636b5c736c617368"),
    (LTREE, "Top.Science_1", "01546f702e536369656e63655f31"),
    (CUBE, "(1, 2),(3, 4.5)", "000000023ff0000000000000400000000000000040080000000000004012000000000000"),
    (CUBE, "(0.1, -0)", "800000023fb999999999999a8000000000000000"),
]  # fmt: skip


@pytest.mark.parametrize(("oid", "text", "data"), GOLDEN)
def test_golden_values_of_modules(oid: int, text: str, data: str) -> None:
    assert binary_text(data_of(data), oid, CATALOG) == text


REFUSED_BINARY = {
    "bool": ["", "02", "0101"], "int2": ["", "00", "000000"], "int4": ["0000000000"], "int8": ["00000000"], "uuid": ["00" * 15],
    "float4": ["00" * 5], "float8": ["00" * 7], "char": ["", "6161"], "money": ["00"], "macaddr": ["00" * 5], "pg_lsn": ["00"],
    "date": ["00", "ffda97a6", "7fda9799", "80000001"], "timestamp": ["00" * 7, "8000000000000001", "7ffffffffffffffe"],
    "time": ["ffffffffffffffff", "000000141dd76001"], "timetz": ["00" * 8, "0000000000000000 0000e100", "0000000000000000 ffff1f00"],
    "interval": ["00" * 15], "text": ["ff", "c3", "eda080"], "json": ["80"], "name": ["c0af"],
    "numeric": ["", "00" * 7, "0001 0000 0000 0000", "0001 0000 0000 0000 2710", "0000 0000 8000 0000", "0000 0000 4000 0000", "0001 0000 c000 0000 0001",
                "0000 0000 0000 4000", "0001 ffff 0000 0002 0001", "0002 0000 0000 0002 0001 0001", "0001 0000 0000 0000 0001 00", "ffff 0000 0000 0000", "0001 0000 0000 0000 ffff"],
    "inet": ["", "02200004", "0421000400000000", "0221000400000000", "0220010400000000", "022000100a000001", "022000040a00000100"],
    "cidr": ["0220000400000000"], "bit": ["", "ffffffff", "00000009 ff", "00000001 c0", "00000001", "7fffffff 00"],
    "tid": ["0000000100"], "pg_snapshot": ["00" * 19, "00000001" + "00" * 16, "ffffffff" + "00" * 16, "20000000" + "00" * 16],
    "jsonb": ["", "02 7b7d", "01 ff"], "jsonpath": ["00"],
    "tsvector": ["", "ffffffff", "7fffffff", "00000001 61", "00000001 6100 0002 0001", "00000000 00", "00000001 ff00 0000"],
    "tsquery": ["", "00000001 03 00", "00000001 02 01", "00000001 02 05", "00000001 01 10 00 6100", "00000002 01 00 00 6100 01 00 00 6100", "00000001 01 00 00 61"],
    "point": ["00" * 15, "00" * 17], "path": ["02 00000000", "01 7fffffff", "01 ffffffff", "01 00000001" + "00" * 17], "polygon": ["00000002" + "00" * 16],
    "_int4": ["", "00000007 00000000 00000017", "ffffffff 00000000 00000017", "00000001 00000002 00000017 00000000 00000001",
              "00000001 00000000 00000019 00000001 00000001 00000001 61", "00000001 00000000 00000017 7fffffff 00000001",
              "00000002 00000000 00000017 7fffffff 00000001 7fffffff 00000001", "00000001 00000000 00000017 00000000 00000001",
              "00000001 00000000 00000017 00000001 7fffffff ffffffff", "00000001 00000000 00000017 ffffffff 00000001",
              "00000001 00000000 00000017 00000001 00000001 00000005 0000000100", "00000001 00000000 00000017 00000001 00000001 fffffffe",
              "00000000 00000000 00000017 00", "00000001 00000000 00000017 00000001 00000001 00000003 000001"],
    "int2vector": ["00000000 00000000 00000015", "00000002 00000000 00000015 00000000 00000000 00000000 00000000"],
    "int4range": ["", "20", "40", "80", "03", "02", "0a 00000004 00000001", f"02 {INT4_ONE}", "18 00", f"02 ffffffff {INT4_ONE}", f"02 00000003 000001 {INT4_ONE}"],
    "int4multirange": ["", "7fffffff", "00000001 00000001", "00000001 00000002 01 01", "00000000 00", "ffffffff"],
    "pg_mcv_list": ["00"], "aclitem": ["00"], "regclass": ["00000001", "00"], "pg_ndistinct": [""],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sample"), [(n, s) for n, samples in REFUSED_BINARY.items() for s in samples]
)
def test_what_no_send_function_writes_is_refused(name: str, sample: str) -> None:
    data, oid = data_of(sample), OIDS[name]
    with pytest.raises(TextError):
        binary_text(data, oid, CATALOG)
    for ct in {column_type(oid, -1), column_type(oid, numeric(12, 2) if name == "numeric" else -1)}:
        good = ALL.get(oid)
        with pytest.raises(TextError) as error:
            parse_binary_slices(slices_of(pa.array([None, good, data, data], pa.binary())), ct, CATALOG)
        with pytest.raises(TextError):  # also where there is room to read eight bytes at once
            parse_binary_slices(slices_of(pa.array([data, b"\0" * 40], pa.binary())[:1]), ct, CATALOG)
        assert error.value.row in ({2, -1} if good else {1, 2, -1})


def test_unknown_and_circular_types_are_refused() -> None:
    circle = TypeCatalog()
    circle.add([TypeEntry(30_000, "a", Kind.DOMAIN, 30_001), TypeEntry(30_001, "b", Kind.DOMAIN, 30_000)])
    circle.add([TypeEntry(30_002, "c", Kind.RANGE, 30_002), TypeEntry(30_003, "d", Kind.BASE, send="d_send")])
    for oid in (UNKNOWN, 30_000, 30_002, 30_003):
        with pytest.raises(TextError):
            binary_text(b"\0\0\0\1", oid, circle)
        with pytest.raises(TextError) as error:
            parse_binary_slices(slices_of(pa.array([None, b"\1"], pa.binary())), column_type(oid, -1), circle)
        assert error.value.row == 1
        nulls, _ = parse_binary_slices(slices_of(pa.array([None], pa.binary())), column_type(oid, -1), circle)
        assert nulls.to_pylist() == [None]
    assert withheld_from_binary(30_002, circle) == ""  # asked of a type within itself, it ends
    assert "not in the source's catalog" in withheld_from_binary(UNKNOWN, circle)


def test_nesting_ends() -> None:
    data = data_of(USER_SAMPLES[COMPOSITE])
    for _ in range(200):
        data = struct.pack(">iIi", 1, COMPOSITE, len(data)) + data
    with pytest.raises(TextError, match="nested too deeply"):
        binary_text(data, COMPOSITE, CATALOG)


def test_a_text_ends_at_what_postgresql_can_print(monkeypatch: pytest.MonkeyPatch) -> None:
    long = struct.pack(">HhHHH", 1, 32767, 0, 0, 1)  # ten bytes, 131,069 digits
    assert len(binary_text(long, OIDS["numeric"])) == 131_069
    many = struct.pack(">iiIii", 1, 0, OIDS["numeric"], 100, 1) + (struct.pack(">i", len(long)) + long) * 100
    assert len(binary_text(many, OIDS["_numeric"])) > 13_000_000
    monkeypatch.setattr(binary_containers, "_TEXT_CHARS_MAX", 1_000_000)
    with pytest.raises(TextError, match="longer than PostgreSQL can print"):
        binary_text(many, OIDS["_numeric"])
    monkeypatch.setattr(binary_columns, "_TEXT_CHARS_MAX", 1_000_000)
    with pytest.raises(TextError, match="longer than 2 GiB"):
        parse_binary_slices(slices_of(pa.array([long] * 10, pa.binary())), column_type(OIDS["numeric"], -1))


def test_a_deep_query_is_printed_without_deep_calls() -> None:
    count = 5000
    data = struct.pack(">I", count + 1) + b"\2\1" * count + b"\1\0\0a\0"
    assert binary_text(data, OIDS["tsquery"]) == "!" * count + "'a'"


@pytest.mark.seconds
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(sorted(ALL)), st.data())
def test_damaged_values_end_in_a_text_or_an_error(oid: int, data: Any) -> None:
    damaged = bytearray(ALL[oid])
    for _ in range(data.draw(st.integers(1, 3))):
        kind, at = data.draw(st.integers(0, 3)), data.draw(st.integers(0, max(len(damaged) - 1, 0)))
        if kind == 0 and damaged:
            damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        elif kind == 1:
            del damaged[at:]
        elif kind == 2:
            damaged[at:at] = data.draw(st.binary(min_size=1, max_size=4))
        elif damaged:
            damaged[at] = data.draw(st.sampled_from([0, 1, 127, 128, 255]))
    check(oid, bytes(damaged))


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    st.sampled_from(sorted(BUILTIN_TYPES)),
    st.one_of(st.binary(max_size=64), st.binary(min_size=4, max_size=4), st.binary(min_size=8, max_size=8)),
)
def test_any_bytes_end_in_a_text_or_an_error(oid: int, data: bytes) -> None:
    check(oid, data)


@pytest.mark.seconds
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 9999), st.sampled_from([0, 0, 10000, 65535])), max_size=12), st.integers(-12, 12),
       st.sampled_from([0, 0, 0x4000, 0xC000, 0xD000, 0xF000, 1]), st.integers(0, 40),
       st.tuples(st.integers(1, 38), st.integers(0, 38)).filter(lambda pair: pair[1] <= pair[0]))  # fmt: skip
def test_numerics_are_held_as_they_are_printed(
    groups: list[int], weight: int, sign: int, scale: int, declared: tuple[int, int]
) -> None:
    data = struct.pack(f">HhHH{len(groups)}H", len(groups), weight, sign, scale, *groups)
    for typmod in {-1, numeric(*declared), numeric(38, min(scale, 38))}:
        check(OIDS["numeric"], data, typmod)


@pytest.mark.parametrize("bits", [32, 64])
def test_moments_on_both_sides_of_every_edge(bits: int) -> None:
    day = 1 if bits == 32 else 86_400_000_000
    edges = [
        0,
        -730_119 * day,
        2_921_940 * day,
        -2_451_545 * day,
        106_751_991 * day if bits == 64 else 2_145_031_949,
    ]
    edges += [-(2 ** (bits - 1)), 2 ** (bits - 1) - 1, 9_223_371_331_200_000_000 % 2 ** (bits - 1)]
    for number in {edge + step for edge in edges for step in (-day, -1, 0, 1)}:
        if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            data = number.to_bytes(bits // 8, "big", signed=True)
            for name in ("date",) if bits == 32 else ("timestamp", "timestamptz"):
                check(OIDS[name], data)


def check(oid: int, data: bytes, typmod: int = -1) -> None:
    """The same text from the printer of one value, from a column, and from the column of that text."""
    ct = column_type(oid, typmod)
    try:
        text = binary_text(data, oid, CATALOG)
    except TextError:
        text = None
    for before, behind in ((b"", b""), (b"\xff" * 40, b"\xff" * 40)):
        buffer = np.frombuffer(before + data + behind, dtype=np.uint8)
        slices = Slices(buffer, np.array([len(before), 0]), np.array([len(data), -1], dtype=np.int32))
        if text is None:
            with pytest.raises(TextError):
                parse_binary_slices(slices, ct, CATALOG)
            continue
        typed, exact = parse_binary_slices(slices, ct, CATALOG)
        typed.validate(full=True)
        assert to_text(typed, exact, ct).to_pylist() == [text, None]
        parsed, parsed_exact = parse_slices(slices_of(pa.array([text, None], pa.string())), ct)
        assert repr(typed.to_pylist()) == repr(parsed.to_pylist())
        assert (exact is None) == (parsed_exact is None)


def around(text: str) -> Slices:
    """A text in the midst of others, as in a message."""
    data = text.encode()
    buffer = np.frombuffer(b"7" * 40 + data + b"7" * 40, dtype=np.uint8)
    return Slices(buffer, np.array([40]), np.array([len(data)], dtype=np.int32))


def outcome(slices: Slices, oid: int, typmod: int) -> Any:
    try:
        typed, exact = parse_slices(slices, column_type(oid, typmod))
    except TextError:
        return "refused"
    return repr((typed.to_pylist(), exact and exact.to_pylist()))


@pytest.mark.parametrize(
    ("oid", "typmod", "text"), [(o, m, t) for o, m, ts in [*HELD, *BESIDE, *REFUSED] for t in ts]
)
def test_a_text_reads_the_same_wherever_it_lies(oid: int, typmod: int, text: str) -> None:
    assert outcome(around(text), oid, typmod) == outcome(
        slices_of(pa.array([text], pa.string())), oid, typmod
    )


READ_IN_WORDS = [
    (23, -1),
    (20, -1),
    (1700, numeric(12, 2)),
    (1700, numeric(18, 8)),
    (1700, numeric(9, 0)),
    (1700, numeric(38, 2)),
    (1114, -1),
    (1184, -1),
]


@settings(max_examples=EXAMPLES, deadline=None)
@given(st.sampled_from(READ_IN_WORDS), st.data())
def test_texts_changed_by_a_letter_read_the_same_in_words_and_letter_by_letter(
    kind: tuple[int, int], data: Any
) -> None:
    oid, typmod = kind
    sample = {
        23: "-1234567",
        20: "12345678",
        1700: "-12345.67",
        1114: "2026-11-21 12:34:56.789",
        1184: "2024-02-29 23:59:59.123456+00",
    }[oid]
    text = list(data.draw(st.sampled_from([sample, sample.lstrip("-"), sample.replace("12:34", "23:00")])))
    for _ in range(data.draw(st.integers(0, 3))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 1))] = data.draw(st.text("0123456789-:+. T/9", max_size=1))
    together = "".join(text)
    # Behind eight letters' room a value is read in words; alone at a buffer's edge, letter by letter.
    lone = np.frombuffer(together.encode(), dtype=np.uint8)
    alone = Slices(lone, np.array([0]), np.array([len(lone)], dtype=np.int32))
    assert outcome(around(together), oid, typmod) == outcome(alone, oid, typmod)
    if oid in {20, 23} and outcome(around(together), oid, typmod) != "refused":
        assert outcome(around(together), oid, typmod) == repr(([int(together)], None))


def test_text_and_binary_in_one_column() -> None:
    values = slices_of(pa.array([b"\0\0\0\7", b"8", None, b"\xff" * 4], pa.binary()))
    flags = np.array([True, False, False, True])
    typed, exact = parse_mixed_slices(values, flags, column_type(23, -1))
    assert (typed.to_pylist(), exact) == ([7, 8, None, -1], None)
    dates = slices_of(pa.array([b"\x7f\xff\xff\xff", b"-infinity", b"\0\0\0\0"], pa.binary()))
    typed, exact = parse_mixed_slices(dates, np.array([True, False, True]), column_type(1082, -1))
    assert exact is not None
    assert to_text(typed, exact, column_type(1082, -1)).to_pylist() == ["infinity", "-infinity", "2000-01-01"]
