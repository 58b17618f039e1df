"""Prints binary numbers as PostgreSQL does: integers, numeric, floating point, money.

Sources of the rules: int.c, numeric.c (numeric_send, get_str_from_var), float.c and
d2s.c/f2s.c (shortest digits), cash.c.
"""

from __future__ import annotations

import math
import struct
from fractions import Fraction

import numpy as np

from slotlake.decoder.types.binary.reading import too_short
from slotlake.decoder.types.shortest import laid_out, nearest_digits
from slotlake.decoder.types.text_error import TextError

_NUMERIC_HEADER = struct.Struct(">HhHH")
_POSITIVE, _NEGATIVE = 0x0000, 0x4000
_SPECIAL = {0xC000: "NaN", 0xD000: "Infinity", 0xF000: "-Infinity"}
_SCALE_MAX = 0x3FFF
_INTEGERS = {(size, signed): struct.Struct(">" + code) for size, signed, code in (
    (2, True, "h"), (4, True, "i"), (4, False, "I"), (8, True, "q"), (8, False, "Q"),
)}  # fmt: skip
_MONEY_LOCALES = {"C", "POSIX"}


def integer(data: bytes, size: int, signed: bool) -> str:
    """Return the text of a whole number.

    Args:
        size: its number of bytes: 2, 4 or 8.

    Raises:
        TextError: the value has another length.
    """
    if len(data) != size:
        raise TextError("a binary integer with another length than its type's")
    return str(_INTEGERS[size, signed].unpack(data)[0])


def boolean(data: bytes) -> str:
    """``t`` or ``f``.

    Raises:
        TextError: the value is neither 0 nor 1.
    """
    if data == b"\x01":
        return "t"
    if data == b"\x00":
        return "f"
    raise TextError("a binary value that is not a valid boolean")


def numeric(data: bytes) -> str:
    """Base-10000 digits to decimal digits, ``dscale`` of them after the point.

    Raises:
        TextError: the bytes are not a numeric.
    """
    if len(data) < 8:
        raise too_short()
    count, weight, sign, scale = _NUMERIC_HEADER.unpack_from(data)
    if len(data) != 8 + 2 * count:
        raise TextError("a binary numeric whose digit count does not match its length")
    if sign in _SPECIAL and count == 0:
        return _SPECIAL[sign]
    if sign not in {_POSITIVE, _NEGATIVE} or scale > _SCALE_MAX:
        raise TextError("a binary numeric with an unknown sign or scale")
    groups = struct.unpack_from(f">{count}H", data, 8)
    if count and max(groups) > 9999:
        raise TextError("a binary numeric with a digit above 9999")
    digits = "".join(map("%04d".__mod__, groups))
    whole_digits = 4 * (weight + 1)
    whole = digits[:whole_digits].ljust(whole_digits, "0") if whole_digits > 0 else ""
    fraction = digits[whole_digits:] if whole_digits > 0 else "0" * -whole_digits + digits
    if fraction[scale:].strip("0"):
        raise TextError("a binary numeric with more digits than its scale")
    whole, fraction = whole.lstrip("0") or "0", fraction[:scale].ljust(scale, "0")
    if sign == _NEGATIVE and not digits.strip("0"):
        raise TextError("a binary numeric that is a negative zero")
    return ("-" if sign == _NEGATIVE else "") + whole + ("." + fraction if scale else "")


def float4(data: bytes) -> str:
    """Return the text of a number of single precision.

    Raises:
        TextError: the value does not have 4 bytes.
    """
    if len(data) != 4:
        raise TextError("a binary real that does not have 4 bytes")
    return float4_text(struct.unpack(">f", data)[0])


def float8(data: bytes) -> str:
    """Return the text of a number of double precision.

    Raises:
        TextError: the value does not have 8 bytes.
    """
    if len(data) != 8:
        raise TextError("a binary double precision that does not have 8 bytes")
    return float8_text(struct.unpack(">d", data)[0])


def float8_text(value: float) -> str:
    """Shortest digits that give the same value again, in PostgreSQL's notation."""
    return _special(value) or _printed(value, repr(value), 53, 15, 2.0**50)


def float4_text(value: float) -> str:
    """`float8_text` for a single-precision value."""
    if special := _special(value):
        return special
    return _printed(value, np.format_float_scientific(np.float32(value), unique=True), 24, 6, 2.0**20)


def _special(value: float) -> str:
    if math.isfinite(value):
        return ""
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"  # noqa: PLR0124


def _printed(value: float, shortest: str, bits: int, fixed_below: int, halves_from: float) -> str:
    mantissa, _, exponent = shortest.lstrip("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    power = int(exponent or 0) - len(fraction)
    # From this size on, a short decimal can be exactly half-way to the next value; see `nearest_digits`.
    if abs(value) >= halves_from and _is_half_way(value, digits, power, bits):
        digits, power = nearest_digits(abs(value), bits)
    return ("-" if math.copysign(1.0, value) < 0 else "") + laid_out(digits, power, fixed_below)


def _is_half_way(value: float, digits: str, power: int, bits: int) -> bool:
    exact = Fraction(abs(value))
    ulp = Fraction(2) ** (math.frexp(value)[1] - bits)
    return abs(Fraction(int(digits)) * Fraction(10) ** power - exact) * 2 == ulp


def money(data: bytes, locale: str) -> str:
    """Cents as the C locale prints money; only the server knows how another locale prints it.

    Raises:
        TextError: the value does not have 8 bytes, or the locale is another one than C and POSIX.
    """
    if len(data) != 8:
        raise TextError("a binary money that does not have 8 bytes")
    if reason := money_withheld(locale):
        raise TextError(f"a binary value of type money ({reason}); it can only be read as text")
    cents = int.from_bytes(data, "big", signed=True)
    return f"{'-' if cents < 0 else ''}${abs(cents) // 100:,}.{abs(cents) % 100:02d}"


def money_withheld(locale: str) -> str:
    """Why money cannot be printed, or ""."""
    if locale in _MONEY_LOCALES:
        return ""
    return "its text depends on the server's lc_monetary, and slotlake knows it for C and POSIX only"
