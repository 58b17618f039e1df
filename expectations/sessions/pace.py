"""How much of the source a verification may take: work, then rest in proportion, over all its connections.

A share of 0.1 means: the work of all connections together is a tenth of the time.  So after a second of work
the next piece begins ten seconds after that one began; if two connections worked for a second, twenty.  The
server is kept from using further processes for a query (`Pace.begin`), so the share is one of one core.
Invariant: nobody rests while a lock of the source is held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

_REST_SECONDS_MAX = 3600.0
_LOOK_SECONDS = 0.2


class StoppedError(Exception):
    """Somebody has stopped a verification; the next one compares the same rows."""


def _never() -> bool:
    return False


@dataclass
class Pace:
    """The share of one core of the source that may be taken.

    Attributes:
        share: above 0, up to 1; None: all that the server gives.
        worked: seconds for which the source has worked, over all connections.
    """

    share: float | None = None
    worked: float = 0.0
    _free_at: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def begin(self, connection: psycopg.Connection[Any], *, alone: bool = True) -> None:
        """Keep a transaction's queries from using more than one process of the server.

        Args:
            alone: there is no other connection; without a share, the server may then choose.
        """
        if self.share is not None or not alone:
            connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Measure a piece of work."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            with self._lock:
                self.worked += spent
                if self.share is not None:
                    self._free_at = max(self._free_at, started) + spent / self.share

    def rest(self, has_ended: Callable[[], bool] = _never) -> None:
        """Rest until the next piece of work may begin; call it when no lock is held.

        Raises:
            StoppedError: `stop` was called.
        """
        latest = time.monotonic() + _REST_SECONDS_MAX
        # Another connection may have worked meanwhile, so it is looked at again and again.
        while (left := min(self._free_at, latest) - time.monotonic()) > 0 and not has_ended():
            if self._stopped.wait(min(left, _LOOK_SECONDS)):
                break
        if self._stopped.is_set():
            raise StoppedError

    def stop(self) -> None:
        """End the next rest, or the one that is going on, with an error."""
        self._stopped.set()
