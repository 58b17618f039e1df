"""PostgreSQL's numeric arithmetic on Decimal objects (numeric.c), display scales and errors included.

A numeric is a Decimal whose exponent is minus the display scale.  Sums, differences and products are
exact; a quotient has the number of digits that `select_div_scale` gives it and is rounded away from
zero.  Invariant: no operation here depends on the thread's decimal context.
"""

from __future__ import annotations

import decimal
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

_CONTEXT = decimal.Context(
    prec=300_000, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN, rounding=decimal.ROUND_HALF_UP, traps=[]
)
NAN = Decimal("NaN")
_SCALE_MAX = 16383  # NUMERIC_DSCALE_MAX
_DIGITS_BEFORE_POINT_MAX = 131072
_SIGNIFICANT_DIGITS_MIN = 16  # NUMERIC_MIN_SIG_DIGITS
_DISPLAY_SCALE_MAX = 1000  # NUMERIC_MAX_DISPLAY_SCALE


class EvaluationError(Exception):
    """PostgreSQL's own error for a row: such as a division by zero or a value out of range."""


def scale_of(value: Decimal) -> int:
    """Digits after the point that are shown."""
    exponent = value.as_tuple().exponent
    return max(0, -exponent) if isinstance(exponent, int) else 0


def rounded(value: Decimal, scale: int) -> Decimal:
    """To ``scale`` digits after the point (negative: before it), halves away from zero."""
    if not value.is_finite():
        return value
    result = value.quantize(Decimal((0, (1,), -scale)), context=_CONTEXT)
    return without_exponent(result)


def truncated(value: Decimal, scale: int) -> Decimal:
    """The same, towards zero."""
    if not value.is_finite():
        return value
    result = value.quantize(Decimal((0, (1,), -scale)), rounding=decimal.ROUND_DOWN, context=_CONTEXT)
    return without_exponent(result)


def without_exponent(value: Decimal) -> Decimal:
    """Without a positive exponent, which no display scale is."""
    exponent = value.as_tuple().exponent
    return (
        value.quantize(Decimal(1), context=_CONTEXT) if isinstance(exponent, int) and exponent > 0 else value
    )


def fitted(value: Decimal, precision: int, scale: int) -> Decimal:
    """Return the value as numeric(precision, scale) (apply_typmod).

    Args:
        precision: digits in all.

    Raises:
        EvaluationError: it has too many digits before the point.
    """
    if value.is_nan():
        return value
    if value.is_infinite():
        raise EvaluationError("numeric field overflow")
    result = rounded(value, scale)
    if result and result.adjusted() + 1 > precision - scale:
        raise EvaluationError("numeric field overflow")
    return result


def _checked(value: Decimal) -> Decimal:
    if not value.is_finite():
        return value
    if value and value.adjusted() >= _DIGITS_BEFORE_POINT_MAX:
        raise EvaluationError("value overflows numeric format")
    if not value:
        value = value.copy_abs()  # PostgreSQL has no negative zero
    return rounded(value, _SCALE_MAX) if scale_of(value) > _SCALE_MAX else value


def plus(left: Decimal, right: Decimal) -> Decimal:
    return _checked(_CONTEXT.add(left, right))


def minus(left: Decimal, right: Decimal) -> Decimal:
    return _checked(_CONTEXT.subtract(left, right))


def times(left: Decimal, right: Decimal) -> Decimal:
    return _checked(_CONTEXT.multiply(left, right))


def negated(value: Decimal) -> Decimal:
    return _checked(value.copy_negate())


def divided(left: Decimal, right: Decimal) -> Decimal:
    """The quotient.

    Raises:
        EvaluationError: by zero.
    """
    if left.is_nan() or right.is_nan():
        return NAN
    if not right:
        raise EvaluationError("division by zero")
    if left.is_infinite():
        return NAN if right.is_infinite() else left if right > 0 else left.copy_negate()
    if right.is_infinite():
        return Decimal(0)
    return _checked(_quotient(left, right, _division_scale(left, right)))


def _division_scale(left: Decimal, right: Decimal) -> int:
    """numeric.c select_div_scale."""
    weight_left, digit_left = _leading(left)
    weight_right, digit_right = _leading(right)
    weight = weight_left - weight_right - (digit_left <= digit_right)
    scale = max(_SIGNIFICANT_DIGITS_MIN - weight * 4, scale_of(left), scale_of(right), 0)
    return min(scale, _DISPLAY_SCALE_MAX)


