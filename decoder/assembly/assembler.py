"""Assembles streamed and prepared transactions: protocol 2 to 4 in, whole transactions out.

The input is the stream as the server sends it: interleaved blocks of transactions in progress, with parts
that are rolled back, and prepared transactions whose outcome may come much later.  The output is in protocol
1, ``B … C``, in commit order, so that all later code sees whole transactions only.  A stream that has only
plain transactions passes unchanged.

    in   = (B … C | S part E | c | A | b … P | P | K | r | p | message outside of transactions)*
    part = (R | Y | I | U | D | T | M, each with the (sub)transaction id after its tag | O, without)*

Rules (worker.c, pgoutput.c): an abort of a subtransaction drops exactly the messages of that subtransaction,
its relation messages too; an abort of the top-level transaction drops all.  COMMIT and COMMIT PREPARED output
a transaction, at their own position and time.  A prepared transaction that has an id but changed nothing
(``SELECT … FOR UPDATE``) has no base snapshot, so it is not replayed, but its PREPARE is sent
(reorderbuffer.c, ReorderBufferReplay and ReorderBufferPrepare): P without b is such an empty one.  Older
servers send only its outcome, others nothing (prepared.py says how it differs from a lost one).

Invariant: for every row in the output, the last relation message before it is the one that the server meant.
A relation message is valid from its *arrival* (the server sends it once), a streamed one from the commit of
its transaction.  A transaction that is output late has its own relations with it; after it, the valid ones
are output again if they differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Literal

import numpy as np
import numpy.typing as npt

from slotlake.decoder.assembly.collected import Collected
from slotlake.decoder.assembly.inspection import inspect, with_place
from slotlake.decoder.assembly.kernels import strip_xids
from slotlake.decoder.assembly.messages import (
    append_piece,
    fault,
    note_relation,
    payload_of,
    read_at,
    tags_of,
)
from slotlake.decoder.assembly.outcome import Outcome
from slotlake.decoder.assembly.prepared import PreparedId, PreparedStore
from slotlake.decoder.assembly.session_relations import SessionRelations
from slotlake.decoder.assembly.spool import Piece, SpoolRoom
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.compiled.jit import Ints, frozen
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.protocol import records
from slotlake.decoder.protocol.messages import (
    BeginPrepare,
    CommitPrepared,
    Message,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    Streamed,
    StreamPrepare,
    StreamStart,
    StreamStop,
)

CHUNK_BYTES = 16 << 20
_CONTROL, _DESCRIBES = (np.isin(np.arange(256), list(tags)) for tags in (b"SEcAbPKrp", b"RY"))
Tags = npt.NDArray[np.uint8]


class Assembler:
    """Assembles the transactions of one connection's stream.

    Args:
        room: keeps transactions that have not ended.
        store: prepared transactions of earlier batches, and of this one when it ends.
        streaming, two_phase, binary: the options of the stream.
        any_bytes: values that are not UTF-8 pass, for a decoder that names their table.

    Attributes:
        resolved: prepared transactions whose outcome came, with the outcome, since `next_batch`.
        streamed: transactions that came in blocks, so far.
    """

    def __init__(
        self,
        room: SpoolRoom,
        store: PreparedStore,
        *,
        streaming: Literal["off", "on", "parallel"] = "parallel",
        two_phase: bool = True,
        binary: bool = False,
        any_bytes: bool = False,
    ) -> None:
        self._room, self._store = room, store
        self._parallel = streaming == "parallel"
        self._inspect = partial(inspect, binary=binary, any_bytes=any_bytes)
        self._refused = ("" if streaming != "off" else records.STREAMING) + (
            "" if two_phase else records.TWO_PHASE
        )
        self._streams: dict[int, Collected] = {}
        self._prepared: dict[tuple[str, int], Collected] = {}
        self._open_prepared: set[tuple[str, int]] = (
            set()
        )  # prepared in this session, the outcome has not come
        self._settled: set[PreparedId] = set()  # those of the store whose outcome came on this connection
        self._block: Collected | None = None
        self._preparing: Collected | None = None
        self._in_plain = False
        self._session_relations = SessionRelations()
        self._out = MessageBuffer()
        self.resolved: list[tuple[PreparedId, str]] = []
        self.streamed = 0

    @property
    def open_transactions(self) -> int:
        """Streamed transactions without an outcome so far."""
        return len(self._streams)

    def take(self, buffer: MessageBuffer) -> Iterator[MessageBuffer]:
        """Read the next messages, and yield transactions that are whole now, in buffers of limited size.

        The caller must use a buffer before it asks for the next.  Plain transactions are output as they
        come, so a buffer may end inside one.

        Raises:
            ProtocolError: the stream breaks the grammar above.
            ChangeLogError: a transaction cannot be spooled, or a prepared one does not exist any more.
        """
        tags = tags_of(buffer)
        controls = np.flatnonzero(_CONTROL[tags])
        if len(controls) == 0 and not (self._block or self._preparing or self._session_relations.has_pending):
            self._note_plain(buffer, tags, 0, buffer.count)
            yield buffer
            return
        at = 0
        for control in [*controls.tolist(), buffer.count]:
            if control > at:
                self._segment(buffer, tags, at, control)
                yield from self._full_buffers()
            if control < buffer.count:
                yield from self._control(buffer, control)
            at = control + 1
        self._room.settle()
        yield from self._full_buffers(0)

    # Messages between two control messages: all belong to one transaction, or to plain ones.

    def _segment(self, buffer: MessageBuffer, tags: Tags, first: int, end: int) -> None:
        start = buffer.ends[first:end]
        length = np.diff(buffer.ends[first : end + 1]).astype(np.int32)
        lsns = buffer.lsns[first:end]
        if self._block is not None:
            self._spool_stream_messages(self._block, buffer, tags[first:end], first)
            return
        if self._preparing is not None:
            self._inspect_prepared(buffer, tags[first:end], first)
            xids = np.full(end - first, self._preparing.xid, dtype=np.int64)
            self._preparing.spool.extend(buffer.data, start, length, lsns, xids)
            return
        self._note_plain(buffer, tags, first, end)
        # The server described these once, in a transaction that still waits for its outcome.
        begins = np.flatnonzero((tags[first:end] == ord("B")) & self._session_relations.has_pending)
        upto = int(begins[0]) + 1 if len(begins) else 0
        self._out.extend(buffer.data, start[:upto], length[:upto], lsns[:upto])
        if upto:
            for payload in self._session_relations.take_pending():
                self._out.append(payload, int(lsns[upto - 1]))
        self._out.extend(buffer.data, start[upto:], length[upto:], lsns[upto:])

    def _spool_stream_messages(self, block: Collected, buffer: MessageBuffer, tags: Tags, first: int) -> None:
        def described(at: int, message: Message) -> None:
            assert isinstance(message, Streamed)
            if isinstance(message.message, RelationMessage):
                self._session_relations.arrival += 1
                relation = message.message.relation
                block.describe(
                    self._session_relations.arrival, message.xid, relation.relation_id, len(relation.columns)
                )

        self._inspect(buffer, tags, first, lambda: block.widths, described, streamed=True)
        ends = np.ascontiguousarray(buffer.ends[first : first + len(tags) + 1])
        data = np.empty(int(ends[-1] - ends[0]), dtype=np.uint8)
        start, length = np.empty(len(tags), np.int64), np.empty(len(tags), np.int32)
        xids = np.empty(len(tags), np.int64)
        strip_xids(frozen(buffer.data), frozen(ends), block.xid, data, start, length, xids)
        self._check_senders(block, buffer, xids, first)
        block.spool.extend(data, start, length, buffer.lsns[first : first + len(tags)], xids)

    def _check_senders(self, block: Collected, buffer: MessageBuffer, xids: Ints, first: int) -> None:
        """Check that no subtransaction belongs to two transactions, or sends after its rollback."""
        for i in [0, *(np.flatnonzero(np.diff(xids)) + 1).tolist()]:
            xid = int(xids[i])
            if xid in block.spool.aborted:
                raise fault(buffer, first + i, records.SENDER_ROLLED_BACK, 1)
            if xid not in block.senders:
                for top, other in self._streams.items():
                    if other is not block and (xid == top or xid in other.senders):
                        raise fault(buffer, first + i, records.sender_of_another(top), 1)
                block.senders.add(xid)

    def _inspect_prepared(self, buffer: MessageBuffer, tags: Tags, first: int) -> None:
        def described(at: int, message: Message) -> None:
            self._session_relations.describe(payload_of(buffer, at), message, pending=True)

        self._inspect(buffer, tags, first, lambda: self._session_relations.widths, described, streamed=False)

    def _note_plain(self, buffer: MessageBuffer, tags: Tags, first: int, end: int) -> None:
        part = tags[first:end]
        borders = np.flatnonzero((part == ord("B")) | (part == ord("C")))
        if len(borders):
            self._in_plain = bool(part[borders[-1]] == ord("B"))
        for at in (np.flatnonzero(_DESCRIBES[part]) + first).tolist():
            message = read_at(buffer, at, in_stream=False, parallel=False)
            self._session_relations.describe(payload_of(buffer, at), message, pending=False)

    # Control messages, one method each.

    def _control(self, buffer: MessageBuffer, at: int) -> Iterator[MessageBuffer]:
        message = read_at(buffer, at, in_stream=self._block is not None, parallel=self._parallel)
        self._check_place(message, buffer, at)
        with_place(buffer, at, lambda: self._check(message, chr(buffer.data[buffer.ends[at]])))
        if isinstance(message, StreamStart):
            self._stream_start(message, buffer, at)
        elif isinstance(message, StreamStop):
            self._block = None
        elif isinstance(message, StreamAbort):
            self._stream_abort(message, buffer, at)
        elif isinstance(message, StreamCommit):
            whole = self._take_stream(message.xid, buffer, at)
            with_place(buffer, at, lambda: records.check_described(whole.lost(), "c", 1))
            outcome = Outcome(message.xid, message.commit_lsn, message.end_lsn, message.commit_time)
            yield from self._committed_messages(whole, whole.spool.pieces(), outcome)
        elif isinstance(message, BeginPrepare):
            before = self._session_relations.valid()
            self._preparing = Collected(message.xid, self._room.open(), begin=message, before=before)
        elif isinstance(message, Prepare | StreamPrepare):
            self._prepare(message, buffer, at)
        elif isinstance(message, CommitPrepared):
            yield from self._commit_prepared(message, buffer, at)
        elif isinstance(message, RollbackPrepared):
            self._rollback_prepared(message)

    def _check_place(self, message: Message, buffer: MessageBuffer, at: int) -> None:
        """Check that this control message is at a place where the grammar allows it."""
        inside = "a plain transaction" if self._in_plain else ""
        inside = "a stream block" if self._block is not None else inside
        inside = "a prepared transaction" if self._preparing is not None else inside
        required = {StreamStop: "a stream block", Prepare: "a prepared transaction"}.get(type(message), "")
        if inside != required and (inside or not isinstance(message, Prepare)):
            place = f"inside {inside}" if inside else f"outside of {required}"
            raise fault(buffer, at, f"the message may not come {place}")

    def _check(self, message: Message, tag: str) -> None:
        """Check that the options allow the message, and that its fields fit earlier messages."""
        if tag in self._refused:
            raise ProtocolError(records.NOT_ENABLED, message_type=tag)
        if isinstance(message, Prepare) and self._preparing is not None:
            records.check_agreement(self._preparing.begin, message)
        records.check_record(message, tag)
        if isinstance(message, Prepare | StreamPrepare) and (message.gid, message.xid) in self._open_prepared:
            raise records.prepared_already(tag)

    def _stream_start(self, message: StreamStart, buffer: MessageBuffer, at: int) -> None:
        stream = self._streams.get(message.xid)
        if message.first != (stream is None):
            raise fault(buffer, at, records.SECOND_FIRST_BLOCK if stream else records.NO_FIRST_BLOCK)
        if stream is None:
            for top, other in self._streams.items():
                if message.xid in other.senders:
                    raise fault(buffer, at, records.sender_of_another(top), 1)
            stream = self._streams[message.xid] = Collected(message.xid, self._room.open())
            self.streamed += 1
        self._block = stream

    def _stream_abort(self, message: StreamAbort, buffer: MessageBuffer, at: int) -> None:
        if message.xid not in self._streams:
            return  # nothing of it came (`records.STREAMING`)
        if message.xid == message.subxid:
            self._room.close(self._take_stream(message.xid, buffer, at).spool)
        else:
            self._streams[message.xid].abort(message.subxid)

    def _take_stream(self, xid: int, buffer: MessageBuffer, at: int) -> Collected:
        """Remove a streamed transaction, which has ended, and return it."""
        stream = self._streams.pop(xid, None)
        if stream is None:
            raise fault(buffer, at, records.NOT_STREAMED)
        return stream

    def _prepare(self, message: Prepare | StreamPrepare, buffer: MessageBuffer, at: int) -> None:
        which = PreparedId(message.gid, message.xid, message.prepare_lsn)
        if isinstance(message, StreamPrepare):
            done = self._take_stream(message.xid, buffer, at)
            with_place(buffer, at, lambda: records.check_described(done.lost(), "p", 26))
        else:
            done = self._preparing or Collected(message.xid, self._room.open())
            self._preparing = None
            done.prefix = self._session_relations.prefix(done)
        done.which = which
        self._prepared[message.gid, message.xid] = done
        self._open_prepared.add((message.gid, message.xid))

    def _commit_prepared(
        self, message: CommitPrepared, buffer: MessageBuffer, at: int
    ) -> Iterator[MessageBuffer]:
        outcome = Outcome(message.xid, message.commit_lsn, message.end_lsn, message.commit_time)
        self._open_prepared.discard((message.gid, message.xid))
        done = self._prepared.pop((message.gid, message.xid), None)
        if done is not None:
            assert done.which is not None
            self.resolved.append((done.which, "committed"))
            yield from self._committed_messages(done, done.spool.pieces(), outcome)
            return
        which = self._stored_id(message.gid, message.xid, message.commit_lsn)
        if which is None:
            if self._store.had_changes(message.gid, message.xid):
                raise self._store.missing(message.gid, message.xid, format_lsn(message.commit_lsn))
            return  # an empty one: the server sent nothing at its PREPARE
        self.resolved.append((which, "committed"))
        stored = Collected(message.xid, self._room.open())
        yield from self._committed_messages(stored, self._store.pieces(which), outcome)

    def _rollback_prepared(self, message: RollbackPrepared) -> None:
        """Drop it.  An unknown one was prepared before the slot was created: none of its changes came."""
        self._open_prepared.discard((message.gid, message.xid))
        done = self._prepared.pop((message.gid, message.xid), None)
        which = done.which if done else self._stored_id(message.gid, message.xid, message.rollback_end_lsn)
        if done is not None:
            self._room.close(done.spool)
        if which is not None:
            self.resolved.append((which, "rolled back"))

    def _stored_id(self, gid: str, xid: int, before: int) -> PreparedId | None:
        """Find one on disk, from an earlier batch.  Its file stays until the lake has its outcome."""
        which = self._store.find(gid, xid, before)
        if which is None or which in self._settled:
            return None
        self._settled.add(which)
        return which

    # Output.

    def _committed_messages(
        self, done: Collected, pieces: Iterable[Piece], outcome: Outcome
    ) -> Iterator[MessageBuffer]:
        out, lsn = self._out, outcome.commit_lsn
        out.append(outcome.begin_message, lsn)
        sent_relations: dict[int, bytes] = {}
        for payload in done.prefix:
            out.append(payload, lsn)
            note_relation(sent_relations, payload)
        for piece in pieces:
            append_piece(out, piece, done.spool.live_flags(piece), sent_relations)
            yield from self._full_buffers()
        for payload in self._session_relations.emitted(done, sent_relations):
            out.append(payload, lsn)
        out.append(outcome.commit_message, lsn)
        self._room.close(done.spool)
        yield from self._full_buffers()

    def _full_buffers(self, limit: int = CHUNK_BYTES) -> Iterator[MessageBuffer]:
        if self._out.full(limit) and self._out.count:
            yield self._out
            self._out.clear()

    # Between batches.

    def persist(self) -> list[PreparedId]:
        """Store every transaction that is prepared now on disk, and return their ids."""
        persisted: list[PreparedId] = []
        for done in self._prepared.values():
            assert done.which is not None
            self._store.write(done.which, done.whole())
            self._room.close(done.spool)
            persisted.append(done.which)
        self._prepared.clear()
        if self._settled:
            self._settled.intersection_update(self._store.waiting())
        return persisted

    def close(self) -> None:
        """Forget what was not output: the server sends it again."""
        self._room.close_all()
