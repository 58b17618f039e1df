"""Compiled readers of binary values.  Each returns the row of the first bad value, or -1.

The counterpart of `text_kernels` for the output of send functions: integers are big-endian, days and
microseconds count from 2000-01-01.  A negative length means "no value", which becomes invalid.  Nothing here
reads outside ``start .. start+length``.
"""

from __future__ import annotations

from slotlake.decoder.compiled.jit import (
    Bytes,
    Ints,
    Lengths,
    Unsigned,
    compiled,
    inlined,
    read_int64,
    read_uint16,
    read_uint32,
    signed,
    unsigned,
)
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.compiled.words import big_word_at
from slotlake.decoder.types.binary.moments import DATE_END, DATE_MIN, EPOCH_DAYS, MOMENT_MAX, MOMENT_MIN
from slotlake.decoder.types.text_kernels import BAD, EXACT, OK, TENS

_EPOCH_MICROSECONDS = EPOCH_DAYS * 86_400_000_000
# The range of the typed columns: years 1 to 9999, counted from 2000-01-01.
_DAY_FIRST, _DAY_LAST = -730_119, 2_921_939
_MOMENT_FIRST, _MOMENT_END = _DAY_FIRST * 86_400_000_000, (_DAY_LAST + 1) * 86_400_000_000
_I32_MIN, _I32_MAX = -(2**31), 2**31 - 1
_I64_MIN, _I64_MAX = -(2**63), 2**63 - 1
_UNUSUAL = -(2**62)  # no number of 18 digits
_HEX = b"0123456789abcdef"


@inlined
def _i4(data: Bytes, p: int) -> int:
    return (read_uint32(data, p) ^ 0x80000000) - 0x80000000


@compiled
def read_bool(data: Bytes, start: Ints, length: Lengths, out: Bytes, valid: Bytes) -> int:
    """Read values of one byte, 0 or 1; returns the first row that is none, or -1.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        out, valid: uint8[n] each, filled in.
    """
    count = len(length)
    data, start, length, out, valid = bare(data), bare(start), bare(length), bare(out), bare(valid)
    for i in range(count):
        valid[i] = out[i] = 0
        if length[i] < 0:
            continue
        if length[i] != 1 or data[start[i]] > 1:
            return i
        out[i] = data[start[i]]
        valid[i] = 1
    return -1


@compiled
def read_integer(data: Bytes, start: Ints, length: Lengths, size: int, out: Ints, valid: Bytes) -> int:
    """Integers of ``size`` bytes: 2, 4, or 8, also the bits of a real or double; -4: of four, unsigned.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        out, valid: int64[n] (or int32[n]) and uint8[n], filled in.
    """
    count, bytes_due = len(length), abs(size)
    data, start, length, out, valid = bare(data), bare(start), bare(length), bare(out), bare(valid)
    for i in range(count):
        valid[i] = out[i] = 0
        if length[i] < 0:
            continue
        if length[i] != bytes_due:
            return i
        if size == 4:
            out[i] = _i4(data, start[i])
        elif size == 8:
            out[i] = read_int64(data, start[i])
        elif size == 2:
            out[i] = (read_uint16(data, start[i]) ^ 0x8000) - 0x8000
        else:
            out[i] = read_uint32(data, start[i])
        valid[i] = 1
    return -1


@compiled
def read_date(data: Bytes, start: Ints, length: Lengths, out: Lengths, valid: Bytes, exact: Bytes) -> int:
    """Read dates as days since 1970-01-01; returns the first row that is none, or -1.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        out, valid, exact: int32[n], uint8[n], uint8[n], filled in; ``exact``: right, but it does not fit.
    """
    count = len(length)
    data, start, length, out = bare(data), bare(start), bare(length), bare(out)
    valid, exact = bare(valid), bare(exact)
    for i in range(count):
        valid[i] = exact[i] = out[i] = 0
        if length[i] < 0:
            continue
        if length[i] != 4:
            return i
        days = _i4(data, start[i])
        if _DAY_FIRST <= days <= _DAY_LAST:
            out[i] = days + EPOCH_DAYS
            valid[i] = 1
        elif DATE_MIN <= days < DATE_END or days == _I32_MIN or days == _I32_MAX:  # noqa: PLR1714, SIM109
            exact[i] = 1
        else:
            return i
    return -1


