"""The columnar decoder: a buffer of messages in, typed Arrow tables out.

Owns the relation and type caches, which live as long as the replication connection: the server
describes a table once per connection.  Invariant: `decode` either succeeds and moves its state past
exactly the messages it reports as consumed, or raises and changes nothing.  What it yields does not
depend on how the stream was cut into chunks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import pyarrow as pa

from decoder import scan
from decoder.arrays import arrow, integers
from decoder.buffer import MessageBuffer
from decoder.compiled import Ints, frozen
from decoder.errors import ProtocolError
from decoder.lsn import format_lsn
from decoder.messages import LogicalMessage, RelationMessage, Truncate, TypeMessage
from decoder.reader import read_message, with_type_names
from decoder.relations import Relation, RelationVersion
from decoder.rows import RowSets, build_tables
from decoder.type_catalog import TypeCatalog
from decoder.types_slices import Slices, as_string, gather

TRANSACTIONS_SCHEMA = pa.schema(
    [
        ("xid", pa.int64()),
        ("commit_lsn", pa.int64()),
        ("end_lsn", pa.int64()),
        ("commit_time", pa.timestamp("us", "UTC")),
        ("origin", pa.string()),
    ]
)
MESSAGES_SCHEMA = pa.schema(
    [
        ("seq", pa.int64()),
        ("txn", pa.int32()),
        ("lsn", pa.int64()),
        ("transactional", pa.bool_()),
        ("prefix", pa.string()),
        ("content", pa.binary()),
    ]
)
_TRUNCATE, _ORIGIN = ord("T"), ord("O")


@dataclass(frozen=True)
class Counts:
    """How much a chunk holds; ``truncates`` counts tables, not statements."""

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
    """What one call of `Decoder.decode` made of the buffer.

    Attributes:
        consumed: messages used, from the front of the buffer.
        transactions: one row per transaction that is not empty and ended here (TRANSACTIONS_SCHEMA),
            row i being transaction number ``first_txn + i``.
        rows: per relation version, in order of first appearance, its row changes ordered by ``seq``:
            seq int64, op int8, txn int32, lsn int64, old int8, then n<i> for every column, and o<i>,
            u<i>, xn<i>, xo<i> only for columns where a row needs them.
        messages: logical messages (MESSAGES_SCHEMA), None when there are none; ``txn`` is null for
            one that is not transactional.
        counts: totals.
        last_commit_lsn, last_end_lsn: of the last commit in the chunk, empty transactions included;
            None when no transaction ended here.
        next_seq, next_txn: ``first_seq`` and ``first_txn`` of the next call.
        open: the chunk ends inside a transaction (only with ``partial``).
        reached: a transaction at or behind ``commit_before`` was met; nothing more will be consumed.
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
    """Decodes one replication connection's stream, in the shape of protocol 1: whole transactions.

    Args:
        binary: binary values were asked for; without it one is a ProtocolError.
        catalog: what is known of the source's types, for binary values of its own; it learns from the
            stream's Type messages.
    """

    def __init__(self, *, binary: bool = False, catalog: TypeCatalog | None = None) -> None:
        self.catalog = (catalog or TypeCatalog()) if binary else None
        self._relations: dict[int, Relation] = {}
        self._types: dict[int, str] = {}
        self._state = np.zeros(scan.STATE_FIELDS, dtype=np.int64)
        self._open_origin: str | None = None

    def decode(
        self,
        buffer: MessageBuffer,
        *,
        first_seq: int,
        first_txn: int,
        commit_before: int | None = None,
        partial: bool = False,
    ) -> DecodedChunk:
        """Decode whole transactions from the front of the buffer.

        Args:
            buffer: received messages; not changed (the caller drops what was consumed).
            first_seq: ordinal that the first change or logical message gets.
            first_txn: number of the first transaction to end here, including one left open before.
            commit_before: stop at the first transaction whose commit record starts here or later.
            partial: also hand over the beginning of a transaction that does not end in the buffer.
                Its row in ``transactions`` comes with the chunk in which it ends; the decoder must
                then be given the rest.

        Raises:
            ProtocolError: the stream breaks the grammar; nothing was consumed.
        """
        chunk = _Chunk(buffer, self._state, (first_seq, first_txn), self)
        chunk.walk(scan.NO_LIMIT if commit_before is None else commit_before, partial)
        rare = _Rare(chunk, self._relations, self._types)
        decoded = _decoded(chunk, rare, self._open_origin)
        open_origin = rare.open_origin(self._open_origin)
        self._relations, self._types, self._state = rare.relations, rare.types, chunk.state
        self._open_origin = open_origin
        return decoded


