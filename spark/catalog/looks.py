"""What this process has seen of the tables of a REST catalog, so that not every batch asks for each of them.

A REST server has no request for the pointers of all tables: a look at a lake of a thousand tables is a
thousand requests, and a sync looks several times.  While a sync runs (:func:`sparing`), such a look is
remembered, and used again for tables that this process has not changed since, as long as `commits` says that
nobody else has published, and for a minute at most, or longer where a look itself takes seconds.

Invariant: what is about to be changed is always read anew.  So what somebody else does to a table meanwhile
is found when a batch touches the table, or by the next look; never built upon.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

from slotlake.spark.names import LakeName

LIFE_SECONDS_MIN = 60.0
# Ten thousand tables take half a minute: a look lives so long that looks are a twentieth of the time.
LIFE_TIMES = 20
# With fewer tables a look costs little, and then it is always a new one.
TABLES_MIN = 50


@dataclass(frozen=True)
class Look:
    """The tables of a lake as they were read.

    Attributes:
        head: the snapshot of `commits` then.
        at: when that was, by the monotonic clock, in seconds.
        pointers: table → metadata location; None for what was changed by this process since.
        names: of all tables, those being filled among them.
        seconds: how long it took to read them.
    """

    head: int | None
    at: float
    pointers: Mapping[LakeName, str | None]
    names: frozenset[LakeName]
    seconds: float


_sparing: ContextVar[bool] = ContextVar("slotlake_sparing", default=False)


@contextmanager
def sparing() -> Iterator[None]:
    """Let looks at all tables of a REST catalog be answered from what was read lately."""
    token = _sparing.set(True)
    try:
        yield
    finally:
        _sparing.reset(token)


def is_sparing() -> bool:
    """Return whether looks may be answered from what was read lately."""
    return _sparing.get()


class Looks:
    """The last look at the tables of one lake, in the lake's memory."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: Look | None = None

    @property
    def is_in_use(self) -> bool:
        """Whether a look was remembered: then a table may have been changed by somebody since."""
        return _sparing.get() and self._last is not None

    @property
    def head(self) -> int | None:
        """The snapshot of `commits` at the last look."""
        return None if self._last is None else self._last.head

    def remembered(self, head: int | None) -> Mapping[LakeName, str | None] | None:
        """Return the last look's pointers, None for tables to be read anew; None if there is no look to use.

        Args:
            head: the snapshot of `commits` now.
        """
        look = self._usable(head)
        return None if look is None else look.pointers

    def names(self, head: int | None) -> frozenset[LakeName] | None:
        """Return all tables of the last look; None if looks are not spared, or there is none to use.

        Whatever this process makes, renames or drops ends a look (:meth:`forget_all`).

        Args:
            head: the snapshot of `commits` now.
        """
        look = self._usable(head) if is_sparing() else None
        return None if look is None else look.names

    def remember(
        self, head: int | None, pointers: Mapping[LakeName, str], names: frozenset[LakeName], seconds: float
    ) -> None:
        """Remember a look at all tables, if they are many.

        Args:
            head: the snapshot of `commits`.
        """
        with self._lock:
            few = len(pointers) < TABLES_MIN
            self._last = None if few else Look(head, time.monotonic(), dict(pointers), names, seconds)

    def amend(self, pointers: Mapping[LakeName, str]) -> None:
        """Add to the last look what was read anew of some tables."""
        self._change(pointers)

    def forget(self, names: Collection[LakeName], head: int | None = None) -> None:
        """Note that this process has changed tables: they are read anew at the next look.

        Args:
            head: the snapshot of `commits` since, if it is another.
        """
        self._change(dict.fromkeys(names), head)

    def forget_all(self) -> None:
        """Note that this process has made or dropped tables."""
        with self._lock:
            self._last = None

    def _usable(self, head: int | None) -> Look | None:
        look = self._last
        if look is None or look.head != head:
            return None
        life = max(LIFE_SECONDS_MIN, LIFE_TIMES * look.seconds)
        return look if time.monotonic() - look.at <= life else None

    def _change(self, pointers: Mapping[LakeName, str | None], head: int | None = None) -> None:
        with self._lock:
            if (look := self._last) is not None:
                newest = look.head if head is None else head
                self._last = replace(look, head=newest, pointers={**look.pointers, **pointers})
