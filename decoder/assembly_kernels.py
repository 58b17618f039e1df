"""The compiled loops of assembly.py: one pass over the messages of a stream block.

Invariant: nothing is read past a message's end; a message that is too short, or of a kind that a block may
not hold, ends the pass with its index.
"""

from __future__ import annotations

import numpy as np

from decoder.compiled import Bytes, Ints, Lengths, compiled, inlined


@inlined
def _may_be_streamed(tag: int) -> bool:
    for allowed in b"IUDRYTM":  # noqa: SIM110 - compiled
        if tag == allowed:
            return True
    return False


@inlined
def _uint32(data: Bytes, p: int) -> int:
    value = np.int64(0)
    for i in range(4):
        value = (value << 8) | np.int64(data[p + i])
    return int(value)


@compiled
def strip_xids(
    data: Bytes, ends: Ints, top: int, into: Bytes, start: Ints, length: Lengths, xids: Ints
) -> int:
    """Copy messages ``ends[i]:ends[i + 1]`` without the transaction id behind their tag.

    Args:
        ends: int64[n + 1], offsets into ``data``.
        top: the id of an origin message, which carries none.
        into: uint8, at least as long as the messages.
        start, length, xids: filled in, of each copy.

    Returns:
        -1, or the index of the first message that cannot be one of a block.
    """
    written = 0
    for i in range(len(ends) - 1):
        p, end = ends[i], ends[i + 1]
        tag = data[p]
        start[i] = written
        into[written] = tag
        if tag == 79:  # O
            xids[i] = top
            p += 1
        else:
            if end - p < 5 or not _may_be_streamed(tag):
                return i
            xids[i] = _uint32(data, p + 1)
            p += 5
        size = end - p
        into[written + 1 : written + 1 + size] = data[p:end]
        written += 1 + size
        length[i] = 1 + size
    return -1


@compiled
def relation_ids(data: Bytes, ends: Ints) -> Ints:
    """The relations of the row messages (insert, update, delete), each as often as it changes."""
    found = np.empty(len(ends) - 1, np.int64)
    count, last = 0, -1
    for i in range(len(ends) - 1):
        p, tag = ends[i], data[ends[i]]
        if (tag == 73 or tag == 85 or tag == 68) and ends[i + 1] - p >= 5:  # noqa: PLR1714
            number = _uint32(data, p + 1)
            if number != last:
                found[count] = number
                count += 1
                last = number
    return found[:count]