@compiled
def read_moment(data: Bytes, start: Ints, length: Lengths, out: Ints, valid: Bytes, exact: Bytes) -> int:
    """Read timestamps as microseconds since 1970-01-01; returns the first row that is none, or -1.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        out, valid, exact: int64[n], uint8[n], uint8[n], filled in; ``exact``: right, but it does not fit.
    """
    count = len(length)
    data, start, length, out = bare(data), bare(start), bare(length), bare(out)
    valid, exact = bare(valid), bare(exact)
    for i in range(count):
        valid[i] = exact[i] = out[i] = 0
        if length[i] < 0:
            continue
        if length[i] != 8:
            return i
        value = read_int64(data, start[i])
        if _MOMENT_FIRST <= value < _MOMENT_END:
            out[i] = value + _EPOCH_MICROSECONDS
            valid[i] = 1
        elif MOMENT_MIN <= value <= MOMENT_MAX or value == _I64_MIN or value == _I64_MAX:  # noqa: PLR1714, SIM109
            exact[i] = 1
        else:
            return i
    return -1


@inlined
def _multiply_add(low: int, high: int, factor: int, addend: int) -> tuple[int, int]:
    """``(high:low) * factor + addend`` for a factor below 2**32, in two 64-bit words (low, high)."""
    mask = unsigned(0xFFFFFFFF)
    shift = unsigned(32)
    part = (low & mask) * factor + addend
    first = part & mask
    part = (low >> shift) * factor + (part >> shift)
    return first | (part << shift), high * factor + (part >> shift)


@inlined
def _decimal_digits(group: int) -> int:
    return 4 if group > 999 else 3 if group > 99 else 2 if group > 9 else 1


@inlined
def _numeric(  # noqa: C901, PLR0911, PLR0912
    data: Bytes, p: int, size: int, precision: int, scale: int, words: Unsigned, at: int
) -> int:
    """One numeric into the two words at ``at``; OK, EXACT when it is right but does not fit, or BAD."""
    if size < 8:
        return BAD
    count, weight, sign, display_scale = (
        read_uint16(data, p),
        read_uint16(data, p + 2),
        read_uint16(data, p + 4),
        read_uint16(data, p + 6),
    )
    if size != 8 + 2 * count:
        return BAD
    if sign >= 0xC000:
        special = sign == 0xC000 or sign == 0xD000 or sign == 0xF000  # noqa: PLR1714
        return EXACT if special and count == 0 else BAD
    if (sign != 0 and sign != 0x4000) or display_scale > 0x3FFF:  # noqa: PLR1714
        return BAD
    weight = weight - 0x10000 if weight > 0x7FFF else weight
    p += 8
    first, last = -1, -1
    for i in range(count):
        group = read_uint16(data, p + 2 * i)
        if group > 9999:
            return BAD
        if group != 0:
            first = i if first < 0 else first
            last = i
    words[at] = words[at + 1] = unsigned(0)
    if first < 0:
        return BAD if sign != 0 else OK if display_scale == scale else EXACT
    group = read_uint16(data, p + 2 * last)
    zeros = 3 if group % 1000 == 0 else 2 if group % 100 == 0 else 1 if group % 10 == 0 else 0
    if 4 * (last - weight) - zeros > display_scale:
        return BAD  # digits beyond its own scale
    significant = _decimal_digits(read_uint16(data, p + 2 * first)) + 4 * (weight - first) + scale
    if display_scale != scale or significant > precision:
        return EXACT
    low = high = unsigned(0)
    for i in range(first, last):
        low, high = _multiply_add(low, high, unsigned(10000), unsigned(read_uint16(data, p + 2 * i)))
    power = 4 * (weight - last) + scale  # of ten, that the last group still lacks; -3 at least
    factor = unsigned(10000)
    while power < 0:
        power += 1
        factor //= unsigned(10)
        group //= 10
    low, high = _multiply_add(low, high, factor, unsigned(group))
    while power > 0:
        low, high = _multiply_add(low, high, unsigned(10), unsigned(0))
        power -= 1
    if sign != 0:
        low = ~low + unsigned(1)
        high = ~high + (unsigned(1) if low == unsigned(0) else unsigned(0))
    words[at] = low
    words[at + 1] = high
    return OK


