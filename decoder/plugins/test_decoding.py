"""Reads test_decoding's lines (contrib/test_decoding; PostgreSQL manual, appendix F).

    BEGIN [xid]
    table schema.name: INSERT: column[type]:value …
    table schema.name: UPDATE: [old-key: column[type]:value … new-tuple:] column[type]:value …
    table schema.name: DELETE: column[type]:value … | (no-tuple-data)
    table a.b, c.d: TRUNCATE: (no-flags) | [restart_seqs] [cascade]
    message: transactional: 0|1 prefix: text, sz: length content:bytes
    COMMIT [xid] [(at time)]
    PREPARE TRANSACTION | COMMIT PREPARED | ROLLBACK PREPARED 'gid'[, txid xid] [(at time)]
    opening | closing a streamed block for transaction[ TXN xid]
    streaming change | truncate for TXN xid | for transaction
    streaming message: transactional: 1 prefix: text, sz: length
    aborting streamed (sub)transaction | committing streamed transaction[ TXN xid] [(at time)]
    preparing streamed transaction[ TXN] 'gid'[, txid xid] [(at time)]

    value: null | unchanged-toast-datum | number | true | false | B'bits' | 'text, quotes doubled'

NULLs of an old tuple are left out.  The plugin does not send: the start of the commit record, OIDs, key,
replica identity, whether an old tuple is whole, the origin, and the changes of a streamed transaction.  A
prepared transaction begins with the same BEGIN as any other: with ``two_phase`` all wait for their last line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import ClassVar

from slotlake.decoder.errors import NOT_UTF8, ProtocolError
from slotlake.decoder.plugins.catalog import Catalog
from slotlake.decoder.plugins.model import (
    Callback,
    Change,
    Event,
    Message,
    NoValue,
    Transaction,
    Truncate,
    Value,
)
from slotlake.decoder.plugins.reader import ReaderBase, microseconds
from slotlake.decoder.plugins.tables import SentColumn, Tables, old_tuple, values_of
from slotlake.decoder.plugins.text_scan import TextScan

_XID = re.compile(r"\d{1,10}")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?|NaN|-?Infinity")
_BITS = re.compile(r"B'[01]*'")
_BOOLEAN = re.compile(r"true|false")
_TIME = re.compile(r"[-+:. 0-9]+")
_HEAD = re.compile(r' (?:[a-z_][a-z0-9_]*+|"(?:[^"]|"")*+")\[(?:[^]["]|\[\]|"(?:[^"]|"")*+")*+\]:')
_NUMERIC = {"smallint", "integer", "bigint", "oid", "real", "double precision", "numeric"}
_UNQUOTED: dict[str, tuple[re.Pattern[str], str]] = {
    **dict.fromkeys(_NUMERIC, (_NUMBER, "a number")),
    **dict.fromkeys(("bit", "bit varying"), (_BITS, "bits")),
    "boolean": (_BOOLEAN, "true or false"),
}
_MESSAGE = re.compile(rb"(streaming )?message: transactional: ([01]) prefix: ")
_SIZE = re.compile(rb", sz: (\d+)( content:)?")
_ENDS: tuple[tuple[str, Callback], ...] = (
    ("PREPARE TRANSACTION ", "prepare"),
    ("COMMIT PREPARED ", "commit_prepared"),
    ("ROLLBACK PREPARED ", "rollback_prepared"),
    ("preparing streamed transaction TXN ", "stream_prepare"),
    ("preparing streamed transaction ", "stream_prepare"),
)
_STREAMS: tuple[tuple[str, str, Callback], ...] = (
    ("opening a streamed block for transaction", " TXN ", "stream_start"),
    ("closing a streamed block for transaction", " TXN ", "stream_stop"),
    ("aborting streamed (sub)transaction", " TXN ", "stream_abort"),
    ("committing streamed transaction", " TXN ", "stream_commit"),
    ("streaming change for transaction", "", "stream_change"),
    ("streaming change for", " TXN ", "stream_change"),
    ("streaming truncate for transaction", "", "stream_truncate"),
    ("streaming truncate for", " TXN ", "stream_truncate"),
)


class LinesReader(ReaderBase):
    """Reads one stream of test_decoding.

    Args:
        catalog: gives facts that the lines lack; without it OIDs of user types, keys and replica
            identity stay unknown.
        two_phase: the slot decodes prepared transactions at PREPARE.
    """

    plugin: ClassVar[str] = "test_decoding"

    def __init__(self, catalog: Catalog | None = None, *, two_phase: bool = False) -> None:
        super().__init__()
        self._tables = Tables(catalog)
        self._transaction: Transaction | None = None
        self._block: Transaction | None = None
        self._streamed: set[int | None] = set()
        self._waiting_events: list[Event] | None = None
        self._columns: dict[str, SentColumn] = {}
        self._two_phase = two_phase

    @property
    def open(self) -> bool:
        """True between BEGIN and its end, or inside a streamed block."""
        return self._transaction is not None or self._block is not None

    def read(self, payload: bytes, lsn: int) -> Iterator[Event]:
        """The events of one line."""
        self.lsn = lsn
        for event in self._line(payload):
            if self._waiting_events is not None:
                self._waiting_events.append(event)
            else:
                yield event
        if self._waiting_events is not None and self._transaction is None:
            events, self._waiting_events = self._waiting_events, None
            yield from events

    def _line(self, payload: bytes) -> Iterator[Event]:
        if payload.startswith((b"message: ", b"streaming message: ")):
            yield self._message(payload)
            return
        try:
            text = payload.decode("utf-8")
        except UnicodeDecodeError as error:
            if not (self.any_bytes and payload.startswith(b"table ")):
                raise self.error("the text is not UTF-8", error.start, way_out=NOT_UTF8) from None
            text = payload.decode("utf-8", "surrogateescape")
        scan = TextScan(text, self._fault)
        if scan.took("table "):
            yield self._table(scan)
        elif scan.sees("BEGIN"):
            yield self._begin(scan)
        elif any(scan.sees(start) for start, _ in _ENDS):
            yield from self._prepared(scan)
        elif scan.sees("COMMIT"):
            yield self._commit(scan)
        else:
            yield self._stream(scan)
        scan.end()

    def _fault(self, what: str, offset: int) -> ProtocolError:
        return self.error(what, offset)

    # Transactions.

    def _begin(self, scan: TextScan) -> Event:
        scan.expect("BEGIN")
        if self.open:
            raise scan.error("a transaction begins inside another", 0)
        self.xid = self._xid(scan) if scan.took(" ") else None
        self._transaction = Transaction(self.xid)
        self._waiting_events = [] if self._two_phase else None
        return Event("begin", self._transaction, self.lsn)

    def _commit(self, scan: TextScan) -> Event:
        scan.expect("COMMIT")
        transaction = self._inside(scan)
        xid = None if scan.ended or scan.sees(" (") else self._spaced_xid(scan)
        return self._ended("commit", scan, transaction, xid)

    def _prepared(self, scan: TextScan) -> Iterator[Event]:
        callback: Callback = next(name for start, name in _ENDS if scan.took(start))
        gid = scan.quoted("'")
        xid = self._xid(scan) if scan.took(", txid ") else None
        if callback == "prepare":
            transaction = replace(self._inside(scan), gid=gid)
            ended = self._ended(callback, scan, transaction, xid)
            yield from self._as_prepared(ended)
            yield ended
            return
        if self.open:
            raise scan.error("the line may not come inside a transaction", 0)
        self._streamed.discard(xid)
        self.xid = xid
        yield Event(callback, Transaction(xid, None, self.lsn, self._time(scan), None, gid), self.lsn)

    def _as_prepared(self, ended: Event) -> Iterator[Event]:
        """Change the waiting events to those of a prepared transaction, because its end shows that it is."""
        assert ended.transaction is not None
        if self._waiting_events is None:
            raise self.error("a prepared transaction comes, but the slot does not have two_phase", 0)
        events, self._waiting_events = self._waiting_events, []
        began = replace(ended.transaction, end_lsn=None, commit_time=None)
        for event in events:
            name: Callback = "begin_prepare" if event.callback == "begin" else event.callback
            yield replace(event, callback=name, transaction=began)

    def _ended(self, callback: Callback, scan: TextScan, begun: Transaction, xid: int | None) -> Event:
        if begun.xid is not None and xid is not None and xid != begun.xid:
            raise scan.error("BEGIN and the end have different transaction ids", 0)
        done = replace(begun, end_lsn=self.lsn, commit_time=self._time(scan))
        self._transaction = None
        return Event(callback, done, self.lsn)

    def _inside(self, scan: TextScan) -> Transaction:
        if self._transaction is None:
            raise scan.error("the line may not come outside of a transaction", 0)
        return self._transaction

    def _time(self, scan: TextScan) -> int | None:
        if not scan.took(" (at "):
            return None
        start = scan.at
        moment = microseconds(scan.match(_TIME, "a time"))
        if moment is None:
            raise scan.error("the text is not a time", start)
        scan.expect(")")
        return moment

    def _xid(self, scan: TextScan) -> int:
        start = scan.at
        xid = int(scan.match(_XID, "a transaction id"))
        if xid >= 2**32:
            raise scan.error("the number is too large for a transaction id", start)
        return xid

    def _spaced_xid(self, scan: TextScan) -> int:
        scan.expect(" ")
        return self._xid(scan)

    # Streamed blocks; the plugin does not show their changes.

    def _stream(self, scan: TextScan) -> Event:
        for start, before_xid, callback in _STREAMS:
            if scan.took(start):
                xid = self._xid(scan) if before_xid and scan.took(before_xid) else None
                return self._streamed_event(callback, xid, scan)
        raise scan.error("the line has an unknown kind", 0)

    def _streamed_event(self, callback: Callback, xid: int | None, scan: TextScan) -> Event:
        inside = callback in ("stream_change", "stream_truncate", "stream_stop")
        if inside != (self._block is not None) or self._transaction is not None:
            raise scan.error(f"the line may not come {'outside of' if inside else 'in'} a stream block", 0)
        if callback == "stream_start":
            self._block = Transaction(xid)
            self._streamed.add(xid)
            self.xid = xid
        block = self._block
        if callback == "stream_stop":
            self._block = None
        if callback == "stream_commit":
            self._streamed.discard(xid)
            done = Transaction(xid, None, self.lsn, self._time(scan))
            return Event(callback, done, self.lsn)
        if callback == "stream_abort":
            # The line has only the xid that is rolled back, not that of the transaction around it.
            top = Transaction(xid if xid in self._streamed else None)
            self._streamed.discard(xid)
            return Event(callback, top, self.lsn, None, xid)
        return Event(callback, block, self.lsn, None, None if not inside else (block.xid if block else None))

    # Logical messages, whose content may be any bytes.

    def _message(self, payload: bytes) -> Event:
        start = _MESSAGE.match(payload)
        if start is None:
            raise self.error("a logical message lacks its flag or its prefix", 0)
        streamed, transactional = start[1] is not None, start[2] == b"1"
        hidden = streamed and transactional
        # The prefix may itself look like a size: the one that fits is right.
        for size in _SIZE.finditer(payload, start.end()):
            content = payload[size.end() :]
            fits = not content if hidden else len(content) == int(size[1])
            if fits and hidden == (size[2] is None):
                return self._checked_message(
                    streamed, transactional, payload[start.end() : size.start()], content
                )
        raise self.error("a logical message has another size than its size field", len(payload))

    def _checked_message(self, streamed: bool, transactional: bool, prefix: bytes, content: bytes) -> Event:
        try:
            text = prefix.decode("utf-8")
        except UnicodeDecodeError:
            raise self.error("the prefix is not UTF-8", 35, way_out=NOT_UTF8) from None
        message = Message(self.lsn, transactional, text, content)
        if streamed and transactional:
            if self._block is None:
                raise self.error("a streamed message may not come outside of a stream block")
            return Event("stream_message", self._block, self.lsn, message, self._block.xid)
        transaction = self._transaction if transactional else None
        if transactional and transaction is None:
            raise self.error("a transactional message may not come outside of a transaction")
        return Event("message", transaction, self.lsn, message)

    # Rows.

    def _table(self, scan: TextScan) -> Event:
        transaction = self._inside(scan)
        names = [self._qualified(scan)]
        while scan.took(", "):
            names.append(self._qualified(scan))
        scan.expect(": ")
        if scan.took("TRUNCATE:"):
            return Event("truncate", transaction, self.lsn, self._truncate(scan, names))
        if len(names) != 1:
            raise scan.error("a row change names more than one table")
        rows: dict[str, Callable[[TextScan, str, str], Change]] = {
            "INSERT:": self._insert,
            "UPDATE:": self._update,
            "DELETE:": self._delete,
        }
        for action, read in rows.items():
            if scan.took(action):
                return Event("change", transaction, self.lsn, read(scan, *names[0]))
        raise scan.error("INSERT, UPDATE, DELETE or TRUNCATE is expected here")

    def _qualified(self, scan: TextScan) -> tuple[str, str]:
        schema = scan.name()
        scan.expect(".")
        return schema, scan.name()

    def _truncate(self, scan: TextScan, names: list[tuple[str, str]]) -> Truncate:
        restart = cascade = False
        if not scan.took(" (no-flags)"):
            restart, cascade = scan.took(" restart_seqs"), scan.took(" cascade")
            if not restart and not cascade:
                raise scan.error("the flags of TRUNCATE are expected here")
        return Truncate(self.lsn, tuple(self._tables.named(*name) for name in names), cascade, restart)

    def _insert(self, scan: TextScan, schema: str, table: str) -> Change:
        columns, values = self._tuple(scan)
        relation = self._tables.complete(schema, table, columns)
        return Change(self.lsn, relation, "insert", new=values_of(relation, values, NoValue.NULL))

    def _update(self, scan: TextScan, schema: str, table: str) -> Change:
        old = self._tuple(scan)[1] if scan.took(" old-key:") else None
        if old is not None:
            scan.expect(" new-tuple:")
        columns, values = self._tuple(scan)
        relation = self._tables.complete(schema, table, columns)
        if old is not None and not set(old) <= set(values):
            raise scan.error("the old row has a column that the new one lacks")
        new = values_of(relation, values, NoValue.NULL)
        if old is None:
            return Change(self.lsn, relation, "update", new=new)
        kind, before = old_tuple(relation, old)
        return Change(self.lsn, relation, "update", kind, before, new)

    def _delete(self, scan: TextScan, schema: str, table: str) -> Change:
        if scan.took(" (no-tuple-data)"):
            return Change(self.lsn, self._tables.named(schema, table), "delete")
        columns, values = self._tuple(scan)
        relation = self._tables.fitting(schema, table, columns, toasted=False)
        kind, old = old_tuple(relation, values)
        return Change(self.lsn, relation, "delete", kind, old)

    def _tuple(self, scan: TextScan) -> tuple[list[SentColumn], dict[str, Value]]:
        columns: list[SentColumn] = []
        values: dict[str, Value] = {}
        while not scan.ended and not scan.sees(" new-tuple:"):
            start = scan.at + 1
            column = self._column(scan)
            if column.name in values:
                raise scan.error("a column comes twice", start)
            columns.append(column)
            values[column.name] = _value(scan, column.sql_type)
        return columns, values

    def _column(self, scan: TextScan) -> SentColumn:
        """Read ` name[type]:`; a stream has few different ones, so they are cached."""
        head = _HEAD.match(scan.text, scan.at)
        column = self._columns.get(head[0]) if head is not None else None
        if head is None or column is None:
            start = scan.at
            scan.expect(" ")
            name = scan.name()
            scan.expect("[")
            column = SentColumn(name, _type(scan))
            scan.expect("]:")
            self._columns[scan.text[start : scan.at]] = column
        else:
            scan.at = head.end()
        return column


def _type(scan: TextScan) -> str:
    """A type's name up to its closing bracket: quotes and an array's own brackets are part of it."""
    start = scan.at
    while not scan.sees("]"):
        if scan.ended:
            raise scan.error("the type's closing bracket is missing", start)
        if scan.sees('"'):
            scan.quoted('"')
        elif not scan.took("[]"):
            scan.at += 1
    return scan.text[start : scan.at]


def _value(scan: TextScan, sql_type: str) -> Value:
    pattern, what = _UNQUOTED.get(sql_type, (None, ""))
    if pattern is None and scan.sees("'"):
        return scan.quoted("'")
    if scan.took("null"):
        return NoValue.NULL
    if scan.took("unchanged-toast-datum"):
        return NoValue.UNCHANGED
    if pattern is None:
        return scan.quoted("'")
    text = scan.match(pattern, what)
    return text[0] if pattern is _BOOLEAN else text[2:-1] if pattern is _BITS else text
