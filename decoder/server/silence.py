"""How long a server may say nothing before it counts as gone.

A connection can die without a word: a firewall forgets it, a proxy stalls, the other machine loses its power.
TCP finds out late or, behind a proxy, never.  So, as PostgreSQL's own receiver does (walreceiver.c,
WalRcvComputeNextWakeup): half-way to the limit the server is asked for a sign of life, at the limit it
counts as gone.

Invariant: only time in which the reader has looked and found nothing counts, never time in which it was busy.
"""

from __future__ import annotations

from enum import Enum

LIMIT_SECONDS = 60.0
UNLIMITED_SENDER_SECONDS = 600.0


class Verdict(Enum):
    """What an empty look at the socket means."""

    WAIT = 0
    ASK = 1
    LOST = 2


def limit_seconds(wal_sender_timeout_seconds: float) -> float:
    """The limit for a server with that setting (0: none): it may work in silence for as long itself."""
    return max(LIMIT_SECONDS, wal_sender_timeout_seconds or UNLIMITED_SENDER_SECONDS)


class Silence:
    """The watch over one stream; times are of time.monotonic."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._since: float | None = None
        self._asked = False

    def looked(self, size: int, now: float) -> Verdict:
        """The reader has looked and found ``size`` bytes."""
        if size > 0 or self._since is None:
            self._since = None if size > 0 else now
            self._asked = False
            return Verdict.WAIT
        silent = now - self._since
        if silent >= self.limit:
            return Verdict.LOST
        if silent >= self.limit / 2 and not self._asked:
            self._asked = True
            return Verdict.ASK
        return Verdict.WAIT
