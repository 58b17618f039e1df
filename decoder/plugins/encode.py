"""Writes the change model as pgoutput messages of protocol version 1 (proto.c, logicalrep_write_*).

The inverse of `decoder.protocol.reader`, for changes from another plugin.  These messages go into the same
columnar decoder, so a batch of the change log is the same for every plugin.

Invariant: `StreamReader` reads back exactly the events that were written (a property of the tests).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from slotlake.decoder.plugins.model import Change, Message, NoValue, Transaction, Truncate, Tuple
from slotlake.decoder.protocol.relations import Relation
from slotlake.decoder.types.names import FIRST_NORMAL_OID

EPOCH_MICROSECONDS = 946_684_800_000_000  # from 1970-01-01 to PostgreSQL's 2000-01-01
_BEGIN, _COMMIT = struct.Struct(">cQqI"), struct.Struct(">cBQQq")
_ACTIONS = {"insert": b"I", "update": b"U", "delete": b"D"}


def begin(transaction: Transaction, commit_lsn: int, commit_time: int) -> bytes:
    """Write the message B.

    Args:
        transaction: which has an id.
        commit_lsn: where its commit record starts.
        commit_time: microseconds since 1970-01-01 UTC.
    """
    assert transaction.xid is not None
    return _BEGIN.pack(b"B", commit_lsn, commit_time - EPOCH_MICROSECONDS, transaction.xid)


def commit(commit_lsn: int, end_lsn: int, commit_time: int) -> bytes:
    """Write the message C.

    Args:
        commit_lsn: where the commit record starts.
        commit_time: microseconds since 1970-01-01 UTC.
    """
    return _COMMIT.pack(b"C", 0, commit_lsn, end_lsn, commit_time - EPOCH_MICROSECONDS)


def origin(name: str) -> bytes:
    """Write the message O; the position at the origin is not known here."""
    return b"O" + bytes(8) + _string(name)


def description(relation: Relation) -> Iterator[bytes]:
    """Write a message Y for each user type, then R."""
    for oid, name in {column.type_oid: column.type_name for column in relation.columns}.items():
        if oid >= FIRST_NORMAL_OID and name:
            schema, _, plain = name.partition(".")
            yield b"Y" + oid.to_bytes(4, "big") + _string(schema) + _string(plain)
    columns = b"".join(
        bytes([column.in_key]) + _string(column.name) + struct.pack(">Ii", column.type_oid, column.typmod)
        for column in relation.columns
    )
    names = _string(relation.schema) + _string(relation.table) + relation.replica_identity.encode("ascii")
    count = len(relation.columns).to_bytes(2, "big")
    yield b"R" + relation.relation_id.to_bytes(4, "big") + names + count + columns


def change(body: Change) -> bytes:
    """Write the message I, U or D."""
    old = body.old_kind.encode("ascii") + _tuple(body.old) if body.old is not None else b""
    new = b"N" + _tuple(body.new) if body.new is not None else b""
    return _ACTIONS[body.kind] + body.relation.relation_id.to_bytes(4, "big") + old + new


def truncate(body: Truncate) -> bytes:
    """Write the message T."""
    flags = bytes([body.cascade | body.restart_identity << 1])
    ids = b"".join(relation.relation_id.to_bytes(4, "big") for relation in body.relations)
    return b"T" + len(body.relations).to_bytes(4, "big") + flags + ids


def message(body: Message) -> bytes:
    """Write the message M."""
    head = bytes([body.transactional]) + body.lsn.to_bytes(8, "big") + _string(body.prefix)
    return b"M" + head + len(body.content).to_bytes(4, "big") + body.content


def _tuple(values: Tuple) -> bytes:
    return len(values).to_bytes(2, "big") + b"".join(_value(value) for value in values)


def _value(value: str | NoValue) -> bytes:
    if isinstance(value, NoValue):
        return value.value.encode("ascii")
    text = value.encode("utf-8", "surrogateescape")
    return b"t" + len(text).to_bytes(4, "big") + text


def _string(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape") + b"\0"
