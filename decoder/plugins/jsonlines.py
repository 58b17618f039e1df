"""Changes as plain records, one by one, for the JSON lines of `slotlake decode`.

This is the readable form of the stream.  Nothing is confirmed, so a slot can be read again and again.
Values are PostgreSQL's own text, None for NULL.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.plugins.consumer import FullConsumer
from slotlake.decoder.plugins.live import file_steps, slot_steps
from slotlake.decoder.plugins.model import Change, Message, NoValue, Transaction, Truncate, Tuple
from slotlake.decoder.protocol.relations import Relation
from slotlake.decoder.server.source import SourceSettings

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class JsonLines(FullConsumer):
    """A consumer that makes one record of each change.

    Attributes:
        records: those not taken yet: ``kind`` insert | update | delete | truncate | message; ``xid``,
            ``lsn``, ``commit_lsn``, ``commit_time`` (None if the plugin does not send it, or outside of
            transactions); ``schema`` and ``table``; ``new`` and ``old``: column → text (if ``old`` is a key,
            it has only the key's columns); ``unchanged``: columns whose value was not sent.
    """

    def __init__(self) -> None:
        self.records: deque[dict[str, Any]] = deque()

    def change(self, transaction: Transaction, change: Change, /) -> None:
        """Add one record for a row."""
        place = _place(transaction, change.lsn)
        self.records.append({"kind": change.kind, **place, **_named(change.relation), **_row(change)})

    def truncate(self, transaction: Transaction, truncate: Truncate, /) -> None:
        """Add one record for each table."""
        place = _place(transaction, truncate.lsn)
        self.records += ({"kind": "truncate", **place, **_named(table)} for table in truncate.relations)

    def message(self, transaction: Transaction | None, message: Message, /) -> None:
        """Add one record for a logical message."""
        fields = {
            "transactional": message.transactional,
            "prefix": message.prefix,
            "content": _content(message.content),
        }
        self.records.append({"kind": "message", **_place(transaction, message.lsn), **fields})


def changes(
    source: SourceSettings,
    start: int | None = None,
    until: int | None = None,
    *,
    options: Mapping[str, str] | None = None,
    record: Path | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield every change of the transactions whose commit record lies in [start, until).

    Args:
        start: the slot's confirmed position if not given.
        until: a position after everything that was committed before the call, if not given.
        options, record: as in `decoder.plugins.live.read_slot`.

    Yields:
        Records as in `JsonLines`.

    Raises:
        SourceError, SlotError, ProtocolError: as for a pull.
    """
    lines = JsonLines()
    steps = slot_steps(source, lines, options=options, start=start, until=until, record=record)
    yield from lines_of(steps, lines)


def file_changes(path: Path) -> Iterator[dict[str, Any]]:
    """Yield every change in a recording.

    Raises:
        ProtocolError: the file, or a message in it, is damaged.
    """
    lines = JsonLines()
    yield from lines_of(file_steps(path, lines), lines)


def lines_of(steps: Iterator[int], lines: JsonLines) -> Iterator[dict[str, Any]]:
    """Yield the records as they come while ``steps`` reads."""
    for _ in steps:
        while lines.records:
            yield lines.records.popleft()


def _place(transaction: Transaction | None, lsn: int) -> dict[str, Any]:
    if transaction is None:
        return {"xid": None, "lsn": format_lsn(lsn), "commit_lsn": None, "commit_time": None}
    commit, time = transaction.commit_lsn, transaction.commit_time
    return {
        "xid": transaction.xid,
        "lsn": format_lsn(lsn),
        "commit_lsn": None if commit is None else format_lsn(commit),
        "commit_time": None if time is None else (_EPOCH + timedelta(microseconds=time)).isoformat(),
    }


def _named(relation: Relation) -> dict[str, Any]:
    return {"schema": relation.schema, "table": relation.table}


def _row(change: Change) -> dict[str, Any]:
    names = [column.name for column in change.relation.columns]
    record: dict[str, Any] = {"new": None, "old": None, "unchanged": []}
    if change.new is not None:
        sent = dict(zip(names, change.new, strict=True))
        record["new"] = {name: _text(v) for name, v in sent.items() if v is not NoValue.UNCHANGED}
        record["unchanged"] = [name for name, value in sent.items() if value is NoValue.UNCHANGED]
    if change.old is not None:
        record["old"] = _old(change.relation, change.old, whole=change.old_kind == "O")
    return record


def _old(relation: Relation, old: Tuple, *, whole: bool) -> dict[str, str | None]:
    """The columns of the key or of the whole row; if the key is not known, those that have a value."""
    has_identity = bool(relation.replica_identity)
    return {
        column.name: _text(value)
        for column, value in zip(relation.columns, old, strict=True)
        if whole or column.in_key or (not has_identity and value is not NoValue.NULL)
    }


def _text(value: str | NoValue) -> str | None:
    return value if isinstance(value, str) else None


def _content(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return "\\x" + content.hex()
