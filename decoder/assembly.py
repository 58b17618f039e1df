"""Puts streamed and prepared transactions together: protocol 2 to 4 in, whole transactions out.

What comes in is the stream as the server sends it: blocks of transactions in progress, interleaved, with
rolled-back parts, and prepared transactions whose outcome may come much later.  What goes out has the shape
of protocol 1, ``B … C``, in commit order, so that everything behind this module knows whole transactions
only.  A stream that is plain already passes through untouched.

    in   = (B … C | S part E | c | A | b … P | K | r | p | message outside of transactions)*
    part = (R | Y | I | U | D | T | M, each with the (sub)transaction id behind its tag | O, without)*

Rules (worker.c, pgoutput.c): an abort of a subtransaction drops exactly what that subtransaction sent, its
relation messages too, of the top-level transaction everything; COMMIT and COMMIT PREPARED bring a
transaction out, at their own position and time.

Invariant: the reader behind this module sees, at every row, the relation message that the server meant.  A
relation message counts from when it *arrives* (the server sends it once), a streamed one from when its
transaction commits.  A transaction that comes out late brings its relations along, and after it those in
force are said again if they differ.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from decoder.assembly_kernels import relation_ids, strip_xids
from decoder.assembly_messages import (
    TOO_SHORT,
    append_piece,
    fault,
    note_relation,
    payload_of,
    read_at,
    tags_of,
    truncated_by,
)
from decoder.buffer import MessageBuffer
from decoder.compiled import frozen
from decoder.cursor import EPOCH_MICROSECONDS
from decoder.lsn import format_lsn
from decoder.messages import (
    BeginPrepare,
    CommitPrepared,
    Message,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    StreamPrepare,
    StreamStart,
    StreamStop,
)
from decoder.prepared import PreparedId, PreparedStore
from decoder.spool import Piece, Spool, SpoolRoom

CHUNK_BYTES = 16 << 20
_CONTROL, _DESCRIBES = (np.isin(np.arange(256), list(tags)) for tags in (b"SEcAbPKrp", b"RY"))
_BEGIN = struct.Struct(">cQqI")
_COMMIT = struct.Struct(">cBQQq")
Tags = npt.NDArray[np.uint8]


@dataclass
class _Collected:
    """A transaction that has not come out yet.

    ``arrivals``: (arrival number, subtransaction, relation id) of its relation messages; ``before``: the
    relation messages in force when a transaction began that will be prepared.
    """

    xid: int
    spool: Spool
    arrivals: list[tuple[int, int, int]] = field(default_factory=list)
    which: PreparedId | None = None
    prefix: list[bytes] = field(default_factory=list)
    before: dict[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class _Outcome:
    """Where and when a transaction came out."""

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time: int


class Assembler:
    """One connection's stream, put together.

    Args:
        room: where transactions wait.
        store: prepared transactions of earlier batches, and of this one when it ends.
        parallel: streaming is "parallel", so aborts carry their position and time.

    Attributes:
        resolved: prepared transactions whose outcome came, with the outcome, since `next_batch`.
        streamed: transactions that came in blocks, so far.
    """

    def __init__(self, room: SpoolRoom, store: PreparedStore, *, parallel: bool = False) -> None:
        self._room, self._store, self._parallel = room, store, parallel
        self._streams: dict[int, _Collected] = {}
        self._prepared: dict[tuple[str, int], _Collected] = {}
        self._block: _Collected | None = None
        self._preparing: _Collected | None = None
        self._in_plain = False
        self._arrival = 0
        self._relations: dict[int, tuple[int, bytes]] = {}
        self._types: dict[int, bytes] = {}
        self._owed: dict[int, bytes] = {}
        self._out = MessageBuffer()
        self.resolved: list[tuple[PreparedId, str]] = []
        self.streamed = 0

    @property
    def open_transactions(self) -> int:
        """Streamed transactions without an outcome so far."""
        return len(self._streams)

    def take(self, buffer: MessageBuffer) -> Iterator[MessageBuffer]:
        """Take the next messages in; yields what has become whole, in pieces of bounded size.

        A yielded buffer is to be used up before the next is asked for.  Plain transactions are handed on
        as they come, so a piece may end inside one.

        Raises:
            ProtocolError: the stream breaks the grammar above.
            ChangeLogError: a transaction cannot be spooled, or a prepared one is not there any more.
        """
        tags = tags_of(buffer)
        controls = np.flatnonzero(_CONTROL[tags])
        if len(controls) == 0 and not (self._block or self._preparing or self._owed):
            self._note_plain(buffer, tags, 0, buffer.count)
            yield buffer
            return
        at = 0
        for control in [*controls.tolist(), buffer.count]:
            if control > at:
                self._segment(buffer, tags, at, control)
                yield from self._full()
            if control < buffer.count:
                yield from self._control(buffer, control)
            at = control + 1
        self._room.settle()
        yield from self._full(0)

    # Messages between two control messages: all of one transaction, or plain.

    def _segment(self, buffer: MessageBuffer, tags: Tags, first: int, end: int) -> None:
        start = buffer.ends[first:end]
        length = np.diff(buffer.ends[first : end + 1]).astype(np.int32)
        lsns = buffer.lsns[first:end]
        if self._block is not None:
            self._into_stream(self._block, buffer, tags[first:end], first)
            return
        self._note_plain(buffer, tags, first, end)
        if self._preparing is not None:
            xids = np.full(end - first, self._preparing.xid, dtype=np.int64)
            self._preparing.spool.extend(buffer.data, start, length, lsns, xids)
            return
        # The server described these in a transaction that waits for its outcome, and does it once.
        begins = np.flatnonzero((tags[first:end] == ord("B")) & bool(self._owed))
        upto = int(begins[0]) + 1 if len(begins) else 0
        self._out.extend(buffer.data, start[:upto], length[:upto], lsns[:upto])
        if upto:
            for payload in [*self._types.values(), *self._owed.values()]:
                self._out.append(payload, int(lsns[upto - 1]))
            self._owed.clear()
        self._out.extend(buffer.data, start[upto:], length[upto:], lsns[upto:])

    def _into_stream(self, block: _Collected, buffer: MessageBuffer, tags: Tags, first: int) -> None:
        ends = np.ascontiguousarray(buffer.ends[first : first + len(tags) + 1])
        data = np.empty(int(ends[-1] - ends[0]), dtype=np.uint8)
        start, length = np.empty(len(tags), np.int64), np.empty(len(tags), np.int32)
        xids = np.empty(len(tags), np.int64)
        bad = strip_xids(frozen(buffer.data), frozen(ends), block.xid, data, start, length, xids)
        if bad >= 0:
            short = ends[bad + 1] - ends[bad] < 5
            raise fault(buffer, first + bad, TOO_SHORT if short else "not one that a stream block holds")
        for i in np.flatnonzero(tags == ord("R")).tolist():
            payload = data[start[i] : start[i] + length[i]].tobytes()
            self._arrival += 1
            block.arrivals.append((self._arrival, int(xids[i]), int.from_bytes(payload[1:5], "big")))
        block.spool.extend(data, start, length, buffer.lsns[first : first + len(tags)], xids)

    def _note_plain(self, buffer: MessageBuffer, tags: Tags, first: int, end: int) -> None:
        part = tags[first:end]
        borders = np.flatnonzero((part == ord("B")) | (part == ord("C")))
        if len(borders):
            if self._preparing is not None:
                raise fault(buffer, first + int(borders[0]), "a transaction inside a prepared one")
            self._in_plain = bool(part[borders[-1]] == ord("B"))
        for i in np.flatnonzero(_DESCRIBES[part]).tolist():
            payload = payload_of(buffer, first + i)
            number = int.from_bytes(payload[1:5], "big")
            self._arrival += 1
            if payload[:1] == b"R":
                self._relations[number] = (self._arrival, payload)
                if self._preparing is not None:
                    self._owed[number] = payload
            else:
                self._types[number] = payload

    # Control messages, one method each.

    def _control(self, buffer: MessageBuffer, at: int) -> Iterator[MessageBuffer]:
        message = read_at(buffer, at, in_stream=self._block is not None, parallel=self._parallel)
        self._allowed(message, buffer, at)
        if isinstance(message, StreamStart):
            self._stream_start(message, buffer, at)
        elif isinstance(message, StreamStop):
            self._block = None
        elif isinstance(message, StreamAbort):
            self._stream_abort(message, buffer, at)
        elif isinstance(message, StreamCommit):
            whole = self._streamed(message.xid, buffer, at)
            outcome = _Outcome(message.xid, message.commit_lsn, message.end_lsn, message.commit_time)
            yield from self._come_out(whole, whole.spool.pieces(), outcome)
        elif isinstance(message, BeginPrepare):
            before = {number: payload for number, (_, payload) in self._relations.items()}
            which = PreparedId(message.gid, message.xid, message.prepare_lsn)
            self._preparing = _Collected(message.xid, self._room.open(), which=which, before=before)
        elif isinstance(message, Prepare | StreamPrepare):
            self._prepare(message, buffer, at)
        elif isinstance(message, CommitPrepared):
            yield from self._commit_prepared(message, buffer, at)
        elif isinstance(message, RollbackPrepared):
            self._rollback_prepared(message)

    def _allowed(self, message: Message, buffer: MessageBuffer, at: int) -> None:
        """Does this control message stand where the grammar has it?"""
        inside = "a plain transaction" if self._in_plain else ""
        inside = "a stream block" if self._block is not None else inside
        inside = "a prepared transaction" if self._preparing is not None else inside
        wanted = {StreamStop: "a stream block", Prepare: "a prepared transaction"}.get(type(message), "")
        if inside != wanted:
            raise fault(buffer, at, f"inside {inside}" if inside else f"outside of {wanted}")

    def _stream_start(self, message: StreamStart, buffer: MessageBuffer, at: int) -> None:
        known = self._streams.get(message.xid)
        if message.first != (known is None):
            what = (
                "a first block of a transaction that has one"
                if known
                else "a later block of an unknown transaction"
            )
            raise fault(buffer, at, what)
        if known is None:
            known = self._streams[message.xid] = _Collected(message.xid, self._room.open())
            self.streamed += 1
        self._block = known

    def _stream_abort(self, message: StreamAbort, buffer: MessageBuffer, at: int) -> None:
        if message.xid == message.subxid:
            self._room.close(self._streamed(message.xid, buffer, at).spool)
            return
        known = self._streams.get(message.xid)
        if known is None:
            raise fault(buffer, at, "of a transaction that was not streamed")
        known.spool.aborted.add(message.subxid)

    def _streamed(self, xid: int, buffer: MessageBuffer, at: int) -> _Collected:
        """A streamed transaction, which is over now."""
        known = self._streams.pop(xid, None)
        if known is None:
            raise fault(buffer, at, "of a transaction that was not streamed")
        return known

    def _prepare(self, message: Prepare | StreamPrepare, buffer: MessageBuffer, at: int) -> None:
        which = PreparedId(message.gid, message.xid, message.prepare_lsn)
        if isinstance(message, StreamPrepare):
            done = self._streamed(message.xid, buffer, at)
        else:
            assert self._preparing is not None
            done, self._preparing = self._preparing, None
            if done.which != which:
                raise fault(buffer, at, "prepare and begin prepare disagree on the transaction")
            done.prefix = self._described(done)
        done.which = which
        self._prepared[message.gid, message.xid] = done

    def _commit_prepared(
        self, message: CommitPrepared, buffer: MessageBuffer, at: int
    ) -> Iterator[MessageBuffer]:
        outcome = _Outcome(message.xid, message.commit_lsn, message.end_lsn, message.commit_time)
        done = self._prepared.pop((message.gid, message.xid), None)
        if done is not None:
            assert done.which is not None
            self.resolved.append((done.which, "committed"))
            yield from self._come_out(done, done.spool.pieces(), outcome)
            return
        which = self._store.find(message.gid, message.xid, message.commit_lsn)
        if which is None:
            raise self._store.missing(message.gid, message.xid, format_lsn(message.commit_lsn))
        self.resolved.append((which, "committed"))
        stored = _Collected(message.xid, self._room.open())
        yield from self._come_out(stored, self._store.pieces(which), outcome)

    def _rollback_prepared(self, message: RollbackPrepared) -> None:
        """One that is not known was prepared before the slot was made: nothing of it came."""
        done = self._prepared.pop((message.gid, message.xid), None)
        which = done.which if done else self._store.find(message.gid, message.xid, message.rollback_end_lsn)
        if done is not None:
            self._room.close(done.spool)
        if which is not None:
            self.resolved.append((which, "rolled back"))

    # Coming out.

    def _come_out(
        self, done: _Collected, pieces: Iterable[Piece], outcome: _Outcome
    ) -> Iterator[MessageBuffer]:
        out, lsn = self._out, outcome.commit_lsn
        time = outcome.commit_time - EPOCH_MICROSECONDS
        out.append(_BEGIN.pack(b"B", lsn, time, outcome.xid), lsn)
        said: dict[int, bytes] = {}
        for payload in done.prefix:
            out.append(payload, lsn)
            note_relation(said, payload)
        for piece in pieces:
            append_piece(out, piece, done.spool.kept(piece), said)
            yield from self._full()
        for payload in self._to_say_again(done, said):
            out.append(payload, lsn)
        for number in said:
            self._owed.pop(number, None)
        out.append(_COMMIT.pack(b"C", 0, lsn, outcome.end_lsn, time), lsn)
        self._room.close(done.spool)
        yield from self._full()

    def _to_say_again(self, done: _Collected, said: dict[int, bytes]) -> Iterator[bytes]:
        """Relations that this transaction described otherwise than the server last did."""
        latest: dict[int, int] = {}
        for arrival, subxid, number in done.arrivals:
            if subxid not in done.spool.aborted:
                latest[number] = arrival
        for number, payload in said.items():
            arrived, in_force = self._relations.get(number, (0, b""))
            if latest.get(number, 0) > arrived:
                self._relations[number] = (latest[number], payload)
            elif in_force not in (b"", payload):
                yield in_force

    def _described(self, done: _Collected) -> list[bytes]:
        """Types and relations that a transaction needs and that the server sent before it."""
        needed: set[int] = set()
        for piece in done.spool.pieces():
            needed.update(relation_ids(frozen(piece.data), frozen(piece.ends)).tolist())
            needed.update(truncated_by(piece))
        relations = [done.before[number] for number in sorted(needed) if number in done.before]
        return [*self._types.values(), *relations] if relations else []

    def _full(self, limit: int = CHUNK_BYTES) -> Iterator[MessageBuffer]:
        if self._out.size_bytes >= limit and self._out.count:
            yield self._out
            self._out.clear()

    # Between batches.

    def persist(self) -> list[PreparedId]:
        """Make every transaction that is prepared now durable; returns them."""
        kept: list[PreparedId] = []
        for done in self._prepared.values():
            assert done.which is not None
            self._store.write(done.which, _whole(done))
            self._room.close(done.spool)
            kept.append(done.which)
        self._prepared.clear()
        return kept

    def close(self) -> None:
        """Forget what has not come out: the server sends it again."""
        self._room.close_all()


def _whole(done: _Collected) -> Iterator[Piece]:
    """A prepared transaction's messages: what describes it first, without what was rolled back."""
    if done.prefix:
        prefix = MessageBuffer()
        assert done.which is not None
        for payload in done.prefix:
            prefix.append(payload, done.which.prepare_lsn)
        xids = np.full(prefix.count, done.xid, np.int64)
        yield Piece(frozen(prefix.data), frozen(prefix.ends), prefix.lsns, xids)
    for piece in done.spool.pieces():
        kept = done.spool.kept(piece)
        if kept.all():
            yield piece
            continue
        left = MessageBuffer()
        left.extend(piece.data, *piece.only(kept))
        yield Piece(frozen(left.data), frozen(left.ends), left.lsns, piece.xids[kept])
