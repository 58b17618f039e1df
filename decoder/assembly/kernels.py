"""The compiled loops of assembler.py: one pass over the messages of a stream block.

Invariant: nothing is read past a message's end, if `inspection.inspect` has accepted the messages.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, compiled, read_uint32
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.compiled.words import copy_bytes


@compiled
def strip_xids(
    data: Bytes, ends: Ints, top: int, into: Bytes, start: Ints, length: Lengths, xids: Ints
) -> None:
    """Copy messages ``ends[i]:ends[i + 1]`` without the transaction id after their tag.

    Args:
        ends: int64[n + 1], offsets into ``data``.
        top: the id for an origin message, which has none itself.
        into: uint8, at least as long as the messages.
        start, length, xids: filled in for each copy.
    """
    written, count, data_end, into_end = 0, len(ends) - 1, len(data), len(into)
    data, ends, into = bare(data), bare(ends), bare(into)
    start, length, xids = bare(start), bare(length), bare(xids)
    for i in range(count):
        p, end = ends[i], ends[i + 1]
        tag = data[p]
        start[i] = written
        into[written] = tag
        if tag == 79:  # O
            xids[i] = top
            p += 1
        else:
            xids[i] = read_uint32(data, p + 1)
            p += 5
        size = end - p
        copy_bytes(data, p, end, data_end, into, written + 1, into_end)
        written += 1 + size
        length[i] = 1 + size


@compiled
def relation_ids(data: Bytes, ends: Ints) -> Ints:
    """Return the relations of the row messages (insert, update, delete), one entry each time they change.

    Args:
        data: uint8[bytes], the messages back to back.
        ends: int64[messages + 1], offsets into ``data``.

    Returns:
        int64[at most messages], relation OIDs.
    """
    numbers = np.empty(len(ends) - 1, np.int64)
    count, last = 0, -1
    for i in range(len(ends) - 1):
        p, tag = ends[i], data[ends[i]]
        if (tag == 73 or tag == 85 or tag == 68) and ends[i + 1] - p >= 5:  # noqa: PLR1714
            number = read_uint32(data, p + 1)
            if number != last:
                numbers[count] = number
                count += 1
                last = number
    return numbers[:count]
