"""Compiled readers of the text of dates and timestamps; `text_kernels` reads other values.

The usual text, with a year of four digits, is read eight bytes at a time; all other texts of PostgreSQL
(infinity, BC, years after 9999) letter by letter.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, Unsigned, compiled, inlined, signed, unsigned
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.compiled.words import digits_only, eight_digits, first_digits, word_at, zeroed
from slotlake.decoder.types.text_kernels import BAD, EXACT, OK, is_word

DATE, TIMESTAMP, TIMESTAMPTZ = 0, 1, 2
_MICROSECONDS_PER_DAY = 86_400_000_000
_NO_DAY, _NO_MOMENT = -(2**40), -(2**63)  # numbers that are not a day or a timestamp
_YEAR_MAX = 5_874_897  # PostgreSQL's last year (datatype/timestamp.h)


@inlined
def _two(data: Bytes, p: int) -> int:
    """Two digits at p, or -1."""
    tens, ones = signed(data[p]) - 48, signed(data[p + 1]) - 48
    if tens < 0 or tens > 9 or ones < 0 or ones > 9:
        return -1
    return tens * 10 + ones


@inlined
def _days_from_civil(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a proleptic Gregorian date with year >= 1."""
    y = year - 1 if month <= 2 else year
    era = y // 400
    year_of_era = y - era * 400
    day_of_year = (153 * (month - 3 if month > 2 else month + 9) + 2) // 5 + day - 1
    return era * 146097 + year_of_era * 365 + year_of_era // 4 - year_of_era // 100 + day_of_year - 719468


@inlined
def _days_in_month(year: int, month: int) -> int:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31  # noqa: PLR1714


@inlined
def _time(data: Bytes, p: int, end: int) -> tuple[int, int]:
    """``HH:MM:SS[.f]`` at p as (microseconds, next position), or (-1, p)."""
    if end - p < 8 or data[p + 2] != 58 or data[p + 5] != 58:
        return -1, p
    hour, minute, second = _two(data, p), _two(data, p + 3), _two(data, p + 6)
    if hour < 0 or hour > 23 or minute < 0 or minute > 59 or second < 0 or second > 59:
        return -1, p
    p += 8
    microseconds = 0
    if p < end and data[p] == 46:
        p += 1
        unit = 100_000
        first = p
        while p < end and 48 <= data[p] <= 57:
            microseconds += (signed(data[p]) - 48) * unit
            unit //= 10
            p += 1
        if p == first or p - first > 6:
            return -1, p
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + microseconds, p


@inlined
def _moment(data: Bytes, p: int, end: int, form: int) -> tuple[int, int]:  # noqa: C901, PLR0911
    """One date or timestamp: (state, days or microseconds since 1970)."""
    nothing = signed(0)
    if is_word(data, p, end, b"infinity") or is_word(data, p, end, b"-infinity"):
        return EXACT, nothing
    first = p
    year = signed(0)
    while p < end and p - first < 7 and 48 <= data[p] <= 57:
        year = year * 10 + (signed(data[p]) - 48)
        p += 1
    if p - first < 4 or year < 1 or year > _YEAR_MAX or end - p < 6 or data[p] != 45 or data[p + 3] != 45:
        return BAD, nothing
    month, day = _two(data, p + 1), _two(data, p + 4)
    p += 6
    if month < 1 or month > 12 or day < 1:
        return BAD, nothing
    time = signed(0)
    if form != DATE:
        if p >= end or data[p] != 32:
            return BAD, nothing
        time, p = _time(data, p + 1, end)
        if time < 0:
            return BAD, nothing
    if form == TIMESTAMPTZ:
        if end - p < 3 or data[p] != 43 or data[p + 1] != 48 or data[p + 2] != 48:
            return BAD, nothing
        p += 3
    before_christ = p < end
    if before_christ and not is_word(data, p, end, b" BC"):
        return BAD, nothing
    if day > _days_in_month(1 - year if before_christ else year, month):
        return BAD, nothing
    if before_christ or year > 9999:
        return EXACT, nothing
    days = signed(_days_from_civil(year, month, day))
    return OK, days if form == DATE else days * _MICROSECONDS_PER_DAY + time


@inlined
def _pairs(word: int, mask: int) -> int:
    """Each byte and the next one as a two-digit number; the bytes of the mask, signs, count as zero."""
    digits = word & ~mask & unsigned(0x0F0F0F0F0F0F0F0F)
    return digits * unsigned(10) + (digits >> unsigned(8))


