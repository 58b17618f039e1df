"""Compiled writers of the text of binary times, intervals, arrays and ranges.

Each goes over n values, writes the texts back to back into ``out``, and the begin of each text into
``offsets`` (n+1).  The caller computes the size of ``out`` from the constants here.  Invariant: nothing is
read outside ``start .. start+length``, and only certain texts are written; any other value gets no text and a
flag in ``odd``: `values.binary_text` prints or refuses it.
"""

from __future__ import annotations

from slotlake.decoder.compiled.jit import (
    Bytes,
    Ints,
    Lengths,
    compiled,
    inlined,
    read_int64,
    read_uint16,
    read_uint32,
    signed,
    unsigned,
)
from slotlake.decoder.types.printing_kernels import put_date, put_digits, put_time

TIME, TIMETZ, INTERVAL = range(3)
INT2, INT4, INT8, TEXT = 2, 4, 8, 0  # kinds of an array's elements
DATE, MOMENT, MOMENT_UTC = 1, 3, 5  # kinds of a range's bounds, in addition to the integers
CLOCK_BYTES_MAX = 96  # -178956970 years -11 mons -2147483648 days -2562047788:00:54.775808
RANGE_BYTES_MAX = 72  # ["0001-01-01 00:00:00.000000+00","0001-01-01 00:00:00.000000+00")
ARRAY_BYTES_EACH, ARRAY_BYTES_MORE = 2, 8  # per byte and per value: each letter of an element may be escaped

_NULL = b"NULL"
_EMPTY = b"empty"
_DAY = 86_400_000_000
_EPOCH_DAYS = 10_957  # from 1970-01-01 to 2000-01-01
_FIRST_DAY, _LAST_DAY = -730_119, 2_921_939  # 0001-01-01 and 9999-12-31, from 2000-01-01
_ZONE_SECONDS_END = 16 * 3600
_EMPTY_FLAG, _LOWER_IN, _UPPER_IN, _NO_LOWER, _NO_UPPER = 1, 2, 4, 8, 16


@inlined
def _put_word(out: Bytes, at: int, word: bytes) -> int:
    for letter in word:
        out[at] = letter
        at += 1
    return at


@inlined
def _put_number(out: Bytes, at: int, value: int) -> int:
    """Write a signed integer without leading zeros."""
    rest = unsigned(value)
    if value < 0:
        out[at] = 45
        at += 1
        rest = unsigned(0) - rest
    digits, upto = 1, unsigned(10)
    while digits < 19 and rest >= upto:
        digits += 1
        upto *= unsigned(10)
    for i in range(digits):
        out[at + digits - 1 - i] = unsigned(48) + rest % unsigned(10)
        rest //= unsigned(10)
    return at + digits


@inlined
def _signed4(data: Bytes, p: int) -> int:
    value = read_uint32(data, p)
    return value - (1 << 32) if value >= 1 << 31 else value


