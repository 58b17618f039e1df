"""How much of the source a verification may take: after each piece of work, it rests in proportion.

A share of 0.1 means: for each second that the source works, nine seconds in which it does nothing for this
verification.  The server is kept from using further processes for a query (`Pace.begin`), so the share is one
of one core.  Invariant: nobody rests while a lock of the source is held.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import psycopg

_REST_SECONDS_MAX = 3600.0


class StoppedError(Exception):
    """Somebody has stopped a verification; the next one compares the same rows."""


@dataclass
class Pace:
    """The share of one core of the source that may be taken.

    Attributes:
        share: above 0, up to 1; None: all that the server gives.
        worked: seconds for which the source has worked.
    """

    share: float | None = None
    worked: float = 0.0
    _owed: float = 0.0
    _stopped: threading.Event = field(default_factory=threading.Event)

    def begin(self, connection: psycopg.Connection[Any]) -> None:
        """Keep a transaction's queries from using more than one process of the server."""
        if self.share is not None:
            connection.execute("SET LOCAL max_parallel_workers_per_gather = 0")

    @contextmanager
    def working(self) -> Iterator[None]:
        """Measure a piece of work."""
        started = time.monotonic()
        try:
            yield
        finally:
            spent = time.monotonic() - started
            self.worked += spent
            if self.share is not None:
                self._owed += spent * (1 - self.share) / self.share

    def rest(self) -> None:
        """Rest for what was worked since the last time; call it when no lock is held.

        Raises:
            StoppedError: `stop` was called.
        """
        owed, self._owed = min(self._owed, _REST_SECONDS_MAX), 0.0
        if self._stopped.wait(owed) if owed > 0 else self._stopped.is_set():
            raise StoppedError

    def stop(self) -> None:
        """End the next rest, or the one that is going on, with an error."""
        self._stopped.set()
