"""What wakes a loop that waits for changes: other threads ring, and signals stop it."""

from __future__ import annotations

import time
from contextlib import suppress
from queue import Empty, SimpleQueue


class Bell:
    """Rings for one thread that waits.

    A signal handler may call `stop` at any moment: `SimpleQueue.put` takes no lock that the interrupted
    thread could have.

    Attributes:
        stopped: whether somebody has asked the loop to end.
    """

    def __init__(self) -> None:
        self._rings: SimpleQueue[None] = SimpleQueue()
        self._rung = False
        self.stopped = False

    def ring(self) -> None:
        """Wake the thread that waits; if none waits, the next one to wait."""
        self._rings.put(None)

    def stop(self) -> None:
        """Ask the loop to end, and wake it."""
        self.stopped = True
        self.ring()

    def forget(self) -> None:
        """Forget that it has rung: what it rang for is being done."""
        while self._next(0.0):
            pass
        self._rung = False

    def wait(self, seconds: float) -> bool:
        """Wait until it rings, for at most so long; return whether it has rung, or the loop must end."""
        deadline = time.monotonic() + seconds
        while not (self._rung or self.stopped) and self._next(deadline - time.monotonic()):
            self._rung = True
        return self._rung or self.stopped

    def pause(self, seconds: float) -> None:
        """Wait so long, whether it rings or not; only `stop` ends it earlier."""
        deadline = time.monotonic() + seconds
        while not self.stopped and time.monotonic() < deadline:
            self._rung = self._next(deadline - time.monotonic()) or self._rung

    def _next(self, seconds: float) -> bool:
        with suppress(Empty):
            self._rings.get(timeout=max(0.0, seconds))
            return True
        return False
