"""Snapshots that need no slot, and the LSN of such a snapshot.

A slot that is created for its snapshot waits until every open transaction has ended, for example a load job
of an hour or a forgotten prepared transaction.  A reader's own snapshot waits for nothing.  But it shows a
*set* of transactions (pg_current_snapshot: those before xmax that are not in xip), not a position: a
transaction is logged as committed a moment before others can see it (xact.c: RecordTransactionCommit, then
ProcArrayEndTransaction; between them come the fsync and synchronous standbys).  So slotlake compares the
snapshot with the commits in the stream.

Invariant: a snapshot is at L exactly if it shows every transaction that commits before L, and none that
commits later.  A snapshot that shows a later transaction but not an earlier one has no LSN.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import psycopg

from slotlake.decoder.server.closing import Closes
from slotlake.decoder.server.source import SourceSettings, connect, source_errors
from slotlake.decoder.slots.slot import ExportedSnapshot

_XIDS = 1 << 32
_TAKE = "SELECT pg_current_snapshot()::text, pg_export_snapshot(), pg_is_in_recovery()"


@dataclass(frozen=True)
class VisibleTransactions:
    """Which transactions a snapshot shows.

    Attributes:
        xmin: all transactions with a lower id had ended.
        xmax: no transaction with this id or a higher one is shown; some of them may have begun.
        in_progress: ids between the two whose transactions had not ended.

    All ids are without their epoch, as in the stream.
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> VisibleTransactions:
        """Read ``xmin:xmax:xip,xip``, as the server prints a pg_snapshot."""
        xmin, xmax, listed = text.split(":")
        ids = frozenset(int(xid) % _XIDS for xid in listed.split(",") if xid)
        return cls(int(xmin) % _XIDS, int(xmax) % _XIDS, ids)

    def shows(self, xid: int) -> bool:
        """True if the snapshot shows this transaction, which has committed by now."""
        return _before(xid, self.xmax) and xid not in self.in_progress

    def shows_all(self, least: int, most: int) -> bool:
        """True if all ids between these are so old that the snapshot shows each of them."""
        return _before(most, self.xmin) and _before(least, self.xmin)

    def ended_since(self, xid: int, xmax: int) -> bool:
        """True if this transaction ended before ``xmax`` was the next id, but after this snapshot.

        False for an id that is so old that the ids have wrapped around since.
        """
        recent = (xid - self.xmin) % _XIDS <= (xmax - self.xmin) % _XIDS
        return recent and not self.shows(xid)

    def stands(self, start: int, end: int, transactions: Iterable[tuple[int, int]]) -> int | None:
        """The LSN of the snapshot; None if it has none.

        Args:
            start: a position; the snapshot shows all transactions before it.
            end: a position after all transactions that were committed when the snapshot was taken.
            transactions: xid and end of the commit record of all from start to end, in commit order.
        """
        position, hidden = start, False
        for xid, ends in transactions:
            if not self.shows(xid):
                hidden = True
            elif hidden:
                return None
            else:
                position = ends
        return position if hidden else end


def _before(xid: int, other: int) -> bool:
    """The same as PostgreSQL's TransactionIdPrecedes: ids wrap around."""
    return (xid - other) % _XIDS >= _XIDS // 2


class Reader(Closes):
    """A session that reads under a snapshot; other sessions can import the snapshot while it is open."""

    def __init__(
        self, connection: psycopg.Connection[Any], visible: VisibleTransactions, snapshot: str
    ) -> None:
        self.visible = visible
        self.snapshot = snapshot
        self._connection = connection

    @classmethod
    def open(cls, source: SourceSettings) -> Reader | None:
        """Open one; None on a standby, where a snapshot lists no transactions (procarray.c).

        Raises:
            SourceError: the server cannot be reached or refuses.
        """
        connection = connect(source.dsn)
        try:
            with source_errors(source.dsn, "taking a snapshot"):
                connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                row = connection.execute(_TAKE).fetchone()
            assert row is not None
            if row[2]:
                connection.close()
                return None
            return cls(connection, VisibleTransactions.parse(row[0]), row[1])
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """End the session."""
        self._connection.close()

    def at(self, lsn: int) -> ExportedSnapshot:
        """The pair of position and snapshot, now that the position is known; closing it closes this."""
        return ExportedSnapshot(self._connection, "", lsn, self.snapshot, settled=False)


def readers(source: SourceSettings, count: int) -> Sequence[Reader]:
    """Open several readers, one after the other: on a busy server not each snapshot has an LSN."""
    opened: list[Reader] = []
    try:
        for _ in range(count):
            reader = Reader.open(source)
            if reader is None:
                break
            opened.append(reader)
    except BaseException:
        for reader in opened:
            reader.close()
        raise
    return opened