@inlined
def _put_zone(out: Bytes, at: int, west: int) -> int:
    out[at] = 45 if west > 0 else 43
    seconds = abs(west)
    at = put_digits(out, at + 1, seconds // 3600, 2)
    if seconds % 3600 != 0:
        out[at] = 58
        at = put_digits(out, at + 1, seconds // 60 % 60, 2)
    if seconds % 60 != 0:
        out[at] = 58
        at = put_digits(out, at + 1, seconds % 60, 2)
    return at


@inlined
def _put_part(out: Bytes, at: int, first: int, value: int, before: bool, unit: bytes) -> int:
    """Write a part of an interval, after the parts that begin at ``first``."""
    if at > first:
        out[at] = 32
        at += 1
    if before and value > 0:
        out[at] = 43
        at += 1
    at = _put_number(out, at, value)
    at = _put_word(out, at, unit)
    if value != 1:
        out[at] = 115
        at += 1
    return at


@inlined
def _put_interval(out: Bytes, at: int, microseconds: int, days: int, months: int) -> int:
    """As EncodeInterval with INTSTYLE_POSTGRES: a part after a negative one has a sign."""
    first, before = at, False
    sign = -1 if months < 0 else 1
    years, months = sign * (abs(months) // 12), sign * (abs(months) % 12)
    if years != 0:
        at, before = _put_part(out, at, first, years, before, b" year"), years < 0
    if months != 0:
        at, before = _put_part(out, at, first, months, before, b" mon"), months < 0
    if days != 0:
        at, before = _put_part(out, at, first, days, before, b" day"), days < 0
    if microseconds == 0 and at > first:
        return at
    if at > first:
        out[at] = 32
        at += 1
    if microseconds < 0 or before:
        out[at] = 45 if microseconds < 0 else 43
        at += 1
    hours, rest = abs(microseconds) // 3_600_000_000, abs(microseconds) % 3_600_000_000
    if hours > 99:
        at = _put_number(out, at, hours)
        # `put_time` writes "00" as hours, because they are written already: remove them.
        end = put_time(out, at, rest)
        for i in range(at, end - 2):
            out[i] = out[i + 2]
        return end - 2
    return put_time(out, at, abs(microseconds))


@inlined
def _put_clock(data: Bytes, p: int, end: int, kind: int, out: Bytes, at: int) -> int:
    if end - p != (8 if kind == TIME else 12 if kind == TIMETZ else 16):
        return -1
    microseconds = read_int64(data, p)
    if kind == INTERVAL:
        # The extreme numbers are infinities, or have no positive counterpart.
        if microseconds in (-(2**63), 2**63 - 1):
            return -1
        return _put_interval(out, at, microseconds, _signed4(data, p + 8), _signed4(data, p + 12))
    west = _signed4(data, p + 8) if kind == TIMETZ else 0
    if microseconds < 0 or microseconds > _DAY or abs(west) >= _ZONE_SECONDS_END:
        return -1
    at = put_time(out, at, microseconds)
    return _put_zone(out, at, west) if kind == TIMETZ else at


@inlined
def _is_space(letter: int) -> bool:
    return letter == 32 or 9 <= letter <= 13


@inlined
def _plain_element(data: Bytes, p: int, size: int) -> bool:
    """True if array_out prints the element without quotes."""
    if size == 0:
        return False
    for i in range(p, p + size):
        letter = data[i]
        # " , \ { }
        if _is_space(letter) or letter in (34, 44, 92, 123, 125):
            return False
    if size != 4:
        return True
    letters = 0
    for i in range(4):
        letters += data[p + i] & 0xDF == _NULL[i]
    return letters < 4


@inlined
def _put_element(data: Bytes, p: int, size: int, out: Bytes, at: int) -> int:
    quoted = not _plain_element(data, p, size)
    if quoted:
        out[at] = 34
        at += 1
    for i in range(p, p + size):
        if data[i] == 34 or data[i] == 92:
            out[at] = 92
            at += 1
        out[at] = data[i]
        at += 1
    if quoted:
        out[at] = 34
        at += 1
    return at


@inlined
def _put_integer(data: Bytes, p: int, size: int, out: Bytes, at: int) -> int:
    if size == 8:
        return _put_number(out, at, read_int64(data, p))
    if size == 4:
        return _put_number(out, at, _signed4(data, p))
    value = read_uint16(data, p)
    return _put_number(out, at, value - (1 << 16) if value >= 1 << 15 else value)


@inlined
def _put_array(  # noqa: C901, PLR0911 - one doubt each
    data: Bytes, p: int, end: int, form: int, element: int, out: Bytes, at: int
) -> int:
    """Write an array with no or one dimension that begins at 1; -1 for any other."""
    if end - p < 12 or read_uint32(data, p + 4) > 1 or read_uint32(data, p + 8) != element:
        return -1
    dimensions = read_uint32(data, p)
    if dimensions == 0:
        return _put_word(out, at, b"{}") if end - p == 12 else -1
    if dimensions != 1 or end - p < 20:
        return -1
    count, low = read_uint32(data, p + 12), read_uint32(data, p + 16)
    if count == 0 or low != 1:
        return -1
    p += 20
    out[at] = 123
    for _ in range(count):
        if end - p < 4:
            return -1
        size = read_uint32(data, p)
        p += 4
        at += 1
        if size == 0xFFFFFFFF:
            at = _put_word(out, at, _NULL)
        elif size > end - p or form not in (TEXT, size):
            return -1
        else:
            if form == TEXT:
                at = _put_element(data, p, size, out, at)
            else:
                at = _put_integer(data, p, form, out, at)
            p += size
        out[at] = 44
    if p != end:
        return -1
    out[at] = 125
    return at + 1


@compiled
def print_arrays(
    data: Bytes, start: Ints, length: Lengths, form: int, element: int, out: Bytes, offsets: Ints, odd: Bytes
) -> None:
    """Print arrays of integers or texts, whose element type has that OID.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        form: how elements are printed: INT2, INT4, INT8 or TEXT.
        element: OID of the elements' type.
        out: uint8, filled in; its size follows from ARRAY_BYTES_EACH and ARRAY_BYTES_MORE.
        offsets: int64[n + 1], filled in: where each text begins.
        odd: uint8[n], set if the value must be printed in another way.
    """
    at = signed(0)
    for i in range(len(length)):
        offsets[i] = at
        odd[i] = 0
        if length[i] >= 0:
            after = _put_array(data, start[i], start[i] + length[i], form, element, out, at)
            if after < 0:
                odd[i] = 1
            else:
                at = after
    offsets[len(length)] = at


@inlined
def _put_moment(out: Bytes, at: int, microseconds: int, utc: bool) -> int:
    """Write in quotes, as range_bound_escape does for a text with a blank; -1 outside the years 1 to 9999."""
    days = microseconds // _DAY
    if days < _FIRST_DAY or days > _LAST_DAY:
        return -1
    out[at] = 34
    at = put_date(out, at + 1, days + _EPOCH_DAYS)
    out[at] = 32
    at = put_time(out, at + 1, microseconds - days * _DAY)
    if utc:
        at = _put_word(out, at, b"+00")
    out[at] = 34
    return at + 1


@inlined
def _put_bound(data: Bytes, p: int, end: int, form: int, out: Bytes, at: int) -> int:
    """Write a bound, which has its length before it; -1 if its text is not certain."""
    size = 8 if form in (INT8, MOMENT, MOMENT_UTC) else 4
    if end - p < 4 + size or read_uint32(data, p) != size:
        return -1
    if form == DATE:
        days = _signed4(data, p + 4)
        if days < _FIRST_DAY or days > _LAST_DAY:
            return -1
        return put_date(out, at, days + _EPOCH_DAYS)
    if form in (MOMENT, MOMENT_UTC):
        return _put_moment(out, at, read_int64(data, p + 4), form == MOMENT_UTC)
    return _put_integer(data, p + 4, size, out, at)


@inlined
def _put_range(data: Bytes, p: int, end: int, form: int, out: Bytes, at: int) -> int:
    if p >= end:
        return -1
    flags = signed(data[p])
    p += 1
    if flags == _EMPTY_FLAG:
        return _put_word(out, at, _EMPTY) if p == end else -1
    both_low, both_high = _LOWER_IN | _NO_LOWER, _UPPER_IN | _NO_UPPER
    if flags > 31 or flags & _EMPTY_FLAG or flags & both_low == both_low or flags & both_high == both_high:
        return -1
    size = 8 if form in (INT8, MOMENT, MOMENT_UTC) else 4
    out[at] = 91 if flags & _LOWER_IN else 40
    at += 1
    if flags & _NO_LOWER == 0:
        at = _put_bound(data, p, end, form, out, at)
        if at < 0:
            return -1
        p += 4 + size
    out[at] = 44
    at += 1
    if flags & _NO_UPPER == 0:
        at = _put_bound(data, p, end, form, out, at)
        if at < 0:
            return -1
        p += 4 + size
    out[at] = 93 if flags & _UPPER_IN else 41
    return at + 1 if p == end else -1


@compiled
def print_clocks_or_ranges(
    data: Bytes, start: Ints, length: Lengths, ranges: bool, form: int, out: Bytes, offsets: Ints, odd: Bytes
) -> None:
    """Print values of time, timetz or interval; or ranges of integers, dates or timestamps.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        form: TIME, TIMETZ or INTERVAL, or the type of the bounds.
        out: uint8, filled in; CLOCK_BYTES_MAX or RANGE_BYTES_MAX for each value.
        offsets: int64[n + 1], filled in: where each text begins.
        odd: uint8[n], set if the value must be printed in another way.
    """
    at = signed(0)
    for i in range(len(length)):
        offsets[i] = at
        odd[i] = 0
        if length[i] >= 0:
            p, end = start[i], start[i] + length[i]
            if ranges:
                after = _put_range(data, p, end, form, out, at)
            else:
                after = _put_clock(data, p, end, form, out, at)
            if after < 0:
                odd[i] = 1
            else:
                at = after
    offsets[len(length)] = at
