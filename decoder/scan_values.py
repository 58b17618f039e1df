"""Rows that `scan.walk` has checked, put in order, and where each one's first value lies.

Invariant: every position given is that of a tuple that lies whole within its message, so nothing here needs
to check an end.
"""

from __future__ import annotations

from decoder.compiled import Bytes, Ints, compiled
from decoder.memory import bare
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
