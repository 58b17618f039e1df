"""The plain reader of a whole pgoutput stream: which message may follow which, and which tables are valid.

    stream       = (transaction | prepared | block | outcome | loose)*
    transaction  = B content* C
    prepared     = b content* P | P                    one that changed nothing may come without its beginning
    block        = S content* E                        a piece of a transaction that is still open
    outcome      = c | A | p                           of a streamed transaction
                 | K | r                               of a prepared one
                 | A                                   of any other, of which nothing came; it means nothing
    content      = O | R | Y | I | U | D | T | M       in a block all but O begin with an xid
    loose        = M with flags 0

`NEXT` is this grammar as a table: state → tag → state.  A streamed transaction begins with the block that is
marked as its first, and ends with its c, p or A.  Blocks of several transactions alternate, and other
transactions come between them.  Messages of an option ('streaming', 'two_phase') are refused if it is off; A
is not.

Tables and types.  The server describes a table once per session, and once more in each streamed transaction
that changes it (pgoutput.c, ``maybe_send_schema``), because that may be rolled back or applied late:

- A description in a plain or a prepared transaction is valid from there on for everything that is not
  streamed, whatever the outcome of the transaction.
- A description in a block is valid for its own transaction at once.  For everything else it is valid from the
  transaction's c (or p and K) on, unless a later message has described the table since.  A of the whole
  transaction and r drop it.
- A block changes only tables that its own transaction has described.
- A of a subtransaction drops that subtransaction's descriptions.  The remaining changes may not need them
  (after an A the server describes a table again).

Invariant: a message is returned only if a server can send the stream up to it; after an error the reader
cannot be used any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Literal

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.cursor import EPOCH_MICROSECONDS, LSN_MAX, TIME_MAX, TIME_MIN
from slotlake.decoder.protocol.descriptions import Descriptions, StreamDescriptions, with_type_names
from slotlake.decoder.protocol.messages import (
    Begin,
    BeginPrepare,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    Streamed,
    StreamedContent,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TypeMessage,
    Update,
)
from slotlake.decoder.protocol.records import (
    NO_FIRST_BLOCK,
    NOT_ENABLED,
    NOT_STREAMED,
    OTHER_WIDTH,
    SECOND_FIRST_BLOCK,
    SENDER_ROLLED_BACK,
    STREAMING,
    TWO_PHASE,
    check_agreement,
    check_described,
    check_record,
    prepared_already,
    sender_of_another,
)
from slotlake.decoder.protocol.relations import Relation
from slotlake.decoder.protocol.wire import read_message

__all__ = [
    "EPOCH_MICROSECONDS",
    "LSN_MAX",
    "NEXT",
    "TIME_MAX",
    "TIME_MIN",
    "State",
    "StreamReader",
    "read_message",
    "with_type_names",
]


class State(Enum):
    """The place of a reader in the stream."""

    BETWEEN = "between transactions"
    TRANSACTION = "in a transaction"
    PREPARED = "in a transaction that will be prepared"
    BLOCK = "in a stream block"


def _row(state: State, ends: Mapping[str, State]) -> dict[str, State]:
    return {**dict.fromkeys("ORYIUDTM", state), **ends}


NEXT: Mapping[State, Mapping[str, State]] = {
    State.BETWEEN: {
        "B": State.TRANSACTION,
        "b": State.PREPARED,
        "S": State.BLOCK,
        **dict.fromkeys("cApPKrM", State.BETWEEN),
    },
    State.TRANSACTION: _row(State.TRANSACTION, {"C": State.BETWEEN}),
    State.PREPARED: _row(State.PREPARED, {"P": State.BETWEEN}),
    State.BLOCK: _row(State.BLOCK, {"E": State.BETWEEN}),
}
_OPENING = "BbS"


class StreamReader:
    """Reads messages in order and checks them against the stream's grammar.

    Args:
        streaming, two_phase, binary: the options of the stream.

    Attributes:
        state: the reader's place in the stream.
        transaction: the open transaction's Begin, or None.
        preparing: the Begin Prepare of the transaction that is being prepared, or None.
        block: the streamed transaction whose block is being read, or None.
        relations: the version of each table that is valid outside of streams, by id, with type names.
        streams: the streamed transactions that have not ended, by xid.
        prepared: (gid, xid) of transactions prepared in this session whose outcome has not come, and the
            descriptions of a streamed one.  An outcome may belong to an earlier session's transaction.
    """

    def __init__(
        self,
        *,
        streaming: Literal["off", "on", "parallel"] = "off",
        two_phase: bool = False,
        binary: bool = False,
    ) -> None:
        self.state = State.BETWEEN
        self.transaction: Begin | None = None
        self.preparing: BeginPrepare | None = None
        self.block: int | None = None
        self.streams: dict[int, StreamDescriptions] = {}
        self.prepared: dict[tuple[str, int], StreamDescriptions | None] = {}
        self._session = Descriptions()
        self._refused = ("" if streaming != "off" else STREAMING) + ("" if two_phase else TWO_PHASE)
        self._parallel, self._binary = streaming == "parallel", binary
        self._place = 0

    @property
    def relations(self) -> dict[int, Relation]:
        return self._session.relations

    def relation(self, relation_id: int) -> Relation | None:
        """The version of a table that is valid for the message read last."""
        if self.block is None:
            return self._session.relations.get(relation_id)
        return self.streams[self.block].relation(relation_id)

    def read(self, payload: bytes, lsn: int | None = None) -> Message:
        """Read the next message, received with WAL position ``lsn``.

        Raises:
            ProtocolError: it is not a message, or may not come here.
        """
        try:
            return self._read(payload)
        except ProtocolError as error:
            raise error.at(lsn) from None

    def _read(self, payload: bytes) -> Message:  # noqa: C901 - one case a kind of message
        tag = payload[:1].decode("latin-1")
        if tag and tag in self._refused:
            raise ProtocolError(NOT_ENABLED, message_type=tag)
        message = read_message(
            payload, in_stream=self.state is State.BLOCK, binary=self._binary, parallel=self._parallel
        )
        following = self._following(message, tag)
        match message:
            case Begin():
                self.transaction = message
            case BeginPrepare():
                self.preparing = message
            case Commit() | Prepare():
                self._end(message)
            case StreamStart():
                self._start(message)
            case StreamStop():
                self.block = None
            case StreamAbort():
                self._abort(message)
            case StreamCommit() | StreamPrepare():
                self._end_of_stream(message, tag)
            case CommitPrepared() | RollbackPrepared():
                self._outcome(message, tag)
            case Streamed(xid, content):
                self._sent_by(xid, tag)
                message = Streamed(xid, self._content(content, tag, 5, xid))
            case RelationMessage() | TypeMessage() | Insert() | Update() | Delete() | Truncate():
                message = self._content(message, tag, 1)
        self.state = following
        self._place += 1
        return message

    def _following(self, message: Message, tag: str) -> State:
        content = message.message if isinstance(message, Streamed) else message
        loose = isinstance(content, LogicalMessage) and not content.transactional
        following = NEXT[self.state].get(tag)
        if self.state is State.BETWEEN and (following is None or (tag == "M" and not loose)):
            raise ProtocolError("the message may not come outside of a transaction", message_type=tag)
        if following is None and tag in _OPENING:
            raise ProtocolError("a transaction begins inside another", message_type=tag)
        if following is None or (loose and self.state in {State.PREPARED, State.BLOCK}):
            raise ProtocolError(f"the message may not come {self.state.value}", message_type=tag)
        return following

    def _end(self, message: Commit | Prepare) -> None:
        if isinstance(message, Prepare):
            if self.state is State.PREPARED:
                check_agreement(self.preparing, message)
            self._prepare(message, "P", None)
            self.preparing = None
            return
        assert self.transaction is not None
        if message.commit_lsn != self.transaction.final_lsn:
            raise ProtocolError("Commit and Begin have different positions", message_type="C", offset=2)
        check_record(message, "C")
        self.transaction = None

    def _start(self, message: StreamStart) -> None:
        is_open = message.xid in self.streams
        if message.first == is_open:
            what = SECOND_FIRST_BLOCK if is_open else NO_FIRST_BLOCK
            raise ProtocolError(what, message_type="S", offset=5)
        if not is_open:
            for top, other in self.streams.items():
                if message.xid in other.xids:
                    raise ProtocolError(sender_of_another(top), message_type="S", offset=1)
            self.streams[message.xid] = StreamDescriptions(self._session)
        self.block = message.xid

    def _sent_by(self, xid: int, tag: str) -> None:
        """Note the sender of a message in a block: no subtransaction belongs to two transactions."""
        assert self.block is not None
        stream = self.streams[self.block]
        if xid in stream.aborted:
            raise ProtocolError(SENDER_ROLLED_BACK, message_type=tag, offset=1)
        if xid not in stream.xids:
            for top, other in self.streams.items():
                if other is not stream and (xid == top or xid in other.xids):
                    raise ProtocolError(sender_of_another(top), message_type=tag, offset=1)
            stream.xids.add(xid)

    def _stream(self, xid: int, tag: str, offset: int) -> StreamDescriptions:
        stream = self.streams.get(xid)
        if stream is None:
            raise ProtocolError(NOT_STREAMED, message_type=tag, offset=offset)
        return stream

    def _abort(self, message: StreamAbort) -> None:
        if message.subxid == message.xid:
            self.streams.pop(message.xid, None)
        elif message.xid in self.streams:
            self.streams[message.xid].abort(message.subxid)

    def _end_of_stream(self, message: StreamCommit | StreamPrepare, tag: str) -> None:
        offset = 1 if tag == "c" else 26
        stream = self._stream(message.xid, tag, offset)
        check_record(message, tag)
        check_described(stream.lost(), tag, offset)
        if isinstance(message, StreamCommit):
            stream.commit()
        else:
            self._prepare(message, tag, stream)
        del self.streams[message.xid]

    def _prepare(self, message: Prepare | StreamPrepare, tag: str, stream: StreamDescriptions | None) -> None:
        check_record(message, tag)
        if (message.gid, message.xid) in self.prepared:
            raise prepared_already(tag)
        self.prepared[message.gid, message.xid] = stream

    def _outcome(self, message: CommitPrepared | RollbackPrepared, tag: str) -> None:
        """Read an outcome; two transactions may have one gid, if the filter by origin removed an outcome."""
        check_record(message, tag)
        stream = self.prepared.pop((message.gid, message.xid), None)
        if stream is not None and isinstance(message, CommitPrepared):
            stream.commit()

    def _content(
        self, message: StreamedContent, tag: str, offset: int, xid: int | None = None
    ) -> StreamedContent:
        """Check content against the known tables; ``offset`` is where it starts in its message."""
        if isinstance(message, RelationMessage | TypeMessage):
            if xid is None:
                return self._session.add(message, self._place)
            assert self.block is not None
            return self.streams[self.block].add(message, self._place, xid)
        if isinstance(message, Truncate):
            for relation_id in message.relation_ids:
                self._required_relation(relation_id, tag, offset, xid)
        elif isinstance(message, Insert | Update | Delete):
            self._fits(message, tag, offset, xid)
        return message

    def _required_relation(self, relation_id: int, tag: str, offset: int, xid: int | None) -> Relation:
        relation = self.relation(relation_id)
        if self.block is not None and xid is not None:
            self.streams[self.block].used(xid, relation_id)
        if relation is None:
            raise ProtocolError(f"relation {relation_id} was not described", message_type=tag, offset=offset)
        return relation

    def _fits(self, message: Insert | Update | Delete, tag: str, offset: int, xid: int | None) -> None:
        relation = self._required_relation(message.relation_id, tag, offset, xid)
        old = None if isinstance(message, Insert) else message.old
        new = None if isinstance(message, Delete) else message.new
        for values in (old, new):
            if values is not None and len(values) != len(relation.columns):
                raise ProtocolError(OTHER_WIDTH, message_type=tag, offset=offset + 4)
