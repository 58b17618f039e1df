"""Compiled readers of value text.  Each returns the row of the first bad value, or -1.

Inputs are `types_slices.Slices` taken apart; a negative length is "no value" and is left invalid.
Nothing here reads outside ``start .. start+length``.
"""

from __future__ import annotations

import numpy as np

from decoder.compiled import Bytes, Ints, Lengths, Unsigned, compiled, inlined, signed, unsigned
from decoder.words import digits_only, eight_digits, first_digits, last_digits, word_at, zeroed

DATE, TIMESTAMP, TIMESTAMPTZ = 0, 1, 2
OK, EXACT, BAD = 0, 1, 2

_MICROSECONDS_PER_DAY = 86_400_000_000
_NO_DAY, _NO_MOMENT = -(2**40), -(2**63)  # no day of any calendar, no timestamp
_YEAR_MAX = 5_874_897  # PostgreSQL's last year (datatype/timestamp.h)
_SPLIT = unsigned(10_000_000_000_000_000_000)  # 10**19: a decimal is high * 10**19 + low


@compiled
def parse_bool(data: Bytes, start: Ints, length: Lengths, out: Bytes, valid: Bytes) -> int:
    """``t``/``f`` to 1/0."""
    for i in range(len(length)):
        valid[i] = out[i] = 0
        if length[i] < 0:
            continue
        letter = data[start[i]] if length[i] == 1 else 0
        if letter != 116 and letter != 102:  # noqa: PLR1714 - numba compares numbers, not sets
            return i
        out[i] = 1 if letter == 116 else 0
        valid[i] = 1
    return -1


@compiled
def parse_int(data: Bytes, start: Ints, length: Lengths, limit: int, out: Ints, valid: Bytes) -> int:
    """Decimal integers in [-limit-1, limit]."""
    for i in range(len(length)):
        valid[i] = out[i] = 0
        if length[i] < 0:
            continue
        p, end = start[i], start[i] + length[i]
        negative = p < end and data[p] == 45
        if negative:
            p += 1
        if p == end or end - p > 19:
            return i
        magnitude = unsigned(0)
        if end - p <= 8 and end >= 8:
            word = last_digits(word_at(data, end - 8), end - p)
            if not digits_only(word):
                return i
            magnitude = eight_digits(word)
            p = end
        while p < end:
            digit = unsigned(data[p]) - unsigned(48)
            if digit > unsigned(9):
                return i
            magnitude = magnitude * unsigned(10) + digit
            p += 1
        if magnitude > limit + unsigned(1 if negative else 0):
            return i
        value = signed(magnitude)
        out[i] = -value if negative else value
        valid[i] = 1
    return -1


@inlined
def _is_word(data: Bytes, p: int, end: int, word: bytes) -> bool:
    if end - p != len(word):
        return False
    for i in range(len(word)):  # noqa: SIM110 - numba has no all()
        if data[p + i] != word[i]:
            return False
    return True


@inlined
def _wide_multiply_add(high: int, low: int) -> tuple[int, int]:
    """The two 64-bit words (low, high) of ``high * 10**19 + low``."""
    mask = unsigned(0xFFFFFFFF)
    shift = unsigned(32)
    a0, a1 = high & mask, high >> shift
    b0, b1 = _SPLIT & mask, _SPLIT >> shift
    cross = a1 * b0 + ((a0 * b0) >> shift)
    middle = (cross & mask) + a0 * b1
    product_low = (middle << shift) | ((a0 * b0) & mask)
    product_high = a1 * b1 + (cross >> shift) + (middle >> shift)
    total = product_low + low
    carry = unsigned(1) if total < low else unsigned(0)
    return total, product_high + carry


@inlined
def _decimal(data: Bytes, p: int, end: int, precision: int, scale: int, words: Unsigned) -> int:  # noqa: C901, PLR0912
    """One numeric into two words; OK, EXACT when it is right but does not fit, or BAD."""
    if _is_word(data, p, end, b"NaN"):
        return EXACT
    negative = p < end and data[p] == 45
    if negative:
        p += 1
    if _is_word(data, p, end, b"Infinity"):
        return EXACT
    high = low = unsigned(0)
    significant = whole = fraction = 0
    point = False
    while p < end:
        letter = data[p]
        p += 1
        if letter == 46 and not point and whole > 0 and p < end:
            point = True
            continue
        digit = unsigned(letter) - unsigned(48)
        if digit > unsigned(9):
            return BAD
        if point:
            fraction += 1
        else:
            whole += 1
        if significant == 0 and digit == unsigned(0):
            continue
        significant += 1
        if significant > 38:
            continue
        # Digits are collected in `low`; from the 20th on, its leading digit moves up to `high`.
        if significant > 19:
            high = high * unsigned(10) + low // unsigned(1_000_000_000_000_000_000)
            low = low % unsigned(1_000_000_000_000_000_000)
        low = low * unsigned(10) + digit
    if whole == 0:
        return BAD
    if significant > precision or fraction != scale or (negative and significant == 0):
        return EXACT
    first, second = _wide_multiply_add(high, low)
    if negative:
        first = ~first + unsigned(1)
        second = ~second + (unsigned(1) if first == unsigned(0) else unsigned(0))
    words[0] = first
    words[1] = second
    return OK


