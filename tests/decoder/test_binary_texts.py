"""Binary columns that compiled code prints: value for value what the printer of single values says."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from slotlake.decoder.types.binary import texts as binary_texts
from slotlake.decoder.types.binary.columns import read_as_text
from slotlake.decoder.types.binary.values import binary_text
from slotlake.decoder.types.catalog import Kind, TypeCatalog, TypeEntry
from slotlake.decoder.types.slices import Slices
from slotlake.decoder.types.text_error import TextError

pytestmark = pytest.mark.fast

MOOD, MOODS, CORNER_LIKE, CORNERS, SPAN = 20001, 20002, 20003, 20004, 20005
CATALOG = TypeCatalog()
CATALOG.add(
    [
        TypeEntry(MOOD, "public.mood", Kind.ENUM),
        TypeEntry(MOODS, "public._mood", Kind.ARRAY, MOOD),
        TypeEntry(CORNER_LIKE, "public.corner", Kind.BASE, 0, "citextsend", ";"),
        TypeEntry(CORNERS, "public._corner", Kind.ARRAY, CORNER_LIKE),
        TypeEntry(SPAN, "public.span", Kind.RANGE, 20),
    ]
)
DAY = 86_400_000_000
NUMBERS = [0, 1, -1, 9, 10, 99, 100, 10**9, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 10**18, -(10**18) - 1]
WORDS = [
    "",
    "a",
    "null",
    "NULL",
    "NULLS",
    "nUl",
    "a b",
    'q"u',
    "b\\s",
    "{",
    "}",
    ",",
    ";",
    "\t",
    "ä€𐍈",
    "x" * 40,
]
DAYS = [0, -1, 8000, -730_119, -730_120, 2_921_939, 2_921_940, 2**31 - 1, -(2**31), -2_451_545]
Maker = Callable[[random.Random], bytes]


def number(draw: random.Random, size: int) -> bytes:
    value = draw.choice(NUMBERS) if draw.random() < 0.5 else draw.randrange(-(10**12), 10**12)
    half = 1 << (8 * size - 1)
    return max(-half, min(half - 1, value)).to_bytes(size, "big", signed=True)


def days(draw: random.Random) -> bytes:
    return struct.pack(">i", draw.choice(DAYS) if draw.random() < 0.5 else draw.randrange(-(10**5), 10**5))


def moment(draw: random.Random) -> bytes:
    if draw.random() < 0.1:
        return number(draw, 8)
    fraction = draw.choice([0, 1, 10, 500_000, 999_999])
    return struct.pack(">q", draw.choice(DAYS[:7]) * DAY + draw.randrange(86_400) * 1_000_000 + fraction)


def clock(draw: random.Random) -> bytes:
    return struct.pack(
        ">q", draw.choice([0, DAY, DAY + 1, -1, draw.randrange(DAY), draw.randrange(86_400) * 10**6])
    )


def timetz(draw: random.Random) -> bytes:
    zone = draw.choice([0, -20_700, 3600, -1, 57_599, -57_600, 45_296])
    return clock(draw) + struct.pack(">i", zone)


def interval(draw: random.Random) -> bytes:
    parts = [draw.choice([0, 0, 1, -1, 11, 12, -13, 30, 2**31 - 1, -(2**31)]) for _ in range(2)]
    time = draw.choice(
        [0, 1, -1, 10**6, -(10**6), 359_999_999_999, 360_000_000_000, -(2**62), 2**63 - 1, -(2**63)]
    )
    return struct.pack(">qii", time, *parts)


def array(draw: random.Random, element: int, content: Maker) -> bytes:
    count = draw.choice([0, 1, 2, 5])
    if count == 0:
        return struct.pack(">iiI", 0, 0, element)
    parts = [struct.pack(">i", -1) if draw.random() < 0.2 else sized(content(draw)) for _ in range(count)]
    if draw.random() < 0.1:  # two dimensions, or one that does not begin at 1
        sizes = struct.pack(">iiii", 1, 1, count, 1) if draw.random() < 0.5 else struct.pack(">ii", count, 0)
    else:
        sizes = struct.pack(">ii", count, 1)
    return struct.pack(">iiI", len(sizes) // 8, 1, element) + sizes + b"".join(parts)


def sized(content: bytes) -> bytes:
    return struct.pack(">i", len(content)) + content


def span(draw: random.Random, content: Maker) -> bytes:
    flags = draw.choice([1, 0, 2, 4, 6, 8, 10, 16, 20, 24, 26])
    bounds = 0 if flags == 1 else (not flags & 8) + (not flags & 16)
    return bytes([flags]) + b"".join(sized(content(draw)) for _ in range(bounds))


def word(draw: random.Random) -> bytes:
    return draw.choice(WORDS).encode()


TYPES: dict[str, tuple[int, Maker]] = {
    "time": (1083, clock),
    "timetz": (1266, timetz),
    "interval": (1186, interval),
    "int2[]": (1005, lambda draw: array(draw, 21, lambda d: number(d, 2))),
    "int4[]": (1007, lambda draw: array(draw, 23, lambda d: number(d, 4))),
    "int8[]": (1016, lambda draw: array(draw, 20, lambda d: number(d, 8))),
    "text[]": (1009, lambda draw: array(draw, 25, word)),
    "varchar[]": (1015, lambda draw: array(draw, 1043, word)),
    "mood[]": (MOODS, lambda draw: array(draw, MOOD, word)),
    "another mark": (CORNERS, lambda draw: array(draw, CORNER_LIKE, word)),
    "int4range": (3904, lambda draw: span(draw, lambda d: number(d, 4))),
    "int8range": (3926, lambda draw: span(draw, lambda d: number(d, 8))),
    "span": (SPAN, lambda draw: span(draw, lambda d: number(d, 8))),
    "daterange": (3912, lambda draw: span(draw, days)),
    "tsrange": (3908, lambda draw: span(draw, moment)),
    "tstzrange": (3910, lambda draw: span(draw, moment)),
}


def damaged(draw: random.Random, value: bytes) -> bytes:
    at = draw.randrange(len(value) + 1)
    return draw.choice(
        [
            value[:at],
            value + b"\0",
            value[:at] + draw.randbytes(1) + value[at + 1 :],
            value[:at] + value[at + 1 :],
        ]
    )


def slices_of(values: list[bytes | None]) -> Slices:
    """The values behind one another, each with a byte between that belongs to none."""
    data, start, length = bytearray(), [], []
    for value in values:
        data += b"\xff"
        start.append(len(data))
        length.append(-1 if value is None else len(value))
        data += value or b""
    return Slices(np.frombuffer(bytes(data), np.uint8), np.array(start, np.int64), np.array(length, np.int32))


def one_by_one(values: list[bytes | None], oid: int) -> list[str | None]:
    found: list[str | None] = []
    for row, value in enumerate(values):
        try:
            found.append(None if value is None else binary_text(value, oid, CATALOG))
        except TextError as error:
            raise TextError(error.reason, row) from None
    return found


@pytest.mark.parametrize("name", TYPES)
def test_a_column_is_what_its_values_are(name: str) -> None:
    oid, make = TYPES[name]
    draw = random.Random(name)
    good: list[bytes | None] = [None]
    for _ in range(600):
        value = make(draw)
        value = damaged(draw, value) if draw.random() < 0.2 else value
        try:
            binary_text(value, oid, CATALOG)
        except TextError as error:
            with pytest.raises(TextError) as caught:
                read_as_text(slices_of([None, *good[-2:], value]), oid, CATALOG)
            assert (caught.value.reason, caught.value.row) == (error.reason, 1 + len(good[-2:]))
        else:
            good += [value, None] if draw.random() < 0.2 else [value]
    found = read_as_text(slices_of(good), oid, CATALOG)
    found.validate(full=True)
    assert found.to_pylist() == one_by_one(good, oid)
    assert len(good) > 200


@pytest.mark.parametrize("name", [name for name in TYPES if name != "another mark"])
def test_the_usual_values_are_printed_by_compiled_code(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    oid, make = TYPES[name]
    draw = random.Random(name)
    left: list[int] = []

    def others(slices: Slices) -> pa.Array:
        left.append(int(slices.present.sum()))
        return pa.nulls(len(slices), pa.string())

    values = [make(draw) for _ in range(300)]
    assert binary_texts.printed_columns(slices_of(list(values)), oid, CATALOG, others) is not None
    assert sum(left) < 200
    monkeypatch.setattr(binary_texts, "_BYTES_MAX", 10)
    assert binary_texts.printed_columns(slices_of(list(values)), oid, CATALOG, others) is None


def test_an_empty_column_and_one_of_nulls() -> None:
    for oid, _ in TYPES.values():
        assert read_as_text(slices_of([]), oid, CATALOG).to_pylist() == []
        assert read_as_text(slices_of([None, None]), oid, CATALOG).to_pylist() == [None, None]
