"""Writes transactions of another plugin into a batch, with a limited amount of memory.

If a transaction's begin has the position and time of its commit (wal2json, format 2), its changes are written
as they come.  If only the commit has them (test_decoding), the changes wait in a spool until then, above a
limit on disk (`decoder.assembly.spool`).

Invariant: a finished batch has only transactions that have committed; the decoder gets protocol 1.
"""

from __future__ import annotations

import numpy as np

from slotlake.decoder.assembly.spool import Spool, SpoolRoom
from slotlake.decoder.changelog.writer import BatchWriter
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder, Unreadable
from slotlake.decoder.compiled.jit import frozen
from slotlake.decoder.errors import DEFECT, ChangeLogError, ProtocolError
from slotlake.decoder.plugins import encode
from slotlake.decoder.plugins.model import Transaction
from slotlake.decoder.protocol.relations import RelationVersion

CHUNK_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20


class Gathering:
    """Writes all messages into one batch.

    Args:
        writer: of the batch; the caller finishes or abandons it.
        room: keeps a transaction until its commit.
        unreadable: as for `Decoder.decode`.

    Attributes:
        versions: the table versions written.
    """

    def __init__(self, writer: BatchWriter, room: SpoolRoom, unreadable: Unreadable | None = None) -> None:
        self._writer, self._room = writer, room
        self._decoder, self._buffer, self._piece = Decoder(), MessageBuffer(), MessageBuffer()
        self._spool: Spool | None = None
        self._begun: Transaction | None = None
        self._through = self._open = False
        self._next_seq = self._next_txn = 0
        self.versions: list[RelationVersion] = []
        self._unreadable = unreadable

    def begin(self, transaction: Transaction) -> None:
        """Begin a transaction, to which the next messages belong."""
        self._forget()
        self._begun, self._open = transaction, False
        needed = (transaction.xid, transaction.commit_lsn, transaction.commit_time)
        self._through = None not in needed

    def add(self, payload: bytes, lsn: int) -> None:
        """Add a message of the transaction that has begun."""
        if self._through:
            self._announce()
            self._append(payload, lsn)
            return
        self._open = True
        self._piece.append(payload, lsn)
        if self._piece.size_bytes >= _PIECE_BYTES:
            self._to_spool()

    def loose(self, payload: bytes, lsn: int) -> None:
        """Add a message outside of transactions."""
        self._append(payload, lsn)

    def commit(self, transaction: Transaction) -> None:
        """End the transaction that has begun; one without messages leaves nothing in the batch.

        Raises:
            ChangeLogError: the plugin does not send its id, end or time.
        """
        end, time = transaction.end_lsn, transaction.commit_time
        if end is None or time is None or transaction.xid is None:
            raise ChangeLogError(
                "the plugin does not send the transaction's id, end position or time",
                where=f"transaction {transaction.xid}",
                way_out="do not turn off the plugin's options include-xids, include-lsn, include-timestamp",
            )
        if not self._open:
            return
        # Not every plugin sends the start of the commit record; any position inside it has the same order.
        lsn = end - 1 if transaction.commit_lsn is None else transaction.commit_lsn
        if not self._through:
            self._write_begin(transaction, lsn, time)
            self._write_spooled()
        self._append(encode.commit(lsn, end, time), lsn)
        self._open = False
        self._begun = None

    def finish(self) -> None:
        """Write everything that is complete into the batch.

        Raises:
            ProtocolError: a transaction was written as it came and did not commit.
        """
        self._flush()
        if self._through and self._open:
            raise ProtocolError(
                "the batch ends inside a transaction", where="the end of the batch", way_out=DEFECT
            )
        self._forget()

    def _announce(self) -> None:
        if not self._open:
            begun = self._begun
            assert begun is not None
            assert begun.commit_lsn is not None
            assert begun.commit_time is not None
            self._write_begin(begun, begun.commit_lsn, begun.commit_time)
            self._open = True

    def _write_begin(self, transaction: Transaction, lsn: int, time: int) -> None:
        self._append(encode.begin(transaction, lsn, time), lsn)
        if transaction.origin is not None:
            self._append(encode.origin(transaction.origin), lsn)

    def _to_spool(self) -> None:
        piece = self._piece
        if self._spool is None:
            self._spool = self._room.open()
        length = np.diff(piece.ends).astype(np.int32)
        xids = np.zeros(piece.count, np.int64)
        self._spool.extend(frozen(piece.data), piece.ends[:-1], length, piece.lsns, xids)
        self._room.settle()
        piece.clear()

    def _write_spooled(self) -> None:
        if self._spool is not None:
            for piece in self._spool.pieces():
                self._buffer.extend(piece.data, *piece.only(np.ones(piece.count, np.bool_)))
                self._full()
        last = self._piece
        self._buffer.extend(last.data, last.ends[:-1], np.diff(last.ends).astype(np.int32), last.lsns)
        self._forget()

    def _forget(self) -> None:
        self._piece.clear()
        if self._spool is not None:
            self._room.close(self._spool)
            self._spool = None

    def _append(self, payload: bytes, lsn: int) -> None:
        self._buffer.append(payload, lsn)
        self._full()

    def _full(self) -> None:
        if self._buffer.full(CHUNK_BYTES):
            self._flush()

    def _flush(self) -> None:
        """Decode the messages so far and append them to the batch; this may end inside a transaction."""
        counters = {"first_seq": self._next_seq, "first_txn": self._next_txn}
        chunk = self._decoder.decode(self._buffer, **counters, partial=True, unreadable=self._unreadable)
        if chunk.consumed != self._buffer.count:
            remaining = self._buffer.count - chunk.consumed
            raise ProtocolError(
                f"the decoder did not read the last {remaining} of {self._buffer.count} messages",
                where="a chunk of the batch",
                way_out=DEFECT,
            )
        self._next_seq, self._next_txn = chunk.next_seq, chunk.next_txn
        self.versions += [version for version in chunk.rows if version not in self.versions]
        self._writer.append(chunk)
        self._buffer.clear()
