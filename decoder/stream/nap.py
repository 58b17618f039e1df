"""How long a reader leaves the socket alone.

The WAL sender sends every message by itself and wakes whoever waits for it.  A reader that sleeps
between drains is not woken per message and finds many at once, which on loopback can halve the server's
work.  But a nap longer than the buffers last makes the server wait, and how long they last depends on
the transport: megabytes on TCP, some 280 messages on a Unix socket; and on a machine whose cores are
all busy, being woken costs less than coming late.  No fixed nap is right, and nothing the reader can ask
the kernel tells whether the sender is waiting.  So the nap is tried out: the present length and a
neighbouring one take turns, and the one under which more bytes came is kept (the longer, if it makes no
difference: it costs less).  A trial is half spent under the worse of the two, so after one that changed
nothing the next waits a while.  Where the first nap starts follows from the transport (docs/adr/0006).

Invariant: a nap is never longer than NAP_MAX_SECONDS, whatever the socket does, nor than
NAP_TRICKLE_SECONDS when little comes at a time, so that a small transaction is not kept waiting; and none
is taken in a quiet period: `idle` then says to wait on the socket instead.
"""

from __future__ import annotations

# 0: wait for the next byte, as a reader without naps does.
NAPS_SECONDS = (0.0, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.005, 0.010, 0.020, 0.040)
NAP_MAX_SECONDS = NAPS_SECONDS[-1]
NAP_TRICKLE_SECONDS = 0.005
FIRST_SECONDS = 0.001
FIRST_UNIX_SECONDS = 0.000_3  # some 280 messages fit, which take the server 0.6 ms and more
FIRST_LOOPBACK_SECONDS = 0.010  # megabytes fit, nearly all of them unsent while the window is shut
_TRICKLE_BYTES = 64 << 10
_WINDOW_SECONDS = 0.04
_WINDOW_DRAINS = 3
_PAUSE_WINDOWS = 24  # without a trial, after one that changed nothing
_WINDOWS = 4  # of a trial: present, other, present, other
_LONGER_IF, _SHORTER_IF = 0.98, 1.04
_QUIET_DRAINS = 3


class Nap:
    """Fed with what each drain found, says what to do before the next.

    Attributes:
        level: the length in use when nothing else is tried, as an index of NAPS_SECONDS.
    """

    def __init__(self, first_seconds: float = FIRST_SECONDS) -> None:
        self.level = NAPS_SECONDS.index(first_seconds)
        self._last_bytes = 0
        self._windows_without_trial = 0
        self._quiet = _QUIET_DRAINS
        self._step = 1
        self._other = self._window = 0
        self._bytes, self._seconds, self._in_window, self._drains = [0, 0], [0.0, 0.0], 0.0, 0
        self._begin_trial()

    @property
    def seconds(self) -> float:
        """Length of the next nap."""
        nap = NAPS_SECONDS[
            self._other if self._window % 2 and not self._windows_without_trial else self.level
        ]
        return nap if self._last_bytes >= _TRICKLE_BYTES else min(nap, NAP_TRICKLE_SECONDS)

    @property
    def idle(self) -> bool:
        """Wait for the socket to become readable instead of sleeping."""
        return self._quiet >= _QUIET_DRAINS or self.seconds == 0

    def drained(self, size_bytes: int, elapsed_seconds: float) -> None:
        """Learn that a drain found ``size_bytes`` after ``elapsed_seconds`` since the one before."""
        was_quiet = self._quiet >= _QUIET_DRAINS
        self._quiet = 0 if size_bytes else self._quiet + 1
        self._last_bytes = size_bytes
        if was_quiet or self._quiet >= _QUIET_DRAINS:
            self._begin_trial()  # the sender had nothing: its silence says nothing about naps
            return
        self._bytes[self._window % 2] += size_bytes
        self._seconds[self._window % 2] += elapsed_seconds
        self._in_window, self._drains = self._in_window + elapsed_seconds, self._drains + 1
        if self._in_window >= _WINDOW_SECONDS and self._drains >= _WINDOW_DRAINS:
            self._window, self._in_window, self._drains = self._window + 1, 0.0, 0
            if self._windows_without_trial:
                self._windows_without_trial -= 1
                self._begin_trial()
            elif self._window == _WINDOWS:
                self._decide()

    def _begin_trial(self) -> None:
        if not 0 <= self.level + self._step < len(NAPS_SECONDS):
            self._step = -self._step
        self._other = self.level + self._step
        self._window, self._in_window, self._drains = 0, 0.0, 0
        self._bytes, self._seconds = [0, 0], [0.0, 0.0]

    def _decide(self) -> None:
        present, other = (self._bytes[i] / max(self._seconds[i], 1e-9) for i in (0, 1))
        if other >= present * (_LONGER_IF if self._step > 0 else _SHORTER_IF):
            self.level = self._other
            self._windows_without_trial = 0
        else:
            self._step = -self._step
            self._windows_without_trial = _PAUSE_WINDOWS
        self._begin_trial()
