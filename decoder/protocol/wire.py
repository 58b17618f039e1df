"""Reads one message of pgoutput into one frozen dataclass.

This is the readable reference for the columnar reader (a property test compares them), which also uses it for
control messages.  In the grammar integers are big-endian, and strings end in a zero byte
(PostgreSQL manual, "Logical Replication Message Formats"; proto.c):

    begin       'B' final_lsn:u64 commit_time:i64 xid:u32
    commit      'C' flags:u8=0 commit_lsn:u64 end_lsn:u64 commit_time:i64
    origin      'O' origin_lsn:u64 name:string
    relation    'R' [xid] id:u32 schema:string table:string identity:[dnfi] count:u16 column*
    column          flags:u8(1=key) name:string type_oid:u32 typmod:i32
    type        'Y' [xid] type_oid:u32 schema:string name:string
    insert      'I' [xid] relation:u32 'N' tuple
    update      'U' [xid] relation:u32 [('K'|'O') tuple] 'N' tuple
    delete      'D' [xid] relation:u32 ('K'|'O') tuple
    truncate    'T' [xid] count:u32 flags:u8(1=cascade, 2=restart identity) relation:u32*
    message     'M' [xid] flags:u8(1=transactional) lsn:u64 prefix:string length:u32 bytes
    tuple           count:u16 value*
    value           'n' | 'u' | 't' length:u32 bytes | 'b' length:u32 bytes  ('b' only with option binary)

    start       'S' xid first:u8(0|1)
    stop        'E'
    commit      'c' xid flags:u8=0 commit_lsn:u64 end_lsn:u64 commit_time:i64
    abort       'A' xid subxid [abort_lsn:u64 abort_time:i64]                ([..] only when parallel)

    begin prepare       'b'            prepared
    prepare             'P' flags:u8=0 prepared
    stream prepare      'p' flags:u8=0 prepared
    commit prepared     'K' flags:u8=0 commit_lsn:u64 end_lsn:u64 commit_time:i64 xid gid
    rollback prepared   'r' flags:u8=0 prepare_end_lsn:u64 rollback_end_lsn:u64
                                       prepare_time:i64 rollback_time:i64 xid gid
    prepared            prepare_lsn:u64 end_lsn:u64 prepare_time:i64 xid gid
    gid                 string of at most 199 bytes

No xid:u32 is 0, except that of 'B' (not checked, as in proto.c).  ``[xid]`` is in messages between 'S' and
'E' and nowhere else: a message itself does not show whether it has one.

Invariant: the whole message is read, each byte once; anything else is a `ProtocolError` with the
message's type and the byte offset.
"""

from __future__ import annotations

from collections.abc import Callable

from slotlake.decoder.protocol.cursor import Cursor
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
    StreamedContent,
    StreamPrepare,
    StreamStart,
    StreamStop,
    Truncate,
    Tuple,
    TypeMessage,
    Update,
    Value,
)
from slotlake.decoder.protocol.relations import Column, Relation
from slotlake.decoder.types.table import type_name

GID_BYTES_MAX = 199  # GIDSIZE in xact.h, without the zero byte


def read_message(
    payload: bytes,
    *,
    in_stream: bool = False,
    binary: bool = False,
    parallel: bool = False,
    any_bytes: bool = False,
) -> Message:
    """Read one message.

    Args:
        in_stream: it is between a stream's start and stop: relations, types and changes then come
            as `Streamed`.
        binary: the stream may contain binary values.
        parallel: the stream has streaming 'parallel', so that an abort has a position and a time.
        any_bytes: values need not be UTF-8, because the caller checks them and can name their table.

    Raises:
        ProtocolError: the message is truncated, of unknown type, or has left-over bytes; or a tag, flag,
            length, id or position breaks the grammar; or a text is not UTF-8.
    """
    cursor = Cursor(payload, binary=binary, parallel=parallel, any_bytes=any_bytes)
    tag = cursor.take(1)
    message: Message
    if tag in _CONTENT:
        read_content = _CONTENT[tag]
        message = Streamed(cursor.xid(), read_content(cursor)) if in_stream else read_content(cursor)
    elif tag in _CONTROL:
        message = _CONTROL[tag](cursor)
    else:
        raise cursor.error("the message has an unknown type", 0)
    cursor.end()
    return message


def _begin(cursor: Cursor) -> Begin:
    return Begin(cursor.lsn(), cursor.time(), cursor.unsigned(4))


def _commit(cursor: Cursor) -> Commit:
    cursor.flags(0)
    return Commit(cursor.lsn(), cursor.lsn(), cursor.time())


def _origin(cursor: Cursor) -> Origin:
    return Origin(cursor.lsn(required=False), cursor.string())


def _relation(cursor: Cursor) -> RelationMessage:
    relation_id = cursor.unsigned(4)
    schema, table = cursor.string() or "pg_catalog", cursor.string()
    identity = cursor.take(1).decode("latin-1")
    if identity not in "dnfi":
        raise cursor.error(f"unknown replica identity {identity!r}", cursor.offset - 1)
    columns = tuple(_column(cursor) for _ in range(cursor.unsigned(2)))
    return RelationMessage(Relation(relation_id, schema, table, identity, columns))


def _column(cursor: Cursor) -> Column:
    in_key = cursor.flags(1) == 1
    name, oid, typmod = cursor.string(), cursor.unsigned(4), cursor.signed(4)
    return Column(name, oid, typmod, in_key, type_name(oid) or "")


