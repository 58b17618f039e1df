"""Where the values of tuples lie: the compiled second pass over rows that `scan.walk` has checked.

Invariant: every position given is that of a tuple that lies whole within its message, so nothing here needs
to check an end.
"""

from __future__ import annotations

from decoder.compiled import Bytes, Ints, Lengths, compiled, read_uint16, read_uint32
from decoder.memory import bare
from decoder.types_slices import MISSING, NULL, UNCHANGED


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
    data: Bytes, cursor: Ints, first: Ints, end: Ints, segments: Ints,
    to: Ints, start: Ints, length: Lengths, binary: Bytes,
) -> int:  # fmt: skip
    """Find the next values of every row.

    Args:
        cursor: int64[rows], where each row's next value lies, -1 for no tuple; moved on.
        first, end: of the rows of block k.
        segments: int64[blocks + 1], the columns of block k are segments ``segments[k]`` and following.
        to: int64[segments], where in the result each segment (a column of a block) begins.
        start, length: filled in.
        binary: uint8, as long, set where a value is binary; or of length 0 when none can be.

    Returns:
        How many values are binary.
    """
    found, blocks, kinds = 0, len(first), len(binary) > 0
    data, cursor, first, end, segments = bare(data), bare(cursor), bare(first), bare(end), bare(segments)
    to, start, length, binary = bare(to), bare(start), bare(length), bare(binary)
    for k in range(blocks):
        for i in range(first[k], end[k]):
            p, row = cursor[i], i - first[k]
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
                    p += 1
                if kinds:
                    binary[at] = kind == 98
                    found += kind == 98
            cursor[i] = p
    return found
