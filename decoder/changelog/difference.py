"""A difference between lake and source as one transaction of the change log.

Changes that were lost between two positions are replaced by their net effect: inserts, updates and deletes of
rows, written as the server would send them (protocol 1, logicalrep/proto.c) and decoded like all others.  So
a batch with a difference is a batch like any other: it is folded, merged, written to the derived tables,
archived, replayed.

The transaction is recognizable: its origin is ``slotlake_recover`` and its id is 0, which no transaction has.
Invariant: memory is bounded by one buffer, whatever the number of rows.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.changelog.writer import BatchIdentity, BatchWriter
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.protocol.cursor import EPOCH_MICROSECONDS
from slotlake.decoder.protocol.relations import RelationVersion
from slotlake.decoder.types.names import FIRST_GENBKI_OID

ORIGIN = "slotlake_recover"
_BUFFER_BYTES = 8 << 20
Row = Sequence[str | None]


@dataclass(frozen=True)
class RowChange:
    """A row that is inserted (``old`` None), deleted (``new`` None) or changed; values are texts."""

    old: Row | None
    new: Row | None


def write_difference(
    directory: Path,
    identity: BatchIdentity,
    positions: tuple[int, int],
    taken: datetime,
    tables: Iterable[tuple[SourceTable, Iterable[RowChange]]],
) -> Batch:
    """Write a batch from one position to another that has the net effect of the changes between them.

    Args:
        taken: when the source was read, by its clock; the transaction's commit time.
        tables: each with its changes; values are in the order of the table's columns.

    Raises:
        ChangeLogError: the batch cannot be written; nothing is left of it.
    """
    start, end = positions
    writer = BatchWriter(directory, identity, start)
    try:
        keys = _write(writer, end, taken, tables)
        return writer.finish(end, keys)
    except BaseException:
        writer.abandon()
        raise


def _write(
    writer: BatchWriter,
    end: int,
    taken: datetime,
    tables: Iterable[tuple[SourceTable, Iterable[RowChange]]],
) -> dict[RelationVersion, Sequence[str]]:
    decoder, buffer = Decoder(), MessageBuffer()
    by_id: dict[int, Sequence[str]] = {}
    keys: dict[RelationVersion, Sequence[str]] = {}
    seq = 0

    def flush() -> None:
        nonlocal seq
        chunk = decoder.decode(buffer, first_seq=seq, first_txn=0, partial=True)
        assert chunk.consumed == buffer.count
        writer.append(chunk)
        keys.update({version: by_id[version.relation_id] for version in chunk.rows})
        seq = chunk.next_seq
        buffer.clear()

    for message in _messages(end - 1, end, taken, tables, by_id):
        buffer.append(message, end - 1)
        if buffer.full(_BUFFER_BYTES):
            flush()
    flush()
    return keys


def _messages(
    commit: int,
    end: int,
    taken: datetime,
    tables: Iterable[tuple[SourceTable, Iterable[RowChange]]],
    keys: dict[int, Sequence[str]],
) -> Iterator[bytes]:
    time = int(taken.timestamp() * 1_000_000) - EPOCH_MICROSECONDS
    yield b"B" + struct.pack(">QqI", commit, time, 0)
    yield b"O" + struct.pack(">Q", commit) + _string(ORIGIN)
    for table, changes in tables:
        keys[table.relation_id] = table.key
        for number, change in enumerate(changes):
            if number == 0:
                yield from _described(table)
            yield _row(table, change)
    yield b"C\0" + struct.pack(">QQq", commit, end, time)


def _described(table: SourceTable) -> Iterator[bytes]:
    for column in table.columns:
        if column.type_oid >= FIRST_GENBKI_OID:
            schema, _, name = column.type_name.rpartition(".")
            yield b"Y" + struct.pack(">I", column.type_oid) + _string(schema) + _string(name)
    schema = "" if table.schema == "pg_catalog" else table.schema
    parts = [b"R", struct.pack(">I", table.relation_id), _string(schema), _string(table.table)]
    parts += [table.replica_identity.encode(), struct.pack(">H", len(table.columns))]
    for column in table.columns:
        parts += [bytes([column.in_key]), _string(column.name)]
        parts.append(struct.pack(">Ii", column.type_oid, column.typmod))
    yield b"".join(parts)


def _row(table: SourceTable, change: RowChange) -> bytes:
    relation = struct.pack(">I", table.relation_id)
    if change.old is None:
        assert change.new is not None
        return b"I" + relation + b"N" + _tuple(change.new)
    if change.new is None:
        return b"D" + relation + _old(table, change.old)
    before = _old(table, change.old) if table.replica_identity == "f" else b""
    return b"U" + relation + before + b"N" + _tuple(change.new)


def _old(table: SourceTable, row: Row) -> bytes:
    """The old row according to the replica identity: the whole row, or the columns that identify it."""
    if table.replica_identity == "f":
        return b"O" + _tuple(row)
    return b"K" + _tuple([v if c.in_key else None for c, v in zip(table.columns, row, strict=True)])


def _tuple(values: Row) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        else:
            raw = value.encode()
            parts += [b"t", struct.pack(">I", len(raw)), raw]
    return b"".join(parts)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"
