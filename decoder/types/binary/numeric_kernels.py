"""Compiled printing of numerics of any size: from base 10000, as the server sends them, to decimal digits.

There are two passes, so that the texts take no more space than they need: `measure` checks each value and
gives the length of its text, `print_numerics` writes it.  They refuse the same values as `numbers.numeric`.
"""

from __future__ import annotations

from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, compiled, inlined, read_uint16
from slotlake.decoder.compiled.memory import bare

_NEGATIVE, _NAN, _INFINITY, _MINUS_INFINITY = 0x4000, 0xC000, 0xD000, 0xF000
_HEADER = 8


@inlined
def _weight(data: Bytes, p: int) -> int:
    return (read_uint16(data, p + 2) ^ 0x8000) - 0x8000


@inlined
def _whole_digits(data: Bytes, p: int, first: int) -> int:
    """Number of digits before the point, at least one; ``first`` is the first nonzero group."""
    weight = _weight(data, p) - first
    if first < 0 or weight < 0:
        return 1
    group = read_uint16(data, p + _HEADER + 2 * first)
    return 4 * weight + (4 if group > 999 else 3 if group > 99 else 2 if group > 9 else 1)


@inlined
def _first_group(data: Bytes, p: int, count: int) -> int:
    for i in range(count):
        if data[p + _HEADER + 2 * i] | data[p + _HEADER + 2 * i + 1]:
            return i
    return -1


@inlined
def _text_length(data: Bytes, p: int, size: int) -> int:  # noqa: PLR0911 - one fault each
    """Length of one value's text, or -1."""
    if size < _HEADER:
        return -1
    count, sign, scale = read_uint16(data, p), read_uint16(data, p + 4), read_uint16(data, p + 6)
    if size != _HEADER + 2 * count:
        return -1
    if sign >= _NAN:
        if count != 0:
            return -1
        return 3 if sign == _NAN else 8 if sign == _INFINITY else 9 if sign == _MINUS_INFINITY else -1
    if (sign != 0 and sign != _NEGATIVE) or scale > 0x3FFF:  # noqa: PLR1714
        return -1
    last = -1
    for i in range(count):
        group = read_uint16(data, p + _HEADER + 2 * i)
        if group > 9999:
            return -1
        last = i if group != 0 else last
    if last < 0:
        return -1 if sign != 0 else 1 + (scale + 1 if scale > 0 else 0)
    group = read_uint16(data, p + _HEADER + 2 * last)
    zeros = 3 if group % 1000 == 0 else 2 if group % 100 == 0 else 1 if group % 10 == 0 else 0
    if 4 * (last - _weight(data, p)) - zeros > scale:
        return -1  # digits beyond its own scale
    whole = _whole_digits(data, p, _first_group(data, p, count))
    return whole + (1 if sign != 0 else 0) + (scale + 1 if scale > 0 else 0)


@compiled
def measure(data: Bytes, start: Ints, length: Lengths, sizes: Ints) -> int:
    """Each text's length, 0 for no value; the row of the first value that is no numeric, or -1.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        sizes: int64[n], filled in.
    """
    rows, data, start, length, sizes = len(length), bare(data), bare(start), bare(length), bare(sizes)
    for i in range(rows):
        sizes[i] = 0
        if length[i] >= 0:
            sizes[i] = _text_length(data, start[i], length[i])
            if sizes[i] < 0:
                return i
    return -1


@inlined
def _put(out: Bytes, at: int, word: bytes) -> None:
    for j in range(len(word)):
        out[at + j] = word[j]


@inlined
def _digit(data: Bytes, p: int, count: int, weight: int, place: int) -> int:
    """The digit at 10**place."""
    group = place >> 2
    i = weight - group
    if i < 0 or i >= count:
        return 0
    value, place = read_uint16(data, p + _HEADER + 2 * i), place & 3
    return (
        value % 10
        if place == 0
        else value // 10 % 10
        if place == 1
        else value // 100 % 10
        if place == 2
        else value // 1000
    )


@compiled
def print_numerics(data: Bytes, start: Ints, length: Lengths, offsets: Ints, out: Bytes) -> None:
    """Write the texts of measured values; ``offsets`` (n+1) are the sums of their lengths.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies; a negative length: no
            value.
        offsets: int64[n + 1], where each text begins in ``out``.
        out: uint8[offsets of the last], filled in.
    """
    rows, data, start = len(length), bare(data), bare(start)
    length, offsets, out = bare(length), bare(offsets), bare(out)
    for i in range(rows):
        if length[i] < 0:
            continue
        p, at = start[i], offsets[i]
        count, sign, scale, weight = (
            read_uint16(data, p),
            read_uint16(data, p + 4),
            read_uint16(data, p + 6),
            _weight(data, p),
        )
        if sign == _NAN:
            _put(out, at, b"NaN")
            continue
        if sign == _NEGATIVE or sign == _MINUS_INFINITY:  # noqa: PLR1714, SIM109
            out[at] = 45
            at += 1
        if sign >= _NAN:
            _put(out, at, b"Infinity")
            continue
        for place in range(_whole_digits(data, p, _first_group(data, p, count)) - 1, -1, -1):
            out[at] = 48 + _digit(data, p, count, weight, place)
            at += 1
        if scale > 0:
            out[at] = 46
            at += 1
        for place in range(-1, -scale - 1, -1):
            out[at] = 48 + _digit(data, p, count, weight, place)
            at += 1
