"""A transaction that was not output yet, as the assembler keeps it.

Invariant: what `whole` yields can be read on its own: the tables and types that its rows need come first, and
it contains nothing that was rolled back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from slotlake.decoder.assembly.inspection import Widths
from slotlake.decoder.assembly.kernels import relation_ids
from slotlake.decoder.assembly.messages import changed_tables, relation_id_at, truncated_by
from slotlake.decoder.assembly.prepared import PreparedId
from slotlake.decoder.assembly.spool import Piece, Spool
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.compiled.jit import frozen
from slotlake.decoder.protocol.messages import BeginPrepare

_R = ord("R")


@dataclass(frozen=True)
class Described:
    """One relation message of a streamed transaction.

    Attributes:
        arrival: its number among all relation messages.
        subxid: the (sub)transaction that sent it.
        width: its number of columns.
    """

    arrival: int
    subxid: int
    relation_id: int
    width: int


@dataclass
class Collected:
    """A streamed transaction, or one that is being or has been prepared.

    Attributes:
        described: a streamed transaction's relation messages, in order; empty for one that was prepared
            outside of a stream, because its relation messages are valid for the session.
        widths: number of columns of the tables that a streamed transaction has described.
        senders: the (sub)transactions of a streamed transaction that sent something.
        begin: Begin Prepare of a transaction that is being prepared.
        which: the id of a prepared transaction.
        prefix: types and relations that the session knew and the transaction's rows need.
        before: the relation messages that were valid when it began.
        dropped: a subtransaction that was rolled back had described a table.
    """

    xid: int
    spool: Spool
    described: list[Described] = field(default_factory=list)
    widths: Widths = field(default_factory=Widths)
    senders: set[int] = field(default_factory=set)
    begin: BeginPrepare | None = None
    which: PreparedId | None = None
    prefix: list[bytes] = field(default_factory=list)
    before: dict[int, bytes] = field(default_factory=dict)
    dropped: bool = False

    def describe(self, arrival: int, subxid: int, relation_id: int, width: int) -> None:
        """Note a relation message that arrived in a block.

        Args:
            arrival: its number among all relation messages.
        """
        self.described.append(Described(arrival, subxid, relation_id, width))
        self.widths.set(relation_id, width)

    def abort(self, subxid: int) -> None:
        """Drop a subtransaction that was rolled back, with its relation messages."""
        self.spool.aborted.add(subxid)
        self.dropped = self.dropped or any(each.subxid == subxid for each in self.described)
        self.described = [each for each in self.described if each.subxid != subxid]
        self.widths = Widths({each.relation_id: each.width for each in self.described})

    def lost(self) -> int | None:
        """A table that its changes need, but that only a subtransaction described that was rolled back."""
        if not self.dropped:
            return None
        by: dict[int, int] = {}  # the (sub)transaction that described a table last
        lost: set[int] = set()
        for piece in self.spool.pieces():
            live, at = self.spool.live_flags(piece), 0
            tags = piece.data[piece.ends[:-1]]
            for i in [*np.flatnonzero(tags == _R).tolist(), piece.count]:
                changed = changed_tables(piece, tags, live, at, i)
                lost.update(number for number in changed if by.get(number) in self.spool.aborted)
                if i < piece.count:
                    by[relation_id_at(piece, i)] = int(piece.xids[i])
                at = i
        return min(lost, default=None)

    def needs(self, types: Iterable[bytes]) -> list[bytes]:
        """Types and relations that its rows need and that the server sent before the transaction."""
        needed: set[int] = set()
        for piece in self.spool.pieces():
            needed.update(relation_ids(frozen(piece.data), frozen(piece.ends)).tolist())
            needed.update(truncated_by(piece))
        relations = [self.before[number] for number in sorted(needed) if number in self.before]
        return [*types, *relations] if relations else []

    def whole(self) -> Iterator[Piece]:
        """Its messages, after the types and relations they need, and without those that were rolled back."""
        if self.prefix:
            prefix = MessageBuffer()
            assert self.which is not None
            for payload in self.prefix:
                prefix.append(payload, self.which.prepare_lsn)
            xids = np.full(prefix.count, self.xid, np.int64)
            yield Piece(frozen(prefix.data), frozen(prefix.ends), prefix.lsns, xids)
        for piece in self.spool.pieces():
            live = self.spool.live_flags(piece)
            if live.all():
                yield piece
                continue
            remaining = MessageBuffer()
            remaining.extend(piece.data, *piece.only(live))
            yield Piece(frozen(remaining.data), frozen(remaining.ends), remaining.lsns, piece.xids[live])
