"""Whole transactions in commit order from any pgoutput stream: the readable reference.

What the fast way (`decoder.assembly.assembler` and `decoder.columnar.decoder`) makes of a stream of protocol
2 to 4 must mean the same as this.  It keeps every open transaction in memory as Python objects, so it is for
tests, for small streams and for reading.

Invariant: a transaction comes out once, at its commit ('C', 'c' or 'K'), with the changes of exactly those
subtransactions that were not rolled back, each with the version of its tables that was in force when it was
received.  A message outside of transactions comes out where it stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.messages import (
    Begin,
    BeginPrepare,
    Change,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Origin,
    Prepare,
    RollbackPrepared,
    StreamAbort,
    StreamCommit,
    Streamed,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Update,
)
from slotlake.decoder.protocol.reader import StreamReader
from slotlake.decoder.protocol.relations import Relation

_CHANGES = (Insert, Update, Delete, Truncate, LogicalMessage)


@dataclass(frozen=True)
class TransactionChange:
    """One change with what it needs to be understood.

    Attributes:
        message: the row change, truncate or logical message.
        relations: the versions in force of the tables it names, in its order; empty for a logical message.
        lsn: the WAL position that came with it.
    """

    message: Change
    relations: tuple[Relation, ...]
    lsn: int


@dataclass(frozen=True)
class Transaction:
    """A committed transaction.

    Attributes:
        xid: its top-level number.
        commit_lsn, end_lsn, commit_time: of its commit record, or of COMMIT PREPARED.
        origin: the node that it was replicated from, or None.
        changes: in the order in which they were made.
        gid: the name under which it was prepared, or None; only known when two-phase was asked for.
    """

    xid: int
    commit_lsn: int
    end_lsn: int
    commit_time: int
    origin: str | None
    changes: tuple[TransactionChange, ...]
    gid: str | None = None


Result: TypeAlias = Transaction | LogicalMessage


@dataclass
class _Open:
    """A transaction that has not been committed: its changes, each with the subtransaction that made it."""

    xid: int
    origin: str | None = None
    changes: list[tuple[int, TransactionChange]] = field(default_factory=list)

    def rolled_back(self, subxid: int) -> None:
        self.changes = [each for each in self.changes if each[0] != subxid]

    def committed(self, end: Commit | StreamCommit | CommitPrepared, gid: str | None = None) -> Transaction:
        changes = tuple(change for _, change in self.changes)
        return Transaction(self.xid, end.commit_lsn, end.end_lsn, end.commit_time, self.origin, changes, gid)


class Transactions:
    """Puts the messages of one stream together.

    Args:
        streaming, two_phase, binary: as asked of the server.
    """

    def __init__(
        self,
        *,
        streaming: Literal["off", "on", "parallel"] = "off",
        two_phase: bool = False,
        binary: bool = False,
    ) -> None:
        self._reader = StreamReader(streaming=streaming, two_phase=two_phase, binary=binary)
        self._now: _Open | None = None
        self._streams: dict[int, _Open] = {}
        self._prepared: dict[tuple[str, int], _Open] = {}

    def feed(self, payload: bytes, lsn: int = 0) -> Result | None:
        """Take the next message; returns what it makes whole, if anything.

        Raises:
            ProtocolError: the stream breaks the grammar.
        """
        message = self._reader.read(payload, lsn)
        match message:
            case Begin() | BeginPrepare():
                self._now = _Open(message.xid)
            case StreamStart():
                self._now = self._streams.setdefault(message.xid, _Open(message.xid))
            case StreamStop():
                self._now = None
            case Origin():
                self._origin(message)
            case LogicalMessage(transactional=False):
                return message
            case Streamed(xid, content) if isinstance(content, _CHANGES):
                self._change(content, xid, lsn)
            case Insert() | Update() | Delete() | Truncate() | LogicalMessage():
                assert self._now is not None
                self._change(message, self._now.xid, lsn)
            case _:
                return self._outcome(message, lsn)
        return None

    def _outcome(self, message: Message, lsn: int) -> Transaction | None:
        done: Transaction | None = None
        match message:
            case Commit():
                assert self._now is not None
                done, self._now = self._now.committed(message), None
            case StreamCommit():
                done = self._streams.pop(message.xid).committed(message)
            case StreamAbort():
                self._rolled_back(message)
            case Prepare():
                self._prepared[message.gid, message.xid] = self._now or _Open(message.xid)
                self._now = None
            case StreamPrepare():
                self._prepared[message.gid, message.xid] = self._streams.pop(message.xid)
            case CommitPrepared():
                waiting = self._prepared.pop((message.gid, message.xid), None)
                if waiting is None:
                    what = "of a transaction that was not prepared"
                    raise ProtocolError(what, message_type="K", offset=30, lsn=lsn)
                done = waiting.committed(message, message.gid)
            case RollbackPrepared():
                self._prepared.pop((message.gid, message.xid), None)
        return done

    def _rolled_back(self, message: StreamAbort) -> None:
        if message.xid == message.subxid:
            self._streams.pop(message.xid, None)
        elif message.xid in self._streams:
            self._streams[message.xid].rolled_back(message.subxid)

    def _origin(self, message: Origin) -> None:
        assert self._now is not None
        if self._now.origin is None:
            self._now.origin = message.name

    def _change(self, message: Change, xid: int, lsn: int) -> None:
        assert self._now is not None
        if isinstance(message, LogicalMessage):
            ids: tuple[int, ...] = ()
        else:
            ids = message.relation_ids if isinstance(message, Truncate) else (message.relation_id,)
        versions = (self._reader.relation(relation_id) for relation_id in ids)
        relations = tuple(version for version in versions if version is not None)
        self._now.changes.append((xid, TransactionChange(message, relations, lsn)))


def reference_transactions(
    stream: Iterable[tuple[int, bytes]],
    *,
    streaming: Literal["off", "on", "parallel"] = "off",
    two_phase: bool = False,
    binary: bool = False,
) -> Iterator[Result]:
    """Yield the transactions of a stream in commit order, and the messages outside of transactions.

    Args:
        stream: (WAL position, message), in the order of receipt.
        streaming, two_phase, binary: as asked of the server.

    Raises:
        ProtocolError: at the message that breaks the grammar.
    """
    transactions = Transactions(streaming=streaming, two_phase=two_phase, binary=binary)
    for lsn, payload in stream:
        result = transactions.feed(payload, lsn)
        if result is not None:
            yield result