@inlined
def _usual_time(data: Bytes, p: int, end: int) -> int:
    """``HH:MM:SS[.f]`` from p to the end as microseconds, or -1; 8 bytes from p + 9 on can be read."""
    word, colons = word_at(data, p), unsigned(0x0000FF0000FF0000)
    if word & colons != unsigned(0x00003A00003A0000) or not digits_only(zeroed(word, colons)):
        return -1
    pairs = _pairs(word, colons)
    hour, minute = pairs & unsigned(0xFF), (pairs >> unsigned(24)) & unsigned(0xFF)
    second = (pairs >> unsigned(48)) & unsigned(0xFF)
    if hour > unsigned(23) or minute > unsigned(59) or second > unsigned(59):
        return -1
    micros = unsigned(0)
    if end - p > 8:
        if data[p + 8] != 46 or end - p < 10 or end - p > 15:
            return -1
        word = first_digits(word_at(data, p + 9), end - p - 9)
        if not digits_only(word):
            return -1
        micros = eight_digits(word) // unsigned(100)
    seconds = (hour * unsigned(60) + minute) * unsigned(60) + second
    return signed(seconds * unsigned(1_000_000) + micros)


@inlined
def _usual_day(word: int, day: int) -> int:
    """``YYYY-MM-`` in one word and a day of the month as days since 1970, or _NO_DAY."""
    dashes = unsigned(0xFF0000FF00000000)
    pairs = _pairs(word, dashes)
    year = signed((pairs & unsigned(0xFF)) * unsigned(100) + ((pairs >> unsigned(16)) & unsigned(0xFF)))
    month = signed((pairs >> unsigned(40)) & unsigned(0xFF))
    signs = word & dashes == unsigned(0x2D00002D00000000) and digits_only(zeroed(word, dashes))
    if not signs or year < 1 or month < 1 or month > 12 or day < 1 or day > _days_in_month(year, month):
        return _NO_DAY
    return _days_from_civil(year, month, day)


@inlined
def _usual_moment(data: Bytes, size: int, p: int, end: int, form: int, last_day: Unsigned, day: int) -> int:
    """A timestamp with a year of four digits as microseconds, or _NO_MOMENT.

    The four numbers of ``last_day`` from ``day`` on store the day that was read last.
    """
    if form == TIMESTAMPTZ:
        if end - p < 22 or data[end - 3] != 43 or data[end - 2] != 48 or data[end - 1] != 48:
            return _NO_MOMENT
        end -= 3
    if end - p < 19 or p + 28 > size or data[p + 10] != 32:
        return _NO_MOMENT
    time = _usual_time(data, p + 11, end)
    if time < 0:
        return _NO_MOMENT
    word, tens, ones = word_at(data, p), unsigned(data[p + 8]), unsigned(data[p + 9])
    if word != last_day[day] or tens != last_day[day + 1] or ones != last_day[day + 2]:
        days = _usual_day(word, _two(data, p + 8))
        if days == _NO_DAY:
            return _NO_MOMENT
        last_day[day], last_day[day + 1], last_day[day + 2], last_day[day + 3] = (
            word,
            tens,
            ones,
            unsigned(days),
        )
    return signed(last_day[day + 3]) * _MICROSECONDS_PER_DAY + time


@inlined
def moment_at(
    data: Bytes, size: int, p: int, end: int, form: int, last_day: Unsigned, day: int
) -> tuple[int, int]:
    """Read one date or timestamp: (state, days or microseconds since 1970).

    Args:
        data: uint8[size], or its memory.
        p, end: the span of the text.
        form: DATE, TIMESTAMP or TIMESTAMPTZ.
        last_day, day: uint64[at least day + 4]: from ``day`` on, the day that was read last.
    """
    if form != DATE:
        usual = _usual_moment(data, size, p, end, form, last_day, day)
        if usual != _NO_MOMENT:
            return OK, usual
    elif end - p == 10:
        days = signed(_usual_day(word_at(data, p), _two(data, p + 8)))
        if days != _NO_DAY:
            return OK, days
    return _moment(data, p, end, form)


@inlined
def _moments(  # noqa: PLR0913, PLR0917
    data: Bytes, size: int, start: Ints, length: Lengths, count: int, form: int,
    out: Ints, valid: Bytes, exact: Bytes, last_day: Unsigned,
) -> int:  # fmt: skip
    """`parse_moment` over bare memory."""
    for i in range(count):
        valid[i] = exact[i] = out[i] = 0
        if length[i] < 0:
            continue
        state, value = moment_at(data, size, start[i], start[i] + length[i], form, last_day, 0)
        if state == BAD:
            return i
        out[i] = value
        valid[i] = 1 if state == OK else 0
        exact[i] = 1 if state == EXACT else 0
    return -1


@compiled
def parse_moment(
    data: Bytes, start: Ints, length: Lengths, form: int, out: Ints, valid: Bytes, exact: Bytes
) -> int:
    """Read dates (days) or timestamps (microseconds), both since 1970-01-01; the first bad row, or -1.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each text lies; a negative length: no
            value.
        form: DATE, TIMESTAMP or TIMESTAMPTZ.
        out, valid, exact: int64[n], uint8[n], uint8[n], filled in; ``exact``: right, but it does not fit.
    """
    last_day = np.zeros(4, dtype=np.uint64)
    bad = _moments(
        bare(data), len(data), bare(start), bare(length), len(length), form, bare(out), bare(valid),
        bare(exact), bare(last_day),
    )  # fmt: skip
    last_day[0] = 0  # numba frees an array after its last use
    return bad
