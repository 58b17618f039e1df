"""The messages inside COPY BOTH: XLogData and keepalives, many at a time.

Grammar (protocol manual, section 54.4, streaming replication):

    'w' int64 wal_start  int64 wal_end  int64 send_time  payload      XLogData
    'k' int64 wal_end    int64 send_time  byte reply_requested         keepalive
    'r' int64 write  int64 flush  int64 apply  int64 time  byte reply  status, ours to the server

Owns the rule by which a batch ends.  A batch up to position U has exactly the transactions whose
commit record starts before U.  The server sends outcomes in the order of their records, so U is reached
when the first of these arrives:

* a Begin, Begin Prepare, Stream Commit, Stream Prepare or Commit Prepared whose commit (or prepare) record
  starts at U or later, or a Rollback Prepared whose record ends after U (left to the next batch);
* a Commit, Prepare or any of the above that belongs to the batch and whose record ends at U or later (such
  records do not overlap);
* a logical message outside transactions whose record starts at U or later (left to the next batch);
* a keepalive whose ``wal_end`` is U or more: the server has decoded and sent everything before it.

A stream block of a transaction in progress says nothing about U: the transaction may still commit before it.

The ``wal_start`` of other XLogData proves nothing: for a Begin it is the transaction's first record,
which can lie before the commits sent so far.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.compiled.jit import (
    Bytes,
    Ints,
    Lengths,
    Unsigned,
    compiled,
    frozen,
    inlined,
    read_int64,
)
from slotlake.decoder.compiled.memory import bare
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.message_record import message_start

POSTGRES_EPOCH_SECONDS = 946_684_800
NO_LIMIT = 2**63 - 1
_STATUS = struct.Struct(">cQQQqB")

# Fields of the walk's state, which lives as long as the stream.
OPEN, TAKEN_BYTES, COMMITS, LAST_COMMIT_END, RECEIVED_LSN, REPLY, END = range(7)
_STATE_FIELDS = 7
_TAKEN, _BAD, _USED = range(3)

RUNNING, REACHED, ENDED_EARLY = range(3)
_FAULTS = ("", "an unknown kind of replication message", "the replication message ends too early")


def status_update(written: int, now_seconds: float, *, flushed: int = 0, ask: bool = False) -> bytes:
    """Write a status update.

    Unless ``flushed`` is given it confirms nothing: flush and apply are not set (0).

    Args:
        written: position up to which everything was received.
        now_seconds: time.time().
        flushed: position to confirm.
    """
    micros = int((now_seconds - POSTGRES_EPOCH_SECONDS) * 1_000_000)
    return _STATUS.pack(b"r", max(written, flushed), flushed, flushed, micros, ask)


@dataclass(frozen=True)
class Bounds:
    """Where a batch starts and ends: at ``until``, or at the first commit after ``max_bytes``."""

    start: int
    until: int
    max_bytes: int = NO_LIMIT


class Framing:
    """Sorts what was received into a MessageBuffer and knows when the batch is complete.

    Attributes (read-only):
        until: where the batch ends at the latest.
        end: RUNNING, REACHED (everything before ``until`` has arrived) or ENDED_EARLY (at an earlier commit).
        open: inside a transaction or a stream block.
        taken_bytes: payload bytes of this batch so far.
        commits: committed transactions of this batch so far.
        last_commit_end: end of the batch's last commit record, 0 if there is none yet.
        received_lsn: all commits before this position have been received (``start`` at first).
    """

    def __init__(self, bounds: Bounds) -> None:
        self._state = np.zeros(_STATE_FIELDS, dtype=np.int64)
        self._state[RECEIVED_LSN] = bounds.start
        self._bound(bounds)
        # Load the compiled code before the stream starts: from then on the server waits for answers.
        self.take(np.empty(0, np.uint8), np.empty(0, np.int64), MessageBuffer())

    def _bound(self, bounds: Bounds) -> None:
        self._start, self.until, self._max_bytes = bounds.start, bounds.until, bounds.max_bytes

    def begin(self, bounds: Bounds) -> None:
        """Begin a new batch on the same stream, at the end of the last one."""
        self._bound(bounds)
        state = self._state
        state[TAKEN_BYTES] = state[COMMITS] = state[LAST_COMMIT_END] = 0
        state[END] = (
            REACHED if state[OPEN] == 0 and bounds.start < bounds.until <= state[RECEIVED_LSN] else RUNNING
        )

    def take(self, raw: Bytes, lengths: Ints, buffer: MessageBuffer) -> int:
        """Append the payloads of these CopyData contents to the buffer, until the batch ends.

        Returns:
            How many of the contents belong to this batch: all, unless the batch has ended.

        Args:
            raw: uint8, the contents back to back.
            lengths: int64, the length of each.

        Raises:
            ProtocolError: it is not a replication message, or an incomplete one.
        """
        count = len(lengths)
        start, length = np.empty(count, np.int64), np.empty(count, np.int32)
        lsns, report = np.empty(count, np.uint64), np.zeros(3, np.int64)
        limits = np.array([self.until, self._max_bytes], dtype=np.int64)
        fault = _walk(frozen(raw), frozen(lengths), limits, self._state, start, length, lsns, report)
        if fault:
            tag = chr(raw[report[_BAD]]) if report[_BAD] < len(raw) else ""
            raise ProtocolError(_FAULTS[fault], message_type=tag, offset=0)
        taken = int(report[_TAKEN])
        buffer.extend(raw, start[:taken], length[:taken], lsns[:taken])
        return int(report[_USED])

    def end_at_commit(self) -> None:
        """End the batch at the next commit, or now if no transaction is open and the start is passed."""
        self._max_bytes = 0
        if not self.open and self.received_lsn > self._start and self.end == RUNNING:
            self._state[END] = ENDED_EARLY

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
    def received_lsn(self) -> int:
        return int(self._state[RECEIVED_LSN])


@inlined
def _layout(tag: int) -> tuple[int, int, int]:
    """Offsets of the LSNs in a message that begins or ends a transaction: (record's start, end, size).

    0 if the message lacks that LSN.  Tags: C commit, c stream commit, P prepare, p stream prepare,
    K commit prepared, r rollback prepared, B begin, b begin prepare.
    """
    if tag == 67 or tag == 75 or tag == 80 or tag == 112:  # noqa: PLR1714
        return 2, 10, 26
    if tag == 99:
        return 6, 14, 30
    if tag == 114:
        return 0, 10, 18
    if tag == 66:
        return 1, 0, 21
    if tag == 98:
        return 1, 0, 17
    return 0, 0, 0


@inlined
def _ends_before(data: Bytes, p: int, length: int, until: int) -> bool:
    """True if the payload at p belongs to a record at ``until`` or later, so that the batch ends before it.

    A message outside of transactions has the *end* of its record.  If its record starts before ``until``, the
    server does not send it again to a stream that starts at ``until``.
    """
    tag = data[p]
    if tag == 77:
        if length < 14 or data[p + 1] != 0:
            return False
        ends = read_int64(data, p + 2)
        return ends > until and message_start(ends, length - 14) >= until
    starts, ends, size = _layout(tag)
    if length < size:
        return False
    if starts > 0:
        return read_int64(data, p + starts) >= until
    return ends > 0 and read_int64(data, p + ends) > until


@inlined
def _note_end(data: Bytes, p: int, ends: int, commits: bool, until: int, max_bytes: int, state: Ints) -> None:
    end_lsn = read_int64(data, p + ends)
    state[OPEN] = 0
    state[RECEIVED_LSN] = max(state[RECEIVED_LSN], end_lsn)
    if commits:
        state[COMMITS] += 1
        state[LAST_COMMIT_END] = end_lsn
    if end_lsn >= until:
        state[END] = REACHED
    elif commits and state[TAKEN_BYTES] >= max_bytes:
        state[END] = ENDED_EARLY


@inlined
def _note_payload(data: Bytes, p: int, length: int, until: int, max_bytes: int, state: Ints) -> None:
    tag = data[p]
    if tag == 66 or tag == 98 or tag == 83:  # noqa: PLR1714 - B, b, S
        state[OPEN] = 1
    elif tag == 69:  # E
        state[OPEN] = 0
    else:
        _, ends, size = _layout(tag)
        if ends > 0 and length >= size:
            commits = tag == 67 or tag == 99 or tag == 75  # noqa: PLR1714
            _note_end(data, p, ends, commits, until, max_bytes, state)


@inlined
def _note_keepalive(data: Bytes, p: int, until: int, state: Ints) -> None:
    wal_end = read_int64(data, p + 1)
    state[RECEIVED_LSN] = max(state[RECEIVED_LSN], wal_end)
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
    """Note the payloads of this batch; return the number of a fault, else 0."""
    until, max_bytes, count = limits[0], limits[1], len(lengths)
    data, lengths, state, report = bare(data), bare(lengths), bare(state), bare(report)
    start, length, lsns = bare(start), bare(length), bare(lsns)
    p = 0
    taken = 0
    for i in range(count):
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
            lsns[taken] = np.uint64(read_int64(data, p + 1))
            taken += 1
            state[TAKEN_BYTES] += payload
            _note_payload(data, at, payload, until, max_bytes, state)
        else:
            return 1
        p += size
        report[_USED] = i + 1
    report[_TAKEN] = taken
    return 0
