"""What PostgreSQL's operators do, for each pair of kinds that they take; the errors included.

``OPERATORS[name, left, right]`` is (kind of the result, function of two arrays without NULLs).  All of them
are strict: NULL in, NULL out.  The rules are those of int.c, int8.c, float.h, numeric.c, varchar.c,
date.c; the live server is their oracle in tests/spark/test_row_filter_server.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from slotlake.spark.row_filter.numeric import NUMERIC_OPERATORS, EvaluationError, compare_keys
from slotlake.spark.row_filter.values import FLOATS, FOREVER, INTEGER_BITS, INTEGERS, MOMENTS, NEVER, Array

Binary = Callable[[Any, Any], Any]
COMPARISONS = ("=", "<>", "<", "<=", ">", ">=")
ORDERINGS = ("<", "<=", ">", ">=")
_DAY = 86_400_000_000
# date.h: DATETIME_MIN_JULIAN and DATE_END_JULIAN, counted from 2000-01-01.
_FIRST_DAY, _END_DAY = -2451545, 2147483494 - 2451545
_END_MOMENT = 9223371331200000000  # timestamp.h END_TIMESTAMP


def _plain(operator: str) -> Binary:
    return {
        "=": np.equal, "<>": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater,
        ">=": np.greater_equal,
    }[operator]  # fmt: skip


def _compared(operator: str, left_key: Callable[[Any], Any], right_key: Callable[[Any], Any]) -> Binary:
    compare = _plain(operator)

    def run(left: Any, right: Any) -> Any:
        return np.asarray(compare(left_key(left), right_key(right)), np.bool_)

    return run


def _float_compared(operator: str) -> Binary:
    """NaN is equal to itself and larger than all else (float.h)."""

    def run(left: Any, right: Any) -> Any:
        left, right = np.asarray(left, np.float64), np.asarray(right, np.float64)
        not_left, not_right = np.isnan(left), np.isnan(right)
        equal = (left == right) | (not_left & not_right)
        less = (left < right) | (~not_left & not_right)
        return {
            "=": equal, "<>": ~equal, "<": less, "<=": less | equal, ">": ~(less | equal), ">=": ~less,
        }[operator]  # fmt: skip

    return run


def _numeric_compared(operator: str) -> Binary:
    compare = _plain(operator)
    return lambda left, right: np.asarray(compare(*compare_keys(left, right)), np.bool_)


def _same(values: Any) -> Any:
    return values


def _without_blanks(values: Any) -> Any:
    return np.array([value.rstrip(" ") for value in values], object)


def midnight(days: Any) -> Any:
    """A date as a timestamp to compare with; one beyond all timestamps lies before infinity."""
    days = np.asarray(days, np.int64)
    far = days >= _END_MOMENT // _DAY  # date2timestamp_opt_overflow
    finite = np.where(far | (days == NEVER), 0, days) * _DAY
    return np.where(
        days == FOREVER, FOREVER, np.where(days == NEVER, NEVER, np.where(far, FOREVER - 1, finite))
    )


# -- integers -----------------------------------------------------------------------------------------


def in_range(values: Any, kind: str) -> Array:
    """Return the values as int64, one per row.

    Args:
        values: integers; an array of Python integers is allowed.
        kind: int2, int4 or int8.

    Raises:
        EvaluationError: a value does not fit the kind.
    """
    limit = 1 << (INTEGER_BITS[kind] - 1)
    if np.any((values < -limit) | (values >= limit)):
        name = {"int2": "smallint", "int4": "integer", "int8": "bigint"}[kind]
        raise EvaluationError(f"{name} out of range")
    return np.asarray(values, np.int64)


def _integer(work: Binary, kind: str) -> Binary:
    def run(left: Any, right: Any) -> Any:
        if kind == "int8":  # Python's integers do not wrap around
            left, right = np.asarray(left, object), np.asarray(right, object)
        return in_range(work(left, right), kind)

    return run


def _divided(left: Any, right: Any) -> Any:
    """Towards zero, as C does."""
    if np.any(right == 0):
        raise EvaluationError("division by zero")
    floor = left // right
    inexact = np.asarray(left % right != 0, np.bool_)
    return floor + (inexact & np.asarray((left < 0) != (right < 0), np.bool_)).astype(floor.dtype)


def _remainder(left: Any, right: Any) -> Any:
    return left - _divided(left, right) * right


_INTEGER_WORK: dict[str, Binary] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": _divided, "%": _remainder,
}  # fmt: skip


# -- floats -------------------------------------------------------------------------------------------


def _float(operator: str, kind: str) -> Binary:
    dtype = np.float32 if kind == "float4" else np.float64
    work = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[operator]

    def run(left: Any, right: Any) -> Any:
        left, right = np.asarray(left, dtype), np.asarray(right, dtype)
        if operator == "/" and np.any((right == 0) & ~np.isnan(left)):
            raise EvaluationError("division by zero")
        with np.errstate(all="ignore"):
            result = work(left, right)
        divisor = operator == "/"
        if np.any(np.isinf(result) & ~np.isinf(left) & (divisor | ~np.isinf(right))):
            raise EvaluationError("value out of range: overflow")
        if operator in "*/" and np.any((result == 0) & (left != 0) & ~_harmless_zero(right, divisor)):
            raise EvaluationError("value out of range: underflow")
        return result

    return run


def _harmless_zero(right: Any, divisor: bool) -> Any:
    return np.isinf(right) if divisor else right == 0


# -- dates --------------------------------------------------------------------------------------------


def _later(days: Any, more: Any) -> Any:
    bounded = (days != FOREVER) & (days != NEVER)
    moved = np.where(bounded, days, 0) + more
    if np.any(bounded & ((moved < _FIRST_DAY) | (moved >= _END_DAY))):
        raise EvaluationError("date out of range")
    return np.where(bounded, moved, days)


def _days_between(left: Any, right: Any) -> Any:
    if any(np.any((days == FOREVER) | (days == NEVER)) for days in (left, right)):
        raise EvaluationError("cannot subtract infinite dates")
    return in_range(left - right, "int4")


def _joined(left: Any, right: Any) -> Any:
    return np.asarray(left, object) + np.asarray(right, object)


def _table() -> dict[tuple[str, str, str], tuple[str, Binary]]:
    table: dict[tuple[str, str, str], tuple[str, Binary]] = {}
    for name in COMPARISONS:
        for kind in ("bool", "bytea", "date", "uuid", "text", *MOMENTS):
            table[name, kind, kind] = ("bool", _compared(name, _same, _same))
        for left in INTEGERS:
            table |= {(name, left, right): ("bool", _compared(name, _same, _same)) for right in INTEGERS}
        for left in FLOATS:
            table |= {(name, left, right): ("bool", _float_compared(name)) for right in FLOATS}
        table[name, "numeric", "numeric"] = ("bool", _numeric_compared(name))
        table[name, "bpchar", "bpchar"] = ("bool", _compared(name, _without_blanks, _without_blanks))
        table[name, "date", "timestamp"] = ("bool", _compared(name, midnight, _same))
        table[name, "timestamp", "date"] = ("bool", _compared(name, _same, midnight))
    for name, work in _INTEGER_WORK.items():
        for left in INTEGERS:
            for right in INTEGERS:
                kind = max(left, right)
                table[name, left, right] = (kind, _integer(work, kind))
    for name in "+-*/":
        for left in FLOATS:
            table |= {
                (name, left, right): (max(left, right), _float(name, max(left, right))) for right in FLOATS
            }
    table |= {(name, "numeric", "numeric"): ("numeric", work) for name, work in NUMERIC_OPERATORS.items()}
    table["+", "date", "int4"] = ("date", _later)
    table["+", "int4", "date"] = ("date", lambda more, days: _later(days, more))
    table["-", "date", "int4"] = ("date", lambda days, less: _later(days, -less))
    table["-", "date", "date"] = ("int4", _days_between)
    table["||", "text", "text"] = ("text", _joined)
    return table


OPERATORS = _table()
