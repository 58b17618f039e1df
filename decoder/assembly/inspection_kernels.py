"""The compiled pass of inspection.py: checks every byte of row and logical messages.

Invariant: nothing is read past a message's end, and the plain reader accepts every message that is accepted
here.  The plain reader checks again what is not accepted here.
"""

from __future__ import annotations

from slotlake.decoder.compiled.jit import (
    Bytes,
    Ints,
    compiled,
    inlined,
    read_int64,
    read_uint16,
    read_uint32,
    signed,
)
from slotlake.decoder.compiled.memory import bare

_HIGH_BITS = -0x7F7F7F7F7F7F7F80  # of eight bytes


@inlined
def _is_utf8(data: Bytes, p: int, end: int) -> bool:  # noqa: C901 - the table of well-formed sequences
    """True for UTF-8 as in the Unicode standard (table 3-7): no surrogates, no overlong sequences."""
    while p < end:
        while end - p >= 8 and read_int64(data, p) & _HIGH_BITS == 0:
            p += 8
        if p >= end:
            break
        head = data[p]
        if head < 0x80:
            p += 1
            continue
        low, high = 0x80, 0xBF
        if 0xC2 <= head < 0xE0:
            more = 1
        elif 0xE0 <= head < 0xF0:
            more = 2
            low = 0xA0 if head == 0xE0 else low
            high = 0x9F if head == 0xED else high
        elif 0xF0 <= head < 0xF5:
            more = 3
            low = 0x90 if head == 0xF0 else low
            high = 0x8F if head == 0xF4 else high
        else:
            return False
        if end - p <= more or data[p + 1] < low or data[p + 1] > high:
            return False
        for i in range(2, more + 1):
            if data[p + i] < 0x80 or data[p + i] > 0xBF:
                return False
        p += more + 1
    return True


@inlined
def _tuple_end(data: Bytes, p: int, end: int, width: int, old: bool, binary: bool) -> int:
    """The position after a tuple of ``width`` values, or -1."""
    if end - p < 2 or read_uint16(data, p) != width:
        return -1
    p += 2
    for _ in range(width):
        if p >= end:
            return -1
        kind = data[p]
        if kind == 116 or (kind == 98 and binary):  # t, b
            if end - p < 5:
                return -1
            length = read_uint32(data, p + 1)
            p += 5
            if length > end - p or (kind == 116 and not _is_utf8(data, p, p + length)):
                return -1
            p += length
        elif kind == 110 or (kind == 117 and not old):  # n, u
            p += 1
        else:
            return -1
    return p


@inlined
def _row_fits(data: Bytes, p: int, end: int, op: int, width: int, binary: bool) -> bool:
    if p >= end:
        return False
    tag = data[p]
    if tag == 75 or tag == 79:  # noqa: PLR1714 - K, O
        if op == 73:
            return False
        p = _tuple_end(data, p + 1, end, width, True, binary)
        if op == 68 or p < 0 or p >= end:
            return op == 68 and p == end
        tag = data[p]
    if tag != 78 or op == 68:
        return False
    return _tuple_end(data, p + 1, end, width, False, binary) == end


@inlined
def _logical_fits(data: Bytes, p: int, end: int) -> bool:
    """True for a correct transactional message; p is at its flags."""
    if end - p < 9 or data[p] != 1 or read_int64(data, p + 1) < 0:
        return False
    p += 9
    stop = p
    while stop < end and data[stop] != 0:
        stop += 1
    return end - stop >= 5 and read_uint32(data, stop + 1) == end - stop - 5 and _is_utf8(data, p, stop)


@inlined
def _index_of(ids: Ints, count: int, number: int) -> int:
    """The index of a number in the sorted ids, or -1."""
    low, high = 0, count
    while low < high:
        middle = (low + high) >> 1
        if ids[middle] < number:
            low = middle + 1
        else:
            high = middle
    return low if low < count and ids[low] == number else -1


@compiled
def first_doubtful(data: Bytes, ends: Ints, head: int, ids: Ints, widths: Ints, binary: bool) -> int:
    """The first of the messages that is not certainly right, or -1.

    Args:
        data, ends: message i is ``data[ends[i] : ends[i + 1]]``, an insert, update, delete or message.
        head: bytes before the content: the tag, and in a block the transaction id.
        ids, widths: the known tables, in order of their ids.
        binary: the stream may contain binary values.
    """
    last, width = signed(-1), signed(0)
    count, tables = len(ends) - 1, len(ids)
    data, ends, ids, widths = bare(data), bare(ends), bare(ids), bare(widths)
    for i in range(count):
        p, end = ends[i], ends[i + 1]
        op = data[p]
        if end - p < head + 4 or (head == 5 and read_uint32(data, p + 1) == 0):
            return i
        p += head
        if op == 77:
            if not _logical_fits(data, p, end):
                return i
            continue
        number = read_uint32(data, p)
        if number != last:
            index = _index_of(ids, tables, number)
            if index < 0:
                return i
            last, width = number, widths[index]
        if not _row_fits(data, p + 4, end, op, width, binary):
            return i
    return -1
