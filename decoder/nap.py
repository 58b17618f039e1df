"""How long a reader leaves the socket alone.

The WAL sender sends every message by itself and wakes whoever waits for it.  A reader that sleeps
between drains is not woken per message, and finds many at once: on loopback that more than halves
the server's work.  But a nap longer than the buffers last makes the server wait, and how long they
last depends on the transport: megabytes on TCP, some 280 messages on a Unix socket.  So the nap
follows what it finds: while a longer nap yields more, buffers are not full and the nap may grow; when
it yields no more, the server has been waiting and the nap shrinks.

Invariant: a nap is never longer than NAP_MAX_SECONDS, whatever the socket does, and it is not taken
at all before the first byte of a quiet period: `idle` then says to wait on the socket instead.
"""

from __future__ import annotations

NAP_MIN_SECONDS = 0.000_2
NAP_MAX_SECONDS = 0.010
_QUIET_DRAINS = 3


class Nap:
    """Fed with what each drain found, says what to do before the next.

    Attributes:
        seconds: length of the next nap.
        idle: nothing came for a while: wait for the socket to become readable instead.
    """

    def __init__(self) -> None:
        self.seconds = NAP_MIN_SECONDS
        self._best_rate = 0.0
        self._quiet = _QUIET_DRAINS

    @property
    def idle(self) -> bool:
        return self._quiet >= _QUIET_DRAINS

    def drained(self, size_bytes: int, elapsed_seconds: float) -> None:
        """Learn that a drain found ``size_bytes`` after ``elapsed_seconds`` since the one before."""
        if size_bytes == 0:
            self._quiet += 1
            self.seconds = max(NAP_MIN_SECONDS, self.seconds / 2)
            return
        self._quiet = 0
        rate = size_bytes / max(elapsed_seconds, 1e-6)
        if rate >= 0.8 * self._best_rate:
            self.seconds = min(NAP_MAX_SECONDS, self.seconds * 1.3)
        else:
            self.seconds = max(NAP_MIN_SECONDS, self.seconds * 0.6)
        # Forgets slowly: the server's own speed changes with what it decodes.
        self._best_rate = max(rate, 0.97 * self._best_rate)