class _Chunk:
    """One walk over a buffer and what it noted."""

    def __init__(self, buffer: MessageBuffer, state: Ints, first: tuple[int, int], decoder: Decoder) -> None:
        count, self.catalog = buffer.count, decoder.catalog
        self.data, self.ends, self.lsns = frozen(buffer.data), frozen(buffer.ends), buffer.lsns
        self.state = state.copy()
        self.state[scan.NEXT_SEQ], self.state[scan.NEXT_TXN] = first
        self.state[scan.BEGIN_AT] = -1
        self.report = np.zeros(scan.REPORT_FIELDS, dtype=np.int64)
        self._rows = np.empty((scan.ROW_FIELDS, count), dtype=np.int64)
        self._txns = np.empty((scan.TXN_FIELDS, count), dtype=np.int64)
        self._rares = np.empty((scan.RARE_FIELDS, count), dtype=np.int64)

    def walk(self, limit: int, partial: bool) -> None:
        arrays = (self.state, self._rows, self._txns, self._rares, self.report)
        code = scan.walk(self.data, self.ends, limit, partial, self.catalog is not None, *arrays)
        if code != 0:
            at, offset = int(self.report[scan.AT]), int(self.report[scan.BAD_OFFSET])
            raise self.error(scan.REASONS[code], at, offset)

    @property
    def rows(self) -> Ints:
        return self._rows[:, : self.report[scan.ROWS]]

    @property
    def txns(self) -> Ints:
        return self._txns[:, : self.report[scan.TXNS]]

    @property
    def rares(self) -> Ints:
        return self._rares[:, : self.report[scan.RARES]]

    def payload(self, message: int) -> bytes:
        return self.data[self.ends[message] : self.ends[message + 1]].tobytes()

    def place(self, message: int) -> str:
        """Where a message lies, for errors."""
        return f"message {message} of the chunk, WAL {format_lsn(int(self.lsns[message]))}"

    def error(self, what: str, message: int, offset: int) -> ProtocolError:
        tag = self.payload(message)[:1].decode("latin-1")
        where = f"message {tag!r}, byte offset {offset}, {self.place(message)}"
        lsn = int(self.lsns[message])
        return ProtocolError(what, message_type=tag, offset=offset, where=where, lsn=lsn)


class _Rare:
    """The messages that are not rows, read one by one, and the caches as they leave them."""

    def __init__(self, chunk: _Chunk, relations: dict[int, Relation], types: dict[int, str]) -> None:
        self.relations, self.types = dict(relations), dict(types)
        # Per relation: from which message on each version holds.
        self.versions = {relation_id: [(-1, version)] for relation_id, version in relations.items()}
        self.origins = _Origins(chunk)
        self.truncates: list[tuple[int, int, int, Relation]] = []
        self.logical: list[tuple[int, int, LogicalMessage]] = []
        self._chunk = chunk
        for message, seq, txn in chunk.rares[:, ~self.origins.among].T.tolist():
            self._read(message, seq, txn)

    def _read(self, at: int, seq: int, txn: int) -> None:
        try:
            message = read_message(self._chunk.payload(at))
        except ProtocolError as error:
            raise self._chunk.error(error.what, at, error.offset) from None
        if isinstance(message, TypeMessage):
            self.types[message.type_oid] = f"{message.schema}.{message.name}"
            if self._chunk.catalog is not None:
                self._chunk.catalog.note(message.type_oid, message.schema, message.name)
        elif isinstance(message, RelationMessage):
            relation = with_type_names(message.relation, self.types) if self.types else message.relation
            if self.relations.get(relation.relation_id) != relation:  # else it only says so again
                self.relations[relation.relation_id] = relation
                self.versions.setdefault(relation.relation_id, []).append((at, relation))
        elif isinstance(message, Truncate):
            for relation_id in message.relation_ids:
                self.truncates.append((at, seq, txn, self.known(relation_id, at)))
        elif isinstance(message, LogicalMessage):
            self.logical.append((seq, txn, message))

    def known(self, relation_id: int, at: int) -> Relation:
        """The version in force so far, or an error at this message."""
        relation = self.relations.get(relation_id)
        if relation is None:
            raise self._chunk.error(f"relation {relation_id} was not described", at, 1)
        return relation

    def open_origin(self, before: str | None) -> str | None:
        """Origin of the transaction in which the chunk ends."""
        state = self._chunk.state
        if state[scan.OPEN] == 0:
            return None
        begin = int(state[scan.BEGIN_AT])
        if begin < 0 and before is not None:
            return before
        [named] = self.origins.between(np.array([begin]), np.array([scan.NO_LIMIT])).to_pylist()
        return None if named is None else str(named)


