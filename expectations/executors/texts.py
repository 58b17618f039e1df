"""PostgreSQL's text of typed values, over whole Arrow arrays; see `tasks` for where this runs.

What whole arrays do not give, as the notation of very large and very small numbers, is written value by
value.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import frexp, isnan
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.types.shortest import laid_out, nearest_digits
from slotlake.expectations.executors.hashes import starts_of

TEXT, BOOL, INT, FLOAT, DECIMAL, DATE = "text", "bool", "int", "float", "decimal", "date"
TIMESTAMP, TIMESTAMPTZ, BYTEA, NUMERIC = "timestamp", "timestamptz", "bytea", "numeric"
_BACKSLASH, _NOT_ASCII = ord("\\"), 0x80


@dataclass(frozen=True)
class Task:
    """What is known of a table's rows as Spark hands them over.

    Attributes:
        kinds: of each column, TEXT … NUMERIC; first those of the key.
        exacts: whether the column is followed by one with exact texts.
        keys: how many columns the key has.
        buckets: a power of two.
        escaped: the escaped bytes of the texts are hashed (`hashing.escaped_texts`).
    """

    kinds: tuple[str, ...]
    exacts: tuple[bool, ...]
    keys: int
    buckets: int
    escaped: bool = False


def texts_of(task: Task, batch: pa.RecordBatch) -> list[pa.Array]:
    """Return the texts of each column as PostgreSQL prints them, null for NULL."""
    columns, texts = iter(batch.columns), []
    for kind, exact in zip(task.kinds, task.exacts, strict=True):
        printed = _PRINTERS[kind](next(columns))
        if exact:
            printed = pc.coalesce(next(columns).cast(pa.large_string()), printed.cast(pa.large_string()))
        texts.append(printed)
    return texts


def _bool(values: pa.Array) -> pa.Array:
    letters: pa.Array = pc.if_else(values, pa.scalar("t"), pa.scalar("f"))
    return letters


def _as_text(values: pa.Array) -> pa.Array:
    return values.cast(pa.string())


def _timestamp(values: pa.Array) -> pa.Array:
    """A fraction has no zeros at its end, and nothing is left of one of zeros only."""
    printed = values.cast(pa.timestamp("us")).cast(pa.string())
    trimmed: pa.Array = pc.utf8_rtrim(pc.utf8_rtrim(printed, characters="0"), characters=".")
    return trimmed


def _timestamptz(values: pa.Array) -> pa.Array:
    joined: pa.Array = pc.binary_join_element_wise(_timestamp(values), pa.scalar("+00"), pa.scalar(""))
    return joined


def _decimal(values: pa.Array) -> pa.Array:
    """Arrow prints small values with an exponent."""
    printed = values.cast(pa.string())
    return _replaced(printed, pc.match_substring(printed, "E"), values, lambda value, _: format(value, "f"))


def _numeric(values: pa.Array) -> pa.Array:
    """As `decoder.types.representations` prints the decimals of a `numeric` without precision."""
    printed = _decimal(values)
    trimmed = pc.utf8_rtrim(pc.utf8_rtrim(printed, characters="0"), characters=".")
    shortest: pa.Array = pc.if_else(pc.match_substring(printed, "."), trimmed, printed)
    return shortest


def _float(values: pa.Array) -> pa.Array:
    bits, fixed_below = (24, 6) if values.type == pa.float32() else (53, 15)
    printed = pc.replace_substring_regex(values.cast(pa.string()), r"\.0$", "")
    size = np.abs(np.asarray(values.fill_null(0)))
    lowest, highest = size.dtype.type(1e-4), size.dtype.type(10**fixed_below)
    plain = pc.match_substring_regex(printed, r"^-?[0-9]+(\.[0-9]+)?$").fill_null(True)
    usual = (((size >= lowest) & (size < highest)) | (size == 0)) & np.asarray(plain)

    def written(value: float, shortest: str) -> str:
        return _float_text(value, shortest, bits, fixed_below)

    return _replaced(printed, pc.and_(pa.array(~usual), values.is_valid()), values, written)


def _float_text(value: float, shortest: str, bits: int, fixed_below: int) -> str:
    if isnan(value):
        return "NaN"
    sign, size = ("-" if shortest.startswith("-") else ""), abs(value)
    if size == float("inf"):
        return f"{sign}Infinity"
    number, _, exponent = shortest.lstrip("-").lower().partition("e")
    whole, _, fraction = number.partition(".")
    digits, power = (whole + fraction).lstrip("0"), int(exponent or 0) - len(fraction)
    stripped = digits.rstrip("0")
    digits, power = stripped, power + len(digits) - len(stripped)
    if _is_midpoint(digits, power, size, bits):
        digits, power = nearest_digits(size, bits)
    return sign + laid_out(digits or "0", power, fixed_below)


def _is_midpoint(digits: str, power: int, size: float, bits: int) -> bool:
    """Whether the digits are half-way to another number, which PostgreSQL does not take for shortest.

    Such a decimal has one bit more than the type, and at most 17 digits (9 of a float4): below these limits
    the part of it after the point is longer than that.
    """
    if size < (2.0**52 if bits == 53 else 2.0**22):
        return False
    half = Fraction(2) ** (frexp(size)[1] - bits - 1)
    return abs(int(digits) * Fraction(10) ** power - Fraction(size)) == half


def _bytea(values: pa.Array) -> pa.Array:
    r"""``\x``, and two hexadecimal digits per byte: units of two bytes each."""
    starts, data = starts_of(values)
    ends = (starts - starts[0]) + np.arange(len(starts))
    units = np.empty(int(ends[-1]), "<u2")
    is_digits = np.ones(len(units), bool)
    is_digits[ends[:-1]] = False
    units[ends[:-1]] = _PREFIX
    units[is_digits] = _DIGITS[data[starts[0] : starts[-1]]]
    return _from_buffers(2 * ends, units.view(np.uint8), values)


_DIGITS = np.frombuffer("".join(f"{byte:02x}" for byte in range(256)).encode(), "<u2")
_PREFIX = np.frombuffer(b"\\x", "<u2")[0]


def _replaced(
    printed: pa.Array, mask: pa.Array, values: pa.Array, written: Callable[[Any, str], str]
) -> pa.Array:
    """Write some of the texts anew, one by one."""
    mask = mask.fill_null(False)
    if not pc.any(mask).as_py():
        return printed
    pairs: Any = zip(values.filter(mask).to_pylist(), printed.filter(mask).to_pylist(), strict=True)
    texts: Any = [written(value, text) for value, text in pairs]
    replaced: pa.Array = pc.replace_with_mask(printed, mask, pa.array(texts, printed.type))
    return replaced


_PRINTERS: dict[str, Callable[[pa.Array], pa.Array]] = {
    TEXT: lambda values: values,
    BOOL: _bool,
    INT: _as_text,
    FLOAT: _float,
    DECIMAL: _decimal,
    NUMERIC: _numeric,
    DATE: _as_text,
    TIMESTAMP: _timestamp,
    TIMESTAMPTZ: _timestamptz,
    BYTEA: _bytea,
}


def escaped_texts(texts: pa.Array) -> pa.Array:
    """As `hashing.escaped_texts`."""

    def escaped(text: str, _: str) -> str:
        return "".join(
            "\\\\" if byte == _BACKSLASH else f"\\{byte:03o}" if byte >= _NOT_ASCII else chr(byte)
            for byte in text.encode()
        )

    return _replaced(texts, pc.match_substring_regex(texts, r"[\\\x{80}-\x{10ffff}]"), texts, escaped)


def _from_buffers(ends: npt.NDArray[np.int64], data: npt.NDArray[np.uint8], like: pa.Array) -> pa.Array:
    nulls = like.is_valid().buffers()[1] if like.null_count else None
    buffers = [nulls, _buffer(np.ascontiguousarray(ends)), _buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(like), buffers)


def _buffer(values: npt.NDArray[Any]) -> pa.Buffer:
    return pa.py_buffer(cast("Any", values))  # the stubs do not know that numpy's arrays are buffers
