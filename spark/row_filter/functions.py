"""What PostgreSQL's functions and casts do, for the kinds that they take; the errors included.

``FUNCTIONS[name, *kinds]`` is (kind of the result, function of arrays without NULLs); all are strict.
``cast`` finds the function of a cast.  The rules are those of varlena.c, oracle_compat.c, varchar.c, int.c,
float.c, numeric.c and date.c; the live server is their oracle in tests/spark/test_row_filter_server.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

from slotlake.spark.row_filter import numeric
from slotlake.spark.row_filter.numeric import EvaluationError
from slotlake.spark.row_filter.operators import OPERATORS, in_range, midnight
from slotlake.spark.row_filter.parse import TypeName
from slotlake.spark.row_filter.values import FLOATS, FOREVER, INTEGERS, MOMENTS, NEVER, Array

Work = Callable[..., Any]
_DAY = 86_400_000_000
_LOWER = {ord(c): c.lower() for c in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"}
_UPPER = {ord(c): c.upper() for c in "abcdefghijklmnopqrstuvwxyz"}
_SCALE_ARGUMENT_MAX = 2000  # numeric.c numeric_round: NUMERIC_MAX_RESULT_SCALE


def each(work: Callable[..., Any], dtype: Any = object) -> Work:
    """A function of single values as one of arrays."""

    def run(*columns: Any) -> Array:
        result = np.empty(len(columns[0]), dtype)
        result[:] = [work(*row) for row in zip(*(column.tolist() for column in columns), strict=True)]
        return result

    return run


def lowered(text: str) -> str:
    """lower() where letters are those of ASCII (collation C)."""
    return text.translate(_LOWER)


def _uppered(text: str) -> str:
    return text.translate(_UPPER)


def like_expression(pattern: str) -> str | None:
    """The pattern as a regular expression (like_match.c); None if it ends with its escape character."""
    parts: list[str] = []
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            escaped = next(characters, None)
            if escaped is None:
                return None
            parts.append(re.escape(escaped))
        else:
            parts.append({"%": ".*", "_": "."}.get(character, re.escape(character)))
    return "".join(parts)


def _part(text: str, start: int, length: int) -> str:
    """text_substring: the part that begins at ``start``, which may lie before the text."""
    if length < 0:
        raise EvaluationError("negative substring length not allowed")
    end = start + length
    return text[max(start, 1) - 1 : end - 1] if end > 1 else ""


def _tail(text: str, start: int) -> str:
    return text[max(start, 1) - 1 :]


def _right(text: str, count: int) -> str:
    return text[-count:] if count else ""


def _replaced(text: str, old: str, new: str) -> str:
    return text.replace(old, new) if old else text


def _absolute(kind: str) -> Work:
    def run(values: Any) -> Any:
        return in_range(np.abs(values.astype(object)), kind)

    return run


def _ceiling(value: Decimal) -> Decimal:
    return _whole(value, 1)


def _floor(value: Decimal) -> Decimal:
    return _whole(value, -1)


def _whole(value: Decimal, direction: int) -> Decimal:
    towards_zero = numeric.truncated(value, 0)
    short = value.is_finite() and value != towards_zero and (value > 0) == (direction > 0)
    return numeric.plus(towards_zero, Decimal(direction if short else 0))


def _scale_argument(scale: int) -> int:
    return max(-_SCALE_ARGUMENT_MAX, min(scale, _SCALE_ARGUMENT_MAX))


def _rounded(value: Decimal, scale: int = 0) -> Decimal:
    return numeric.plus(numeric.rounded(value, _scale_argument(scale)), Decimal(0))


def _truncated(value: Decimal, scale: int = 0) -> Decimal:
    return numeric.plus(numeric.truncated(value, _scale_argument(scale)), Decimal(0))


def _table() -> dict[tuple[str, ...], tuple[str, Work]]:
    table: dict[tuple[str, ...], tuple[str, Work]] = {
        ("lower", "text"): ("text", each(lowered)),
        ("upper", "text"): ("text", each(_uppered)),
        ("octet_length", "text"): ("int4", each(lambda text: len(text.encode()), np.int64)),
        ("octet_length", "bpchar"): ("int4", each(lambda text: len(text.encode()), np.int64)),
        ("octet_length", "bytea"): ("int4", each(len, np.int64)),
        ("length", "bytea"): ("int4", each(len, np.int64)),
        ("left", "text", "int4"): ("text", each(lambda text, count: text[:count])),
        ("right", "text", "int4"): ("text", each(_right)),
        ("replace", "text", "text", "text"): ("text", each(_replaced)),
        ("starts_with", "text", "text"): ("bool", each(str.startswith, np.bool_)),
    }
    for name in ("length", "char_length", "character_length"):
        table[name, "text"] = ("int4", each(len, np.int64))
        table[name, "bpchar"] = ("int4", each(lambda text: len(text.rstrip(" ")), np.int64))
    for name in ("substring", "substr"):
        table[name, "text", "int4"] = ("text", each(_tail))
        table[name, "text", "int4", "int4"] = ("text", each(_part))
    for name in ("strpos", "position"):
        table[name, "text", "text"] = ("int4", each(lambda text, part: text.find(part) + 1, np.int64))
    for name, work in {"btrim": str.strip, "ltrim": str.lstrip, "rtrim": str.rstrip}.items():
        table[name, "text", "text"] = ("text", each(work))
        table[name, "text"] = ("text", each(_blanks_off(work)))
    return table | _numbers()


def _blanks_off(work: Callable[[str, str], str]) -> Callable[[str], str]:
    return lambda text: work(text, " ")


def _numbers() -> dict[tuple[str, ...], tuple[str, Work]]:
    table: dict[tuple[str, ...], tuple[str, Work]] = {
        ("abs", "numeric"): ("numeric", each(Decimal.copy_abs)),
        ("mod", "numeric", "numeric"): OPERATORS["%", "numeric", "numeric"],
        ("round", "numeric", "int4"): ("numeric", each(_rounded)),
        ("trunc", "numeric", "int4"): ("numeric", each(_truncated)),
        ("round", "numeric"): ("numeric", each(_rounded)),
        ("trunc", "numeric"): ("numeric", each(_truncated)),
        ("floor", "numeric"): ("numeric", each(_floor)),
        ("floor", "float8"): ("float8", np.floor),
        ("trunc", "float8"): ("float8", np.trunc),
        ("round", "float8"): ("float8", np.rint),
    }
    for name in ("ceil", "ceiling"):
        table[name, "numeric"] = ("numeric", each(_ceiling))
        table[name, "float8"] = ("float8", np.ceil)
    for kind in INTEGERS:
        table["abs", kind] = (kind, _absolute(kind))
        table["mod", kind, kind] = OPERATORS["%", kind, kind]
    for kind in FLOATS:
        table["abs", kind] = (kind, np.abs)
    return table


FUNCTIONS = _table()


# -- casts --------------------------------------------------------------------------------------------


def cast(source: str, target: str, name: TypeName) -> Work | None:
    """Return the function of the cast from one kind to another; None if it cannot be evaluated here.

    Args:
        name: the target type, with its modifiers.
    """
    if target == "numeric" and source in ("numeric", *INTEGERS, *FLOATS):
        return _to_numeric(source, name.modifiers)
    if target in ("text", "bpchar") and (source, target) in _TO_TEXT:
        return _sized(_TO_TEXT[source, target], target, name.modifiers)
    if name.modifiers:
        return None
    return _same if source == target else _CASTS.get((source, target))


def _same(values: Any) -> Any:
    return values


def _to_numeric(source: str, modifiers: tuple[int, ...]) -> Work:
    first = _same if source == "numeric" else each(Decimal)
    if source in FLOATS:
        digits = 6 if source == "float4" else 15  # FLT_DIG, DBL_DIG: numeric.c float8_numeric
        first = each(lambda value: numeric.without_exponent(Decimal(f"{value:.{digits}g}")))
    if not modifiers:
        return first
    precision, scale = modifiers[0], modifiers[1] if len(modifiers) > 1 else 0
    return lambda values: each(lambda value: numeric.fitted(value, precision, scale))(first(values))


def _sized(first: Work, target: str, modifiers: tuple[int, ...]) -> Work:
    """varchar(n) and character(n), asked for by a cast, cut without an error (varchar.c)."""
    if not modifiers:
        return first
    size = modifiers[0]
    if target == "text":
        return lambda values: each(lambda text: text[:size])(first(values))
    return lambda values: each(lambda text: text[:size].ljust(size))(first(values))


_TO_TEXT: dict[tuple[str, str], Work] = {
    ("text", "text"): _same,
    ("text", "bpchar"): _same,
    ("bpchar", "bpchar"): _same,
    ("uuid", "text"): _same,
    ("bpchar", "text"): each(lambda text: text.rstrip(" ")),
    ("bool", "text"): each(lambda value: "true" if value else "false"),
    ("numeric", "text"): each(numeric.printed),
    **{(kind, "text"): each(lambda value: str(int(value))) for kind in INTEGERS},
}


def _integers_to(kind: str) -> Work:
    return lambda values: in_range(values, kind)


def _numerics_to(kind: str) -> Work:
    return lambda values: in_range(each(numeric.integer_of)(values), kind)


def _floats_to(kind: str) -> Work:
    def run(values: Any) -> Any:
        whole = np.rint(np.asarray(values, np.float64))
        if not np.all(np.isfinite(whole)):
            raise EvaluationError("a value out of range of an integer")
        return in_range(each(int)(whole), kind)

    return run


def _to_float8(value: Decimal) -> float:
    result = float(value)
    if value.is_finite() and (result in (float("inf"), float("-inf")) or (result == 0 and value != 0)):
        raise EvaluationError("value out of range for type double precision")
    return result


def _to_float4(values: Any) -> Any:
    with np.errstate(all="ignore"):
        result = np.asarray(values, np.float32)
    if np.any(np.isinf(result) & ~np.isinf(values)) or np.any((result == 0) & (values != 0)):
        raise EvaluationError("value out of range of type real")
    return result


def _day_of(moments: Any) -> Any:
    bounded = (moments != FOREVER) & (moments != NEVER)
    return np.where(bounded, np.where(bounded, moments, 0) // _DAY, moments)


def _moment_of(days: Any) -> Any:
    result = midnight(days)
    if np.any(result == FOREVER - 1):
        raise EvaluationError("date out of range for timestamp")
    return result


_CASTS: dict[tuple[str, str], Work] = {
    ("bool", "int4"): lambda values: values.astype(np.int64),
    ("int4", "bool"): lambda values: values != 0,
    ("numeric", "float8"): each(_to_float8, np.float64),
    ("float4", "float8"): lambda values: values.astype(np.float64),
    ("float8", "float4"): _to_float4,
    ("date", "timestamp"): _moment_of,
    ("timestamp", "date"): _day_of,
    **{(kind, "float8"): lambda values: values.astype(np.float64) for kind in INTEGERS},
    **{(kind, "float4"): lambda values: values.astype(np.float32) for kind in INTEGERS},
    **{(source, target): _integers_to(target) for source in INTEGERS for target in INTEGERS},
    **{("numeric", kind): _numerics_to(kind) for kind in INTEGERS},
    **{(source, kind): _floats_to(kind) for source in FLOATS for kind in INTEGERS},
}
assert not set(MOMENTS) & {target for _, target in _CASTS if target == "timestamptz"}  # needs the time zone
