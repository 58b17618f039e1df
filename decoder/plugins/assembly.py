"""Whole transactions from streamed and prepared ones, for consumers that take only these.

What the server would do for an output plugin without the families: show a streamed transaction when
it commits, a prepared one when its outcome is commit.  Works on events, in memory: the lake's own road
(`decoder.assembly.assembler`) spills to disk, this one is for looking and for small consumers.

Invariant: what comes out is in commit order and has no event of a family that was asked to go.
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
class _Held:
    """The events of one transaction whose outcome is not known yet."""

    transaction: Transaction
    events: list[Event] = field(default_factory=list)


class Assembly:
    """Passes events on, holding back what belongs to an unfinished transaction.

    Args:
        streams: hold streamed transactions until they commit.
        prepared: hold prepared transactions until their outcome.
    """

    def __init__(self, *, streams: bool, prepared: bool) -> None:
        self._streams, self._prepared = streams, prepared
        self._streamed: dict[int | None, _Held] = {}
        self._waiting: dict[str | None, _Held] = {}
        self._preparing: _Held | None = None

    def hold(self, event: Event) -> None:
        """From this begin_prepare on, hold that transaction, though prepared ones are passed on."""
        assert event.transaction is not None
        self._preparing = _Held(event.transaction)

    @property
    def unfinished(self) -> int:
        """Transactions held."""
        return len(self._streamed) + len(self._waiting)

    def take(self, event: Event) -> Iterator[Event]:
        """Events that are due now that this one has come."""
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
        held = self._waiting.pop(event.transaction.gid, None)
        if held is None:
            # Prepared before the first position read: its changes are not in this stream.
            if not self._prepared:
                yield event
        elif event.callback == "commit_prepared":
            # Its position is that of the outcome; the xid and origin are those it had from the start.
            known = held.transaction
            final = replace(event.transaction, xid=known.xid, origin=known.origin)
            yield from _whole(final, held.events, event.lsn)

    def _stream(self, event: Event) -> Iterator[Event]:
        transaction = event.transaction
        if transaction is None:
            yield replace(event, callback=_PLAIN[event.callback])
            return
        xid = transaction.xid
        if event.callback == "stream_start":
            self._streamed.setdefault(xid, _Held(transaction))
        elif event.callback == "stream_abort":
            self._abort(event, xid)
        elif event.callback in _PLAIN:
            self._known(event, xid).events.append(_shown(event))
        elif event.callback == "stream_commit":
            yield from _whole(transaction, self._known(event, xid, end=True).events, event.lsn)
        elif event.callback == "stream_prepare":
            yield from self._stream_prepared(event, self._known(event, xid, end=True))

    def _abort(self, event: Event, xid: int | None) -> None:
        if event.subxid == xid or event.subxid is None:
            self._streamed.pop(xid, None)
        elif xid in self._streamed:
            held = self._streamed[xid]
            held.events = [kept for kept in held.events if kept.subxid != event.subxid]

    def _stream_prepared(self, event: Event, held: _Held) -> Iterator[Event]:
        assert event.transaction is not None
        held.transaction = event.transaction
        if self._prepared:
            self._waiting[event.transaction.gid] = held
        else:
            yield Event("begin_prepare", event.transaction, event.lsn)
            yield from (replace(each, transaction=event.transaction) for each in held.events)
            yield Event("prepare", event.transaction, event.lsn)

    def _known(self, event: Event, xid: int | None, *, end: bool = False) -> _Held:
        held = self._streamed.pop(xid, None) if end else self._streamed.get(xid)
        if held is None:
            raise ProtocolError(
                f"{event.callback} of a transaction of which no block has come",
                where=f"transaction {xid}, at {format_lsn(event.lsn)}",
            )
        return held


def _shown(event: Event) -> Event:
    if event.body is None:
        raise ProtocolError(
            "the plugin hides what a streamed transaction changed",
            where=f"{event.callback}, at {format_lsn(event.lsn)}",
            way_out="read without its option stream-changes",
        )
    return replace(event, callback=_PLAIN[event.callback])


def _whole(transaction: Transaction, events: list[Event], lsn: int) -> Iterator[Event]:
    yield Event("begin", transaction, lsn)
    yield from (replace(event, transaction=transaction) for event in events)
    yield Event("commit", transaction, lsn)
