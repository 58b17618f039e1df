"""Received pgoutput messages, back to back in one growing buffer.

Owns the bytes between the socket and the decoder.  Invariant: message i is
``data[ends[i] : ends[i + 1]]``, ``ends[0] == 0``, and only the first ``count`` messages exist; the
arrays behind the views are replaced when they grow, so a view must not outlive an `append`.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.compiled.jit import Bytes, Ints, Lengths, Unsigned, compiled, frozen
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.compiled.words import copy_bytes

# At most so many messages are decoded together: then the notes about them stay in the processor's caches and
# are used again.  16 MB of small messages would be three times as many.
CHUNK_MESSAGES = 1 << 18

_FIRST_BYTES = 1 << 20
_FIRST_MESSAGES = 1 << 14
_NEXT_BYTES, _NEXT_MESSAGES = 32 << 20, 1 << 17  # an array's unused part costs no memory


class MessageBuffer:
    """Messages with the WAL position that each was sent with (XLogData's start)."""

    def __init__(self) -> None:
        self._data = np.empty(_FIRST_BYTES, dtype=np.uint8)
        self._ends = np.zeros(_FIRST_MESSAGES + 1, dtype=np.int64)
        self._lsns = np.zeros(_FIRST_MESSAGES, dtype=np.uint64)
        self._view = memoryview(self._data.data)
        self._count = 0
        self._used = 0

    @property
    def count(self) -> int:
        """Number of messages in the buffer."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """Payload bytes in the buffer."""
        return self._used

    def full(self, size_bytes: int) -> bool:
        """True if it is time to decode: the buffer has ``size_bytes`` bytes or CHUNK_MESSAGES messages."""
        return self._used >= size_bytes or self._count >= CHUNK_MESSAGES

    @property
    def data(self) -> Bytes:
        """All payload bytes, uint8[size_bytes]."""
        return self._data[: self._used]

    @property
    def ends(self) -> Ints:
        """Offsets into `data`, int64[count + 1]."""
        return self._ends[: self._count + 1]

    @property
    def lsns(self) -> Unsigned:
        """WAL start of each message, uint64[count]; 0 for messages that have none."""
        return self._lsns[: self._count]

    def append(self, payload: memoryview | bytes | bytearray, wal_start: int) -> None:
        """Append a copy of one message."""
        end = self._used + len(payload)
        if end > len(self._data):
            self._grow_data(end)
        if self._count == len(self._lsns):
            self._grow_messages()
        self._view[self._used : end] = payload
        self._lsns[self._count] = wal_start
        self._count += 1
        self._ends[self._count] = end
        self._used = end

    def extend(self, data: Bytes, start: Ints, length: Lengths, lsns: Unsigned) -> None:
        """Append copies of many messages: message i is ``data[start[i] : start[i] + length[i]]``.

        Args:
            data: uint8[bytes].
            start: int64[messages], offsets into ``data``.
            length: int32[messages], bytes.
            lsns: uint64[messages], the WAL start of each.
        """
        end, count = self._used + int(length.sum(dtype=np.int64)), self._count + len(length)
        if end > len(self._data):
            self._grow_data(end)
        while count > len(self._lsns):
            self._grow_messages()
        _gather(frozen(data), frozen(start), frozen(length), self._data, self._ends, self._count)
        self._lsns[self._count : count] = lsns
        self._used, self._count = end, count

    def clear(self) -> None:
        """Forget all messages; the memory is kept for the next ones."""
        self._count = self._used = 0

    def drop_first(self, count: int) -> None:
        """Forget the first ``count`` messages and move the rest to the front."""
        if count == 0:
            return
        first = int(self._ends[count])
        rest, rest_bytes = self._count - count, self._used - first
        self._data[:rest_bytes] = self._data[first : self._used].copy()
        self._lsns[:rest] = self._lsns[count : self._count].copy()
        self._ends[: rest + 1] = self._ends[count : self._count + 1] - first
        self._count, self._used = rest, rest_bytes

    def _grow_data(self, needed: int) -> None:
        grown = np.empty(max(needed, 2 * len(self._data), _NEXT_BYTES), dtype=np.uint8)
        grown[: self._used] = self._data[: self._used]
        self._data, self._view = grown, memoryview(grown.data)

    def _grow_messages(self) -> None:
        room = max(4 * len(self._lsns), _NEXT_MESSAGES)
        ends, lsns = np.zeros(room + 1, dtype=np.int64), np.zeros(room, dtype=np.uint64)
        ends[: self._count + 1] = self._ends[: self._count + 1]
        lsns[: self._count] = self._lsns[: self._count]
        self._ends, self._lsns = ends, lsns


@compiled
def _gather(data: Bytes, start: Ints, length: Lengths, into: Bytes, ends: Ints, first: int) -> None:
    at, count, data_end, into_end = ends[first], len(length), len(data), len(into)
    data, start, length, into, ends = bare(data), bare(start), bare(length), bare(into), bare(ends)
    for i in range(count):
        copy_bytes(data, start[i], start[i] + length[i], data_end, into, at, into_end)
        at += length[i]
        ends[first + i + 1] = at
