"""A consumer that keeps what it is shown, and the differences between plugins, each by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeAlias

from slotlake.decoder.plugins.consumer import FullConsumer
from slotlake.decoder.plugins.model import Change, Message, NoValue, Startup, Transaction, Truncate

Seen: TypeAlias = tuple[str, Transaction | None, Change | Truncate | Message | None]


class Collecting(FullConsumer):
    """Everything, in order."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.startup_told: Startup | None = None
        self.ended = False

    def startup(self, startup: Startup, /) -> None:
        self.startup_told = startup

    def begin(self, transaction: Transaction, /) -> None:
        self.seen.append(("begin", transaction, None))

    def change(self, transaction: Transaction, change: Change, /) -> None:
        self.seen.append(("change", transaction, change))

    def truncate(self, transaction: Transaction, truncate: Truncate, /) -> None:
        self.seen.append(("truncate", transaction, truncate))

    def message(self, transaction: Transaction | None, message: Message, /) -> None:
        self.seen.append(("message", transaction, message))

    def commit(self, transaction: Transaction, /) -> None:
        self.seen.append(("commit", transaction, None))

    def shutdown(self) -> None:
        self.ended = True


Told: TypeAlias = dict[str, Any]
Difference: TypeAlias = Callable[[Told], Told | None]


def told(seen: list[Seen]) -> list[Told]:
    """What was shown as plain data, one entry a table for truncations."""
    return [each for one in seen for each in _entries(*one)]


def _entries(
    callback: str, transaction: Transaction | None, body: Change | Truncate | Message | None
) -> list[Told]:
    entry: Told = {"callback": callback, "xid": transaction.xid if transaction else None}
    if callback in ("begin", "commit"):
        assert transaction is not None
        entry |= {"commit_lsn": transaction.commit_lsn, "origin": transaction.origin}
        entry |= {"time": transaction.commit_time}
        if callback == "commit":
            entry["end_lsn"] = transaction.end_lsn
    elif isinstance(body, Message):
        entry |= {"lsn": body.lsn, "prefix": body.prefix, "content": body.content}
        entry |= {"transactional": body.transactional}
    elif isinstance(body, Truncate):
        flags = {"lsn": body.lsn, "cascade": body.cascade, "restart": body.restart_identity}
        return [{**entry, **flags, "schema": r.schema, "table": r.table} for r in body.relations]
    elif isinstance(body, Change):
        entry |= _row(body)
    return [entry]


def _row(change: Change) -> Told:
    relation = change.relation
    names = [column.name for column in relation.columns]
    old = None if change.old is None else dict(zip(names, change.old, strict=True))
    if change.old_kind == "K" and old is not None:  # which columns are the key, not every plugin tells
        old = {name: value for name, value in old.items() if value is not NoValue.NULL}
    return {
        "kind": change.kind,
        "lsn": change.lsn,
        "schema": relation.schema,
        "table": relation.table,
        "types": {column.name: column.type_oid for column in relation.columns},
        "old_kind": change.old_kind,
        "old": old,
        "new": None if change.new is None else dict(zip(names, change.new, strict=True)),
    }


def without_empty(entries: list[Told]) -> list[Told]:
    """Transactions that show nothing are shown by some plugins only."""
    kept: list[Told] = []
    for entry in entries:
        if entry["callback"] == "commit" and kept and kept[-1]["callback"] == "begin":
            kept.pop()
        else:
            kept.append(entry)
    return kept


# The differences, in the words of docs/plugins.md.


def no_commit_position(entry: Told) -> Told:
    return {**entry, "commit_lsn": None} if "commit_lsn" in entry else entry


def no_time_at_begin(entry: Told) -> Told:
    return {**entry, "time": None} if entry["callback"] == "begin" else entry


def no_origin(entry: Told) -> Told:
    return {**entry, "origin": None} if "origin" in entry else entry


def no_truncation(entry: Told) -> Told | None:
    return None if entry["callback"] == "truncate" else entry


def no_truncate_flags(entry: Told) -> Told:
    if entry["callback"] != "truncate":
        return entry
    return {**entry, "cascade": False, "restart": False}


def no_message(entry: Told) -> Told | None:
    return None if entry["callback"] == "message" else entry


def no_positions_inside(entry: Told) -> Told:
    if "lsn" in entry and entry["xid"] is not None:
        return {**entry, "lsn": None}
    return entry


def special_numbers_are_null(entry: Told) -> Told:
    """NaN and the infinities of float4, float8, numeric; not of a domain over them, nor in an array."""
    return _with_values(entry, (700, 701, 1700), _no_special)


def time_zone_lost(entry: Told) -> Told:
    return _with_values(entry, (1266,), _in_utc)


def _no_special(value: Any) -> Any:
    return NoValue.NULL if value in ("NaN", "Infinity", "-Infinity") else value


def _in_utc(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    clock, sign, hours, minutes = re.fullmatch(r"(.*?)([+-])(\d\d)(?::(\d\d))?", value).groups()  # type: ignore[union-attr]
    offset = timedelta(hours=int(hours), minutes=int(minutes or 0)) * (1 if sign == "+" else -1)
    moment = datetime.fromisoformat(f"2000-01-02T{clock}").replace(tzinfo=timezone(offset)).astimezone(UTC)
    text = moment.strftime("%H:%M:%S.%f").rstrip("0").rstrip(".")
    return f"{text}+00"


def _with_values(entry: Told, oids: tuple[int, ...], change: Callable[[Any], Any]) -> Told:
    if entry["callback"] != "change":
        return entry
    changed = dict(entry)
    for side in ("old", "new"):
        if entry[side] is not None:
            changed[side] = {
                name: change(value) if entry["types"][name] in oids else value
                for name, value in entry[side].items()
            }
    return changed


SHOWN: dict[str, tuple[Difference, ...]] = {
    "test_decoding": (no_commit_position, no_time_at_begin, no_origin),
    "wal2json-1": (no_commit_position, no_truncation, special_numbers_are_null, no_positions_inside),
    "wal2json-1-chunks": (no_commit_position, no_truncation, special_numbers_are_null),
    "wal2json-2": (no_truncate_flags, special_numbers_are_null),
    "decoderbufs": (no_commit_position, no_origin, no_truncation, no_message, time_zone_lost),
}


def as_shown_by(way: str, entries: list[Told]) -> list[Told]:
    """What pgoutput showed, reduced to what a plugin can show of it."""
    for difference in SHOWN[way]:
        entries = [kept for entry in entries if (kept := difference(entry)) is not None]
    return without_empty(entries)


def published(entries: list[Told], tables: set[tuple[str, str]]) -> list[Told]:
    """Without the tables that pgoutput left out: the other plugins know no publications."""
    kept = [e for e in entries if "table" not in e or (e["schema"], e["table"]) in tables]
    return without_empty(kept)