class _Origins:
    """The origin messages of a chunk; a transaction may have one each, so they are read in bulk.

    ``among``: which of the chunk's rare messages they are.
    """

    def __init__(self, chunk: _Chunk) -> None:
        rares = chunk.rares[scan.RARE_MESSAGE]
        self.among = chunk.data[chunk.ends[rares]] == _ORIGIN
        self._at = rares[self.among]
        start, length = np.empty(len(self._at), np.int64), np.empty(len(self._at), np.int32)
        bad = scan.origins(chunk.data, chunk.ends, frozen(self._at), start, length)
        try:
            if bad >= 0:
                self._refuse(chunk)
            self._names = as_string(gather(Slices(chunk.data, start, length)))
        except pa.ArrowInvalid:
            self._refuse(chunk)

    def _refuse(self, chunk: _Chunk) -> NoReturn:
        """Let the plain reader say what is wrong, and where."""
        for at in self._at.tolist():
            try:
                read_message(chunk.payload(at))
            except ProtocolError as error:
                raise chunk.error(error.what, at, error.offset) from None
        raise AssertionError("the two readers of origins disagree")

    def between(self, begin: Ints, end: Ints) -> pa.Array:
        """For each i the first origin named behind message ``begin[i]`` and before ``end[i]``, or null."""
        if len(self._at) == 0:
            return pa.nulls(len(begin), pa.string())
        i = np.searchsorted(self._at, begin, side="right")
        found = i < len(self._at)
        found[found] = self._at[i[found]] < end[found]
        return self._names.take(pa.array(np.where(found, i, 0), mask=~found))


def _decoded(chunk: _Chunk, rare: _Rare, open_origin: str | None) -> DecodedChunk:
    ended = chunk.report[scan.LAST_END_LSN] > 0
    ops = np.bincount(chunk.rows[scan.ROW_OP], minlength=128)
    transactions = _transactions(chunk, rare, open_origin)
    return DecodedChunk(
        consumed=int(chunk.report[scan.AT]),
        transactions=transactions,
        rows=build_tables(_row_sets(chunk, rare)),
        messages=_messages(rare),
        counts=Counts(
            transactions=transactions.num_rows,
            inserts=int(ops[ord("I")]),
            updates=int(ops[ord("U")]),
            deletes=int(ops[ord("D")]),
            truncates=len(rare.truncates),
            messages=len(rare.logical),
        ),
        last_commit_lsn=int(chunk.report[scan.LAST_COMMIT_LSN]) if ended else None,
        last_end_lsn=int(chunk.report[scan.LAST_END_LSN]) if ended else None,
        next_seq=int(chunk.state[scan.NEXT_SEQ]),
        next_txn=int(chunk.state[scan.NEXT_TXN]),
        open=bool(chunk.state[scan.OPEN]),
        reached=bool(chunk.report[scan.REACHED]),
    )


def _transactions(chunk: _Chunk, rare: _Rare, open_origin: str | None) -> pa.Table:
    txns = chunk.txns
    origins = rare.origins.between(txns[scan.TXN_BEGIN], txns[scan.TXN_COMMIT])
    if open_origin is not None and txns.shape[1] and txns[scan.TXN_BEGIN, 0] < 0:
        origins = pa.concat_arrays([pa.array([open_origin]), origins[1:]])
    columns = [arrow(txns[f].copy()) for f in (scan.TXN_XID, scan.TXN_COMMIT_LSN, scan.TXN_END_LSN)]
    times = arrow(txns[scan.TXN_TIME].copy()).cast(pa.timestamp("us", "UTC"))
    return pa.table([*columns, times, origins], schema=TRANSACTIONS_SCHEMA)


