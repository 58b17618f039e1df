"""Prints binary dates, times and intervals as PostgreSQL does with ISO, postgres, UTC.

Sources of the rules: date.c, timestamp.c, datetime.c (EncodeDateOnly, EncodeDateTime, EncodeTimezone,
EncodeInterval).  Days and microseconds count from 2000-01-01; the smallest and the largest number of a
type are its infinities.
"""

from __future__ import annotations

import struct

from slotlake.decoder.types.text_error import TextError

EPOCH_DAYS = 10_957  # from 1970-01-01 to 2000-01-01
DATE_MIN, DATE_END = -2_451_545, 2_147_483_494 - 2_451_545  # 4714-11-24 BC; 5874898-01-01
# 4714-11-24 BC; 294277-01-01: no text says it, but timestamp(0) rounds up to it (AdjustTimestampForTypmod).
MOMENT_MIN, MOMENT_MAX = -211_813_488_000_000_000, 9_223_371_331_200_000_000
DAY = 86_400_000_000  # microseconds
_ZONE_SECONDS_END = 16 * 3600  # timestamp.h TZDISP_LIMIT
_I32_MAX, _I64_MAX = 2**31 - 1, 2**63 - 1


def date(data: bytes) -> str:
    """``YYYY-MM-DD``, with BC for years before Christ."""
    return date_text(_number(data, 4, "date"))


def timestamp(data: bytes) -> str:
    """Date and time."""
    return moment_text(_number(data, 8, "timestamp"), "")


def timestamptz(data: bytes) -> str:
    """Date and time in UTC."""
    return moment_text(_number(data, 8, "timestamptz"), "+00")


def time(data: bytes) -> str:
    """``HH:MM:SS.f``; the day may end at 24:00:00."""
    return _clock(_number(data, 8, "time"))


def timetz(data: bytes) -> str:
    """A time and its zone, stored as seconds west of Greenwich.

    Raises:
        TextError: the bytes are not a time with a zone.
    """
    if len(data) != 12:
        raise TextError("a binary timetz that does not have 12 bytes")
    microseconds, west = struct.unpack(">qi", data)
    if not -_ZONE_SECONDS_END < west < _ZONE_SECONDS_END:
        raise TextError("a binary timetz with a zone out of range")
    minutes, seconds = divmod(abs(west), 60)
    hours, minutes = divmod(minutes, 60)
    zone = f"{'-' if west > 0 else '+'}{hours:02d}"
    if minutes or seconds:
        zone += f":{minutes:02d}"
    return _clock(microseconds) + zone + (f":{seconds:02d}" if seconds else "")


def interval(data: bytes) -> str:
    """Years, months, days and a time, each with its sign; the extremes of all three are infinity (17+).

    Raises:
        TextError: the bytes are not an interval.
    """
    if len(data) != 16:
        raise TextError("a binary interval that does not have 16 bytes")
    return interval_text(*struct.unpack(">qii", data))


def interval_text(microseconds: int, days: int, months: int) -> str:
    """Return the text of an interval: years, months, days and a time, each with its sign."""
    if (microseconds, days, months) == (_I64_MAX, _I32_MAX, _I32_MAX):
        return "infinity"
    if (microseconds, days, months) == (-_I64_MAX - 1, -_I32_MAX - 1, -_I32_MAX - 1):
        return "-infinity"
    sign = -1 if months < 0 else 1
    parts: list[str] = []
    before = False  # the part before is negative: then a positive one shows its sign
    for value, unit in (
        (sign * (abs(months) // 12), "year"),
        (sign * (abs(months) % 12), "mon"),
        (days, "day"),
    ):
        if value:
            parts.append(f"{'+' if before and value > 0 else ''}{value} {unit}{'' if value == 1 else 's'}")
            before = value < 0
    if microseconds or not parts:
        parts.append(("-" if microseconds < 0 else "+" if before else "") + duration_text(abs(microseconds)))
    return " ".join(parts)


def date_text(days: int) -> str:
    """Return the text of a date.

    Raises:
        TextError: the number is out of PostgreSQL's range.
    """
    if days == -_I32_MAX - 1:
        return "-infinity"
    if days == _I32_MAX:
        return "infinity"
    if not DATE_MIN <= days < DATE_END:
        raise TextError("a binary date out of range")
    text, era = _day(days)
    return text + era


def moment_text(microseconds: int, zone: str) -> str:
    """Return the text of a timestamp.

    Raises:
        TextError: the number is out of PostgreSQL's range.
    """
    if microseconds == -_I64_MAX - 1:
        return "-infinity"
    if microseconds == _I64_MAX:
        return "infinity"
    if not MOMENT_MIN <= microseconds <= MOMENT_MAX:
        raise TextError("a binary timestamp out of range")
    text, era = _day(microseconds // DAY)
    return f"{text} {duration_text(microseconds % DAY)}{zone}{era}"


def _number(data: bytes, size: int, name: str) -> int:
    if len(data) != size:
        raise TextError(f"a binary {name} that does not have {size} bytes")
    return int.from_bytes(data, "big", signed=True)


def _clock(microseconds: int) -> str:
    if not 0 <= microseconds <= DAY:
        raise TextError("a binary time out of range")
    return duration_text(microseconds)


def duration_text(microseconds: int) -> str:
    """Return ``HH:MM:SS``, and the fraction without its trailing zeros."""
    seconds, fraction = divmod(microseconds, 1_000_000)
    text = f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return text + "." + f"{fraction:06d}".rstrip("0") if fraction else text


def _day(days: int) -> tuple[str, str]:
    """A day since 2000-01-01 in the proleptic Gregorian calendar: its date, and " BC" or ""."""
    era, day_of_era = divmod(days + EPOCH_DAYS + 719_468, 146_097)
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36_524 - day_of_era // 146_096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (month <= 2)
    text = (
        f"{year if year > 0 else 1 - year:04d}-{month:02d}-{day_of_year - (153 * shifted + 2) // 5 + 1:02d}"
    )
    return text, "" if year > 0 else " BC"
