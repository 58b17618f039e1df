"""What both readers make of one stream, in one form, so that tests can hold them equal."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import pyarrow as pa

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import DecodedChunk, Decoder
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol.messages import (
    Begin,
    BinaryValue,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    NoValue,
    Origin,
    Truncate,
    Tuple,
    TypeMessage,
    Update,
)
from slotlake.decoder.protocol.reader import StreamReader
from slotlake.decoder.protocol.relations import Relation
from slotlake.decoder.types.binary.values import binary_text
from slotlake.decoder.types.catalog import TypeCatalog
from slotlake.decoder.types.column_type import ColumnType
from slotlake.decoder.types.table import from_text, to_text
from slotlake.decoder.types.text_error import TextError

Stream = list[tuple[int, bytes]]


@dataclass
class Meaning:
    """Everything a stream says: rows, transactions and logical messages, in order."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    transactions: list[tuple[Any, ...]] = field(default_factory=list)
    messages: list[tuple[Any, ...]] = field(default_factory=list)


def plain(stream: Stream, *, binary: bool = False) -> Meaning:
    """The plain reader's view of a stream of whole transactions, or of one that stops inside one."""
    meaning, reader, catalog = Meaning(), StreamReader(binary=binary), TypeCatalog()
    seq, begin, origin, used = 0, None, None, False
    rows: list[_Row] = []
    for lsn, payload in stream:
        message = reader.read(payload)
        txn = len(meaning.transactions)
        if isinstance(message, Begin):
            begin, origin, used = message, None, False
        elif isinstance(message, Commit) and used:
            assert begin is not None
            ends = (begin.xid, message.commit_lsn, message.end_lsn, message.commit_time, origin)
            meaning.transactions.append(ends)
        elif isinstance(message, Origin):
            origin = origin if origin is not None else message.name
        elif isinstance(message, TypeMessage):
            catalog.note(message.type_oid, message.schema, message.name)
        elif isinstance(message, LogicalMessage):
            loose = not message.transactional
            fields = (message.lsn, message.transactional, message.prefix, message.content)
            meaning.messages.append((seq, None if loose else txn, *fields))
            seq, used = seq + 1, used or not loose
        elif isinstance(message, Insert | Update | Delete | Truncate):
            ids = message.relation_ids if isinstance(message, Truncate) else (message.relation_id,)
            rows += [_Row(message, reader.relations[number], seq, txn, lsn) for number in ids]
            seq, used = seq + 1, True
    # Only now: the columnar reader reads a chunk's values when it knows all its types.
    meaning.rows = [_plain_row(row, catalog) for row in rows]
    return _in_order(meaning)


def columnar(
    stream: Stream, cuts: list[int] | None = None, *, partial: bool = True, binary: bool = False
) -> Meaning:
    """The columnar reader's view, fed in pieces that end at ``cuts``."""
    meaning, decoder, buffer = Meaning(), Decoder(binary=binary), MessageBuffer()
    seq = txn = fed = 0
    for cut in sorted({*(cuts or []), len(stream)}):
        for lsn, payload in stream[fed:cut]:
            buffer.append(payload, lsn)
        fed = max(fed, cut)
        chunk = decoder.decode(buffer, first_seq=seq, first_txn=txn, partial=partial)
        buffer.drop_first(chunk.consumed)
        seq, txn = chunk.next_seq, chunk.next_txn
        add_chunk(meaning, chunk)
    return _in_order(meaning)


def add_chunk(meaning: Meaning, chunk: DecodedChunk) -> None:
    """Append a chunk's rows, transactions and messages, checking what Arrow can check."""
    rows = []
    for version, table in chunk.rows.items():
        table.validate(full=True)
        assert table.num_rows > 0
        rows += _columnar_rows(version, table)
    meaning.rows += rows
    times = chunk.transactions["commit_time"].cast(pa.int64())
    columns = chunk.transactions.set_column(3, "commit_time", times).to_pydict().values()
    meaning.transactions += list(zip(*columns, strict=True))
    if chunk.messages is not None:
        meaning.messages += list(zip(*chunk.messages.to_pydict().values(), strict=True))
    ops = [row[1] for row in rows]
    counts = chunk.counts
    assert [ops.count(op) for op in "IUDT"] == [
        counts.inserts,
        counts.updates,
        counts.deletes,
        counts.truncates,
    ]
    assert counts.changes == len(rows)


