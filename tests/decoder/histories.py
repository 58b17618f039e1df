"""A small server of its own: random transactions, and what a walsender would say of them.

It keeps to PostgreSQL's rules where they matter to a reader: locks, so that a table's shape is its changer's
alone; subtransactions that end with their parents; one cache entry a table that says in which streams and
whether in the session it was described (pgoutput.c, ``RelationSyncEntry``).  Beside the messages it says what
they mean, from its own books, not by reading them.

Drawn from a `random.Random`: a seed gives the same history again, and the fuzzer can make many quickly.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Literal

from slotlake.decoder.protocol.messages import (
    Begin,
    BeginPrepare,
    BinaryValue,
    Change,
    Commit,
    CommitPrepared,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    NoValue,
    Origin,
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
    Value,
)
from slotlake.decoder.protocol.relations import Column, Relation
from slotlake.decoder.types.table import type_name
from tests.decoder.reference import Result, Transaction, TransactionChange
from tests.decoder.streams import TEXTS, TIME
from tests.decoder.wire import encode

MOOD = TypeMessage(16999, "s", "mood")
KINDS = sorted(TEXTS)
BINARY = {
    16: [b"\0", b"\1"],
    17: [b"", b"\0\xff"],
    20: [bytes(8), b"\x80" + bytes(7)],
    23: [bytes(4), b"\xff\xff\xff\xff"],
    25: [b"", "ü".encode()],
    701: [bytes(8), b"\x7f\xf8" + bytes(6), b"\x3f\xf0" + bytes(6)],
    1082: [b"\0\0\x26\x5f", b"\x7f\xff\xff\xff"],
    1184: [bytes(8), b"\x80" + bytes(7)],
    1700: [b"\0\1\0\0\0\0\0\2\0\5", b"\0\0\0\0\xc0\0\0\0"],
}


@dataclass
class Options:
    """What was asked of the server."""

    streaming: Literal["off", "on", "parallel"] = "parallel"
    two_phase: bool = True
    binary: bool = False

    def reader(self) -> dict[str, Any]:
        return vars(self)


@dataclass
class _Entry:
    """What the walsender knows of one table."""

    version: Relation | None = None
    sent: bool = False
    streams: set[int] = field(default_factory=set)


@dataclass
class _Item:
    xid: int
    change: TransactionChange


@dataclass
class _Sub:
    """A savepoint: its number, those released into it, the shapes of tables when it began."""

    xid: int
    xids: set[int]
    shapes: dict[int, Relation]


@dataclass
class _Txn:
    xid: int
    origin: str | None
    subs: list[_Sub]
    shapes: dict[int, Relation] = field(default_factory=dict)  # that it changed itself
    holds: dict[int, bool] = field(default_factory=dict)  # table → exclusively
    pending: list[_Item] = field(default_factory=list)
    kept: list[_Item] = field(default_factory=list)
    streamed: set[int] = field(default_factory=set)
    started: bool = False
    prepared: Prepare | None = None

    @property
    def xids(self) -> set[int]:
        return {xid for sub in self.subs for xid in sub.xids}


class Server:
    """Transactions under way, the messages sent, and what they mean.

    Attributes:
        sent: (WAL position, message), as they would come.
        expected: what comes whole, in order.
    """

    def __init__(self, draw: random.Random, options: Options) -> None:
        self.draw, self.options = draw, options
        self.sent: list[tuple[int, Message]] = []
        self.expected: list[Result] = []
        self._lsn, self._xid = 1000, 700
        self._entries: dict[int, _Entry] = {}
        self._tables = {number: self._shape(number) for number in (1, 2, 3)}
        self._txns: list[_Txn] = []
        self._prepared: list[_Txn] = []

    @property
    def stream(self) -> list[tuple[int, bytes]]:
        """As bytes."""
        return [(lsn, encode(message)) for lsn, message in self.sent]

    def step(self) -> None:
        """Something happens."""
        choice = self.draw.random()
        if not self._txns or (choice < 0.12 and len(self._txns) < 4):
            self._begin()
        elif choice < 0.15:
            self._loose()
        elif choice < 0.20:
            self._republish()
        elif choice < 0.26 and self._prepared:
            self._resolve()
        else:
            self._act(self.draw.choice(self._txns))

    def _act(self, txn: _Txn) -> None:
        choice = self.draw.random()
        if choice < 0.16:
            self._end(txn)
        elif choice < 0.26:
            txn.subs.append(self._sub(txn))
        elif choice < 0.33 and len(txn.subs) > 1:
            at = self.draw.randrange(1, len(txn.subs))
            txn.subs[at - 1].xids |= {xid for sub in txn.subs[at:] for xid in sub.xids}
            del txn.subs[at:]
        elif choice < 0.42 and len(txn.subs) > 1:
            self._rollback_to(txn, self.draw.randrange(1, len(txn.subs)))
        elif choice < 0.55 and self.options.streaming != "off":
            self._block(txn)
        else:
            self._change(txn)

    # What transactions do.

    def _next_lsn(self) -> int:
        self._lsn += self.draw.choice([8, 48, 200])
        return self._lsn

    def _next_xid(self) -> int:
        self._xid += 1
        return self._xid

    def _begin(self) -> None:
        xid = self._next_xid()
        origin = self.draw.choice([None, None, None, "node 1", "node 2"])
        self._txns.append(_Txn(xid, origin, [_Sub(xid, {xid}, {})]))

    def _sub(self, txn: _Txn) -> _Sub:
        xid = self._next_xid()
        return _Sub(xid, {xid}, dict(txn.shapes))

    def _loose(self) -> None:
        message = LogicalMessage(False, self._next_lsn(), "loose", self.draw.randbytes(3))
        self.sent.append((message.lsn, message))
        self.expected.append(message)

    def _republish(self) -> None:
        """Other columns are published from here on, without a lock."""
        number = self.draw.choice(sorted(self._tables))
        if not any(number in txn.shapes for txn in [*self._txns, *self._prepared]):
            self._tables[number] = self._shape(number)

    def _shape(self, number: int) -> Relation:
        columns = []
        for name in "abcd"[: self.draw.randrange(5)]:
            oid, typmod = self.draw.choice(KINDS)
            known = type_name(oid) or ("s.mood" if oid == MOOD.type_oid else "")
            columns.append(Column(name, oid, typmod, self.draw.random() < 0.5, known))
        return Relation(number, "public", f"t{number}", self.draw.choice("dnfi"), tuple(columns))

    def _may(self, txn: _Txn, number: int, *, exclusively: bool) -> bool:
        others = [other for other in [*self._txns, *self._prepared] if other is not txn]
        holds = [other.holds[number] for other in others if number in other.holds]
        return not holds if exclusively else not any(holds)

    def _change(self, txn: _Txn) -> None:
        number = self.draw.choice(sorted(self._tables))
        choice = self.draw.random()
        if choice < 0.08:
            content = LogicalMessage(True, self._next_lsn(), "p", self.draw.randbytes(2))
            self._note(txn, content, ())
            return
        exclusively = choice < 0.25
        if not self._may(txn, number, exclusively=exclusively):
            return
        txn.holds[number] = txn.holds.get(number, False) or exclusively
        if choice < 0.18:
            txn.shapes[number] = self._shape(number)
        elif exclusively:
            self._note(txn, Truncate(self.draw.random() < 0.5, False, (number,)), (number,))
        else:
            self._note(txn, self._row(self._seen(txn, number)), (number,))

    def _seen(self, txn: _Txn, number: int) -> Relation:
        return txn.shapes.get(number, self._tables[number])

    def _note(self, txn: _Txn, content: Change, numbers: tuple[int, ...]) -> None:
        relations = tuple(self._seen(txn, number) for number in numbers)
        item = _Item(txn.subs[-1].xid, TransactionChange(content, relations, self._next_lsn()))
        txn.pending.append(item)
        txn.kept.append(item)

    def _row(self, relation: Relation) -> Insert | Update | Delete:
        old_kind = self.draw.choice(["", "K", "O"])
        before = self._values(relation, old=True)
        match self.draw.choice("IIUUD"):
            case "I":
                return Insert(relation.relation_id, self._values(relation, old=False))
            case "U":
                old = before if old_kind else None
                return Update(relation.relation_id, old_kind, old, self._values(relation, old=False))
            case _:
                return Delete(relation.relation_id, old_kind or "K", before)

    def _values(self, relation: Relation, *, old: bool) -> tuple[Value, ...]:
        return tuple(self._value(column, old=old) for column in relation.columns)

    def _value(self, column: Column, *, old: bool) -> Value:
        choice = self.draw.random()
        if choice < 0.1:
            return NoValue.NULL
        if choice < 0.2 and not old:
            return NoValue.UNCHANGED
        if choice < 0.6 and self.options.binary and column.type_oid in BINARY:
            return BinaryValue(self.draw.choice(BINARY[column.type_oid]))
        return self.draw.choice(TEXTS[column.type_oid, column.typmod])

    # What the walsender says of it.

    def _say(self, message: Message, lsn: int = 0) -> None:
        self.sent.append((lsn or self._lsn, message))

    def _block(self, txn: _Txn) -> None:
        self._say(StreamStart(txn.xid, not txn.started))
        if not txn.started and txn.origin:
            self._say(Origin(0, txn.origin))
        txn.started = True
        for item in txn.pending:
            self._say_item(item, txn.xid)
            txn.streamed.add(item.xid)
        txn.pending.clear()
        self._say(StreamStop())

    def _say_item(self, item: _Item, stream: int | None) -> None:
        def say(content: StreamedContent) -> None:
            self._say(content if stream is None else Streamed(item.xid, content), item.change.lsn)

        for version in item.change.relations:
            entry = self._entries.setdefault(version.relation_id, _Entry())
            if entry.version != version or self.draw.random() < 0.05:
                entry.version, entry.sent = version, False
                entry.streams.clear()
            if not (entry.sent if stream is None else stream in entry.streams):
                if any(column.type_oid == MOOD.type_oid for column in version.columns):
                    say(MOOD)
                say(RelationMessage(version))
                if stream is None:
                    entry.sent = True
                else:
                    entry.streams.add(stream)
        say(item.change.message)

    def _forget_stream(self, txn: _Txn, *, committed: bool) -> None:
        for entry in self._entries.values():
            if txn.xid in entry.streams:
                entry.streams.discard(txn.xid)
                entry.sent = entry.sent or committed

    def _say_abort(self, txn: _Txn, xid: int) -> None:
        parallel = self.options.streaming == "parallel"
        where = (self.draw.choice([0, self._lsn]), TIME) if parallel else (None, None)
        self._say(StreamAbort(txn.xid, xid, *where))
        self._forget_stream(txn, committed=False)

    def _rollback_to(self, txn: _Txn, at: int) -> None:
        gone = {xid for sub in txn.subs[at:] for xid in sub.xids}
        txn.shapes = txn.subs[at].shapes
        del txn.subs[at:]
        self._drop(txn, gone)

    def _drop(self, txn: _Txn, gone: set[int]) -> None:
        txn.pending = [item for item in txn.pending if item.xid not in gone]
        txn.kept = [item for item in txn.kept if item.xid not in gone]
        told = sorted(gone & txn.streamed) if txn.started else []
        self.draw.shuffle(told)
        for xid in told:
            self._say_abort(txn, xid)

    def _end(self, txn: _Txn) -> None:
        self._txns.remove(txn)
        choice = self.draw.random()
        if choice < 0.25:
            self._abort(txn)
        elif choice < 0.5:
            self._prepare(txn)
        else:
            self._commit(txn)

    def _abort(self, txn: _Txn) -> None:
        self._drop(txn, txn.xids - {txn.xid})
        if txn.started:
            self._say_abort(txn, txn.xid)

    def _commit(self, txn: _Txn) -> None:
        lsn = self._next_lsn()
        end = Commit(lsn, lsn + 48, TIME + lsn)
        if txn.started:
            if txn.pending:
                self._block(txn)
            self._say(StreamCommit(txn.xid, end.commit_lsn, end.end_lsn, end.commit_time))
            self._forget_stream(txn, committed=True)
        elif txn.pending:
            self._say(Begin(lsn, end.commit_time, txn.xid))
            self._say_plain(txn)
            self._say(end)
        self._lsn = end.end_lsn
        self._committed(txn, end)

    def _say_plain(self, txn: _Txn) -> None:
        if txn.origin:
            self._say(Origin(self._lsn, txn.origin))
        for item in txn.pending:
            self._say_item(item, None)
        txn.pending.clear()

    def _committed(self, txn: _Txn, end: Commit, gid: str | None = None) -> None:
        self._tables.update(txn.shapes)
        changes = tuple(item.change for item in txn.kept)
        # An empty plain transaction is not sent at all; in a block there is nothing to tell its origin.
        if changes or txn.started or gid is not None:
            origin = txn.origin
            self.expected.append(
                Transaction(txn.xid, end.commit_lsn, end.end_lsn, end.commit_time, origin, changes, gid)
            )

    def _prepare(self, txn: _Txn) -> None:
        lsn = self._next_lsn()
        gid = f"{self.draw.choice('abc')} {txn.xid}"
        txn.prepared = Prepare(lsn, lsn + 40, TIME + lsn, txn.xid, gid)
        self._lsn = lsn + 40
        self._prepared.append(txn)
        if not self.options.two_phase:
            return
        fields = vars(txn.prepared)
        if txn.started:
            if txn.pending:
                self._block(txn)
            self._say(StreamPrepare(**fields))
            self._forget_stream(txn, committed=False)
        else:
            self._say(BeginPrepare(**fields))
            self._say_plain(txn)
            self._say(txn.prepared)

    def _resolve(self) -> None:
        txn = self._prepared.pop(self.draw.randrange(len(self._prepared)))
        committed = self.draw.random() < 0.6
        if not self.options.two_phase:
            (self._commit if committed else self._abort)(txn)
            return
        assert txn.prepared is not None
        lsn, gid = self._next_lsn(), txn.prepared.gid
        end = Commit(lsn, lsn + 56, TIME + lsn)
        self._lsn = end.end_lsn
        if committed:
            self._say(CommitPrepared(lsn, end.end_lsn, end.commit_time, txn.xid, gid))
            self._committed(txn, end, gid)
        else:
            prepared = txn.prepared
            self._say(
                RollbackPrepared(
                    prepared.end_lsn, end.end_lsn, prepared.prepare_time, TIME + lsn, txn.xid, gid
                )
            )


def serve(draw: random.Random, options: Options, steps: int = 40) -> Server:
    """A server after so many steps; some transactions are still open or prepared."""
    server = Server(draw, options)
    for _ in range(steps):
        server.step()
    return server


def random_options(draw: random.Random, *, binary: bool = True) -> Options:
    """Anything that can be asked."""
    streaming: list[Literal["off", "on", "parallel"]] = ["off", "on", "parallel"]
    return Options(draw.choice(streaming), draw.random() < 0.5, binary and draw.random() < 0.3)
