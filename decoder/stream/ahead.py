"""What the server has sent after a batch: it waits in memory for the next batch.

A reader that looks ahead learns at once that a transaction has ended, without asking the server.  It goes on
reading while the lake takes a batch: a sender whose socket is full takes half a second to send again.
Invariant: messages stay in their order, and nothing of them is sorted or decoded before a batch takes them:
so a batch can still end at any position.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.compiled.jit import Bytes, Ints

__all__ = ["CALL_BYTES", "READ_BYTES_MAX", "Ahead", "Frames", "asks_for_reply"]

CALL_BYTES = 4 << 20
READ_BYTES_MAX = 32 << 20
_DATA, _KEEPALIVE = ord("w"), ord("k")
_HEADER_BYTES, _KEEPALIVE_BYTES, _REPLY_OFFSET = 25, 18, 17
# Messages that end a transaction (framing.py), and logical messages, which may be outside of any.
_ENDS = np.frombuffer(b"CcKPprM", dtype=np.uint8)
Frames = tuple[Bytes, Ints]


class Ahead:
    """Messages that no batch has taken: bytes back to back, and the length of each.

    Attributes:
        size_bytes: their size.
    """

    def __init__(self) -> None:
        self._pieces: list[Frames] = []
        self._ended = False
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._pieces)

    @property
    def calls_for_batch(self) -> bool:
        """Whether a transaction has ended in what waits, or there is too much of it to wait longer."""
        return self._ended or self.size_bytes >= CALL_BYTES

    @property
    def full(self) -> bool:
        """Whether nothing more is to be read before a batch takes what waits."""
        return self.size_bytes >= READ_BYTES_MAX

    def add(self, data: Bytes, lengths: Ints) -> None:
        """Put messages behind those that wait; of keepalives in a row only the last is needed.

        Args:
            data, lengths: those that have arrived; they are copied.
        """
        if not len(lengths):
            return
        if _only_keepalives(data, lengths):
            data, lengths = data[-_KEEPALIVE_BYTES:], lengths[-1:]
            self._drop_last_keepalive()
        self._pieces.append((data.copy(), lengths.copy()))
        self._ended = self._ended or _ends_transaction(data, lengths)
        self.size_bytes += len(data)

    def take(self) -> Frames:
        """Return all messages in order, and keep none."""
        pieces, self._pieces = self._pieces, []
        self._ended, self.size_bytes = False, 0
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate([data for data, _ in pieces]), np.concatenate([each for _, each in pieces])

    def _drop_last_keepalive(self) -> None:
        if not self._pieces:
            return
        data, lengths = self._pieces[-1]
        if lengths[-1] != _KEEPALIVE_BYTES or data[-_KEEPALIVE_BYTES] != _KEEPALIVE:
            return
        self.size_bytes -= _KEEPALIVE_BYTES
        self._pieces[-1:] = [(data[:-_KEEPALIVE_BYTES], lengths[:-1])] if len(lengths) > 1 else []


def _ends_transaction(data: Bytes, lengths: Ints) -> bool:
    starts = np.cumsum(lengths) - lengths
    rows = starts[lengths > _HEADER_BYTES]
    rows = rows[data[rows] == _DATA]
    return bool(np.isin(data[rows + _HEADER_BYTES], _ENDS).any())


def asks_for_reply(data: Bytes, lengths: Ints) -> bool:
    """Return whether a keepalive among these messages asks for an answer."""
    starts = (np.cumsum(lengths) - lengths)[lengths == _KEEPALIVE_BYTES]
    starts = starts[data[starts] == _KEEPALIVE]
    return bool((data[starts + _REPLY_OFFSET] != 0).any())


def _only_keepalives(data: Bytes, lengths: Ints) -> bool:
    starts = np.cumsum(lengths) - lengths
    return bool((lengths == _KEEPALIVE_BYTES).all() and (data[starts] == _KEEPALIVE).all())
