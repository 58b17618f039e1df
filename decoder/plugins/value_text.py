"""Canonical text of the values that decoderbufs sends as numbers.

Each function prints the same text as the type's output function (timestamp.c, date.c, float.c, cash.c,
geo_ops.c) with the settings of `decoder.server.source`; the tests compare with a live server.
"""

from __future__ import annotations

import math

import numpy as np

_DAY = 86_400_000_000
_FLOAT8_DIGITS, _FLOAT4_DIGITS = 15, 6  # from this decimal exponent on, d2s.c and f2s.c print an exponent
_DAYS_0000_03_01 = 719_468  # before 1970-01-01, proleptic Gregorian
_YEARS_400 = 146_097


def date_text(days: int, *, suffix: str = "") -> str:
    """A date from days since 1970-01-01; ``suffix`` goes before the era."""
    shifted = days + _DAYS_0000_03_01
    era, of_era = divmod(shifted, _YEARS_400)
    year_of_era = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    month_from_march = (5 * of_year + 2) // 153
    day = of_year - (153 * month_from_march + 2) // 5 + 1
    month = month_from_march + 3 if month_from_march < 10 else month_from_march - 9
    year = era * 400 + year_of_era + (month <= 2)
    printed_year, bc = (year, "") if year > 0 else (1 - year, " BC")
    return f"{printed_year:04d}-{month:02d}-{day:02d}{suffix}{bc}"


def time_text(micros: int) -> str:
    """A time of day from microseconds since midnight (up to 24:00:00)."""
    seconds, fraction = divmod(micros, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + (f".{fraction:06d}".rstrip("0") if fraction else "")


def timestamp_text(micros: int, *, zone: str = "") -> str:
    """A timestamp from microseconds since 1970-01-01."""
    days, of_day = divmod(micros, _DAY)
    return date_text(days, suffix=f" {time_text(of_day)}{zone}")


def float_text(value: float, *, single: bool = False) -> str:
    """A float8, or with ``single`` a float4, with the shortest digits that give the same value again."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    number = np.float32(value) if single else np.float64(value)
    if number == 0:
        return "-0" if math.copysign(1, value) < 0 else "0"
    scientific = np.format_float_scientific(number, unique=True, trim="-", exp_digits=2)
    exponent = int(scientific.partition("e")[2])
    if -4 <= exponent < (_FLOAT4_DIGITS if single else _FLOAT8_DIGITS):
        return str(np.format_float_positional(number, unique=True, trim="-"))
    return str(scientific)


def money_text(cents: int) -> str:
    """A money value as with lc_monetary C or en_US."""
    sign = "-" if cents < 0 else ""
    return f"{sign}${abs(cents) // 100:,}.{abs(cents) % 100:02d}"
