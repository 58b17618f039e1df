"""How long a reader leaves the socket alone.

The WAL sender sends every message by itself and wakes whoever waits for it.  A reader that sleeps
between drains is not woken per message and finds many at once, which on loopback can halve the server's
work.  But a nap longer than the buffers last makes the server wait, and how long they last depends on
the transport: megabytes on TCP, some 280 messages on a Unix socket; and on a machine whose cores are
all busy, being woken costs less than coming late.  No fixed nap is right, and nothing the reader can ask
the kernel tells whether the sender is waiting.  So the nap is tried out: the present length and a
neighbouring one take turns, and the one under which more bytes came is kept (the longer, if it makes no
difference: it costs less).

Invariant: a nap is never longer than NAP_MAX_SECONDS, whatever the socket does, and none is taken in a
quiet period: `idle` then says to wait on the socket instead.
"""

from __future__ import annotations

# 0: wait for the next byte, as a reader without naps does.
NAPS_SECONDS = (0.0, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.010)
NAP_MAX_SECONDS = NAPS_SECONDS[-1]
_FIRST = 3
_WINDOW_SECONDS = 0.04
_WINDOWS = 4  # of a trial: present, other, present, other
_LONGER_IF, _SHORTER_IF = 0.98, 1.04
_QUIET_DRAINS = 3


class Nap:
    """Fed with what each drain found, says what to do before the next.

    Attributes:
        level: the length in use when nothing else is tried, as an index of NAPS_SECONDS.
    """

    def __init__(self) -> None:
        self.level = _FIRST
        self._quiet = _QUIET_DRAINS
        self._step = 1
        self._other = self._window = 0
        self._bytes, self._seconds, self._in_window = [0, 0], [0.0, 0.0], 0.0
        self._begin_trial()

    @property
    def seconds(self) -> float:
        """Length of the next nap."""
        return NAPS_SECONDS[self._other if self._window % 2 else self.level]

    @property
    def idle(self) -> bool:
        """Wait for the socket to become readable instead of sleeping."""
        return self._quiet >= _QUIET_DRAINS or self.seconds == 0

    def drained(self, size_bytes: int, elapsed_seconds: float) -> None:
        """Learn that a drain found ``size_bytes`` after ``elapsed_seconds`` since the one before."""
        was_quiet = self._quiet >= _QUIET_DRAINS
        self._quiet = 0 if size_bytes else self._quiet + 1
        if was_quiet or self._quiet >= _QUIET_DRAINS:
            self._begin_trial()  # the sender had nothing: its silence says nothing about naps
            return
        self._bytes[self._window % 2] += size_bytes
        self._seconds[self._window % 2] += elapsed_seconds
        self._in_window += elapsed_seconds
        if self._in_window >= _WINDOW_SECONDS:
            self._window, self._in_window = self._window + 1, 0.0
            if self._window == _WINDOWS:
                self._decide()

    def _begin_trial(self) -> None:
        if not 0 <= self.level + self._step < len(NAPS_SECONDS):
            self._step = -self._step
        self._other = self.level + self._step
        self._window, self._in_window = 0, 0.0
        self._bytes, self._seconds = [0, 0], [0.0, 0.0]

    def _decide(self) -> None:
        present, other = (self._bytes[i] / max(self._seconds[i], 1e-9) for i in (0, 1))
        if other >= present * (_LONGER_IF if self._step > 0 else _SHORTER_IF):
            self.level = self._other
        else:
            self._step = -self._step
        self._begin_trial()
