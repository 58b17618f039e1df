"""What the server has sent after a batch: it waits in memory for the next batch.

A reader that looks ahead learns at once that a transaction has ended, without asking the server.  Invariant:
messages stay in their order, and nothing of them is sorted or decoded before a batch takes them: so a batch
can still end at any position.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.compiled.jit import Bytes, Ints

__all__ = ["AHEAD_BYTES_MAX", "asks_for_reply", "calls_for_batch", "joined"]

AHEAD_BYTES_MAX = 4 << 20
_DATA, _KEEPALIVE = ord("w"), ord("k")
_HEADER_BYTES, _KEEPALIVE_BYTES, _REPLY_OFFSET = 25, 18, 17
# Messages that end a transaction (framing.py), and logical messages, which may be outside of any.
_ENDS = np.frombuffer(b"CcKPprM", dtype=np.uint8)
Frames = tuple[Bytes, Ints]


def joined(waiting: Frames | None, data: Bytes, lengths: Ints) -> Frames | None:
    """Put what has arrived behind what waits; of keepalives in a row only the last is needed.

    Args:
        waiting: messages back to back, and the length of each; None for none.
        data, lengths: those that have arrived; they are copied.
    """
    if not len(lengths):
        return waiting
    if _only_keepalives(data, lengths):
        data, lengths = data[-_KEEPALIVE_BYTES:], lengths[-1:]
        waiting = _without_last_keepalive(waiting)
    if waiting is None:
        return data.copy(), lengths.copy()
    return np.concatenate([waiting[0], data]), np.concatenate([waiting[1], lengths])


def calls_for_batch(waiting: Frames | None) -> bool:
    """Return whether a transaction has ended in what waits, or there is too much of it to wait longer."""
    if waiting is None:
        return False
    data, lengths = waiting
    starts = np.cumsum(lengths) - lengths
    rows = starts[lengths > _HEADER_BYTES]
    rows = rows[data[rows] == _DATA]
    return len(data) >= AHEAD_BYTES_MAX or bool(np.isin(data[rows + _HEADER_BYTES], _ENDS).any())


def asks_for_reply(data: Bytes, lengths: Ints) -> bool:
    """Return whether a keepalive among these messages asks for an answer."""
    starts = (np.cumsum(lengths) - lengths)[lengths == _KEEPALIVE_BYTES]
    starts = starts[data[starts] == _KEEPALIVE]
    return bool((data[starts + _REPLY_OFFSET] != 0).any())


def _only_keepalives(data: Bytes, lengths: Ints) -> bool:
    starts = np.cumsum(lengths) - lengths
    return bool((lengths == _KEEPALIVE_BYTES).all() and (data[starts] == _KEEPALIVE).all())


def _without_last_keepalive(waiting: Frames | None) -> Frames | None:
    if waiting is None:
        return None
    data, lengths = waiting
    if lengths[-1] != _KEEPALIVE_BYTES or data[-_KEEPALIVE_BYTES] != _KEEPALIVE:
        return waiting
    return (data[:-_KEEPALIVE_BYTES], lengths[:-1]) if len(lengths) > 1 else None
