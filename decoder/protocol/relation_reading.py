"""A fast reader of relation messages: for a thousand tables each connection brings a thousand of them.

Invariant: the result is the same as that of `wire.read_message` for the same bytes.  This reader has no error
messages: if a message is not certainly right, `wire.read_message` reads it and says what is wrong.
"""

from __future__ import annotations

import struct
from functools import lru_cache

from slotlake.decoder.protocol.messages import RelationMessage
from slotlake.decoder.protocol.relations import Column, Relation
from slotlake.decoder.protocol.wire import read_message
from slotlake.decoder.types.table import type_name

# The same descriptions come again with every connection.  The caches are bounded, whatever a stream contains.
_RELATIONS_CACHED, _RELATION_BYTES_MAX = 1 << 11, 1 << 10
_COLUMNS_CACHED, _COLUMN_BYTES_MAX = 1 << 13, 1 << 7
_COLUMN_TAIL = 9  # the zero byte after the name, type OID, modifier
_ID, _COUNT, _TYPE = struct.Struct(">I"), struct.Struct(">H"), struct.Struct(">Ii")


def read_relation(payload: bytes) -> Relation:
    """The relation that a Relation message outside of stream blocks describes.

    Raises:
        ProtocolError: as `wire.read_message`.
    """
    if len(payload) > _RELATION_BYTES_MAX:
        return _read(payload)
    return _read_again(payload)


def forget() -> None:
    """Clear the caches, so that the next read costs as much as in a new process."""
    _read_again.cache_clear()
    _columns_again.cache_clear()
    _column_again.cache_clear()


def _read(payload: bytes) -> Relation:
    try:
        relation = _plainly(payload)
    except (ValueError, IndexError, struct.error):  # no zero byte, not UTF-8, or too short
        relation = None
    if relation is not None:
        return relation
    message = read_message(payload)
    assert isinstance(message, RelationMessage)
    return message.relation


_read_again = lru_cache(_RELATIONS_CACHED)(_read)


def _plainly(payload: bytes) -> Relation | None:
    """The relation, or None if the other reader must check it."""
    (number,) = _ID.unpack_from(payload, 1)
    schema_end = payload.index(0, 5)
    table_end = payload.index(0, schema_end + 1)
    identity = chr(payload[table_end + 1])
    if identity not in "dnfi":
        return None
    raw = payload[table_end + 2 :]
    columns = _columns_again(raw) if len(payload) <= _RELATION_BYTES_MAX else _columns(raw)
    schema, table = payload[5:schema_end].decode(), payload[schema_end + 1 : table_end].decode()
    return Relation(number, schema or "pg_catalog", table, identity, columns)


def _columns(raw: bytes) -> tuple[Column, ...]:
    """All columns: a count, then the columns.  Tables with the same columns share one tuple."""
    (count,) = _COUNT.unpack_from(raw)
    at, columns = 2, []
    for _ in range(count):
        end = raw.index(0, at + 1) + _COLUMN_TAIL
        column = raw[at:end]
        columns.append(_column_again(column) if len(column) <= _COLUMN_BYTES_MAX else _column(column))
        at = end
    if at != len(raw):
        raise ValueError("bytes are left over")
    return tuple(columns)


_columns_again = lru_cache(_RELATIONS_CACHED)(_columns)


def _column(raw: bytes) -> Column:
    """One column: flags, name, zero byte, type OID, modifier."""
    flags, name = raw[0], raw[1:-_COLUMN_TAIL].decode()
    oid, typmod = _TYPE.unpack_from(raw, len(raw) - 8)
    if flags > 1:
        raise ValueError("reserved flags are set")
    return Column(name, oid, typmod, flags == 1, type_name(oid) or "")


_column_again = lru_cache(_COLUMNS_CACHED)(_column)