def _messages(rare: _Rare) -> pa.Table | None:
    if not rare.logical:
        return None
    names = MESSAGES_SCHEMA.names
    records = [
        (seq, txn if txn >= 0 else None, m.lsn, m.transactional, m.prefix, m.content)
        for seq, txn, m in rare.logical
    ]
    return pa.Table.from_pylist([dict(zip(names, r, strict=True)) for r in records], schema=MESSAGES_SCHEMA)


def _row_sets(chunk: _Chunk, rare: _Rare) -> RowSets:
    """The rows sorted by relation version, versions in order of their first row."""
    rows = _with_truncates(chunk, rare.truncates)
    numbers, versions = _versions(chunk, rare, rows)
    first = np.concatenate([[0], np.cumsum(np.bincount(numbers, minlength=len(versions)))])
    if len(versions) > 1:
        # Up to 16 bits numpy sorts by radix, several times faster.
        numbers = numbers.astype(np.uint16) if len(versions) <= 1 << 16 else numbers
        rows = rows.take(np.argsort(numbers, kind="stable"), axis=1)
    return RowSets(versions, first, rows, chunk.data, chunk.lsns, chunk.catalog, chunk.error)


def _versions(chunk: _Chunk, rare: _Rare, rows: Ints) -> tuple[Ints, list[Relation]]:
    """For each row the number of its relation version, counted by first appearance; and the versions."""
    messages, ids = rows[scan.ROW_MESSAGE], rows[scan.ROW_RELATION]
    if len(ids) == 0:
        return np.empty(0, np.int64), []
    encoded = arrow(ids).dictionary_encode()
    codes = integers(encoded.indices).astype(np.int64)
    firsts = np.full(len(encoded.dictionary), len(ids))
    np.minimum.at(firsts, codes, np.arange(len(ids)))
    current: list[Relation] = []
    later: list[tuple[int, int, Relation]] = []
    for code, relation_id in enumerate(encoded.dictionary.to_pylist()):
        history = rare.versions.get(relation_id, [])
        at = int(messages[firsts[code]])
        if not history or at < history[0][0]:
            raise chunk.error(f"relation {relation_id} was not described", at, 1)
        current.append(history[0][1])
        later += [(where, code, version) for where, version in history[1:]]
    return _renumbered(codes, messages, current, later) if later else (codes, current)


def _renumbered(
    codes: Ints, messages: Ints, current: list[Relation], later: list[tuple[int, int, Relation]]
) -> tuple[Ints, list[Relation]]:
    """The same with versions that take the place of others within the chunk, from a message on."""
    versions = list(current)
    numbers = codes.copy()
    for where, code, version in sorted(later, key=lambda each: each[0]):
        versions.append(version)
        behind = int(np.searchsorted(messages, where))
        numbers[behind:][codes[behind:] == code] = len(versions) - 1
    known: dict[Relation, int] = {}
    for i in arrow(numbers).unique().to_pylist():
        known.setdefault(versions[i], len(known))
    return np.array([known.get(version, 0) for version in versions])[numbers], list(known)


def _with_truncates(chunk: _Chunk, truncates: list[tuple[int, int, int, Relation]]) -> Ints:
    """Rows with one more for each truncated table, in the order of their messages."""
    if not truncates:
        return chunk.rows
    extra = np.full((scan.ROW_FIELDS, len(truncates)), -1, dtype=np.int64)
    for i, (at, seq, txn, relation) in enumerate(truncates):
        extra[scan.ROW_MESSAGE, i], extra[scan.ROW_SEQ, i], extra[scan.ROW_TXN, i] = at, seq, txn
        extra[scan.ROW_OP, i], extra[scan.ROW_OLD, i] = _TRUNCATE, 0
        extra[scan.ROW_RELATION, i] = relation.relation_id
    rows = np.concatenate([chunk.rows, extra], axis=1)
    return rows.take(np.argsort(rows[scan.ROW_MESSAGE], kind="stable"), axis=1)
