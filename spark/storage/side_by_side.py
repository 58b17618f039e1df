"""Small new files of an object store that are written at the same time, and waited for together.

Each write takes the store a while, nearly all of it waiting.  Who prepares a publication writes files that
nothing leads to before its end, so their order does not matter; what matters is that all are there then.

Invariant: when `Writes.end` returns, no write is under way any more, and it says which have failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from slotlake.spark.storage.location import Location
from slotlake.spark.storage.stores import store_of

_AT_ONCE: Final = 16
_writes: ContextVar[Writes | None] = ContextVar("slotlake_writes", default=None)


class Writes:
    """The writes of one thread that have begun; another thread has its own, or none."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(_AT_ONCE, "slotlake-writes")
        self._begun: dict[Location, Future[str]] = {}

    def begin(self, location: Location, content: bytes) -> None:
        """Begin to write a file that must not be there yet; a folder's file is written at once.

        Raises:
            OSError: a file of a folder cannot be written.
        """
        store = store_of(location)
        if not location.is_in_bucket:
            store.write_new(location, content)
            return
        self._begun[location] = self._pool.submit(store.write_new, location, content)

    def wait_for(self, location: Location) -> None:
        """Wait until a file is written, before it is read.

        Args:
            location: the file, of these writes or any other.

        Raises:
            OSError: it could not be written.
        """
        future = self._begun.get(location)
        if future is not None:
            future.result()

    def end(self) -> dict[Location, BaseException]:
        """Wait for all writes, and return those that failed."""
        self._pool.shutdown()
        failures = {location: future.exception() for location, future in self._begun.items()}
        return {location: error for location, error in failures.items() if error is not None}


def present() -> Writes | None:
    """Return the writes of this thread that are waited for together; None if each is waited for alone."""
    return _writes.get()


@contextmanager
def gathered() -> Iterator[Writes]:
    """Gather the writes of this thread for the time of the context; who opens it ends them."""
    writes = Writes()
    token = _writes.set(writes)
    try:
        yield writes
    finally:
        _writes.reset(token)
