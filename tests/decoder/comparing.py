"""Transactions of one history, asked for in different ways, made comparable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from slotlake.decoder.protocol.messages import (
    BinaryValue,
    Delete,
    Insert,
    LogicalMessage,
    Tuple,
    Update,
    Value,
)
from slotlake.decoder.protocol.relations import Column, Relation
from slotlake.decoder.types.binary.values import binary_text
from slotlake.decoder.types.table import type_name
from tests.decoder.reference import Result, TransactionChange


def comparable(results: Iterable[Result]) -> list[Result]:
    """Without names of prepared transactions and empty ones; binary values as text.

    A server leaves out a transaction without changes only if it knows in time that there will be none.
    """
    found: list[Result] = []
    for result in results:
        if isinstance(result, LogicalMessage):
            found.append(result)
        elif result.changes:
            found.append(replace(result, gid=None, changes=tuple(map(_as_text, result.changes))))
    return found


def _as_text(change: TransactionChange) -> TransactionChange:
    message = change.message
    if isinstance(message, Insert | Update):
        message = replace(message, new=_texts(message.new, change.relations[0]))
    if isinstance(message, Update | Delete) and message.old is not None:
        message = replace(message, old=_texts(message.old, change.relations[0]))
    return replace(change, message=message)


def _texts(values: Tuple, relation: Relation) -> Tuple:
    return tuple(_text(v, c) for v, c in zip(values, relation.columns, strict=True))


def _text(value: Value, column: Column) -> Value:
    if not isinstance(value, BinaryValue):
        return value
    if not type_name(column.type_oid):
        return value.data.decode()  # an enum is sent by its label
    return binary_text(value.data, column.type_oid)
