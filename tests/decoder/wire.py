"""A writer of pgoutput messages, the mirror of `decoder.reader`, for tests only."""

from __future__ import annotations

import struct

from decoder.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    NoValue,
    Origin,
    RelationMessage,
    Truncate,
    Tuple,
    TypeMessage,
    Update,
)
from decoder.reader import EPOCH_MICROSECONDS


def encode(message: Message) -> bytes:  # noqa: C901, PLR0911 - one case a message
    """The bytes PostgreSQL would send for this message."""
    match message:
        case Begin(lsn, time, xid):
            return b"B" + struct.pack(">QqI", lsn, time - EPOCH_MICROSECONDS, xid)
        case Commit(commit_lsn, end_lsn, time):
            return b"C\0" + struct.pack(">QQq", commit_lsn, end_lsn, time - EPOCH_MICROSECONDS)
        case Origin(lsn, name):
            return b"O" + struct.pack(">Q", lsn) + _string(name)
        case TypeMessage(oid, schema, name):
            return b"Y" + struct.pack(">I", oid) + _string(schema) + _string(name)
        case RelationMessage():
            return _relation(message)
        case Insert(relation_id, new):
            return b"I" + struct.pack(">I", relation_id) + b"N" + _tuple(new)
        case Update(relation_id, old_kind, old, new):
            before = b"" if old is None else old_kind.encode() + _tuple(old)
            return b"U" + struct.pack(">I", relation_id) + before + b"N" + _tuple(new)
        case Delete(relation_id, old_kind, old):
            return b"D" + struct.pack(">I", relation_id) + old_kind.encode() + _tuple(old)
        case Truncate(cascade, restart, relation_ids):
            head = struct.pack(">IB", len(relation_ids), cascade + 2 * restart)
            return b"T" + head + b"".join(struct.pack(">I", r) for r in relation_ids)
        case LogicalMessage(transactional, lsn, prefix, content):
            head = struct.pack(">BQ", transactional, lsn)
            return b"M" + head + _string(prefix) + struct.pack(">I", len(content)) + content


def _relation(message: RelationMessage) -> bytes:
    relation = message.relation
    parts = [b"R", struct.pack(">I", relation.relation_id)]
    schema = "" if relation.schema == "pg_catalog" else relation.schema
    parts += [_string(schema), _string(relation.table), relation.replica_identity.encode()]
    parts.append(struct.pack(">H", len(relation.columns)))
    for column in relation.columns:
        parts += [bytes([column.in_key]), _string(column.name)]
        parts.append(struct.pack(">Ii", column.type_oid, column.typmod))
    return b"".join(parts)


def _tuple(values: Tuple) -> bytes:
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if isinstance(value, NoValue):
            parts.append(value.value.encode())
        else:
            raw = value.encode()
            parts.append(b"t" + struct.pack(">I", len(raw)) + raw)
    return b"".join(parts)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"
