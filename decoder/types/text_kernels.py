"""Compiled readers of value text.  Each returns the row of the first bad value, or -1.

The inputs are the arrays of a `slices.Slices`; a negative length means "no value", which becomes invalid.
Nothing here reads outside ``start .. start+length``.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, Unsigned, compiled, inlined, signed, unsigned
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.compiled.words import (
    AHEAD,
    digits_only,
    eight_digits,
    fetch_ahead,
    last_digits,
    word_at,
)

OK, EXACT, BAD = 0, 1, 2

TENS = np.array([10**i for i in range(19)], dtype=np.int64)
_SPLIT = unsigned(10_000_000_000_000_000_000)  # 10**19: a decimal is high * 10**19 + low


@compiled
def parse_bool(data: Bytes, start: Ints, length: Lengths, out: Bytes, valid: Bytes) -> int:
    """Read ``t`` and ``f`` as 1 and 0; returns the first bad row, or -1.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each text lies; a negative length: no
            value.
        out, valid: uint8[n] each, filled in.
    """
    count = len(length)
    data, start, length, out, valid = bare(data), bare(start), bare(length), bare(out), bare(valid)
    for i in range(count):
        valid[i] = out[i] = 0
        if length[i] < 0:
            continue
        letter = data[start[i]] if length[i] == 1 else 0
        if letter != 116 and letter != 102:  # noqa: PLR1714 - numba compares numbers, not sets
            return i
        out[i] = 1 if letter == 116 else 0
        valid[i] = 1
    return -1


@inlined
def _digits(data: Bytes, p: int, end: int) -> tuple[bool, int]:
    """The number of 1 to 19 digits; there are at least 8 bytes before the end."""
    count = end - p
    word = last_digits(word_at(data, end - 8), count)
    fine, value = digits_only(word), eight_digits(word)
    if count > 8:
        ten_eighths = unsigned(100_000_000)
        if count <= 16 and end >= 16:
            word = last_digits(word_at(data, end - 16), count - 8)
            return fine and digits_only(word), eight_digits(word) * ten_eighths + value
        value = unsigned(0)
        while p < end:
            digit = unsigned(data[p]) - unsigned(48)
            fine = fine and digit <= unsigned(9)
            value = value * unsigned(10) + digit
            p += 1
    return fine, value


@inlined
def int_at(data: Bytes, p: int, end: int, limit: int) -> tuple[bool, int]:
    """Return whether the text is an integer in [-limit-1, limit], and the integer: int64, one per value."""
    negative = p < end and data[p] == 45
    if negative:
        p += 1
    if p == end or end - p > 19:
        return False, signed(0)
    if end >= 8:
        fine, magnitude = _digits(data, p, end)
    else:
        fine, magnitude = True, unsigned(0)
        while p < end:
            digit = unsigned(data[p]) - unsigned(48)
            fine = fine and digit <= unsigned(9)
            magnitude = magnitude * unsigned(10) + digit
            p += 1
    value = signed(magnitude)
    return fine and magnitude <= limit + unsigned(1 if negative else 0), -value if negative else value


@compiled
def parse_int(data: Bytes, start: Ints, length: Lengths, limit: int, out: Ints, valid: Bytes) -> int:
    """Decimal integers in [-limit-1, limit], which ``out`` (int64 or int32) can hold.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each text lies; a negative length: no
            value.
        out, valid: int64[n] or int32[n], and uint8[n], filled in.
    """
    count = len(length)
    data, start, length, out, valid = bare(data), bare(start), bare(length), bare(out), bare(valid)
    for i in range(count):
        valid[i] = out[i] = 0
        if length[i] < 0:
            continue
        fetch_ahead(data, start[min(i + AHEAD, count - 1)])
        fine, value = int_at(data, start[i], start[i] + length[i], limit)
        if not fine:
            return i
        out[i] = value
        valid[i] = 1
    return -1


@inlined
def is_word(data: Bytes, p: int, end: int, word: bytes) -> bool:
    """Return whether the text (uint8[end - p]) is exactly this word."""
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
def _decimal(  # noqa: C901, PLR0912
    data: Bytes, p: int, end: int, precision: int, scale: int, words: Unsigned, at: int
) -> int:
    """Read one numeric into the two words at ``at``; OK, EXACT if it is right but does not fit, or BAD."""
    if is_word(data, p, end, b"NaN"):
        return EXACT
    negative = p < end and data[p] == 45
    if negative:
        p += 1
    if is_word(data, p, end, b"Infinity"):
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
        # Digits are collected in `low`; from the 20th on, its first digit moves to `high`.
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
    words[at] = first
    words[at + 1] = second
    return OK


@inlined
def _short_decimal(data: Bytes, p: int, end: int, precision: int, scale: int, tens: Ints) -> int:
    """A numeric with the usual text, up to 8 digits before the point and 8 after it; -1 for any other."""
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


@inlined
def decimal_at(
    data: Bytes, p: int, end: int, precision: int, scale: int, tens: Ints, words: Unsigned, at: int
) -> int:
    """One numeric into the two words at ``at``; OK, EXACT when it is right but does not fit, or BAD.

    Args:
        data: uint8[bytes], or its memory.
        tens: int64[19], powers of ten.
        words: uint64[at + 2 or more], filled in.
    """
    negative = p < end and data[p] == 45
    value = _short_decimal(data, p + 1 if negative else p, end, precision, scale, tens)
    if value > 0 or (value == 0 and not negative):
        words[at] = unsigned(-value if negative else value)
        words[at + 1] = ~unsigned(0) if negative else unsigned(0)
        return OK
    return _decimal(data, p, end, precision, scale, words, at)


@compiled
def parse_decimal(
    data: Bytes, start: Ints, length: Lengths, precision: int, scale: int,
    out: Unsigned, valid: Bytes, exact: Bytes,
) -> int:  # fmt: skip
    """Numerics to 128-bit two's complement, low word first (``out`` is n x 2).

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each text lies; a negative length: no
            value.
        out, valid, exact: uint64[2n], uint8[n], uint8[n], filled in; ``exact``: right, but it does not fit.
    """
    count, tens = len(length), bare(TENS)
    data, start, length, out = bare(data), bare(start), bare(length), bare(out)
    valid, exact = bare(valid), bare(exact)
    for i in range(count):
        valid[i] = exact[i] = out[2 * i] = out[2 * i + 1] = 0
        if length[i] < 0:
            continue
        state = decimal_at(data, start[i], start[i] + length[i], precision, scale, tens, out, 2 * i)
        if state == BAD:
            return i
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
    r"""Read ``\x…`` as bytes; ``offsets`` (n+1) already follow from the lengths.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each text lies; a negative length: no
            value.
        offsets, out: int64[n + 1] and uint8, the latter filled in.
    """
    count = len(length)
    data, start, length, offsets, out = bare(data), bare(start), bare(length), bare(offsets), bare(out)
    for i in range(count):
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
