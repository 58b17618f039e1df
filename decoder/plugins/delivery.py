"""Calls a consumer's callbacks, in order, and says where one failed.

Owns the rules between a reader's events and a consumer: capabilities are checked before anything is
read; a transaction that `filter_by_origin` refuses is not shown at all; events of a family that the consumer
lacks become ordinary transactions; `shutdown` comes last, also after an error.

Invariant: every error of a callback gets its context (callback, transaction, position), with the
original error as its cause.  The context names places, never values, because the text of a consumer's
exception may contain a row.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from types import TracebackType
from typing import Any, NoReturn, Self

from slotlake.decoder.errors import ConsumerError, SlotlakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.plugins.assembly import Assembly
from slotlake.decoder.plugins.consumer import Capabilities, Consumer, capabilities_of
from slotlake.decoder.plugins.model import Event, Startup

_STARTS = ("begin", "begin_prepare", "stream_start")
_LAST = ("commit", "stream_commit", "commit_prepared", "rollback_prepared")
_WITH_XID = ("stream_change", "stream_truncate", "stream_message", "stream_abort")


class Delivery:
    """One consumer at work; a context manager from startup to shutdown.

    Args:
        consumer: an object with the callbacks of `decoder.plugins.consumer`.
        startup: the argument for its ``startup``.

    Raises:
        ConsumerError: the consumer lacks a callback.
    """

    def __init__(self, consumer: Consumer, startup: Startup) -> None:
        self.capabilities: Capabilities = capabilities_of(consumer)
        self._consumer, self._startup = consumer, startup
        self._assembly = Assembly(
            streams=not self.capabilities.streaming, prepared=not self.capabilities.two_phase
        )
        self._refused: set[int | None] = set()

    def __enter__(self) -> Self:
        self._call("startup", (self._startup,), None, self._startup.start_lsn)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._call("shutdown", (), None, 0)
        except SlotlakeError:
            if error is None:
                raise
            # The first error is the one to show.

    def take(self, events: Iterable[Event]) -> None:
        """Deliver events in order.

        Raises:
            ConsumerError: a callback failed.
        """
        for event in events:
            for due in self._assembly.take(event):
                if not self._filtered(due):
                    self._deliver(due)

    def _filtered(self, event: Event) -> bool:
        """True if the event belongs to a transaction from an origin that the consumer refuses."""
        if event.transaction is None or "filter_by_origin" not in self.capabilities.callbacks:
            return False
        xid = event.transaction.xid
        starts = event.callback in _STARTS and xid not in self._refused
        if starts and self._call("filter_by_origin", (event.transaction.origin,), event, event.lsn):
            self._refused.add(xid)
        refused = xid in self._refused
        if event.callback in _LAST or (event.callback == "stream_abort" and event.subxid == xid):
            self._refused.discard(xid)
        return refused

    def _deliver(self, event: Event) -> None:
        if event.callback == "begin_prepare" and self._waits_for_commit(event):
            return
        arguments: list[Any] = [event.transaction]
        if event.body is not None or event.callback == "stream_change":
            arguments.append(event.body)
        if event.callback in _WITH_XID:
            arguments.append(event.subxid)
        self._call(event.callback, tuple(arguments), event, event.lsn)

    def _waits_for_commit(self, event: Event) -> bool:
        assert event.transaction is not None
        asked = (event.transaction.xid, event.transaction.gid)
        if "filter_prepare" in self.capabilities.callbacks and self._call(
            "filter_prepare", asked, event, event.lsn
        ):
            self._assembly.hold(event)
            return True
        return False

    def _call(self, name: str, arguments: tuple[Any, ...], event: Event | None, lsn: int) -> Any:
        if name not in self.capabilities.callbacks:
            return None
        try:
            return getattr(self._consumer, name)(*arguments)
        except Exception as error:  # noqa: BLE001 - a consumer's code may raise anything
            self._fail(name, event, lsn, error)

    def _fail(self, name: str, event: Event | None, lsn: int, error: Exception) -> NoReturn:
        xid = event.transaction.xid if event is not None and event.transaction is not None else None
        inside = f"in callback {name}"
        inside += "" if xid is None else f", transaction {xid}"
        inside += f", at {format_lsn(lsn)}" if lsn else ""
        if isinstance(error, SlotlakeError):
            error.where = f"{error.where}; {inside}" if error.where else inside
            raise error
        raise ConsumerError(
            f"the consumer {type(self._consumer).__name__} failed {inside}: {type(error).__name__}",
            where=_place(error),
            way_out="correct the consumer, then run the command again: nothing was confirmed to the server",
            callback=name,
            xid=xid,
            lsn=lsn,
        ) from error


def _place(error: Exception) -> str:
    """The line that raised, in the consumer's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if len(frames) > 1 else ""
