"""The plain reader of pgoutput: one message in, one frozen dataclass out.

The readable reference for the columnar reader (a property test holds them equal), and the reader of
the rare messages in it.  The grammar, integers big-endian, strings ending in a zero byte
(PostgreSQL manual, "Logical Replication Message Formats"; proto.c):

    begin      'B' final_lsn:u64 commit_time:i64 xid:u32
    commit     'C' flags:u8=0 commit_lsn:u64 end_lsn:u64 commit_time:i64
    origin     'O' origin_lsn:u64 name:string
    relation   'R' id:u32 schema:string table:string identity:[dnfi] count:u16 column*
    column         flags:u8(1=key) name:string type_oid:u32 typmod:i32
    type       'Y' type_oid:u32 schema:string name:string
    insert     'I' relation:u32 'N' tuple
    update     'U' relation:u32 [('K'|'O') tuple] 'N' tuple
    delete     'D' relation:u32 ('K'|'O') tuple
    truncate   'T' count:u32 flags:u8(1=cascade, 2=restart identity) relation:u32*
    message    'M' flags:u8(1=transactional) lsn:u64 prefix:string length:u32 bytes
    tuple          count:u16 value*
    value          'n' | 'u' | 't' length:u32 bytes          ('b' only when binary was asked for)

    stream      = (transaction | message with flags 0)*
    transaction = begin (origin | relation | type | insert | update | delete | truncate | message)* commit

Invariant: the whole message is read, each byte once; anything else is a `ProtocolError` with the
message's type and the byte offset.  Streaming ('S' 'E' 'c' 'A') and two-phase ('b' 'P' 'K' 'r' 'p')
messages are refused: they are not asked for, so a server that sends them is not understood.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from decoder.errors import ProtocolError
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
    Value,
)
from decoder.relations import Column, Relation
from decoder.types import type_name

LSN_MAX = 2**63 - 1  # positions are kept as signed 64-bit integers
EPOCH_MICROSECONDS = 946_684_800_000_000  # from 1970-01-01 to PostgreSQL's 2000-01-01
TIME_MIN, TIME_MAX = -63_082_281_600_000_000, 252_455_615_999_999_999  # years 1 to 9999, from 2000
LATER_TYPES = b"SEcAbPKrp"


class _Cursor:
    """Reads one message from front to back."""

    def __init__(self, payload: bytes) -> None:
        self.payload = payload
        self.offset = 0
        self.message_type = payload[:1].decode("latin-1")

    def error(self, what: str, offset: int | None = None) -> ProtocolError:
        where = self.offset if offset is None else offset
        return ProtocolError(what, message_type=self.message_type, offset=where)

    def take(self, length: int) -> bytes:
        end = self.offset + length
        if end > len(self.payload):
            raise self.error("the message ends too early")
        part = self.payload[self.offset : end]
        self.offset = end
        return part

    def unsigned(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big")

    def signed(self, length: int) -> int:
        return int.from_bytes(self.take(length), "big", signed=True)

    def text(self, raw: bytes, offset: int) -> str:
        try:
            return raw.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error("text that is not UTF-8", offset) from None

    def string(self) -> str:
        end = self.payload.find(b"\0", self.offset)
        if end < 0:
            raise self.error("a string without its end")
        start = self.offset
        self.offset = end + 1
        return self.text(self.payload[start:end], start)

    def flags(self, allowed: int) -> int:
        value = self.unsigned(1)
        if value & ~allowed:
            raise self.error(f"reserved flags are set ({value:#04x})", self.offset - 1)
        return value

    def lsn(self, *, required: bool) -> int:
        value = self.unsigned(8)
        if value > LSN_MAX:
            raise self.error("a position beyond the end of all WAL", self.offset - 8)
        if required and value == 0:
            raise self.error("a position is not set", self.offset - 8)
        return value

    def time(self) -> int:
        value = self.signed(8)
        if not TIME_MIN <= value <= TIME_MAX:
            raise self.error("a time outside the years 1 to 9999", self.offset - 8)
        return value + EPOCH_MICROSECONDS

    def end(self) -> None:
        if self.offset != len(self.payload):
            raise self.error("bytes are left over after the message")


def read_message(payload: bytes) -> Message:
    """Read one message.

    Raises:
        ProtocolError: truncated, of unknown or unexpected type, with left-over bytes, with a tag,
            flag, length or position that the grammar does not allow, or not UTF-8.
    """
    cursor = _Cursor(payload)
    tag = cursor.take(1)
    read = _READERS.get(tag)
    if read is None:
        later = tag in LATER_TYPES
        what = "streaming or two-phase, which was not asked for" if later else "a message of unknown type"
        raise cursor.error(what, 0)
    message = read(cursor)
    cursor.end()
    return message


def _begin(cursor: _Cursor) -> Begin:
    return Begin(cursor.lsn(required=True), cursor.time(), cursor.unsigned(4))


def _commit(cursor: _Cursor) -> Commit:
    cursor.flags(0)
    return Commit(cursor.lsn(required=True), cursor.lsn(required=True), cursor.time())


def _origin(cursor: _Cursor) -> Origin:
    return Origin(cursor.lsn(required=False), cursor.string())


def _relation(cursor: _Cursor) -> RelationMessage:
    relation_id = cursor.unsigned(4)
    schema, table = cursor.string() or "pg_catalog", cursor.string()
    identity = cursor.take(1).decode("latin-1")
    if identity not in "dnfi":
        raise cursor.error(f"unknown replica identity {identity!r}", cursor.offset - 1)
    columns = tuple(_column(cursor) for _ in range(cursor.unsigned(2)))
    return RelationMessage(Relation(relation_id, schema, table, identity, columns))


def _column(cursor: _Cursor) -> Column:
    in_key = cursor.flags(1) == 1
    name, oid, typmod = cursor.string(), cursor.unsigned(4), cursor.signed(4)
    return Column(name, oid, typmod, in_key, type_name(oid) or "")


def _type(cursor: _Cursor) -> TypeMessage:
    return TypeMessage(cursor.unsigned(4), cursor.string() or "pg_catalog", cursor.string())


def _tag(cursor: _Cursor, allowed: bytes) -> str:
    tag = cursor.take(1)
    if tag not in allowed:
        raise cursor.error(f"a tuple tag {tag!r} where one of {allowed!r} is due", cursor.offset - 1)
    return tag.decode("ascii")


def _insert(cursor: _Cursor) -> Insert:
    relation_id = cursor.unsigned(4)
    _tag(cursor, b"N")
    return Insert(relation_id, _tuple(cursor, old=False))


def _update(cursor: _Cursor) -> Update:
    relation_id = cursor.unsigned(4)
    tag = _tag(cursor, b"KON")
    if tag == "N":
        return Update(relation_id, "", None, _tuple(cursor, old=False))
    old = _tuple(cursor, old=True)
    _tag(cursor, b"N")
    return Update(relation_id, tag, old, _tuple(cursor, old=False))


def _delete(cursor: _Cursor) -> Delete:
    relation_id = cursor.unsigned(4)
    return Delete(relation_id, _tag(cursor, b"KO"), _tuple(cursor, old=True))


def _tuple(cursor: _Cursor, *, old: bool) -> Tuple:
    return tuple(_value(cursor, old) for _ in range(cursor.unsigned(2)))


def _value(cursor: _Cursor, old: bool) -> Value:
    kind = cursor.take(1)
    if kind == b"n":
        return NoValue.NULL
    if kind == b"u" and not old:
        return NoValue.UNCHANGED
    if kind == b"t":
        length = cursor.unsigned(4)
        start = cursor.offset
        return cursor.text(cursor.take(length), start)
    # An old tuple is flattened before it is logged (heapam.c ExtractReplicaIdentity).
    reasons = {b"u": "an unchanged value in an old tuple", b"b": "a binary value, which was not asked for"}
    raise cursor.error(reasons.get(kind, f"unknown kind of value {kind!r}"), cursor.offset - 1)


def _truncate(cursor: _Cursor) -> Truncate:
    count, flags = cursor.unsigned(4), cursor.flags(3)
    if count * 4 > len(cursor.payload) - cursor.offset:
        raise cursor.error("the message ends too early")
    relation_ids = tuple(cursor.unsigned(4) for _ in range(count))
    return Truncate(bool(flags & 1), bool(flags & 2), relation_ids)


def _logical(cursor: _Cursor) -> LogicalMessage:
    transactional = cursor.flags(1) == 1
    lsn, prefix = cursor.lsn(required=False), cursor.string()
    return LogicalMessage(transactional, lsn, prefix, cursor.take(cursor.unsigned(4)))


_READERS: dict[bytes, Callable[[_Cursor], Message]] = {
    b"B": _begin,
    b"C": _commit,
    b"O": _origin,
    b"R": _relation,
    b"Y": _type,
    b"I": _insert,
    b"U": _update,
    b"D": _delete,
    b"T": _truncate,
    b"M": _logical,
}


class StreamReader:
    """Reads messages in order and holds them to the stream's grammar.

    Attributes:
        relations: the version of each table in force, by relation id, type names filled in.
        transaction: the open transaction's Begin, or None between transactions.
    """

    def __init__(self) -> None:
        self.relations: dict[int, Relation] = {}
        self.transaction: Begin | None = None
        self._types: dict[int, str] = {}

    def read(self, payload: bytes) -> Message:
        """Read the next message; raises ProtocolError when it may not come here."""
        message = read_message(payload)
        tag = payload[:1].decode("latin-1")
        if isinstance(message, Begin):
            self._begin(message)
        elif isinstance(message, LogicalMessage) and not message.transactional:
            pass
        elif self.transaction is None:
            raise ProtocolError("outside of any transaction", message_type=tag)
        else:
            self._inside(message, tag)
        return self._named(message) if isinstance(message, RelationMessage) else message

    def _begin(self, message: Begin) -> None:
        if self.transaction is not None:
            raise ProtocolError("a transaction begins inside another", message_type="B")
        self.transaction = message

    def _inside(self, message: Message, tag: str) -> None:
        if isinstance(message, Commit):
            self._commit(message)
        elif isinstance(message, TypeMessage):
            self._types[message.type_oid] = f"{message.schema}.{message.name}"
        elif isinstance(message, RelationMessage):
            self.relations[message.relation.relation_id] = self._named(message).relation
        elif isinstance(message, Truncate):
            for relation_id in message.relation_ids:
                self._known(relation_id, tag)
        elif isinstance(message, Insert | Update | Delete):
            self._fits(message, tag)

    def _commit(self, message: Commit) -> None:
        assert self.transaction is not None
        if message.commit_lsn != self.transaction.final_lsn:
            raise ProtocolError("commit and begin disagree on the position", message_type="C", offset=2)
        if message.end_lsn <= message.commit_lsn:
            raise ProtocolError("a commit record that ends before it starts", message_type="C", offset=10)
        self.transaction = None

    def _named(self, message: RelationMessage) -> RelationMessage:
        return RelationMessage(with_type_names(message.relation, self._types))

    def _known(self, relation_id: int, tag: str) -> Relation:
        relation = self.relations.get(relation_id)
        if relation is None:
            raise ProtocolError(f"relation {relation_id} was not described", message_type=tag, offset=1)
        return relation

    def _fits(self, message: Insert | Update | Delete, tag: str) -> None:
        relation = self._known(message.relation_id, tag)
        old = None if isinstance(message, Insert) else message.old
        new = None if isinstance(message, Delete) else message.new
        for values in (old, new):
            if values is not None and len(values) != len(relation.columns):
                raise ProtocolError("a tuple of another width than its table", message_type=tag, offset=5)


def with_type_names(relation: Relation, types: dict[int, str]) -> Relation:
    """The relation with the user types named that the stream has named."""
    columns = tuple(replace(c, type_name=c.type_name or types.get(c.type_oid, "")) for c in relation.columns)
    return replace(relation, columns=columns)
