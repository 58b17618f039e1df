"""Reads the values of rows while it goes over their tuples: plain values go directly into their column.

Each column has a *way* (see `decoder.types.table`), a number with the kind of its values and what its reader
needs to know.  This pass does not read unchanged values, or values that do not have their type's usual text
(infinity, a numeric with more digits than its column, damage): it flags the column as odd, and the column is
read again from the spans of its values.

Invariant: every given position is that of a tuple that is completely within its message, so nothing here
needs to check an end.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.compiled.jit import (
    Bytes,
    Ints,
    Lengths,
    Unsigned,
    compiled,
    inlined,
    read_uint16,
    read_uint32,
    signed,
    unsigned,
)
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.compiled.words import all_plain, eight_plain, plain_digits, word_at
from slotlake.decoder.types.moment_kernels import DATE, moment_at
from slotlake.decoder.types.slices import MISSING, NULL, UNCHANGED
from slotlake.decoder.types.text_kernels import OK, TENS, decimal_at, int_at

# Ways, in the lowest byte: PASSED stores nothing, SPAN stores the span, the others store the value itself.
PASSED, SPAN, INT4, INT8, FLAG, DECIMAL, DAY, MOMENT = range(8)
WIDTHS = (0, 0, 4, 8, 1, 16, 4, 8)
_INT4_MAX, _INT8_MAX = 2**31 - 1, 2**63 - 1


def decimal_way(precision: int, scale: int) -> int:
    """The way of numeric(precision, scale)."""
    return DECIMAL | precision << 8 | scale << 16


def moment_way(form: int) -> int:
    """The way of dates and timestamps; ``form`` is one of `moment_kernels`."""
    return DAY if form == DATE else MOMENT | form << 8


@inlined
def _read(  # noqa: PLR0913, PLR0917 - one way each
    data: Bytes, size: int, p: int, end: int, way: int, at: int,
    ints: Lengths, longs: Unsigned, flags: Bytes, last_days: Unsigned, day: int, tens: Ints,
) -> bool:  # fmt: skip
    """Store the value at p; False if it does not have the usual text."""
    what = way & 0xFF
    if what == INT4:
        fine, value = int_at(data, p, end, unsigned(_INT4_MAX))
        ints[at] = value
        return fine
    if what == INT8:
        fine, value = int_at(data, p, end, unsigned(_INT8_MAX))
        longs[at] = unsigned(value)
        return fine
    if what == FLAG:
        letter = data[p] if end - p == 1 else 0
        flags[at] = letter == 116
        return letter == 116 or letter == 102  # noqa: PLR1714 - numba compares numbers, not sets
    if what == DECIMAL:
        precision, scale = (way >> 8) & 0xFF, (way >> 16) & 0xFF
        return decimal_at(data, p, end, precision, scale, tens, longs, 2 * at) == OK
    form = DATE if what == DAY else (way >> 8) & 0xFF
    state, value = moment_at(data, size, p, end, form, last_days, day)
    if what == DAY:
        ints[at] = value
    else:
        longs[at] = unsigned(value)
    return state == OK


@inlined
def _read_short(  # noqa: PLR0913, PLR0917
    data: Bytes, size: int, p: int, long: int, way: int, at: int, ints: Lengths, longs: Unsigned, tens: Ints
) -> bool:
    """Store a number of up to eight digits without a sign; False if it is not one."""
    if unsigned(long - 1) > unsigned(8) or p + 9 > size:
        return False
    word = word_at(data, p)
    if way == INT4 or way == INT8:  # noqa: PLR1714, SIM109 - numba compares numbers, not sets
        if long > 8:
            return False
        word = plain_digits(word, long)
        if way == INT4:
            ints[at] = signed(eight_plain(word))
        else:
            longs[at] = eight_plain(word)
        return all_plain(word)
    precision, scale = (way >> 8) & 0xFF, (way >> 16) & 0xFF
    whole = long - 1 - scale
    if way & 0xFF != DECIMAL or scale == 0 or whole < 1 or data[p + whole] != 46:
        return False
    before = (unsigned(1) << (unsigned(whole) << unsigned(3))) - unsigned(1)
    word = plain_digits((word & before) | (word_at(data, p + 1) & ~before), long - 1)  # without the point
    value = eight_plain(word)
    longs[2 * at], longs[2 * at + 1] = value, unsigned(0)
    return all_plain(word) and value < unsigned(tens[min(precision, 18)])


@inlined
def _keep_none(  # noqa: PLR0913, PLR0917
    kind: int, segment: int, way: int, row: int, at: int, ways: Ints, flag_start: Ints, valid: Bytes,
    start: Ints, length: Lengths, notes: Ints, span_counts: Ints,
) -> None:  # fmt: skip
    """Store that there is no value: kind n NULL, u unchanged, 0 no tuple."""
    if way > SPAN:
        valid[flag_start[segment] + row] = 0
        if kind == 117:
            ways[segment], notes[segment] = PASSED, 1
    elif way == SPAN:
        start[at], length[at] = 0, NULL if kind == 110 else UNCHANGED if kind == 117 else MISSING
        span_counts[1] += kind == 117


@inlined
def _rows(  # noqa: PLR0913, PLR0917
    data: Bytes, size: int, tuples: Ints, cursor: Ints, place: Ints, placed: bool, begin: int, behind: int,
    width: int, first: int, end: int, ways: Ints, to: Ints, flag_start: Ints, ints: Lengths, longs: Unsigned,
    flags: Bytes, valid: Bytes, start: Ints, length: Lengths, kinds: bool, binary: Bytes, notes: Ints,
    span_counts: Ints, last_days: Unsigned, tens: Ints,
) -> int:  # fmt: skip
    """`read_rows` for one block: rows ``begin`` to ``behind``, segments ``first`` to ``end``."""
    for i in range(begin, behind):
        p, row = tuples[i] if width >= 0 else cursor[i], (place[i] if placed else i) - begin
        if width >= 0 and p >= 0:
            if read_uint16(data, p) != width:
                return i
            p += 2
        for segment in range(first, end):
            way, at = ways[segment], to[segment] + row
            kind = data[p] if p >= 0 else 0
            if kind != 116 and kind != 98:  # noqa: PLR1714
                p += p >= 0
                _keep_none(
                    kind, segment, way, row, at, ways, flag_start, valid, start, length, notes, span_counts
                )  # fmt: skip
                continue
            value, long = p + 5, read_uint32(data, p + 1)
            p = value + long
            if way == SPAN:
                start[at], length[at] = value, long
                if kinds:
                    binary[at] = kind == 98
                    span_counts[0] += kind == 98
            elif way != PASSED and not (
                _read_short(data, size, value, long, way, at, ints, longs, tens)
                or _read(data, size, value, p, way, at, ints, longs, flags, last_days, 4 * segment, tens)
            ):
                ways[segment], notes[segment] = PASSED, 1
        cursor[i] = p
    return -1


@compiled
def read_rows(  # noqa: PLR0913, PLR0917 - arrays, as compiled code takes them
    data: Bytes, tuples: Ints, cursor: Ints, place: Ints, rows: Ints, segments: Ints, widths: Ints,
    ways: Ints, to: Ints, flag_start: Ints, ints: Lengths, longs: Unsigned, flags: Bytes, valid: Bytes,
    start: Ints, length: Lengths, binary: Bytes, notes: Ints, span_counts: Ints,
) -> int:  # fmt: skip
    """Read the next values of every row.

    Args:
        tuples: int64[rows], offset of each row's tuple, -1 for none.
        cursor: int64[rows], offset of each row's next value, -1 for no tuple; moved.
        place: int64[rows], the row that gets the values of each row; of length 0 if it is the same row.
        rows: int64[blocks, 2], the first row of each block and the one after the last.
        segments: int64[blocks + 1], the columns of block k are segments ``segments[k]`` and following.
        widths: int64[blocks], how many values the tuples of a block have that begins with the first column;
            -1 for a block that continues at ``cursor``.
        ways: int64[segments], how each segment (a column of a block) is read; an odd one becomes PASSED.
        to: int64[segments], where the values of each segment begin: in ``start`` and ``length``, or in the
            view for its width (a DECIMAL counts two ``longs``).
        flag_start: int64[segments], where the flags of each segment begin in ``valid``.
        ints, longs, flags: views of one memory.
        valid: uint8, 1 for every value; set to 0 if there is no value.
        start, length: filled in with the spans.
        binary: uint8, as long as ``start``, set if a value is binary; of length 0 if none can be.
        notes: int64[segments], set to 1 for an odd segment.
        span_counts: int64[2], how many values with spans are binary and how many unchanged; added to.

    Returns:
        The first row with another number of values than its block, or -1.
    """
    blocks, size, kinds, placed, odd = len(rows), len(data), len(binary) > 0, len(place) > 0, -1
    days = np.zeros(4 * len(ways) + 4, dtype=np.uint64)
    data, tuples, cursor, rows, segments = bare(data), bare(tuples), bare(cursor), bare(rows), bare(segments)
    widths, ways, to, flag_start, ints = bare(widths), bare(ways), bare(to), bare(flag_start), bare(ints)
    longs, flags, valid, start, length = bare(longs), bare(flags), bare(valid), bare(start), bare(length)
    binary, notes, span_counts, last_days, tens = (
        bare(binary),
        bare(notes),
        bare(span_counts),
        bare(days),
        bare(TENS),
    )
    place = bare(place)
    for k in range(blocks):
        odd = _rows(
            data, size, tuples, cursor, place, placed, rows[2 * k], rows[2 * k + 1], widths[k], segments[k],
            segments[k + 1], ways, to, flag_start, ints, longs, flags, valid, start, length, kinds, binary,
            notes, span_counts, last_days, tens,
        )  # fmt: skip
        if odd >= 0:
            break
    days[0] = 0  # numba frees an array after its last use
    return odd
