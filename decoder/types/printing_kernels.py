"""Compiled writers of value text.  Each fills ``out`` and the n+1 offsets of a string array.

The caller computes the size of ``out`` from the constants here, the largest length of one value.  Rows whose
``valid`` flag is 0 stay empty.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, Unsigned, compiled, inlined, signed, unsigned

MOMENT_BYTES_MAX = 29  # 0001-01-01 00:00:00.000000+00
DECIMAL_BYTES_MAX = 42  # sign, 38 digits, a leading zero, the point
FLOAT_BYTES_MAX = 26  # sign, 17 digits, the point, up to 5 leading zeros, or e-308

_MICROSECONDS_PER_DAY = 86_400_000_000
_HEX = b"0123456789abcdef"


@inlined
def put_digits(out: Bytes, at: int, value: int, width: int) -> int:
    """Write a number with ``width`` digits; returns where it ends.

    Args:
        out: uint8[at + width or more], filled in from ``at`` on.
    """
    for i in range(width):
        out[at + width - 1 - i] = 48 + value % 10
        value //= 10
    return at + width


@inlined
def put_date(out: Bytes, at: int, days: int) -> int:
    """Write ``YYYY-MM-DD`` for one day count since 1970-01-01 within years 0 to 9999.

    Args:
        out: uint8[at + 10 or more], filled in from ``at`` on.
    """
    z = days + 719468
    era = z // 146097
    day_of_era = z - era * 146097
    year_of_era = (day_of_era - day_of_era // 1460 + day_of_era // 36524 - day_of_era // 146096) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    shifted = (5 * day_of_year + 2) // 153
    month = shifted + 3 if shifted < 10 else shifted - 9
    year = year_of_era + era * 400 + (1 if month <= 2 else 0)
    at = put_digits(out, at, year, 4)
    out[at] = 45
    at = put_digits(out, at + 1, month, 2)
    out[at] = 45
    return put_digits(out, at + 1, day_of_year - (153 * shifted + 2) // 5 + 1, 2)


@inlined
def put_time(out: Bytes, at: int, microseconds: int) -> int:
    """Write ``HH:MM:SS`` and, unless it is zero, the fraction without its trailing zeros.

    Args:
        out: uint8[at + 15 or more], filled in from ``at`` on.
    """
    seconds, fraction = microseconds // 1_000_000, microseconds % 1_000_000
    at = put_digits(out, at, seconds // 3600, 2)
    out[at] = 58
    at = put_digits(out, at + 1, seconds // 60 % 60, 2)
    out[at] = 58
    at = put_digits(out, at + 1, seconds % 60, 2)
    if fraction == 0:
        return at
    out[at] = 46
    at = put_digits(out, at + 1, fraction, 6)
    while out[at - 1] == 48:
        at -= 1
    return at


@compiled
def print_moment(values: Ints, valid: Bytes, form: int, out: Bytes, offsets: Ints) -> int:
    """Days (form 0) or microseconds (1: timestamp, 2: timestamptz); the row out of years 1-9999, or -1.

    Args:
        values, valid: int64[n], uint8[n].
        out, offsets: uint8 and int64[n + 1], filled in.
    """
    at = 0
    for i in range(len(values)):
        offsets[i] = at
        if valid[i] == 0:
            continue
        days = values[i] if form == 0 else values[i] // _MICROSECONDS_PER_DAY
        if days < -719162 or days > 2932896:
            return i
        at = put_date(out, at, days)
        if form != 0:
            out[at] = 32
            at = put_time(out, at + 1, values[i] - days * _MICROSECONDS_PER_DAY)
        if form == 2:
            out[at] = 43
            at = put_digits(out, at + 1, 0, 2)
    offsets[len(values)] = at
    return -1


@inlined
def _split_digits(low: int, high: int, digits: Bytes) -> int:
    """Decimal digits of a 128-bit magnitude, least significant first; their number (at least 1)."""
    mask = unsigned(0xFFFFFFFF)
    shift = unsigned(32)
    billion = unsigned(1_000_000_000)
    w3, w2, w1, w0 = high >> shift, high & mask, low >> shift, low & mask
    count = 0
    while count == 0 or w0 | w1 | w2 | w3:
        rest = w3 % billion
        w3 //= billion
        part = (rest << shift) | w2
        w2 = part // billion
        part = ((part % billion) << shift) | w1
        w1 = part // billion
        part = ((part % billion) << shift) | w0
        w0 = part // billion
        group = part % billion
        for _ in range(9):
            digits[count] = np.uint8(group % unsigned(10))
            group //= unsigned(10)
            count += 1
    while count > 1 and digits[count - 1] == 0:
        count -= 1
    return count


@compiled
def print_decimal(words: Unsigned, valid: Bytes, scale: int, out: Bytes, offsets: Ints) -> int:
    """128-bit two's complement (n x 2, low word first) with exactly ``scale`` digits after the point.

    Args:
        words, valid: uint64[2n], uint8[n].
        out, offsets: uint8 and int64[n + 1], filled in.
    """
    at = 0
    digits = np.zeros(64, dtype=np.uint8)
    for i in range(len(valid)):
        offsets[i] = at
        if valid[i] == 0:
            continue
        low, high = words[i, 0], words[i, 1]
        if high >> unsigned(63):
            low = ~low + unsigned(1)
            high = ~high + (unsigned(1) if low == unsigned(0) else unsigned(0))
            out[at] = 45
            at += 1
        count = _split_digits(low, high, digits)
        for j in range(max(count, scale + 1) - 1, -1, -1):
            out[at] = 48 + (digits[j] if j < count else 0)
            at += 1
            if j == scale and scale > 0:
                out[at] = 46
                at += 1
    offsets[len(valid)] = at
    return -1


@inlined
def _read_shortest(data: Bytes, p: int, end: int, digits: Bytes) -> tuple[int, int]:
    """Digits without outer zeros of ``123.45e-6``: (count, power of ten of the last digit)."""
    count = 0
    power = 0
    point = False
    while p < end and data[p] != 101 and data[p] != 69:
        if data[p] == 46:
            point = True
        else:
            power -= 1 if point else 0
            if count > 0 or data[p] != 48:
                digits[count] = data[p] - 48
                count += 1
        p += 1
    if p < end:
        p += 1
        negative = data[p] == 45
        exponent = 0
        for j in range(p, end):
            if 48 <= data[j] <= 57:
                exponent = exponent * 10 + (signed(data[j]) - 48)
        power += -exponent if negative else exponent
    while count > 0 and digits[count - 1] == 0:
        count -= 1
        power += 1
    return count, power


@inlined
def _is_midpoint(digits: Bytes, count: int, power: int, mantissa_bits: int) -> bool:
    """True if the decimal is exactly between two floats (an odd number of mantissa_bits + 1 bits)."""
    if power < -27 or power > 27 or count > 18:
        return False
    value = unsigned(0)
    five = unsigned(5)
    for j in range(count):
        value = value * unsigned(10) + unsigned(digits[j])
    while value > unsigned(0) and value & unsigned(1) == unsigned(0):
        value >>= unsigned(1)
    limit = unsigned(1) << unsigned(mantissa_bits + 1)
    for _ in range(abs(power)):
        if power > 0:
            value *= five
            if value >= limit:
                return False
        elif value % five != unsigned(0):
            return False
        else:
            value //= five
    return value >= limit >> unsigned(1) and value < limit


@inlined
def _put_fixed(digits: Bytes, count: int, power: int, out: Bytes, at: int) -> int:
    whole = count + power  # digits before the point; zero or negative: leading zeros after it
    if whole <= 0:
        out[at], out[at + 1] = 48, 46
        at += 2
        for _ in range(-whole):
            out[at] = 48
            at += 1
    for j in range(max(count, whole)):
        if j == whole and whole > 0:
            out[at] = 46
            at += 1
        out[at] = 48 + (digits[j] if j < count else 0)
        at += 1
    return at


@inlined
def _put_scientific(digits: Bytes, count: int, exponent: int, out: Bytes, at: int) -> int:
    out[at] = 48 + digits[0]
    at += 1
    if count > 1:
        out[at] = 46
        at += 1
    for j in range(1, count):
        out[at] = 48 + digits[j]
        at += 1
    out[at] = 101
    out[at + 1] = 45 if exponent < 0 else 43
    exponent = abs(exponent)
    return put_digits(out, at + 2, exponent, 3 if exponent > 99 else 2)


@inlined
def _put_word(out: Bytes, at: int, word: bytes) -> int:
    for j in range(len(word)):
        out[at + j] = word[j]
    return at + len(word)


@compiled
def print_float(
    data: Bytes, start: Ints, length: Lengths, mantissa_bits: int, fixed_below: int,
    out: Bytes, offsets: Ints, midpoint: Bytes,
) -> int:  # fmt: skip
    """Print shortest digits (in any notation) as PostgreSQL does: fixed if -4 <= exponent < fixed_below.

    ``midpoint`` flags values whose digits are exactly half-way to the next float, which PostgreSQL
    does not accept as shortest (d2s.c without STRICTLY_SHORTEST); the caller prints those again.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: the span of each value's digits.
        out, offsets: uint8 and int64[n + 1], filled in.
        midpoint: uint8[n], set if the digits must be computed in another way.
    """
    at = 0
    digits = np.zeros(512, dtype=np.uint8)
    for i in range(len(length)):
        offsets[i] = at
        if length[i] < 0:
            continue
        p, end = start[i], start[i] + length[i]
        if data[p] == 110:
            at = _put_word(out, at, b"NaN")
            continue
        if data[p] == 45:
            out[at] = 45
            at += 1
            p += 1
        if data[p] == 105:
            at = _put_word(out, at, b"Infinity")
            continue
        count, power = _read_shortest(data, p, end, digits)
        exponent = count + power - 1
        if count == 0:
            out[at] = 48
            at += 1
        elif -4 <= exponent < fixed_below:
            at = _put_fixed(digits, count, power, out, at)
        else:
            at = _put_scientific(digits, count, exponent, out, at)
        midpoint[i] = 1 if count > 0 and _is_midpoint(digits, count, power, mantissa_bits) else 0
    offsets[len(length)] = at
    return -1


@compiled
def print_hex(data: Bytes, start: Ints, length: Lengths, offsets: Ints, out: Bytes) -> None:
    r"""Print bytes as ``\x…``; ``offsets`` (n+1) already follow from the lengths.

    Args:
        data, start, length: uint8[bytes], int64[n], int32[n]: where each value lies.
        offsets, out: int64[n + 1] and uint8, filled in.
    """
    for i in range(len(length)):
        if length[i] < 0:
            continue
        at = offsets[i]
        out[at], out[at + 1] = 92, 120
        at += 2
        for j in range(length[i]):
            byte = signed(data[start[i] + j])
            out[at] = _HEX[byte >> 4]
            out[at + 1] = _HEX[byte & 15]
            at += 2