def _leading(value: Decimal) -> tuple[int, int]:
    """Weight and value of the first digit to base 10000."""
    if not value:
        return 0, 0
    weight = value.adjusted() // 4
    return weight, int(value.copy_abs().scaleb(-4 * weight, context=_CONTEXT))


def _quotient(left: Decimal, right: Decimal, scale: int) -> Decimal:
    numerator, denominator = _integers(left, right, scale)
    whole, rest = divmod(abs(numerator), abs(denominator))
    whole += 2 * rest >= abs(denominator)
    sign = int((numerator < 0) != (denominator < 0) and whole != 0)
    return Decimal((sign, tuple(int(digit) for digit in str(whole)), -scale))


def _integers(left: Decimal, right: Decimal, scale: int) -> tuple[int, int]:
    """Two integers whose quotient is left / right * 10^scale."""
    (sign_left, digits_left, exponent_left) = left.as_tuple()
    (sign_right, digits_right, exponent_right) = right.as_tuple()
    assert isinstance(exponent_left, int)
    assert isinstance(exponent_right, int)
    shift = exponent_left - exponent_right + scale
    numerator = int("".join(map(str, digits_left))) * (-1 if sign_left else 1)
    denominator = int("".join(map(str, digits_right))) * (-1 if sign_right else 1)
    return numerator * 10 ** max(shift, 0), denominator * 10 ** max(-shift, 0)


def remainder(left: Decimal, right: Decimal) -> Decimal:
    """With the sign of the dividend.

    Raises:
        EvaluationError: by zero.
    """
    if left.is_nan() or right.is_nan():
        return NAN
    if not right:
        raise EvaluationError("division by zero")
    if left.is_infinite():
        return NAN
    if right.is_infinite():
        return left
    result = _CONTEXT.remainder(left, right)
    scale = max(scale_of(left), scale_of(right))
    return _checked(rounded(result, scale))


def integer_of(value: Decimal) -> int:
    """Rounded, halves away from zero.

    Raises:
        EvaluationError: NaN or an infinity.
    """
    if not value.is_finite():
        raise EvaluationError(f"cannot convert {'NaN' if value.is_nan() else 'infinity'} to an integer")
    return int(rounded(value, 0))


def printed(value: Decimal) -> str:
    """As PostgreSQL prints it."""
    if value.is_nan():
        return "NaN"
    if value.is_infinite():
        return "Infinity" if value > 0 else "-Infinity"
    return format(value or value.copy_abs(), "f")  # PostgreSQL has no negative zero


class _Order:
    """Orders numerics as btree does: NaN is equal to itself and larger than all else."""

    __slots__ = ("nan", "value")

    def __init__(self, value: Decimal) -> None:
        self.nan = value.is_nan()
        self.value = Decimal(0) if self.nan else value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Order) and self.nan == other.nan and self.value == other.value

    def __lt__(self, other: _Order) -> bool:
        return (not self.nan and other.nan) or (self.nan == other.nan and self.value < other.value)

    def __le__(self, other: _Order) -> bool:
        return self == other or self < other

    def __gt__(self, other: _Order) -> bool:
        return other < self

    def __ge__(self, other: _Order) -> bool:
        return other <= self

    __hash__ = None  # type: ignore[assignment]


def compare_keys(left: Array, right: Array) -> tuple[Array, Array]:
    """Both sides as objects that compare as PostgreSQL compares these numerics."""
    if any(value.is_nan() for side in (left, right) for value in side):
        return _ordered(left), _ordered(right)
    return left, right


def _ordered(values: Array) -> Array:
    keys = np.empty(len(values), object)
    keys[:] = [_Order(value) for value in values]
    return keys


def _each(work: Callable[[Decimal, Decimal], Decimal]) -> Callable[[Any, Any], Any]:
    def run(left: Any, right: Any) -> Any:
        result = np.empty(len(left), object)
        result[:] = [work(a, b) for a, b in zip(left, right, strict=True)]
        return result

    return run


NUMERIC_OPERATORS = {
    "+": _each(plus),
    "-": _each(minus),
    "*": _each(times),
    "/": _each(divided),
    "%": _each(remainder),
}
