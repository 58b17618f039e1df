"""The digits of a floating-point number and their layout, as PostgreSQL prints them, in plain Python."""

from __future__ import annotations

from fractions import Fraction
from math import floor, log10


def nearest_digits(value: float, bits: int) -> tuple[str, int]:
    """Shortest digits strictly inside the interval that rounds to the value, and the last one's power of ten.

    It uses exact arithmetic.  It is only for positive normal numbers that are not powers of two: at a power
    of two there is no such decimal at the midpoint.

    Raises:
        AssertionError: never; 17 digits distinguish any two doubles.
    """
    exact = Fraction(value)
    ulp = Fraction(2) ** (exact.numerator.bit_length() - exact.denominator.bit_length())
    ulp = (ulp if ulp <= exact else ulp / 2) / 2 ** (bits - 1)
    exponent = floor(log10(value))
    for digits in range(1, 18):
        unit = Fraction(10) ** (exponent - digits + 1)
        below = floor(exact / unit)
        inside = [n for n in (below, below + 1) if abs(n * unit - exact) < ulp / 2]
        if inside:
            best = min(inside, key=lambda n: abs(n * unit - exact))
            return str(best), exponent - digits + 1
    raise AssertionError("17 digits distinguish any two doubles")


def laid_out(digits: str, power: int, fixed_below: int) -> str:
    """Return ``digits`` times ten to the ``power`` in the server's notation.

    Args:
        digits: decimal digits without sign and point.
        power: of ten, of the last digit.
        fixed_below: fixed notation when -4 <= exponent < this, else scientific.
    """
    significant = digits.rstrip("0")
    if not significant:
        return "0"
    whole = len(digits) + power  # digits before the point; zero or negative: leading zeros after it
    if not -4 <= whole - 1 < fixed_below:
        fraction = "." + significant[1:] if len(significant) > 1 else ""
        return f"{significant[0]}{fraction}e{whole - 1:+03d}"
    if whole <= 0:
        return "0." + "0" * -whole + significant
    fraction = significant[whole:]
    return significant[:whole].ljust(whole, "0") + ("." + fraction if fraction else "")