def _type(cursor: Cursor) -> TypeMessage:
    return TypeMessage(cursor.unsigned(4), cursor.string() or "pg_catalog", cursor.string())


def _tag(cursor: Cursor, allowed: bytes) -> str:
    tag = cursor.take(1)
    if tag not in allowed:
        raise cursor.error(f"the tuple has the tag {tag!r}, not one of {allowed!r}", cursor.offset - 1)
    return tag.decode("ascii")


def _insert(cursor: Cursor) -> Insert:
    relation_id = cursor.unsigned(4)
    _tag(cursor, b"N")
    return Insert(relation_id, _tuple(cursor, old=False))


def _update(cursor: Cursor) -> Update:
    relation_id = cursor.unsigned(4)
    tag = _tag(cursor, b"KON")
    if tag == "N":
        return Update(relation_id, "", None, _tuple(cursor, old=False))
    old = _tuple(cursor, old=True)
    _tag(cursor, b"N")
    return Update(relation_id, tag, old, _tuple(cursor, old=False))


def _delete(cursor: Cursor) -> Delete:
    relation_id = cursor.unsigned(4)
    return Delete(relation_id, _tag(cursor, b"KO"), _tuple(cursor, old=True))


def _tuple(cursor: Cursor, *, old: bool) -> Tuple:
    return tuple(_value(cursor, old) for _ in range(cursor.unsigned(2)))


def _value(cursor: Cursor, old: bool) -> Value:
    kind = cursor.take(1)
    if kind == b"n":
        return NoValue.NULL
    if kind == b"u" and not old:
        return NoValue.UNCHANGED
    if kind == b"t":
        return cursor.value(cursor.unsigned(4))
    if kind == b"b" and cursor.binary:
        return BinaryValue(cursor.take(cursor.unsigned(4)))
    # An old tuple is flattened before it is logged (heapam.c ExtractReplicaIdentity).
    reasons = {
        b"u": "an old row has an unchanged value",
        b"b": "a value is binary, but the option binary is off",
    }
    raise cursor.error(reasons.get(kind, f"unknown kind of value {kind!r}"), cursor.offset - 1)


def _truncate(cursor: Cursor) -> Truncate:
    count, flags = cursor.unsigned(4), cursor.flags(3)
    if count * 4 > len(cursor.payload) - cursor.offset:
        raise cursor.error("the message ends too early")
    relation_ids = tuple(cursor.unsigned(4) for _ in range(count))
    return Truncate(bool(flags & 1), bool(flags & 2), relation_ids)


def _logical(cursor: Cursor) -> LogicalMessage:
    transactional = cursor.flags(1) == 1
    lsn, prefix = cursor.lsn(required=False), cursor.string()
    return LogicalMessage(transactional, lsn, prefix, cursor.take(cursor.unsigned(4)))


def _stream_start(cursor: Cursor) -> StreamStart:
    return StreamStart(cursor.xid(), cursor.flags(1) == 1)


def _stream_stop(_: Cursor) -> StreamStop:
    return StreamStop()


def _stream_commit(cursor: Cursor) -> StreamCommit:
    xid = cursor.xid()
    cursor.flags(0)
    return StreamCommit(xid, cursor.lsn(), cursor.lsn(), cursor.time())


def _stream_abort(cursor: Cursor) -> StreamAbort:
    xid, subxid = cursor.xid(), cursor.xid()
    if not cursor.parallel:
        return StreamAbort(xid, subxid)
    # After a crash the server aborts it without a WAL record (ReorderBufferAbortOld).
    return StreamAbort(xid, subxid, cursor.lsn(required=False), cursor.time())


def _gid(cursor: Cursor) -> str:
    start = cursor.offset
    gid = cursor.string()
    if cursor.offset - start - 1 > GID_BYTES_MAX:
        raise cursor.error(f"the gid has more than {GID_BYTES_MAX} bytes", start)
    return gid


def _prepared(cursor: Cursor) -> tuple[int, int, int, int, str]:
    return cursor.lsn(), cursor.lsn(), cursor.time(), cursor.xid(), _gid(cursor)


def _begin_prepare(cursor: Cursor) -> BeginPrepare:
    return BeginPrepare(*_prepared(cursor))


def _prepare(cursor: Cursor) -> Prepare:
    cursor.flags(0)
    return Prepare(*_prepared(cursor))


def _stream_prepare(cursor: Cursor) -> StreamPrepare:
    cursor.flags(0)
    return StreamPrepare(*_prepared(cursor))


def _commit_prepared(cursor: Cursor) -> CommitPrepared:
    cursor.flags(0)
    return CommitPrepared(*_prepared(cursor))


def _rollback_prepared(cursor: Cursor) -> RollbackPrepared:
    cursor.flags(0)
    prepare_end_lsn, rollback_end_lsn = cursor.lsn(), cursor.lsn()
    prepare_time, rollback_time = cursor.time(), cursor.time()
    return RollbackPrepared(
        prepare_end_lsn, rollback_end_lsn, prepare_time, rollback_time, cursor.xid(), _gid(cursor)
    )


_CONTENT: dict[bytes, Callable[[Cursor], StreamedContent]] = {
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _logical,
}
_CONTROL: dict[bytes, Callable[[Cursor], Message]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"S": _stream_start,
    b"E": _stream_stop,
    b"c": _stream_commit,
    b"A": _stream_abort,
    b"b": _begin_prepare,
    b"P": _prepare,
    b"K": _commit_prepared,
    b"r": _rollback_prepared,
    b"p": _stream_prepare,
}
