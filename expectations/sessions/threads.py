"""Threads of this process that print and hash the lake's rows, so that they keep up with several connections.

Arrow and the compiled loops work without the interpreter's lock, so a second thread is a second core.
Memory: so many batches as there are threads, and two, over all tables that are read at the same time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

_LOOK_SECONDS = 0.2
T = TypeVar("T")
R = TypeVar("R")


class EndedError(Exception):
    """Nobody waits for the lake's rows any more, because of an error elsewhere."""


@dataclass(eq=False)
class LakeThreads:
    """Threads for tables, each of which reads one, and threads for their batches.

    Attributes:
        tables: reads tables; it waits for ``_batches``, which wait for nobody.
    """

    tables: ThreadPoolExecutor
    _batches: ThreadPoolExecutor
    _places: threading.Semaphore
    _ended: threading.Event = field(default_factory=threading.Event)

    def mapped(self, work: Callable[[T], R], batches: Iterable[T]) -> Iterator[R]:
        """Yield what some work makes of batches, in their order.

        Args:
            work: done by any thread.
            batches: read by the caller's.

        Raises:
            EndedError: the threads are to end.
        """
        pending: deque[Future[R]] = deque()
        try:
            for batch in batches:
                while not self._has_place(wait=not pending):
                    yield self._done(pending)
                pending.append(self._batches.submit(work, batch))
            while pending:
                yield self._done(pending)
        finally:
            for _ in pending:
                self._places.release()

    def end(self) -> None:
        """End soon, with an error in whoever reads."""
        self._ended.set()

    def _has_place(self, *, wait: bool) -> bool:
        while not self._ended.is_set():
            if self._places.acquire(timeout=_LOOK_SECONDS if wait else None, blocking=wait):
                return True
            if not wait:
                return False
        raise EndedError

    def _done(self, pending: deque[Future[R]]) -> R:
        try:
            return pending[0].result()
        finally:
            pending.popleft()
            self._places.release()


@contextmanager
def lake_threads(count: int) -> Iterator[LakeThreads | None]:
    """Open threads; None for one, which is the caller's.

    Args:
        count: how many tables, and how many batches, are worked on at the same time.
    """
    if count < 2:
        yield None
        return
    with (
        ThreadPoolExecutor(count, "slotlake-batches") as batches,
        ThreadPoolExecutor(count, "slotlake-tables") as tables,
    ):
        threads = LakeThreads(tables, batches, threading.Semaphore(count + 2))
        try:
            yield threads
        except BaseException:
            threads.end()
            tables.shutdown(wait=False, cancel_futures=True)
            raise