@inlined
def _short_numeric(data: Bytes, room: int, p: int, size: int, precision: int, scale: int, tens: Ints) -> int:
    """A numeric of one to four digit groups and its column's scale; _UNUSUAL: not of that form."""
    if size < 10 or size > 16 or p + 16 > room:
        return _UNUSUAL
    head, groups = big_word_at(data, p), big_word_at(data, p + 8)
    count = signed(head >> unsigned(48))
    weight = (signed((head >> unsigned(32)) & unsigned(0xFFFF)) ^ 0x8000) - 0x8000
    sign, display_scale = signed((head >> unsigned(16)) & unsigned(0xFFFF)), signed(head & unsigned(0xFFFF))
    power = 4 * (weight - count + 1) + scale  # of ten, that the last group lacks
    usual = size == 8 + 2 * count and display_scale == scale and power > -4 and power < 3
    if not usual or (sign != 0 and sign != 0x4000):  # noqa: PLR1714
        return _UNUSUAL
    value = signed(0)
    for i in range(count - 1):
        group = signed((groups >> unsigned(48 - 16 * i)) & unsigned(0xFFFF))
        if group > 9999:
            return _UNUSUAL
        value = value * 10000 + group
    group = signed((groups >> unsigned(64 - 16 * count)) & unsigned(0xFFFF))
    step = tens[-power] if power < 0 else 1
    part = (
        group
        if power >= 0
        else group // 10
        if power == -1
        else group // 100
        if power == -2
        else group // 1000
    )
    if group > 9999 or part * step != group:
        return _UNUSUAL
    value = (
        value * signed(tens[4 + power]) + part if power < 0 else (value * 10000 + part) * signed(tens[power])
    )
    if value == 0 or (precision < 18 and value >= tens[precision]):
        return _UNUSUAL
    return value if sign == 0 else -value


@compiled
def read_decimal(
    data: Bytes, start: Ints, length: Lengths, precision: int, scale: int,
    out: Unsigned, valid: Bytes, exact: Bytes,
) -> int:  # fmt: skip
    """Numerics to 128-bit two's complement, low word first (``out`` is n x 2).

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        out, valid, exact: uint64[2n], uint8[n], uint8[n], filled in; ``exact``: right, but it does not fit.
    """
    count, room, tens = len(length), len(data), bare(TENS)
    data, start, length, out = bare(data), bare(start), bare(length), bare(out)
    valid, exact = bare(valid), bare(exact)
    for i in range(count):
        valid[i] = exact[i] = out[2 * i] = out[2 * i + 1] = 0
        if length[i] < 0:
            continue
        value = _short_numeric(data, room, start[i], length[i], precision, scale, tens)
        if value != _UNUSUAL:
            out[2 * i] = unsigned(value)
            out[2 * i + 1] = ~unsigned(0) if value < 0 else unsigned(0)
            valid[i] = 1
            continue
        state = _numeric(data, start[i], length[i], precision, scale, out, 2 * i)
        if state == BAD:
            return i
        valid[i] = 1 if state == OK else 0
        exact[i] = 1 if state == EXACT else 0
    return -1


@compiled
def print_uuid(data: Bytes, start: Ints, length: Lengths, offsets: Ints, out: Bytes) -> int:
    """16 bytes to 36 characters; ``offsets`` (n+1) already follow from the lengths.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        offsets: int64[n + 1], where each text begins in ``out``.
        out: uint8[36 bytes per value], filled in.
    """
    count = len(length)
    data, start, length, offsets, out = bare(data), bare(start), bare(length), bare(offsets), bare(out)
    for i in range(count):
        if length[i] < 0:
            continue
        if length[i] != 16:
            return i
        at = offsets[i]
        for j in range(16):
            if j == 4 or j == 6 or j == 8 or j == 10:  # noqa: PLR1714 - numba compares numbers, not sets
                out[at] = 45
                at += 1
            byte = signed(data[start[i] + j])
            out[at] = _HEX[byte >> 4]
            out[at + 1] = _HEX[byte & 15]
            at += 2
    return -1
