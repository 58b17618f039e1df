"""What travels inside COPY BOTH: XLogData and keepalives, taken apart in bulk.

Grammar (protocol manual, section 54.4, streaming replication):

    'w' int64 wal_start  int64 wal_end  int64 send_time  payload      XLogData
    'k' int64 wal_end    int64 send_time  byte reply_requested         keepalive
    'r' int64 write  int64 flush  int64 apply  int64 time  byte reply  status, ours to the server

Owns the rule by which a batch ends.  A batch up to position U holds exactly the transactions whose
commit record starts before U.  The server sends transactions in the order of their commit records,
so U is reached when the first of these is seen:

* a Begin whose commit record starts at U or later (it is not taken in);
* a Commit whose record ends at U or later (commit records do not overlap);
* a logical message outside transactions that lies at U or later (not taken in);
* a keepalive whose ``wal_end`` is U or more: the server has decoded and sent all before it.

The ``wal_start`` of other XLogData proves nothing: for a Begin it is the transaction's first record,
which can lie before the commits sent so far.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from decoder.buffer import MessageBuffer
from decoder.compiled import Bytes, Ints, Lengths, Unsigned, compiled, frozen, inlined
from decoder.errors import ProtocolError

POSTGRES_EPOCH_SECONDS = 946_684_800
NO_LIMIT = 2**63 - 1
_STATUS = struct.Struct(">cQQQqB")

# Fields of the walk's state, which lives as long as the stream.
OPEN, TAKEN_BYTES, COMMITS, LAST_COMMIT_END, SEEN, REPLY, END = range(7)
_STATE_FIELDS = 7
_TAKEN, _BAD = range(2)

RUNNING, REACHED, CUT = range(3)
_FAULTS = ("", "an unknown kind of replication message", "the replication message ends too early")


def status_update(written: int, now_seconds: float) -> bytes:
    """A status update that confirms nothing: flush and apply are not set (0)."""
    micros = int((now_seconds - POSTGRES_EPOCH_SECONDS) * 1_000_000)
    return _STATUS.pack(b"r", written, 0, 0, micros, 0)


@dataclass(frozen=True)
class Bounds:
    """Where a batch starts and ends: at ``until``, or at the first commit after ``max_bytes``."""

    start: int
    until: int
    max_bytes: int = NO_LIMIT


class Framing:
    """Sorts what was received into a MessageBuffer and knows when the batch is complete.

    Attributes (read-only):
        end: RUNNING, REACHED (all before ``until`` is here) or CUT (ended early, at a commit).
        open: inside a transaction.
        taken_bytes: payload bytes taken in so far.
        commits: Commit messages taken in.
        last_commit_end: end of the last commit record taken in, 0 when none.
        seen: all commits before this position have been received (``start`` at first).
    """

    def __init__(self, bounds: Bounds) -> None:
        self._start = bounds.start
        self._until = bounds.until
        self._max_bytes = bounds.max_bytes
        self._state = np.zeros(_STATE_FIELDS, dtype=np.int64)
        self._state[SEEN] = bounds.start

    def take(self, raw: Bytes, lengths: Ints, buffer: MessageBuffer) -> None:
        """Append the payloads of these CopyData contents to the buffer, until the batch ends.

        Args:
            raw: uint8, the contents back to back.
            lengths: int64, of each.

        Raises:
            ProtocolError: not a replication message, or one cut short.
        """
        count = len(lengths)
        start, length = np.empty(count, np.int64), np.empty(count, np.int32)
        lsns, report = np.empty(count, np.uint64), np.zeros(2, np.int64)
        limits = np.array([self._until, self._max_bytes], dtype=np.int64)
        fault = _walk(frozen(raw), frozen(lengths), limits, self._state, start, length, lsns, report)
        if fault:
            tag = chr(raw[report[_BAD]]) if report[_BAD] < len(raw) else ""
            raise ProtocolError(_FAULTS[fault], message_type=tag, offset=0)
        taken = int(report[_TAKEN])
        buffer.extend(raw, start[:taken], length[:taken], lsns[:taken])

    def cut_at_commit(self) -> None:
        """End the batch at the next commit; at once when between transactions and past the start."""
        self._max_bytes = 0
        if not self.open and self.seen > self._start and self.end == RUNNING:
            self._state[END] = CUT

    def asked_for_reply(self) -> bool:
        """Whether the server asked for a status update since the last call."""
        asked = bool(self._state[REPLY])
        self._state[REPLY] = 0
        return asked

    @property
    def end(self) -> int:
        return int(self._state[END])

    @property
    def open(self) -> bool:
        return bool(self._state[OPEN])

    @property
    def taken_bytes(self) -> int:
        return int(self._state[TAKEN_BYTES])

    @property
    def commits(self) -> int:
        return int(self._state[COMMITS])

    @property
    def last_commit_end(self) -> int:
        return int(self._state[LAST_COMMIT_END])

    @property
    def seen(self) -> int:
        return int(self._state[SEEN])


@inlined
def _int64(data: Bytes, p: int) -> int:
    value = np.uint64(0)
    for i in range(8):
        value = (value << np.uint64(8)) | np.uint64(data[p + i])
    return int(np.int64(value))


@inlined
def _ends_before(data: Bytes, p: int, length: int, until: int) -> bool:
    """Whether the payload at p belongs to what lies at ``until`` or later.

    A message outside of transactions carries the *end* of its record, so at ``until`` it is still inside:
    the server does not send it again from there.
    """
    if length >= 9 and data[p] == ord("B"):
        return _int64(data, p + 1) >= until
    if length >= 10 and data[p] == ord("M") and data[p + 1] == 0:
        return _int64(data, p + 2) > until
    return False


@inlined
def _note_commit(data: Bytes, p: int, until: int, max_bytes: int, state: Ints) -> None:
    end_lsn = _int64(data, p + 10)
    state[OPEN] = 0
    state[COMMITS] += 1
    state[LAST_COMMIT_END] = end_lsn
    state[SEEN] = max(state[SEEN], end_lsn)
    if end_lsn >= until:
        state[END] = REACHED
    elif state[TAKEN_BYTES] >= max_bytes:
        state[END] = CUT


@inlined
def _note_payload(data: Bytes, p: int, length: int, until: int, max_bytes: int, state: Ints) -> None:
    if data[p] == ord("B"):
        state[OPEN] = 1
    elif data[p] == ord("C") and length >= 18:
        _note_commit(data, p, until, max_bytes, state)


@inlined
def _note_keepalive(data: Bytes, p: int, until: int, state: Ints) -> None:
    wal_end = _int64(data, p + 1)
    state[SEEN] = max(state[SEEN], wal_end)
    if data[p + 17] != 0:
        state[REPLY] = 1
    if wal_end >= until and state[OPEN] == 0:
        state[END] = REACHED


@compiled
def _walk(
    data: Bytes,
    lengths: Ints,
    limits: Ints,
    state: Ints,
    start: Ints,
    length: Lengths,
    lsns: Unsigned,
    report: Ints,
) -> int:
    """Note the payloads taken in; a fault's number, else 0."""
    until, max_bytes = limits[0], limits[1]
    p = 0
    taken = 0
    for i in range(len(lengths)):
        if state[END] != 0:
            break
        size = lengths[i]
        report[_BAD] = p
        if size < 1:
            return 2
        if data[p] == ord("k"):
            if size < 18:
                return 2
            _note_keepalive(data, p, until, state)
        elif data[p] == ord("w"):
            if size < 26:
                return 2
            at, payload = p + 25, size - 25
            if state[OPEN] == 0 and _ends_before(data, at, payload, until):
                state[END] = REACHED
                break
            start[taken], length[taken] = at, payload
            lsns[taken] = np.uint64(_int64(data, p + 1))
            taken += 1
            state[TAKEN_BYTES] += payload
            _note_payload(data, at, payload, until, max_bytes, state)
        else:
            return 1
        p += size
    report[_TAKEN] = taken
    return 0
