r"""Reads wal2json (versions 2.3 to 2.6), format 1 and format 2; the messages themselves show the format.

In format 1 a message is a whole transaction, or with write-in-chunks a part of it (the JSON is then divided
between two changes):

    {"xid", "nextlsn", "timestamp", "origin", "change": [
        {"kind": "insert"|"update", "schema", "table", "columnnames", "columntypes", "columntypeoids",
         "columnpositions", "columnvalues", "pk", "oldkeys": {"keynames", "keytypes", "keytypeoids",
         "keyvalues"}},
        {"kind": "delete", "schema", "table", "oldkeys"},
        {"kind": "message", "transactional", "prefix", "content"}]}

In format 2 each message is one JSON object with an "action": B begin, C commit, I insert, U update, D delete,
T truncate (one table), M message; with "xid", "timestamp", "origin", "lsn", "nextlsn", "schema", "table",
"columns" and "identity": [{"name", "type", "typeoid", "position", "value"}], "pk".

Values are JSON strings of the text, with these exceptions: numbers and booleans are JSON numbers and
booleans, bytea is hex without its ``\x``, and NaN and infinity of number types are null unless the option
numeric-data-types-as-string is set.  Unchanged TOASTed columns are left out.  An update has its identity
also if it did not change.  Format 1 has no truncations, no start of the commit record, and no NULLs of an old
tuple.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from slotlake.decoder.plugins.catalog import Catalog
from slotlake.decoder.plugins.json_fields import JsonFields, Number
from slotlake.decoder.plugins.model import Change, Event, Message, NoValue, Transaction, Truncate, Value
from slotlake.decoder.plugins.reader import microseconds
from slotlake.decoder.plugins.tables import SentColumn, Tables, old_tuple, values_of
from slotlake.decoder.protocol.relations import Relation
from slotlake.decoder.types import oids

_KINDS: dict[str, Literal["insert", "update", "delete"]] = {"I": "insert", "U": "update", "D": "delete"}


# Version 2.5, format 1: before a message outside of transactions it prints a comma that is too much, because
# it counts the changes of the last transaction.
_MISPLACED_COMMA = '{"change":[,{"kind":"message",'


@dataclass(frozen=True)
class _Row:
    """The columns of one tuple, as they were sent."""

    columns: tuple[SentColumn, ...]
    values: Mapping[str, Value]


class JsonReader(JsonFields):
    """Reads one stream of wal2json.

    Args:
        catalog: gives facts that the plugin does not send; without it keys and replica identity stay
            unknown, and unchanged columns are known only after a row that had them.
    """

    plugin: ClassVar[str] = "wal2json"

    def __init__(self, catalog: Catalog | None = None) -> None:
        super().__init__()
        self._tables = Tables(catalog)
        self._transaction: Transaction | None = None
        self._chunks = False
        self._first_chunk = False

    @property
    def open(self) -> bool:
        """A transaction has begun and not ended."""
        return self._transaction is not None

    def read(self, payload: bytes, lsn: int) -> Iterator[Event]:
        """The events of one message.

        Raises:
            ProtocolError: it is not a message of this plugin, or it may not come here.
        """
        self.lsn = lsn
        # The content of a logical message may be any bytes, and must not be changed.
        text = payload.decode("utf-8", "surrogateescape").strip()
        if self._chunks:
            yield from self._chunk(text)
            return
        if text.startswith("{") and text.rstrip().endswith("["):
            yield from self._open_chunks(text)
            return
        if text.startswith(_MISPLACED_COMMA):
            text = text.replace(",", "", 1)
        record = self.json(text)
        if "action" in record:
            yield from self._format_2(record)
        elif "change" in record:
            yield from self._format_1(record)
        else:
            raise self.error("the message has neither the key 'change' (format 1) nor 'action' (format 2)")

    def _transaction_of(self, record: Mapping[str, Any]) -> Transaction:
        time = None
        if record.get("timestamp") is not None:
            time = microseconds(str(record["timestamp"]))
            if time is None:
                raise self.error("the field 'timestamp' is not a time")
        origin = self.integer(record, "origin", 1 << 16)
        name = self._tables.origin(origin) if origin else None
        xid = self.integer(record, "xid", 1 << 32)
        return Transaction(xid, self._commit_lsn(record), self.lsn_of(record, "nextlsn"), time, name)

    def _commit_lsn(self, record: Mapping[str, Any]) -> int | None:
        return self.lsn_of(record, "lsn") if record.get("action") in ("B", "C") else None

    # Format 1.

    def _format_1(self, record: dict[str, Any]) -> Iterator[Event]:
        changes = self.field(record, "change", list)
        if len(record) == 1 and len(changes) == 1 and _is_outside(changes[0]):
            yield self._message(changes[0], None)
            return
        yield from self._begin(record)
        for change in changes:
            yield self._change_1(change)
        yield self._end()

    def _begin(self, record: dict[str, Any]) -> Iterator[Event]:
        self.only(record, TOP_1)
        self._transaction = self._transaction_of(record)
        self.xid = self._transaction.xid
        yield Event("begin", self._transaction, self.lsn)

    def _end(self) -> Event:
        done, self._transaction = self._transaction, None
        assert done is not None
        return Event("commit", done, done.end_lsn or self.lsn)

    def _open_chunks(self, text: str) -> Iterator[Event]:
        self._chunks = self._first_chunk = True
        yield from self._begin(self.json(text + "]}"))

    def _chunk(self, text: str) -> Iterator[Event]:
        if text == "]}" or text.split() == ["]", "}"]:
            self._chunks = False
            yield self._end()
            return
        if not self._first_chunk:
            if not text.startswith(","):
                raise self.error("the comma before a change is missing")
            text = text[1:]
        record = self.json(text)
        self._first_chunk = False
        yield self._change_1(record)

    def _change_1(self, change: Any) -> Event:
        if not isinstance(change, dict):
            raise self.error("a change is not a JSON object")
        kind = self.field(change, "kind", str)
        if kind == "message":
            return self._message(change, self._transaction)
        if kind not in _KINDS.values():
            raise self.error(f"a change has the unknown kind {kind!r}")
        self.only(change, CHANGE_1)
        new = None if kind == "delete" else self._row_1(change, "column")
        old = None
        if "oldkeys" in change:
            old = self._row_1(self.field(change, "oldkeys", dict), "key")
        action = kind[0].upper()
        return self._row_event(action, change, new, old)

    def _row_1(self, record: Mapping[str, Any], prefix: str) -> _Row:
        names = self.field(record, f"{prefix}names", list)
        values = self.field(record, f"{prefix}values", list)
        types = self.field(record, f"{prefix}types", list, [""] * len(names))
        oids = self.field(record, f"{prefix}typeoids", list, [Number("0")] * len(names))
        if not len(names) == len(values) == len(types) == len(oids):
            raise self.error("a row has different numbers of names, types and values")
        columns = [
            {"name": name, "type": sql_type, "typeoid": oid, "value": value}
            for name, sql_type, oid, value in zip(names, types, oids, values, strict=True)
        ]
        return self._row(columns)

    # Format 2.

    def _format_2(self, record: dict[str, Any]) -> Iterator[Event]:
        action = self.field(record, "action", str)
        allowed = FIELDS_2.get(action)
        if allowed is None:
            raise self.error(f"the message has the unknown action {action!r}")
        self.only(record, allowed)
        if action == "B":
            if self.open:
                raise self.error("a transaction begins inside another", kind="B")
            self._transaction = self._transaction_of(record)
            self.xid = self._transaction.xid
            yield Event("begin", self._transaction, self.lsn)
            return
        if action == "M":
            yield self._message(record, self._transaction)
            return
        if self._transaction is None:
            raise self.error("the message may not come outside of a transaction", kind=action)
        self._same_transaction(record)
        yield self._inside_2(action, record)

    def _inside_2(self, action: str, record: dict[str, Any]) -> Event:
        if action == "C":
            self._transaction = _filled(self._transaction_of(record), self._transaction, self.lsn)
            return self._end()
        if action == "T":
            table = self._tables.named(*self._name(record))
            return Event("truncate", self._transaction, self.lsn, Truncate(self._place(record), (table,)))
        new = self._row(self.field(record, "columns", list)) if "columns" in record else None
        old = self._row(self.field(record, "identity", list)) if "identity" in record else None
        return self._row_event(action, record, new, old)

    def _same_transaction(self, record: Mapping[str, Any]) -> None:
        xid = self.integer(record, "xid", 1 << 32)
        if xid is not None and self.xid is not None and xid != self.xid:
            raise self.error("the message belongs to another transaction than the one that has begun")

    # Both.

    def _message(self, record: Mapping[str, Any], transaction: Transaction | None) -> Event:
        if "kind" in record:
            self.only(record, MESSAGE_1)
        transactional = self.field(record, "transactional", bool)
        if transactional and transaction is None:
            raise self.error("a transactional message may not come outside of a transaction")
        # The plugin writes C strings, and loses everything after a zero byte.
        content = self.field(record, "content", str).encode("utf-8", "surrogateescape")
        prefix = self.field(record, "prefix", str)
        message = Message(self._place(record), transactional, prefix, content)
        return Event("message", transaction if transactional else None, message.lsn, message)

    def _row_event(self, action: str, record: Mapping[str, Any], new: _Row | None, old: _Row | None) -> Event:
        change = self._change(action, self._name(record), new, old)
        change = replace(change, lsn=self._place(record))
        return Event("change", self._transaction, change.lsn, change)

    def _change(self, action: str, name: tuple[str, str], new: _Row | None, old: _Row | None) -> Change:
        kind = _KINDS[action]
        if new is None and old is None:
            return Change(0, self._tables.named(*name), kind)
        if action == "I" and new is not None:
            relation = self._tables.complete(*name, new.columns)
            return Change(0, relation, kind, new=values_of(relation, new.values, NoValue.NULL))
        if new is None:
            assert old is not None
            relation = self._tables.fitting(*name, old.columns, toasted=False)
            old_kind, before = old_tuple(relation, old.values)
            return Change(0, relation, kind, old_kind, before)
        relation = self._tables.fitting(*name, new.columns, toasted=True)
        return self._update(relation, new, old)

    def _update(self, relation: Relation, new: _Row, old: _Row | None) -> Change:
        values = values_of(relation, new.values, NoValue.UNCHANGED)
        if old is None or not old.columns:
            return Change(0, relation, "update", new=values)
        names = {column.name for column in relation.columns}
        if not set(old.values) <= names:
            raise self.error("the old row has a column that the new one lacks")
        unchanged = all(new.values.get(name, value) == value for name, value in old.values.items())
        whole = relation.replica_identity == "f" or len(old.values) == len(names)
        if unchanged and not whole:
            return Change(0, relation, "update", new=values)  # the identity is there, but did not change
        old_kind, before = old_tuple(relation, old.values)
        return Change(0, relation, "update", old_kind, before, values)

    def _name(self, record: Mapping[str, Any]) -> tuple[str, str]:
        return self.field(record, "schema", str), self.field(record, "table", str)

    def _place(self, record: Mapping[str, Any]) -> int:
        place = self.lsn_of(record, "lsn")
        return self.lsn if place is None else place

    def _row(self, sent: list[Any]) -> _Row:
        columns: list[SentColumn] = []
        values: dict[str, Value] = {}
        for column in sent:
            if not isinstance(column, dict):
                raise self.error("a column is not a JSON object")
            self.only(column, COLUMN_2)
            name = self.field(column, "name", str)
            if name in values:
                raise self.error("a column comes twice")
            oid = self._oid(column)
            sql_type = self.field(column, "type", str, "")
            columns.append(SentColumn(name, sql_type, oid))
            if "value" not in column:
                raise self.error(f"column {name!r} lacks its value")
            values[name] = self._value(column["value"], oid, sql_type)
        return _Row(tuple(columns), values)

    def _oid(self, column: Mapping[str, Any]) -> int:
        """Format 2 prints OIDs as signed numbers."""
        oid = str(column.get("typeoid", "0"))
        if oid.startswith("-"):
            column = {"typeoid": Number(int(oid) + (1 << 32)) if oid[1:].isdigit() else oid}
        return self.integer(column, "typeoid", 1 << 32) or 0

    def _value(self, value: Any, oid: int, sql_type: str) -> Value:
        if value is None:
            return NoValue.NULL
        if isinstance(value, bool):
            return "t" if value else "f"
        if not isinstance(value, str):
            raise self.error("a value is not a text, number, boolean or null")
        text = str(value) if self.any_bytes else self.clean(str(value), "value")
        is_bytea = oid == oids.BYTEA if oid else sql_type == "bytea"
        return f"\\x{text}" if is_bytea and not text.startswith("\\x") else text


def _filled(end: Transaction, begun: Transaction | None, lsn: int) -> Transaction:
    """The transaction at its commit, with facts that the commit lacks taken from its begin and position."""
    assert begun is not None
    return Transaction(
        begun.xid if end.xid is None else end.xid,
        begun.commit_lsn if end.commit_lsn is None else end.commit_lsn,
        lsn if end.end_lsn is None else end.end_lsn,
        begun.commit_time if end.commit_time is None else end.commit_time,
        begun.origin,
    )


def _is_outside(change: Any) -> bool:
    return (
        isinstance(change, dict) and change.get("kind") == "message" and change.get("transactional") is False
    )


# The keys that each JSON object of wal2json may have, for both formats.
#
# A message with another key comes from another version, and is refused.

TOP_1 = {"xid", "nextlsn", "timestamp", "origin", "change"}
CHANGE_1 = {
    "kind", "schema", "table", "columnnames", "columntypes", "columntypeoids", "columnpositions",
    "columnoptionals", "columndefaults", "columnvalues", "pk", "oldkeys",
}  # fmt: skip
MESSAGE_1 = {"kind", "transactional", "prefix", "content"}
COLUMN_2 = {"name", "type", "typeoid", "value", "position", "optional", "default"}
_PLACE_2 = {"action", "xid", "timestamp", "origin", "lsn", "nextlsn"}
FIELDS_2: dict[str, set[str]] = {
    "B": _PLACE_2,
    "C": _PLACE_2,
    "I": _PLACE_2 | {"schema", "table", "columns", "pk"},
    "U": _PLACE_2 | {"schema", "table", "columns", "identity", "pk"},
    "D": _PLACE_2 | {"schema", "table", "identity", "pk"},
    "T": _PLACE_2 | {"schema", "table"},
    "M": _PLACE_2 | {"transactional", "prefix", "content"},
}