@inlined
def _short_decimal(data: Bytes, p: int, end: int, precision: int, scale: int, tens: Ints) -> int:
    """A numeric of the usual form, up to 8 digits before the point and 8 behind it; -1: not of that form."""
    point = end - 1 - scale if scale > 0 else end
    if point - p < 1 or point - p > 8 or scale > 8 or point < 8:
        return -1
    word = last_digits(word_at(data, point - 8), point - p)
    if not digits_only(word):
        return -1
    value = signed(eight_digits(word))
    if scale > 0:
        word = last_digits(word_at(data, end - 8), scale)
        if data[point] != 46 or not digits_only(word):
            return -1
        value = value * tens[scale] + signed(eight_digits(word))
    return value if precision >= 18 or value < tens[precision] else -1


@compiled
def parse_decimal(
    data: Bytes, start: Ints, length: Lengths, precision: int, scale: int,
    out: Unsigned, valid: Bytes, exact: Bytes,
) -> int:  # fmt: skip
    """Numerics to 128-bit two's complement, low word first (``out`` is n x 2)."""
    tens = np.ones(19, dtype=np.int64)
    for i in range(1, 19):
        tens[i] = tens[i - 1] * 10
    for i in range(len(length)):
        valid[i] = exact[i] = out[i, 0] = out[i, 1] = 0
        if length[i] < 0:
            continue
        p, end = start[i], start[i] + length[i]
        negative = p < end and data[p] == 45
        value = _short_decimal(data, p + 1 if negative else p, end, precision, scale, tens)
        if value > 0 or (value == 0 and not negative):
            out[i, 0] = unsigned(-value if negative else value)
            out[i, 1] = ~unsigned(0) if negative else unsigned(0)
            valid[i] = 1
            continue
        state = _decimal(data, start[i], start[i] + length[i], precision, scale, out[i])
        if state == BAD:
            return i
        valid[i] = 1 if state == OK else 0
        exact[i] = 1 if state == EXACT else 0
    return -1


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
    if _is_word(data, p, end, b"infinity") or _is_word(data, p, end, b"-infinity"):
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
    if before_christ and not _is_word(data, p, end, b" BC"):
        return BAD, nothing
    if day > _days_in_month(1 - year if before_christ else year, month):
        return BAD, nothing
    if before_christ or year > 9999:
        return EXACT, nothing
    days = signed(_days_from_civil(year, month, day))
    return OK, days if form == DATE else days * _MICROSECONDS_PER_DAY + time


@inlined
def _pairs(word: int, marks: int) -> int:
    """Each byte and the next one as a two-digit number; the marked bytes, known to be signs, count zero."""
    digits = word & ~marks & unsigned(0x0F0F0F0F0F0F0F0F)
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
def _usual_moment(data: Bytes, p: int, end: int, form: int, known: Unsigned) -> int:
    """A timestamp of four digits' year as microseconds, or _NO_MOMENT; ``known`` keeps the day seen last."""
    if form == TIMESTAMPTZ:
        if end - p < 22 or data[end - 3] != 43 or data[end - 2] != 48 or data[end - 1] != 48:
            return _NO_MOMENT
        end -= 3
    if end - p < 19 or p + 28 > len(data) or data[p + 10] != 32:
        return _NO_MOMENT
    time = _usual_time(data, p + 11, end)
    if time < 0:
        return _NO_MOMENT
    word, tens, ones = word_at(data, p), unsigned(data[p + 8]), unsigned(data[p + 9])
    if word != known[0] or tens != known[1] or ones != known[2]:
        days = _usual_day(word, _two(data, p + 8))
        if days == _NO_DAY:
            return _NO_MOMENT
        known[0], known[1], known[2], known[3] = word, tens, ones, unsigned(days)
    return signed(known[3]) * _MICROSECONDS_PER_DAY + time


@compiled
def parse_moment(
    data: Bytes, start: Ints, length: Lengths, form: int, out: Ints, valid: Bytes, exact: Bytes
) -> int:
    """Dates (days) or timestamps (microseconds), both since 1970-01-01."""
    known = np.zeros(4, dtype=np.uint64)
    for i in range(len(length)):
        valid[i] = exact[i] = out[i] = 0
        if length[i] < 0:
            continue
        if form != DATE:
            usual = _usual_moment(data, start[i], start[i] + length[i], form, known)
            if usual != _NO_MOMENT:
                out[i] = usual
                valid[i] = 1
                continue
        state, value = _moment(data, start[i], start[i] + length[i], form)
        if state == BAD:
            return i
        out[i] = value
        valid[i] = 1 if state == OK else 0
        exact[i] = 1 if state == EXACT else 0
    return -1


@inlined
def _nibble(letter: int) -> int:
    if 48 <= letter <= 57:
        return letter - 48
    if 97 <= letter <= 102:
        return letter - 87
    return -1


@compiled
def parse_hex(data: Bytes, start: Ints, length: Lengths, offsets: Ints, out: Bytes) -> int:
    """``\\x…`` to bytes; ``offsets`` (n+1) already follow from the lengths."""
    for i in range(len(length)):
        if length[i] < 0:
            continue
        p = start[i]
        if length[i] < 2 or length[i] % 2 != 0 or data[p] != 92 or data[p + 1] != 120:
            return i
        p += 2
        for j in range(offsets[i], offsets[i + 1]):
            high, low = _nibble(signed(data[p])), _nibble(signed(data[p + 1]))
            if high < 0 or low < 0:
                return i
            out[j] = high * 16 + low
            p += 2
    return -1
