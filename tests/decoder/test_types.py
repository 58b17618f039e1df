"""The table of types on its own: what is read, what is refused, what goes beside the typed column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.types.table import column_type, from_text, sql_text, to_text, type_name

pytestmark = pytest.mark.fast

BOOL, BYTEA, INT8, INT2, INT4, TEXT, OID, XID = 16, 17, 20, 21, 23, 25, 26, 28
FLOAT4, FLOAT8, DATE, TIMESTAMP, TIMESTAMPTZ, NUMERIC, BPCHAR = 700, 701, 1082, 1114, 1184, 1700, 1042


def numeric(precision: int, scale: int) -> int:
    """numeric.c make_numeric_typmod."""
    return ((precision << 16) | (scale & 0x7FF)) + 4


HELD = [
    (BOOL, -1, ["t", "f"]),
    (BYTEA, -1, ["\\x", "\\x00", "\\xdeadbeef"]),
    (INT2, -1, ["0", "-32768", "32767"]),
    (INT4, -1, ["0", "-2147483648", "2147483647"]),
    (INT8, -1, ["0", "-9223372036854775808", "9223372036854775807"]),
    (OID, -1, ["0", "4294967295"]),
    (XID, -1, ["3", "4294967295"]),
    (FLOAT4, -1, ["0", "-0", "1", "0.1", "1e-05", "0.0001", "999999", "1e+06", "1e-45", "3.4028235e+38"]),
    (FLOAT4, -1, ["NaN", "Infinity", "-Infinity"]),
    (FLOAT8, -1, ["0", "-0", "0.1", "1e-05", "0.0001", "999999999999999", "1e+15", "5e-324", "2.5"]),
    (FLOAT8, -1, ["NaN", "Infinity", "-Infinity", "1.7976931348623157e+308", "9.999999999999999e+22"]),
    (NUMERIC, numeric(4, 2), ["0.00", "99.99", "-99.99", "-0.01"]),
    (NUMERIC, numeric(2, 2), ["0.99", "-0.01"]),
    (NUMERIC, numeric(38, 0), ["9" * 38, "-" + "9" * 38, "0", str(2**64), str(10**19), str(2**127 // 10)]),
    (NUMERIC, numeric(38, 38), ["0." + "9" * 38, "-0." + "0" * 37 + "1"]),
    (DATE, -1, ["0001-01-01", "9999-12-31", "1970-01-01", "1969-12-31", "2000-02-29", "1900-02-28"]),
    (TIMESTAMP, -1, ["0001-01-01 00:00:00", "9999-12-31 23:59:59.999999", "1969-12-31 23:59:59.5"]),
    (TIMESTAMPTZ, -1, ["2026-11-21 09:00:00+00", "1970-01-01 00:00:00.000001+00"]),
    (TEXT, -1, ["", " ", "ü", "line\nline", "\\N", "null"]),
    (NUMERIC, -1, ["1.10", "NaN", "-Infinity", "1" * 60]),
    (NUMERIC, numeric(39, 0), ["1" * 39]),
    (NUMERIC, numeric(3, -2), ["12300"]),
    (NUMERIC, numeric(2, 4), ["0.0012"]),
    (BPCHAR, 9, ["ab   "]),
    (99999, -1, ["whatever"]),
]
BESIDE = [
    (NUMERIC, numeric(4, 2), ["NaN", "100.00", "1.5", "Infinity", "-0.00"]),
    (DATE, -1, ["infinity", "-infinity", "10000-01-01", "5874897-12-31", "0001-12-31 BC", "0005-02-29 BC"]),
    (TIMESTAMP, -1, ["infinity", "-infinity", "294276-12-31 23:59:59.999999", "4714-11-24 00:00:00 BC"]),
    (TIMESTAMPTZ, -1, ["infinity", "10000-01-01 00:00:00+00", "0044-03-15 12:00:00.25+00 BC"]),
]
REFUSED = [
    (BOOL, -1, ["", "true", "T", "1", "tt"]),
    (BYTEA, -1, ["", "\\", "\\x0", "\\xzz", "\\xAB", "abc", "\\000"]),
    (INT4, -1, ["", "-", "+1", "1 ", " 1", "1.0", "2147483648", "-2147483649", "0x1", "٣"]),
    (INT8, -1, ["9223372036854775808", "-9223372036854775809", "1" * 20, "18446744073709551616"]),
    (OID, -1, ["1" * 21, "a"]),
    (FLOAT8, -1, ["", "abc", "1,5", "1e", "--1"]),
    (NUMERIC, numeric(4, 2), ["", "-", ".5", "5.", "1.2.3", "nan", "1e5", "NaN ", "--1", "- Infinity"]),
    (DATE, -1, ["", "2026-1-01", "26-01-01", "2026-13-01", "2026-02-29", "2026-00-10", "2026-01-00"]),
    (
        DATE,
        -1,
        [
            "2026-01-01 ",
            "2026-01-01 00:00:00",
            "0000-01-01",
            "0002-02-29 BC",
            "12345678-01-01",
            "9999999-01-01",
        ],
    ),
    (DATE, -1, ["2026-01-01 BCE", "Infinity", "2026/01/01", "01-02-2026", "2026-01-0"]),
    (TIMESTAMP, -1, ["2026-01-01", "2026-01-01 24:00:00", "2026-01-01 00:60:00", "2026-01-01T00:00:00"]),
    (
        TIMESTAMP,
        -1,
        ["2026-01-01 00:00:00.", "2026-01-01 00:00:00.1234567", "2026-01-01 00:00:00+00", "2026-01-01 00:00"],
    ),
    (
        TIMESTAMPTZ,
        -1,
        [
            "2026-01-01 00:00:00",
            "2026-01-01 00:00:00+02",
            "2026-01-01 00:00:00+00:00",
            "2026-01-01 00:00:00-00",
        ],
    ),
]


@pytest.mark.parametrize(("oid", "typmod", "texts"), HELD)
def test_a_value_that_fits_is_held_and_printed_again(oid: int, typmod: int, texts: list[str]) -> None:
    ct = column_type(oid, typmod)
    typed, exact = from_text(pa.array([*texts, None], pa.string()), ct)
    assert typed.type == ct.arrow
    assert exact is None
    assert typed.null_count == 1
    typed.validate(full=True)
    assert to_text(typed, exact, ct).to_pylist() == [*texts, None]


@pytest.mark.parametrize(("oid", "typmod", "texts"), BESIDE)
def test_a_value_that_does_not_fit_keeps_its_text_beside(oid: int, typmod: int, texts: list[str]) -> None:
    ct = column_type(oid, typmod)
    assert ct.inexact
    typed, exact = from_text(pa.array([*texts, None], pa.large_string()), ct)
    assert exact is not None
    assert typed.null_count == len(texts) + 1
    assert exact.to_pylist() == [*texts, None]
    assert to_text(typed, exact, ct).to_pylist() == [*texts, None]


@pytest.mark.parametrize(("oid", "typmod", "text"), [(o, m, t) for o, m, ts in REFUSED for t in ts])
def test_text_that_the_server_would_not_print_is_refused(oid: int, typmod: int, text: str) -> None:
    with pytest.raises(ProtocolError) as error:
        from_text(pa.array([None, text], pa.string()), column_type(oid, typmod), column="price")
    assert "'price'" in str(error.value)
    assert len(text) < 3 or text not in str(error.value).replace("boolean", "")


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(ProtocolError, match="UTF-8"):
        from_text(pa.array([b"ok", b"\xff"], pa.binary()), column_type(TEXT, -1))


def test_slices_of_arrays_are_read_from_their_offset() -> None:
    ct = column_type(INT4, -1)
    values = pa.array(["7", None, "8", "9"], pa.string())[1:3]
    typed, _ = from_text(values, ct)
    assert typed.to_pylist() == [None, 8]
    printed = to_text(
        pa.chunked_array([pa.array([1, 2], pa.int32())[1:], pa.array([3], pa.int32())]), None, ct
    )
    assert printed.to_pylist() == ["2", "3"]


@pytest.mark.parametrize(
    ("oid", "typmod"),
    [
        (BOOL, -1),
        (BYTEA, -1),
        (FLOAT8, -1),
        (TIMESTAMPTZ, -1),
        (DATE, -1),
        (NUMERIC, numeric(10, 2)),
        (TEXT, -1),
    ],
)
def test_sliced_and_empty_arrays_are_printed_from_their_offset(oid: int, typmod: int) -> None:
    ct = column_type(oid, typmod)
    texts = next(texts for o, m, texts in HELD if o == oid and (typmod == -1 or m >= 0))[:2]
    texts = ["12345678.90", "0.01"] if oid == NUMERIC else texts
    typed, _ = from_text(pa.array([texts[0], texts[1], None, texts[0]], pa.string()), ct)
    assert to_text(typed[1:], None, ct).to_pylist() == [texts[1], None, texts[0]]
    assert to_text(typed[:0], None, ct).to_pylist() == []
    chunked_array: Any = pa.chunked_array  # the stubs know no chunked array without a chunk
    assert to_text(chunked_array([], ct.arrow), None, ct).to_pylist() == []
    nulls, exact = from_text(pa.array([None, None], pa.string()), ct)
    assert (nulls.to_pylist(), exact) == ([None, None], None)


def test_exact_texts_win_over_the_typed_column() -> None:
    ct = column_type(DATE, -1)
    typed = pa.array([None, 0, None], pa.date32())
    exact = pa.array(["infinity", None, None], pa.string())
    assert to_text(typed, exact, ct).to_pylist() == ["infinity", "1970-01-01", None]


def test_types_map_as_the_table_says() -> None:
    assert column_type(NUMERIC, numeric(10, 2)).spark == "decimal(10,2)"
    assert column_type(NUMERIC, numeric(10, 2)).arrow == pa.decimal128(10, 2)
    assert column_type(TIMESTAMP, -1).spark == "timestamp_ntz"
    assert column_type(TIMESTAMPTZ, -1).spark == "timestamp"
    for oid, typmod in [
        (NUMERIC, -1),
        (NUMERIC, numeric(39, 1)),
        (NUMERIC, numeric(5, -1)),
        (3802, -1),
        (70000, -1),
    ]:
        assert column_type(oid, typmod).spark == "string"
        assert not column_type(oid, typmod).inexact
    assert (type_name(3802), type_name(1007), type_name(70000)) == ("jsonb", "_int4", None)


def test_sql_text_is_a_plain_cast_for_most_types() -> None:
    assert sql_text('"n"', INT4) == '("n")::pg_catalog.text'
    assert sql_text('"n"', BOOL) == 'pg_catalog.textin(pg_catalog.boolout("n"))'
