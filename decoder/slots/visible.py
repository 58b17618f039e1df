"""Snapshots that need no slot, and the one LSN at which such a snapshot is the source.

A slot that is made for its snapshot waits until every transaction that was open then has ended: a load job
of an hour, a prepared transaction that nobody remembers.  A reader's own snapshot waits for nobody, but it
shows a *set* of transactions (pg_current_snapshot: those before xmax that are not in xip), and a transaction
is logged as committed a moment before it can be seen (xact.c: RecordTransactionCommit, then
ProcArrayEndTransaction; in between stand the fsync and synchronous standbys).  So the stream judges it.

Invariant: a snapshot stands at L exactly if it shows every transaction that commits before L, and none that
commits later.  One that shows a later transaction and not an earlier one stands nowhere.
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
        xmin: all ids before it are of transactions that had ended.
        xmax: no id from here on is shown; some may have been given out.
        in_progress: ids between the two that had not ended; all without their epoch, as in the stream.
    """

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> VisibleTransactions:
        """Of ``xmin:xmax:xip,xip``, as the server prints a pg_snapshot."""
        xmin, xmax, listed = text.split(":")
        ids = frozenset(int(xid) % _XIDS for xid in listed.split(",") if xid)
        return cls(int(xmin) % _XIDS, int(xmax) % _XIDS, ids)

    def shows(self, xid: int) -> bool:
        """Is this one, which has committed by now, to be seen?"""
        return _before(xid, self.xmax) and xid not in self.in_progress

    def shows_all(self, least: int, most: int) -> bool:
        """Are all ids between these so old that they are to be seen, whichever they are?"""
        return _before(most, self.xmin) and _before(least, self.xmin)

    def ended_since(self, xid: int, xmax: int) -> bool:
        """Is this one, which has ended before ``xmax`` was the next, not to be seen here?

        False for an id from so long ago that ids have gone round since.
        """
        recent = (xid - self.xmin) % _XIDS <= (xmax - self.xmin) % _XIDS
        return recent and not self.shows(xid)

    def stands(self, start: int, end: int, transactions: Iterable[tuple[int, int]]) -> int | None:
        """The LSN at which the snapshot stands; None if there is none.

        Args:
            start: a position up to which all is shown.
            end: a position behind all that was committed when the snapshot was taken.
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
    """As TransactionIdPrecedes has it: ids go round."""
    return (xid - other) % _XIDS >= _XIDS // 2


class Reader(Closes):
    """A session that reads under a snapshot, which others may take up while it is open."""

    def __init__(
        self, connection: psycopg.Connection[Any], visible: VisibleTransactions, snapshot: str
    ) -> None:
        self.visible = visible
        self.snapshot = snapshot
        self._connection = connection

    @classmethod
    def open(cls, source: SourceSettings) -> Reader | None:
        """A new one; None on a standby, where a snapshot lists no transactions (procarray.c).

        Raises:
            SourceError: the server cannot be asked.
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
        """The pair, now that the position is known; closing that closes this."""
        return ExportedSnapshot(self._connection, "", lsn, self.snapshot, settled=False)


def readers(source: SourceSettings, count: int) -> Sequence[Reader]:
    """Some, taken one after the other: on a busy server not each of them stands somewhere."""
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
