"""Several connections to the source under one snapshot, and the work that is asked of them.

Each has imported the exported snapshot, so all see the same rows.  A connection that is free takes the next
piece of work.  Invariant: which connection does what changes nothing of the result, and a connection that is
lost is an error that names it, never a part that is left out.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, TypeVar

import psycopg

from slotlake.decoder.errors import ChangedMeanwhileError, SourceError
from slotlake.decoder.server.source import explain
from slotlake.expectations.sessions.pace import Pace
from slotlake.expectations.sessions.parts import Divided, divided, was_rewritten
from slotlake.expectations.shapes import Compared
from slotlake.expectations.source_side import SourceTable, reading, snapshot_session

CANCEL_SECONDS = 5.0
CANCEL_AGAIN_SECONDS = 0.2
_log = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass(eq=False)
class _Session:
    """One of the connections; ``place`` says which, for an error."""

    connection: psycopg.Connection[Any]
    place: str
    busy: bool = False


@dataclass(eq=False)
class Sessions:
    """Connections to the source, all under one snapshot.

    Attributes:
        dsn: the source.
        pace: how much of it may be taken.
    """

    dsn: str
    pace: Pace
    _sessions: Sequence[_Session]
    _threads: ThreadPoolExecutor
    _free: SimpleQueue[_Session] = field(default_factory=SimpleQueue)
    _divided: dict[Compared, Divided] = field(default_factory=dict)
    _asked: set[Future[Any]] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        for session in self._sessions:
            self._free.put(session)

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self._sessions)

    @property
    def first(self) -> psycopg.Connection[Any]:
        """A connection, for use while nothing is asked."""
        return self._sessions[0].connection

    def divide(self, tables: Sequence[Compared]) -> None:
        """Plan the parts of large tables, for several connections, or for short statements.

        Args:
            tables: those of which all rows will be looked at.
        """
        if self.count > 1 or self.pace.share is not None:
            self._divided |= divided(self.first, tables)

    def ask(self, table: Compared, work: Callable[[SourceTable], T]) -> Future[T]:
        """Begin some work, once a connection is free.

        Args:
            table: the table, or some rows of it.
        """
        return self._submitted(lambda: self._worked(table, work))

    def ask_parts(
        self, table: Compared, work: Callable[[SourceTable], T], joined: Callable[[T, T], T]
    ) -> Future[T]:
        """Begin some work on all of a table, a part at a time if it has parts."""
        planned = self._divided.get(table)
        if planned is None:
            return self.ask(table, work)
        whole = _Whole(planned, joined, len(planned.parts))
        for part in planned.parts:
            asked = self._submitted(partial(self._part_worked, whole, part, work))
            asked.add_done_callback(whole.follow)
        return whole.future

    def each(self, tables: Iterable[Compared], work: Callable[[SourceTable], T]) -> Iterator[T]:
        """Yield what some work gives for some rows after the other; a few are asked for ahead.

        Args:
            tables: each chooses some rows.
        """
        ahead: deque[Future[T]] = deque()
        for table in tables:
            ahead.append(self.ask(table, work))
            if len(ahead) > self.count:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()

    def was_rewritten(self, table: Compared) -> bool:
        """Return whether rows that the snapshot has may be gone, because the table was rewritten since."""
        oid = table.relation_id
        return bool(oid) and self.ask(table, lambda source: was_rewritten(source.connection, oid)).result()

    def cancel(self) -> None:
        """End what the server computes; asked again: a statement that has not begun yet is not cancelled."""
        self._ended.set()
        while running := [each for each in list(self._asked) if not each.cancel() and not each.done()]:
            for session in self._sessions:
                if session.busy:
                    with suppress(psycopg.Error):  # the server is gone; so is what it computed
                        session.connection.cancel_safe(timeout=CANCEL_SECONDS)
            wait(running, timeout=CANCEL_AGAIN_SECONDS)

    def _submitted(self, work: Callable[[], T]) -> Future[T]:
        future = self._threads.submit(work)
        self._asked.add(future)
        future.add_done_callback(self._asked.discard)
        return future

    def _part_worked(self, whole: _Whole, part: Compared, work: Callable[[SourceTable], Any]) -> None:
        try:
            if not whole.future.done():
                whole.add(self._worked(part, work))
        except ChangedMeanwhileError:
            whole.changed = True
        except BaseException as error:  # noqa: BLE001 - whoever waits for the whole raises it
            whole.fail(error)
        if not whole.is_last():
            return
        try:
            whole.end(lambda asked: self._worked(whole.divided.table, asked), work)
        except BaseException as error:  # noqa: BLE001 - likewise
            whole.fail(error)

    def _worked(self, table: Compared, work: Callable[[SourceTable], T]) -> T:
        self.pace.rest(self._ended.is_set)
        session = self._free.get()  # there are as many threads as connections
        session.busy = True
        try:
            return self._read(session, table, work)
        finally:
            session.busy = False
            self._free.put(session)

    def _read(self, session: _Session, table: Compared, work: Callable[[SourceTable], T]) -> T:
        connection = session.connection
        # `reading` passes over a name that means nothing, of a table that it does not know by its OID.
        failure: SourceError = ChangedMeanwhileError(
            "a table is gone", where=f"table {table.name}", way_out="run again"
        )
        try:
            with self.pace.working(), reading(connection, table, locks_stay=False):
                return work(SourceTable(connection, table))
        except psycopg.OperationalError as error:
            if not connection.closed:
                raise
            failure = self._lost(session, table, error)
        raise failure  # outside of the block above: libpq's error may have parts of the connection string

    def _lost(self, session: _Session, table: Compared, error: psycopg.Error) -> SourceError:
        failure = explain(error, self.dsn, f"comparing {table.name}")
        failure.where = f"{failure.where}, {session.place}, table {table.name}"
        return failure


@dataclass(eq=False)
class _Whole:
    """A table that is read by parts; the thread that has read the last one gives the result."""

    divided: Divided
    joined: Callable[[Any, Any], Any]
    left: int
    future: Future[Any] = field(default_factory=Future)
    changed: bool = False
    _results: list[Any] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, result: Any) -> None:
        """Take the result of a part."""
        with self._lock:
            self._results = [self.joined(self._results[0], result) if self._results else result]

    def fail(self, error: BaseException) -> None:
        """Give an error, unless one was given."""
        with self._lock:
            if not self.future.done():
                self.future.set_exception(error)

    def follow(self, part: Future[None]) -> None:
        """Give up if a part is given up."""
        if part.cancelled():
            self.future.cancel()

    def is_last(self) -> bool:
        """Count a part that was read; return whether it was the last one."""
        with self._lock:
            self.left -= 1
            return self.left == 0

    def end(self, asked: Callable[[Callable[[SourceTable], Any]], Any], work: Callable[..., Any]) -> None:
        """Give the result: that of the parts, if they were the table all the time; else the table is read."""
        if self.future.done():
            return
        stands = not self.changed and asked(lambda source: self.divided.stands(source.connection))
        result = self._results[0] if stands else asked(work)
        with self._lock:
            if not self.future.done():
                self.future.set_result(result)


@contextmanager
def sessions(dsn: str, snapshot: str, count: int, pace: Pace) -> Iterator[Sessions]:
    """Open connections to the source under one snapshot; after an error, end what the server computes.

    If the server refuses more connections than one, those that it gave do the work.

    Args:
        count: how many connections, at least one.
        pace: how much of the source may be taken.

    Raises:
        SourceError: the server cannot be reached, or the snapshot is no longer held.
    """
    with ExitStack() as opened:
        connections = [opened.enter_context(snapshot_session(dsn, snapshot))]
        for number in range(1, count):
            try:
                connections.append(opened.enter_context(snapshot_session(dsn, snapshot)))
            except SourceError as error:
                _log.warning("%d of %d connections are used: %s", number, count, error.what)
                break
        numbered = []
        for number, connection in enumerate(connections, 1):
            pace.begin(connection, alone=len(connections) == 1)
            pid = connection.info.backend_pid
            place = f"connection {number} of {len(connections)} (server process {pid})"
            numbered.append(_Session(connection, place))
        threads = opened.enter_context(
            ThreadPoolExecutor(len(numbered), thread_name_prefix="slotlake-source")
        )
        asked = Sessions(dsn, pace, numbered, threads)
        try:
            yield asked
        except BaseException:  # Ctrl-C too: do not wait for what the server is busy with
            asked.cancel()
            raise
