"""pgoutput behind the common interface: messages of `decoder.protocol.reader.StreamReader` as callbacks.

The server sends the origin right after the start of a transaction (for a streamed one: in its first
block only), so the callback that begins it waits until the next message shows whether there is an origin.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Literal

from slotlake.decoder.errors import UNREADABLE, ProtocolError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.plugins import model
from slotlake.decoder.plugins.model import Event, Transaction
from slotlake.decoder.protocol.messages import (
    Begin,
    BeginPrepare,
    BinaryValue,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Origin,
    Prepare,
    RelationMessage,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    Streamed,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    TypeMessage,
    Update,
)
from slotlake.decoder.protocol.messages import Message as WireMessage
from slotlake.decoder.protocol.messages import Tuple as WireTuple
from slotlake.decoder.protocol.reader import StreamReader
from slotlake.decoder.protocol.relations import Column, Relation
from slotlake.decoder.types.binary.values import binary_text
from slotlake.decoder.types.catalog import TypeCatalog
from slotlake.decoder.types.text_error import TextError


class PgoutputReader:
    """Reads one stream of pgoutput.

    Args:
        streaming, two_phase, binary: the options of the stream.
        types: the known user types; without them only binary values of built-in types can be read.
    """

    plugin: ClassVar[str] = "pgoutput"

    def __init__(
        self,
        *,
        streaming: Literal["off", "on", "parallel"] = "off",
        two_phase: bool = False,
        binary: bool = False,
        types: TypeCatalog | None = None,
    ) -> None:
        self._reader = StreamReader(streaming=streaming, two_phase=two_phase, binary=binary)
        self._transaction: Transaction | None = None
        self._origins: dict[int | None, str | None] = {}
        self._due: Event | None = None
        self._types = TypeCatalog() if types is None else types
        self.lsn = 0

    @property
    def open(self) -> bool:
        """True inside a transaction or a streamed block."""
        return self._transaction is not None

    def read(self, payload: bytes, lsn: int) -> Iterator[Event]:
        """The events of one message."""
        self.lsn = lsn
        yield from self._events(self._reader.read(payload, lsn))

    def _events(self, message: WireMessage) -> Iterator[Event]:
        if isinstance(message, Origin):
            self._originated(message)
            return
        if self._due is not None:
            due, self._due = self._due, None
            yield due
        subxid = None
        if isinstance(message, Streamed):
            subxid, content = message.xid, message.message
            if not isinstance(content, RelationMessage | TypeMessage):
                yield self._content(content, subxid)
        elif isinstance(message, Begin | BeginPrepare | StreamStart):
            self._begin(message)
        elif isinstance(message, Insert | Update | Delete | Truncate | LogicalMessage):
            yield self._content(message, None)
        elif not isinstance(message, RelationMessage | TypeMessage):
            if isinstance(message, Prepare) and self._transaction is None:  # an empty one
                self._transaction = _prepared(message)
                yield Event("begin_prepare", self._transaction, message.prepare_lsn)
            yield self._end(message)

    # Transactions.

    def _begin(self, message: Begin | BeginPrepare | StreamStart) -> None:
        callback: model.Callback
        match message:
            case Begin():
                callback, at = "begin", message.final_lsn
                begun = Transaction(message.xid, message.final_lsn, None, message.commit_time)
            case BeginPrepare():
                callback, at = "begin_prepare", message.prepare_lsn
                begun = _prepared(message)
            case StreamStart():
                callback, at = "stream_start", self.lsn
                begun = Transaction(message.xid, origin=self._origins.get(message.xid))
        self._transaction = begun
        self._due = Event(callback, begun, at)

    def _originated(self, message: Origin) -> None:
        if self._due is None or self._transaction is None:
            raise ProtocolError(
                "an origin message does not follow the start of a transaction",
                message_type="O",
                where=f"message 'O', at {format_lsn(self.lsn)}",
            )
        begun = self._transaction
        self._transaction = _with_origin(begun, message.name)
        self._origins[begun.xid] = message.name
        self._due = Event(self._due.callback, self._transaction, self._due.lsn)

    def _end(self, message: WireMessage) -> Event:
        match message:
            case Commit() | Prepare():
                return self._ended(message)
            case StreamStop():
                block, self._transaction = self._transaction, None
                return Event("stream_stop", block, self.lsn)
            case StreamAbort():
                return self._abort(message)
            case StreamCommit():
                end, time = message.end_lsn, message.commit_time
                origin = self._origins.pop(message.xid, None)
                done = Transaction(message.xid, message.commit_lsn, end, time, origin)
                return Event("stream_commit", done, message.commit_lsn)
            case StreamPrepare():
                prepared = _with_origin(_prepared(message), self._origins.get(message.xid))
                return Event("stream_prepare", prepared, message.prepare_lsn)
        assert isinstance(message, CommitPrepared | RollbackPrepared)
        return self._outcome(message)

    def _ended(self, message: Commit | Prepare) -> Event:
        begun, self._transaction = self._transaction, None
        assert begun is not None
        if isinstance(message, Prepare):
            return Event("prepare", _with_origin(_prepared(message), begun.origin), message.prepare_lsn)
        self._origins.pop(begun.xid, None)
        end, time = message.end_lsn, message.commit_time
        done = Transaction(begun.xid, message.commit_lsn, end, time, begun.origin)
        return Event("commit", done, message.commit_lsn)

    def _abort(self, message: StreamAbort) -> Event:
        whole = message.subxid == message.xid
        origin = self._origins.pop(message.xid, None) if whole else self._origins.get(message.xid)
        transaction = Transaction(message.xid, origin=origin)
        return Event("stream_abort", transaction, message.abort_lsn or self.lsn, None, message.subxid)

    def _outcome(self, message: CommitPrepared | RollbackPrepared) -> Event:
        origin = self._origins.pop(message.xid, None)
        if isinstance(message, CommitPrepared):
            done = Transaction(
                message.xid, message.commit_lsn, message.end_lsn, message.commit_time, origin, message.gid
            )
            return Event("commit_prepared", done, message.commit_lsn)
        end, time = message.rollback_end_lsn, message.rollback_time
        return Event("rollback_prepared", Transaction(message.xid, None, end, time, origin, message.gid), end)

    # Content.

    def _content(
        self, message: Insert | Update | Delete | Truncate | LogicalMessage, subxid: int | None
    ) -> Event:
        transaction = self._transaction
        streamed = subxid is not None
        if isinstance(message, LogicalMessage):
            content = model.Message(message.lsn, message.transactional, message.prefix, message.content)
            of = transaction if message.transactional else None
            return Event("stream_message" if streamed else "message", of, message.lsn, content, subxid)
        if isinstance(message, Truncate):
            relations = tuple(self._relation(relation_id) for relation_id in message.relation_ids)
            emptied = model.Truncate(self.lsn, relations, message.cascade, message.restart_identity)
            return Event(
                "stream_truncate" if streamed else "truncate", transaction, self.lsn, emptied, subxid
            )
        change = self._change(message)
        return Event("stream_change" if streamed else "change", transaction, self.lsn, change, subxid)

    def _change(self, message: Insert | Update | Delete) -> model.Change:
        relation = self._relation(message.relation_id)
        match message:
            case Insert():
                return model.Change(self.lsn, relation, "insert", new=self._texts(relation, message.new))
            case Update():
                old = None if message.old is None else self._texts(relation, message.old)
                new = self._texts(relation, message.new)
                return model.Change(self.lsn, relation, "update", _kind(message.old_kind), old, new)
            case Delete():
                old = self._texts(relation, message.old)
                return model.Change(self.lsn, relation, "delete", _kind(message.old_kind), old)

    def _relation(self, relation_id: int) -> Relation:
        relation = self._reader.relation(relation_id)
        assert relation is not None, "the reader refuses a relation that was not described"
        return relation

    def _texts(self, relation: Relation, values: WireTuple) -> model.Tuple:
        return tuple(
            self._text(value, column, relation) if isinstance(value, BinaryValue) else value
            for value, column in zip(values, relation.columns, strict=True)
        )

    def _text(self, value: BinaryValue, column: Column, relation: Relation) -> str:
        try:
            return binary_text(value.data, column.type_oid, self._types)
        except TextError as error:
            raise ProtocolError(
                f"a binary value of column {column.name!r} of {relation.schema}.{relation.table} cannot be "
                f"read: {error.reason}",
                where=f"pgoutput message, at {format_lsn(self.lsn)}",
                way_out=UNREADABLE,
            ) from None


def _kind(kind: str) -> Literal["", "K", "O"]:
    return "K" if kind == "K" else "O" if kind == "O" else ""


def _prepared(message: BeginPrepare | Prepare | StreamPrepare) -> Transaction:
    return Transaction(
        message.xid, message.prepare_lsn, message.end_lsn, message.prepare_time, None, message.gid
    )


def _with_origin(transaction: Transaction, origin: str | None) -> Transaction:
    return Transaction(
        transaction.xid,
        transaction.commit_lsn,
        transaction.end_lsn,
        transaction.commit_time,
        origin,
        transaction.gid,
    )