def _in_order(meaning: Meaning) -> Meaning:
    """Rows of one TRUNCATE have one seq and no order among them: by table."""
    meaning.rows.sort(key=lambda row: (row[0], row[2].relation_id))
    return meaning


@dataclass
class _Row:
    message: Insert | Update | Delete | Truncate
    relation: Relation
    seq: int
    txn: int
    lsn: int


def _plain_row(row: _Row, catalog: TypeCatalog) -> tuple[Any, ...]:
    message, place = row.message, (row.relation, row.txn, row.lsn)
    if isinstance(message, Truncate):
        return (row.seq, "T", *place, "", None, None)
    new = None if isinstance(message, Delete) else _values(message.new, row.relation, catalog)
    old_kind = "" if isinstance(message, Insert) else message.old_kind
    before = None if isinstance(message, Insert) else message.old
    old = None if before is None else _values(before, row.relation, catalog)
    return (row.seq, type(message).__name__[0], *place, old_kind, new, old)


def _values(values: Tuple, relation: Relation, catalog: TypeCatalog) -> tuple[Any, ...]:
    """Values as canonical text, each read through the table of types, as the columnar reader does."""
    found: list[Any] = []
    for value, column in zip(values, relation.columns, strict=True):
        if isinstance(value, NoValue):
            found.append(None if value is NoValue.NULL else value)
        elif isinstance(value, BinaryValue):
            try:
                text = binary_text(value.data, column.type_oid, catalog)
            except TextError as error:
                raise ProtocolError(f"{error.reason}, in a column of type {column.type_name}") from None
            found.append(text)
        else:
            found.append(_canonical(value, column.type))
    return tuple(found)


@lru_cache(1 << 16)
def _read_and_printed(value: str, kind: ColumnType) -> str | ProtocolError:
    try:
        typed, exact = from_text(pa.array([value], pa.string()), kind)
    except ProtocolError as error:
        return ProtocolError(error.what)  # without its frames, which would be kept
    printed: str = to_text(typed, exact, kind)[0].as_py()
    return printed


def _canonical(value: str, kind: ColumnType) -> str:
    found = _read_and_printed(value, kind)
    if isinstance(found, ProtocolError):
        raise ProtocolError(found.what)
    return found


def _columnar_rows(version: Relation, table: pa.Table) -> list[tuple[Any, ...]]:
    new = [_texts(version, table, i, "n") for i in range(len(version.columns))]
    old = [_texts(version, table, i, "o") for i in range(len(version.columns))]
    found = []
    fixed = zip(*(table[name].to_pylist() for name in ("seq", "op", "txn", "lsn", "old")), strict=True)
    for i, (seq, op, txn, lsn, old_kind) in enumerate(fixed):
        news = tuple(column[i] for column in new) if chr(op) in "IU" else None
        olds = tuple(column[i] for column in old) if old_kind else None
        found.append((seq, chr(op), version, txn, lsn, chr(old_kind) if old_kind else "", news, olds))
    return found


def _texts(version: Relation, table: pa.Table, i: int, kind: str) -> list[Any]:
    if f"{kind}{i}" not in table.column_names:
        assert f"x{kind}{i}" not in table.column_names
        return [None] * table.num_rows
    exact = table[f"x{kind}{i}"] if f"x{kind}{i}" in table.column_names else None
    texts: list[Any] = to_text(table[f"{kind}{i}"], exact, version.columns[i].type).to_pylist()
    if kind == "n" and f"u{i}" in table.column_names:
        assert True in table[f"u{i}"].to_pylist()
        for row, unchanged in enumerate(table[f"u{i}"].to_pylist()):
            texts[row] = NoValue.UNCHANGED if unchanged else texts[row]
    return texts
