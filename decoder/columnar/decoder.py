"""The columnar decoder: a buffer of messages in, typed Arrow tables out.

Owns the relation and type caches, which live as long as the replication connection: the server
describes a table once per connection.  Invariant: `decode` either succeeds and moves its state past
exactly the messages it reports as consumed, or raises and changes nothing.  The result does not
depend on how the stream was divided into chunks.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from slotlake.decoder.columnar import scan
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.chunk import Chunk, Notes
from slotlake.decoder.columnar.control_messages import ControlMessages
from slotlake.decoder.columnar.row_sets import row_sets
from slotlake.decoder.columnar.rows import build_tables
from slotlake.decoder.compiled.arrays import arrow
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.relations import Relation, RelationVersion
from slotlake.decoder.types.catalog import TypeCatalog

_TRANSACTIONS: list[tuple[str, pa.DataType]] = [
    ("xid", pa.int64()),
    ("commit_lsn", pa.int64()),
    ("end_lsn", pa.int64()),
    ("commit_time", pa.timestamp("us", "UTC")),
    ("origin", pa.string()),
]
TRANSACTIONS_SCHEMA = pa.schema(_TRANSACTIONS)
_MESSAGES: list[tuple[str, pa.DataType]] = [
    ("seq", pa.int64()),
    ("txn", pa.int32()),
    ("lsn", pa.int64()),
    ("transactional", pa.bool_()),
    ("prefix", pa.string()),
    ("content", pa.binary()),
]
MESSAGES_SCHEMA = pa.schema(_MESSAGES)


# Tables with a value that could not be read, by schema and name, and the error that names the value's place.
Unreadable: TypeAlias = MutableMapping[tuple[str, str], ProtocolError]


@dataclass(frozen=True)
class Counts:
    """How much a chunk contains; ``truncates`` counts tables, not statements."""

    transactions: int = 0
    inserts: int = 0
    updates: int = 0
    deletes: int = 0
    truncates: int = 0
    messages: int = 0

    @property
    def changes(self) -> int:
        """Rows over all tables of the chunk."""
        return self.inserts + self.updates + self.deletes + self.truncates


@dataclass(frozen=True)
class DecodedChunk:
    """The result of one call of `Decoder.decode`.

    Attributes:
        consumed: messages used, from the front of the buffer.
        transactions: one row per transaction that is not empty and ended here (TRANSACTIONS_SCHEMA);
            row i is transaction number ``first_txn + i``.
        rows: per relation version, in order of first appearance, its row changes ordered by ``seq``:
            seq int64, op int8, txn int32, lsn int64, old int8, then n<i> for every column, and o<i>,
            u<i>, xn<i>, xo<i> only for columns where a row needs them.
        messages: logical messages (MESSAGES_SCHEMA), None if there are none; ``txn`` is null for
            one that is not transactional.
        counts: totals.
        last_commit_lsn, last_end_lsn: of the last commit in the chunk, empty transactions included;
            None if no transaction ended here.
        next_seq, next_txn: ``first_seq`` and ``first_txn`` of the next call.
        open: the chunk ends inside a transaction (only with ``partial``).
        reached: a transaction at or after ``commit_before`` came; nothing more will be consumed.
    """

    consumed: int
    transactions: pa.Table
    rows: dict[RelationVersion, pa.Table]
    messages: pa.Table | None
    counts: Counts
    last_commit_lsn: int | None
    last_end_lsn: int | None
    next_seq: int
    next_txn: int
    open: bool
    reached: bool


class Decoder:
    """Decodes the stream of one replication connection, as protocol 1: whole transactions.

    Args:
        binary: the stream may contain binary values; without it a binary value is a ProtocolError.
        catalog: the source's own types, for binary values; it learns from the stream's Type messages.
    """

    def __init__(self, *, binary: bool = False, catalog: TypeCatalog | None = None) -> None:
        self.catalog = (catalog or TypeCatalog()) if binary else None
        self._relations: dict[int, Relation] = {}
        self._types: dict[int, str] = {}
        self._state = np.zeros(scan.STATE_FIELDS, dtype=np.int64)
        self._open_origin: str | None = None
        self._notes = Notes()

    def decode(
        self,
        buffer: MessageBuffer,
        *,
        first_seq: int,
        first_txn: int,
        commit_before: int | None = None,
        partial: bool = False,
        unreadable: Unreadable | None = None,
    ) -> DecodedChunk:
        """Decode whole transactions from the front of the buffer.

        Args:
            buffer: received messages; not changed (the caller drops what was consumed).
            first_seq: ordinal of the first change or logical message.
            first_txn: number of the first transaction that ends here, including one left open before.
            commit_before: stop at the first transaction whose commit record starts here or later.
            partial: also decode the beginning of a transaction that does not end in the buffer.
                Its row in ``transactions`` comes with the chunk in which it ends; the caller must
                then give the rest to this decoder.
            unreadable: tables whose rows are left out. A table with a value that cannot be read is added;
                without this argument such a value is an error.

        Raises:
            ProtocolError: the stream breaks the grammar; nothing was consumed.
        """
        chunk = Chunk(buffer, self._state, (first_seq, first_txn), self._notes, self.catalog)
        chunk.walk(scan.NO_LIMIT if commit_before is None else commit_before, partial)
        control = ControlMessages(chunk, self._relations, self._types)
        decoded = _decoded(chunk, control, self._open_origin, unreadable)
        open_origin = control.open_origin(self._open_origin)
        self._relations, self._types, self._state = control.relations, control.types, chunk.state
        self._open_origin = open_origin
        return decoded


def _decoded(
    chunk: Chunk, control: ControlMessages, open_origin: str | None, unreadable: Unreadable | None
) -> DecodedChunk:
    ended = chunk.report[scan.LAST_END_LSN] > 0
    ops = np.bincount(chunk.rows[scan.ROW_OP], minlength=128)
    transactions = _transactions(chunk, control, open_origin)
    return DecodedChunk(
        consumed=int(chunk.report[scan.AT]),
        transactions=transactions,
        rows=_rows(chunk, control, unreadable),
        messages=_messages(control),
        counts=Counts(
            transactions=transactions.num_rows,
            inserts=int(ops[ord("I")]),
            updates=int(ops[ord("U")]),
            deletes=int(ops[ord("D")]),
            truncates=len(control.truncates),
            messages=len(control.logical),
        ),
        last_commit_lsn=int(chunk.report[scan.LAST_COMMIT_LSN]) if ended else None,
        last_end_lsn=int(chunk.report[scan.LAST_END_LSN]) if ended else None,
        next_seq=int(chunk.state[scan.NEXT_SEQ]),
        next_txn=int(chunk.state[scan.NEXT_TXN]),
        open=bool(chunk.state[scan.OPEN]),
        reached=bool(chunk.report[scan.REACHED]),
    )


def _rows(
    chunk: Chunk, control: ControlMessages, unreadable: Unreadable | None
) -> dict[RelationVersion, pa.Table]:
    if unreadable is None:
        return build_tables(row_sets(chunk, control))
    while True:
        try:
            return build_tables(row_sets(chunk, control, unreadable))
        except ProtocolError as error:
            if error.table is None or error.table in unreadable:
                raise
            unreadable[error.table] = error


def _transactions(chunk: Chunk, control: ControlMessages, open_origin: str | None) -> pa.Table:
    txns = chunk.txns
    origins = control.origins.between(txns[scan.TXN_BEGIN], txns[scan.TXN_COMMIT])
    if open_origin is not None and txns.shape[1] and txns[scan.TXN_BEGIN, 0] < 0:
        origins = pa.concat_arrays([pa.array([open_origin]), origins[1:]])
    columns = [arrow(txns[f].copy()) for f in (scan.TXN_XID, scan.TXN_COMMIT_LSN, scan.TXN_END_LSN)]
    times = arrow(txns[scan.TXN_TIME].copy()).cast(pa.timestamp("us", "UTC"))
    return pa.table([*columns, times, origins], schema=TRANSACTIONS_SCHEMA)


def _messages(control: ControlMessages) -> pa.Table | None:
    if not control.logical:
        return None
    names = MESSAGES_SCHEMA.names
    records = [
        (seq, txn if txn >= 0 else None, m.lsn, m.transactional, m.prefix, m.content)
        for seq, txn, m in control.logical
    ]
    return pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in records], schema=MESSAGES_SCHEMA)
