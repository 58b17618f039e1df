"""A slot's pending changes as plain records, one by one, for `slotlake decode`.

The readable way through the stream, by the reference reader; nothing is confirmed, so a slot can be
looked at again and again.  Values are PostgreSQL's own text, None for NULL.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from decoder.buffer import MessageBuffer
from decoder.framing import RUNNING, Bounds, Framing
from decoder.lsn import format_lsn
from decoder.messages import (
    Begin,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    NoValue,
    Truncate,
    Tuple,
    Update,
    Value,
)
from decoder.position import settled_position
from decoder.publications import check_publications
from decoder.reader import StreamReader
from decoder.receive import Stream
from decoder.relations import Relation
from decoder.slots import check_slot
from decoder.source import SourceSettings, connect, source_errors

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def changes(
    source: SourceSettings, start: int | None = None, until: int | None = None
) -> Iterator[dict[str, Any]]:
    """Yield every change of the transactions whose commit record lies in [start, until).

    Args:
        start: the slot's confirmed position if not given.
        until: a position behind all that was committed before the call, if not given.

    Yields:
        ``kind`` insert | update | delete | truncate | message; ``xid``, ``lsn``, ``commit_lsn``,
        ``commit_time`` (None for a message outside transactions); ``schema`` and ``table``; ``new`` and
        ``old``: column → text (``old`` of a key only has the key's columns); ``unchanged``: columns whose
        value was not sent.

    Raises:
        SourceError, SlotError, ProtocolError: as for a pull.
    """
    with connect(source.dsn) as connection, source_errors(source.dsn, "looking at the slot"):
        confirmed = check_slot(connection, source, position=start).confirmed_flush_lsn
        check_publications(connection, source.publications)
        settled = settled_position(connection)
    begin = start if start is not None else confirmed or 0
    end = settled if until is None else until
    if begin >= end:
        return
    reader, buffer, framing = StreamReader(), MessageBuffer(), Framing(Bounds(begin, end))
    with Stream(source, begin) as stream:
        while framing.end == RUNNING:
            frames = stream.drain()
            framing.take(frames.data, frames.lengths, buffer)
            stream.report(framing.seen, now=framing.asked_for_reply())
            yield from _records(reader, buffer)
            buffer.clear()
            if framing.end == RUNNING:
                stream.rest(1.0)


def _records(reader: StreamReader, buffer: MessageBuffer) -> Iterator[dict[str, Any]]:
    data, ends = buffer.data.tobytes(), buffer.ends.tolist()
    for i, lsn in enumerate(buffer.lsns.tolist()):
        message = reader.read(data[ends[i] : ends[i + 1]])
        for record in _record(reader, message):
            yield {**record[0], **_place(reader.transaction, message, lsn), **record[1]}


def _place(begin: Begin | None, message: Message, lsn: int) -> dict[str, Any]:
    if isinstance(message, LogicalMessage):
        lsn = message.lsn
    if begin is None or (isinstance(message, LogicalMessage) and not message.transactional):
        return {"xid": None, "lsn": format_lsn(lsn), "commit_lsn": None, "commit_time": None}
    return {
        "xid": begin.xid,
        "lsn": format_lsn(lsn),
        "commit_lsn": format_lsn(begin.final_lsn),
        "commit_time": (_EPOCH + timedelta(microseconds=begin.commit_time)).isoformat(),
    }


def _record(reader: StreamReader, message: Message) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """What comes before and after the place in each record of a message."""
    if isinstance(message, Insert | Update | Delete):
        relation = reader.relations[message.relation_id]
        kind = type(message).__name__.lower()
        yield {"kind": kind}, {**_named(relation), **_row(relation, message)}
    elif isinstance(message, Truncate):
        for relation_id in message.relation_ids:
            yield {"kind": "truncate"}, _named(reader.relations[relation_id])
    elif isinstance(message, LogicalMessage):
        yield (
            {"kind": "message"},
            {
                "transactional": message.transactional,
                "prefix": message.prefix,
                "content": _content(message.content),
            },
        )


def _named(relation: Relation) -> dict[str, Any]:
    return {"schema": relation.schema, "table": relation.table}


def _row(relation: Relation, message: Insert | Update | Delete) -> dict[str, Any]:
    names = [column.name for column in relation.columns]
    record: dict[str, Any] = {"new": None, "old": None, "unchanged": []}
    if isinstance(message, Insert | Update):
        sent = dict(zip(names, message.new, strict=True))
        record["new"] = {name: _text(v) for name, v in sent.items() if v is not NoValue.UNCHANGED}
        record["unchanged"] = [name for name, value in sent.items() if value is NoValue.UNCHANGED]
    if isinstance(message, Update | Delete) and message.old is not None:
        record["old"] = _old(relation, message.old, whole=message.old_kind == "O")
    return record


def _old(relation: Relation, old: Tuple, *, whole: bool) -> dict[str, str | None]:
    pairs = zip(relation.columns, old, strict=True)
    return {column.name: _text(value) for column, value in pairs if whole or column.in_key}


def _text(value: Value) -> str | None:
    return value if isinstance(value, str) else None


def _content(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return "\\x" + content.hex()
