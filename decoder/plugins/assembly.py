"""Makes whole transactions from streamed and prepared ones, for consumers that accept only whole ones.

It does what the server does for an output plugin without these callbacks: it shows a streamed transaction
when it commits, and a prepared one when its outcome is commit.  It works on events, in memory; the lake uses
`decoder.assembly.assembler`, which spills to disk.

Invariant: the output is in commit order, and has no event of a family that the consumer lacks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.plugins.model import Callback, Event, Transaction

_PLAIN: dict[str, Callback] = {
    "stream_change": "change",
    "stream_truncate": "truncate",
    "stream_message": "message",
}


@dataclass
class _OpenTransaction:
    """The events of one transaction whose outcome is not known yet."""

    transaction: Transaction
    events: list[Event] = field(default_factory=list)


class Assembly:
    """Forwards events, but keeps those of an unfinished transaction.

    Args:
        streams: keep streamed transactions until they commit.
        prepared: keep prepared transactions until their outcome.
    """

    def __init__(self, *, streams: bool, prepared: bool) -> None:
        self._streams, self._prepared = streams, prepared
        self._streamed: dict[int | None, _OpenTransaction] = {}
        self._waiting: dict[str | None, _OpenTransaction] = {}
        self._preparing: _OpenTransaction | None = None

    def hold(self, event: Event) -> None:
        """From this begin_prepare on, keep that transaction, although prepared ones are forwarded."""
        assert event.transaction is not None
        self._preparing = _OpenTransaction(event.transaction)

    @property
    def unfinished(self) -> int:
        """How many transactions are kept."""
        return len(self._streamed) + len(self._waiting)

    def take(self, event: Event) -> Iterator[Event]:
        """Take one event; yield the events that are due now."""
        if self._preparing is not None:
            yield from self._in_preparation(event)
        elif event.callback.startswith("stream_") and self._streams:
            yield from self._stream(event)
        elif event.callback == "begin_prepare" and self._prepared:
            self.hold(event)
        elif event.callback in ("commit_prepared", "rollback_prepared"):
            yield from self._outcome(event)
        else:
            yield event

    def _in_preparation(self, event: Event) -> Iterator[Event]:
        assert self._preparing is not None
        if event.callback == "prepare":
            self._waiting[self._preparing.transaction.gid] = self._preparing
            self._preparing = None
        elif event.transaction is None:
            yield event
        else:
            self._preparing.events.append(event)

    def _outcome(self, event: Event) -> Iterator[Event]:
        assert event.transaction is not None
        prepared = self._waiting.pop(event.transaction.gid, None)
        if prepared is None:
            # It was prepared before the first position: its changes are not in this stream.
            if not self._prepared:
                yield event
        elif event.callback == "commit_prepared":
            # Its position is that of the outcome; its xid and origin are those from its begin.
            original = prepared.transaction
            final = replace(event.transaction, xid=original.xid, origin=original.origin)
            yield from _whole_transaction(final, prepared.events, event.lsn)

    def _stream(self, event: Event) -> Iterator[Event]:
        transaction = event.transaction
        if transaction is None:
            yield replace(event, callback=_PLAIN[event.callback])
            return
        xid = transaction.xid
        if event.callback == "stream_start":
            self._streamed.setdefault(xid, _OpenTransaction(transaction))
        elif event.callback == "stream_abort":
            self._abort(event, xid)
        elif event.callback in _PLAIN:
            self._open_stream(event, xid).events.append(_as_plain(event))
        elif event.callback == "stream_commit":
            yield from _whole_transaction(
                transaction, self._open_stream(event, xid, end=True).events, event.lsn
            )
        elif event.callback == "stream_prepare":
            yield from self._stream_prepared(event, self._open_stream(event, xid, end=True))

    def _abort(self, event: Event, xid: int | None) -> None:
        if event.subxid == xid or event.subxid is None:
            self._streamed.pop(xid, None)
        elif xid in self._streamed:
            stream = self._streamed[xid]
            stream.events = [each for each in stream.events if each.subxid != event.subxid]

    def _stream_prepared(self, event: Event, stream: _OpenTransaction) -> Iterator[Event]:
        assert event.transaction is not None
        stream.transaction = event.transaction
        if self._prepared:
            self._waiting[event.transaction.gid] = stream
        else:
            yield Event("begin_prepare", event.transaction, event.lsn)
            yield from (replace(each, transaction=event.transaction) for each in stream.events)
            yield Event("prepare", event.transaction, event.lsn)

    def _open_stream(self, event: Event, xid: int | None, *, end: bool = False) -> _OpenTransaction:
        stream = self._streamed.pop(xid, None) if end else self._streamed.get(xid)
        if stream is None:
            raise ProtocolError(
                f"{event.callback} came for a transaction without any stream block",
                where=f"transaction {xid}, at {format_lsn(event.lsn)}",
            )
        return stream


def _as_plain(event: Event) -> Event:
    if event.body is None:
        raise ProtocolError(
            "the plugin does not show the changes of a streamed transaction",
            where=f"{event.callback}, at {format_lsn(event.lsn)}",
            way_out="remove the plugin's option stream-changes",
        )
    return replace(event, callback=_PLAIN[event.callback])


def _whole_transaction(transaction: Transaction, events: list[Event], lsn: int) -> Iterator[Event]:
    yield Event("begin", transaction, lsn)
    yield from (replace(event, transaction=transaction) for event in events)
    yield Event("commit", transaction, lsn)
