"""How long a server may send nothing before its connection counts as lost.

A connection can die without notice: a firewall drops it, a proxy stalls, the other machine loses its power.
TCP notices this late or, behind a proxy, never.  So slotlake does the same as PostgreSQL's own receiver
(walreceiver.c, WalRcvComputeNextWakeup): at half of the limit it asks the server for a reply, and at the
limit the connection counts as lost.

Invariant: only time in which the reader looked and got nothing counts, never time in which it was busy.
"""

from __future__ import annotations

from enum import Enum

LIMIT_SECONDS = 60.0
UNLIMITED_SENDER_SECONDS = 600.0


class Verdict(Enum):
    """What to do after the reader looked at the socket."""

    WAIT = 0
    ASK = 1
    LOST = 2


def limit_seconds(wal_sender_timeout_seconds: float) -> float:
    """The limit for a server with that setting (0: none): the server itself may be silent for so long."""
    return max(LIMIT_SECONDS, wal_sender_timeout_seconds or UNLIMITED_SENDER_SECONDS)


class Silence:
    """Measures the silence of one stream; times are of time.monotonic."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self._since: float | None = None
        self._asked = False

    def looked(self, size: int, now: float) -> Verdict:
        """Note that the reader looked and got ``size`` bytes; what to do now."""
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
