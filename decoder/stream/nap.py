"""How long a reader sleeps before it reads the socket again (a *nap*).

The WAL sender sends every message by itself and wakes the process that waits for it.  A reader that sleeps
between drains is not woken for each message and gets many at once, which on loopback can halve the server's
work.  But if a nap is so long that the buffers fill up, the server must wait.  How much fits depends on the
transport: megabytes on TCP, some 280 messages on a Unix socket.  And on a machine whose cores are all busy,
it costs less to be woken than to come late.  So no fixed length is right, and the kernel cannot say whether
the sender is waiting.

Therefore the length is found by trial.  The present length and a neighbouring one take turns, and the one
with more bytes per second stays (the longer one if there is no difference, because it costs less).  Half of
a trial runs with the worse length, so after a trial that changed nothing the next one comes later.  The
first length follows from the transport (docs/adr/0006).

Invariant: a nap is never longer than NAP_MAX_SECONDS, whatever the socket does.  It is never longer than
NAP_TRICKLE_SECONDS while little comes at a time, so that a small transaction does not wait.  In a quiet
period there is no nap: `idle` then says that the reader must wait on the socket instead.
"""

from __future__ import annotations

# 0: wait for the next byte, as a reader without naps does.
NAPS_SECONDS = (0.0, 0.000_2, 0.000_3, 0.000_5, 0.001, 0.002, 0.005, 0.010, 0.020, 0.040)
NAP_MAX_SECONDS = NAPS_SECONDS[-1]
NAP_TRICKLE_SECONDS = 0.005
FIRST_SECONDS = 0.001
FIRST_UNIX_SECONDS = 0.000_3  # some 280 messages fit, which take the server 0.6 ms and more
FIRST_LOOPBACK_SECONDS = 0.010  # megabytes fit; nearly all of them are unsent while the window is closed
_TRICKLE_BYTES = 64 << 10
_WINDOW_SECONDS = 0.04
_WINDOW_DRAINS = 3
_PAUSE_WINDOWS = 24  # without a trial, after one that changed nothing
_WINDOWS = 4  # of a trial: present, other, present, other
_LONGER_IF, _SHORTER_IF = 0.98, 1.04
_QUIET_DRAINS = 3


class Nap:
    """Learns how much each drain read, and says what to do before the next one.

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
        """True if the reader must wait until the socket is readable, instead of sleeping."""
        return self._quiet >= _QUIET_DRAINS or self.seconds == 0

    def drained(self, size_bytes: int, elapsed_seconds: float) -> None:
        """Note that a drain read ``size_bytes``, ``elapsed_seconds`` after the one before."""
        was_quiet = self._quiet >= _QUIET_DRAINS
        self._quiet = 0 if size_bytes else self._quiet + 1
        self._last_bytes = size_bytes
        if was_quiet or self._quiet >= _QUIET_DRAINS:
            self._begin_trial()  # the sender had nothing to send, so this measures nothing
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
