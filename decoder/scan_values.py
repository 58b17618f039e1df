"""Where the values of tuples lie: the compiled second pass over rows that `scan.walk` has checked.

Invariant: every position given is that of a tuple that lies whole within its message, so nothing here needs
to check an end.
"""

from __future__ import annotations

from decoder.compiled import Bytes, Ints, Lengths, compiled, read_uint16, read_uint32
from decoder.memory import bare
from decoder.types_slices import MISSING, NULL, UNCHANGED
from decoder.words import copy_bytes


@compiled
def sorted_copy(data: Bytes, ends: Ints, messages: Ints, old_at: Ints, new_at: Ints, into: Bytes) -> int:
    """Copy messages in this order, and move the positions of their tuples (negative: none) along.

    Args:
        messages: int64[rows], which.
        old_at, new_at: int64[rows], where the tuples lie: in ``data``, and then in ``into``.
        into: uint8, with room for all.

    Returns:
        How many bytes.
    """
    count, target, data_end, into_end = len(messages), 0, len(data), len(into)
    data, ends, messages, into = bare(data), bare(ends), bare(messages), bare(into)
    old_at, new_at = bare(old_at), bare(new_at)
    for i in range(count):
        source, end = ends[messages[i]], ends[messages[i] + 1]
        old_at[i] += target - source if old_at[i] >= 0 else 0
        new_at[i] += target - source if new_at[i] >= 0 else 0
        copy_bytes(data, source, end, data_end, into, target, into_end)
        target += end - source
    return target


@compiled
def tuple_starts(data: Bytes, at: Ints, first: Ints, columns: Ints, cursor: Ints) -> int:
    """Set each row's cursor on its first value.

    Rows ``first[k]`` to ``first[k + 1]`` are tuples of ``columns[k]`` values, where ``at`` is not negative.

    Returns:
        The first row of another width, or -1.
    """
    tables, data, at, first = len(columns), bare(data), bare(at), bare(first)
    columns, cursor = bare(columns), bare(cursor)
    for k in range(tables):
        for i in range(first[k], first[k + 1]):
            cursor[i] = -1
            if at[i] >= 0:
                if read_uint16(data, at[i]) != columns[k]:
                    return i
                cursor[i] = at[i] + 2
    return -1


@compiled
def locate(  # noqa: PLR0913, PLR0917
    data: Bytes, cursor: Ints, rows: Ints, segments: Ints,
    to: Ints, start: Ints, length: Lengths, binary: Bytes, found: Ints,
) -> None:  # fmt: skip
    """Find the next values of every row.

    Args:
        cursor: int64[rows], where each row's next value lies, -1 for no tuple; moved on.
        rows: int64[blocks, 2], the first of each block and behind the last.
        segments: int64[blocks + 1], the columns of block k are segments ``segments[k]`` and following.
        to: int64[segments], where in the result each segment (a column of a block) begins.
        start, length: filled in.
        binary: uint8, as long, set where a value is binary; or of length 0 when none can be.
        found: int64[2], how many values are binary and how many unchanged: added to.
    """
    blocks, kinds, binaries, unchanged = len(rows), len(binary) > 0, 0, 0
    data, cursor, rows, segments, to = bare(data), bare(cursor), bare(rows), bare(segments), bare(to)
    start, length, binary, found = bare(start), bare(length), bare(binary), bare(found)
    for k in range(blocks):
        for i in range(rows[2 * k], rows[2 * k + 1]):
            p, row = cursor[i], i - rows[2 * k]
            for segment in range(segments[k], segments[k + 1]):
                at = to[segment] + row
                if p < 0:
                    start[at], length[at] = 0, MISSING
                    continue
                kind = data[p]
                if kind == 116 or kind == 98:  # noqa: PLR1714
                    size = read_uint32(data, p + 1)
                    start[at], length[at] = p + 5, size
                    p += 5 + size
                else:
                    start[at], length[at] = 0, NULL if kind == 110 else UNCHANGED
                    unchanged += kind != 110
                    p += 1
                if kinds:
                    binary[at] = kind == 98
                    binaries += kind == 98
            cursor[i] = p
    found[0] += binaries
    found[1] += unchanged
