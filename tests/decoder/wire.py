"""A writer of pgoutput messages of all versions, the mirror of `decoder.protocol.wire`, for tests only."""

from __future__ import annotations

import struct

from slotlake.decoder.protocol.cursor import EPOCH_MICROSECONDS
from slotlake.decoder.protocol.messages import (
    Begin,
    BeginPrepare,
    BinaryValue,
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
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Tuple,
    TypeMessage,
    Update,
)


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
        case Streamed(xid, content):
            plain = encode(content)
            return plain[:1] + struct.pack(">I", xid) + plain[1:]
        case _:
            return _control(message)


def _control(message: Message) -> bytes:
    """The messages around the content of streamed and prepared transactions."""
    match message:
        case StreamStart(xid, first):
            return b"S" + struct.pack(">IB", xid, first)
        case StreamStop():
            return b"E"
        case StreamCommit(xid, commit_lsn, end_lsn, time):
            return b"c" + struct.pack(">IBQQq", xid, 0, commit_lsn, end_lsn, time - EPOCH_MICROSECONDS)
        case StreamAbort(xid, subxid, None, None):
            return b"A" + struct.pack(">II", xid, subxid)
        case StreamAbort(xid, subxid, lsn, time):
            assert lsn is not None
            assert time is not None
            return b"A" + struct.pack(">IIQq", xid, subxid, lsn, time - EPOCH_MICROSECONDS)
        case _:
            return _two_phase(message)


def _two_phase(message: Message) -> bytes:
    """Prepared transactions: where, when, which."""
    match message:
        case BeginPrepare(lsn, end_lsn, time, xid, gid):
            tag = b"b"
        case Prepare(lsn, end_lsn, time, xid, gid):
            tag = b"P\0"
        case StreamPrepare(lsn, end_lsn, time, xid, gid):
            tag = b"p\0"
        case CommitPrepared(lsn, end_lsn, time, xid, gid):
            tag = b"K\0"
        case RollbackPrepared(lsn, end_lsn, prepare_time, time, xid, gid):
            times = (prepare_time - EPOCH_MICROSECONDS, time - EPOCH_MICROSECONDS)
            return b"r\0" + struct.pack(">QQqqI", lsn, end_lsn, *times, xid) + _string(gid)
        case _:
            raise TypeError(type(message))
    return tag + struct.pack(">QQqI", lsn, end_lsn, time - EPOCH_MICROSECONDS, xid) + _string(gid)


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
        elif isinstance(value, BinaryValue):
            parts.append(b"b" + struct.pack(">I", len(value.data)) + value.data)
        else:
            raw = value.encode()
            parts.append(b"t" + struct.pack(">I", len(raw)) + raw)
    return b"".join(parts)


def _string(text: str) -> bytes:
    return text.encode() + b"\0"
