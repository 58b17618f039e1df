"""The lock of a pipeline for all machines: an advisory lock in PostgreSQL, which its holder's connection has.

It is in the catalog's database if that is PostgreSQL, else in the source's, so that all machines that work on
a pipeline find the same one.  It ends with the connection: at once when the holder's process ends, within
half a minute when its machine or the network is gone (the session asks the server for short keepalives).
Who has it, a comment in the session's last statement says; others read that in pg_stat_activity.

Invariant: a step whose connection was lost publishes nothing from then on (`SharedLock.require`).  Between
that question and the swap, the catalog's compare-and-set decides.
"""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import psycopg
from sqlalchemy.engine import make_url

from slotlake.decoder.errors import BusyError, LakeError, SlotlakeError
from slotlake.decoder.server.source import explain, redact
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.opened.lock_holder import description, text_of

APPLICATION_NAME: Final = "slotlake lock"
_CONNECTION: Final[dict[str, Any]] = {
    "connect_timeout": 10,
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 25_000,
}
# The server's side: when it gives up a client whose machine is gone.  No limit of its own ends the session.
_SESSION: Final = (
    "SET tcp_keepalives_idle = 10",
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
    "SET idle_session_timeout = 0",
)
# Behind a pooler a transaction has the lock. Nothing of the server's is to end it.
_TRANSACTION: Final = {
    "idle_in_transaction_session_timeout": 90600,
    "transaction_timeout": 170000,
}
_WAIT_SECONDS_MIN: Final = 0.5  # the connection of a process that was killed a moment ago ends within that
_PAUSE_SECONDS: Final = 0.1
_POOLER_ENDS: Final = (
    ". A pooler is before that database: it must not end transactions that are idle (PgBouncer: "
    "idle_transaction_timeout and query_timeout = 0)"
)
_SAID: Final = re.compile(r"/\* slotlake (\{.*\}) \*/")


class LockLostError(BusyError):
    """The connection that has the pipeline's lock was lost in the middle of a step."""


class LockUnreachableError(LakeError):
    """The database of the lock cannot be reached."""

    retryable = True


class LockPoolerError(LakeError):
    """A pooler before the lock's database gives each statement another session, so nothing can be locked."""


@dataclass(frozen=True)
class LockPlace:
    """The database that has a pipeline's lock.

    Attributes:
        key: which of the two it is, as the pipeline file names it: ``lake.uri`` or ``source.dsn``.
    """

    key: str
    dsn: str = field(repr=False)

    @classmethod
    def of(cls, file: PipelineFile) -> LockPlace:
        """Return the place of a pipeline's lock."""
        uri = file.lake_uri()
        if uri.startswith("postgresql"):
            url = make_url(uri).set(drivername="postgresql")
            return cls("lake.uri", url.render_as_string(hide_password=False))
        return cls("source.dsn", file.dsn())


class SharedLock:
    """The lock of a pipeline, or of one part of its work.

    Args:
        place: the database.
        pipeline: its name.
        key: what no other pipeline has: name, slot and namespace; and the part of the work.
    """

    def __init__(self, place: LockPlace, pipeline: str, key: str) -> None:
        self._place, self._pipeline = place, pipeline
        self._number, self._turn = lock_number(key), lock_number(f"{key} turn")
        self._connection: psycopg.Connection[Any] | None = None
        self._comment, self._step = "", ""
        self._pooled = self._has_turn = False

    @contextmanager
    def taken(self, step: str, wait_seconds: float) -> Iterator[None]:
        """Have the lock.

        Args:
            step: what is done under it, for who waits.
            wait_seconds: how long to wait for another holder.

        Raises:
            BusyError: another process, here or on another machine, has it.
            LockUnreachableError: the database does not answer.
            LockPoolerError: a pooler is before the database that keeps no transaction together.
        """
        self._step, self._comment = step, f"/* slotlake {_description(step)} */"
        self._connection = self._connect()
        try:
            self._take(time.monotonic() + max(wait_seconds, _WAIT_SECONDS_MIN))
            yield
        finally:
            connection, self._connection = self._connection, None
            self._release(connection)
            connection.close()

    def require(self) -> None:
        """See that this process still has the lock.

        Raises:
            LockLostError: its connection was lost, so another machine may be at work.
        """
        if self._connection is None:
            return
        own = f"{self._lock_is()} AND pid = pg_backend_pid() {self._comment}"
        try:
            row = self._connection.execute(f"SELECT count(*) FROM pg_locks WHERE {own}".encode()).fetchone()
            lost = "it was released" if row != (1,) else ""
        except psycopg.Error as error:
            lost = explain(error, self._place.dsn, "asking for the lock").what
        if lost:
            raise LockLostError(
                f"this run has lost the lock of pipeline {self._pipeline!r} in the middle of {self._step}: "
                f"{lost}",
                where=f"{self._place.key}: {redact(self._place.dsn)}",
                way_out="run the command again when no other run is at work; the step was stopped before it "
                f"published{_POOLER_ENDS if self._pooled else ''}",
            )

    def holder(self) -> str | None:
        """Say who has the lock; None if nobody has.

        Raises:
            LockUnreachableError: the database does not answer.
        """
        if self._connection is not None:
            return self._holder(self._connection)
        with self._connect() as connection:
            return self._holder(connection)

    def _take(self, deadline: float) -> None:
        """Take it, after the turn: who waits has that, so that a loop of batches leaves the lock to it."""
        assert self._connection is not None
        self._pooled = self._is_pooled()
        lock = "pg_try_advisory_lock"
        if self._pooled:
            self._begin()
            lock = "pg_try_advisory_xact_lock"
        self._has_turn = True
        self._wait_until(lambda: self._tried("pg_try_advisory_lock", self._turn), deadline)
        self._wait_until(lambda: self._tried(lock, self._number), deadline)
        with self._errors():
            self._connection.execute(f"SELECT pg_advisory_unlock({self._turn}) {self._comment}".encode())
        self._has_turn = False

    def _begin(self) -> None:
        """Begin a transaction: behind a pooler nothing else keeps its session, and so its locks.

        Raises:
            LockPoolerError: the pooler allows none.
        """
        assert self._connection is not None
        with self._errors():
            try:
                self._connection.execute("BEGIN")
            except psycopg.Error as error:
                if "statement pooling" not in str(error):
                    raise
                raise self._pooler_error() from None
            for setting, since in _TRANSACTION.items():
                if self._connection.info.server_version >= since:
                    self._connection.execute(f"SET LOCAL {setting} = 0".encode())

    def _pooler_error(self) -> LockPoolerError:
        return LockPoolerError(
            "the pipeline's lock cannot be taken: a connection pooler (PgBouncer or its like) gives each "
            "statement another session",
            where=f"{self._place.key}: {redact(self._place.dsn)}",
            way_out="set pool_mode = transaction or session there for this database, or name the server "
            "itself",
        )

    def _release(self, connection: psycopg.Connection[Any]) -> None:
        """Release what is locked at once, and not when the server has noticed that the connection ended."""
        turn, self._has_turn = self._has_turn, False
        with suppress(psycopg.Error):
            if not _is_in_transaction(connection):
                connection.execute(self._call("pg_advisory_unlock"))
            elif not turn:  # the turn goes with the session, which a pooler ends in mid-transaction only
                connection.execute("ROLLBACK")

    def _wait_until(self, tried: Callable[[], bool], deadline: float) -> None:
        assert self._connection is not None
        while not tried():
            if time.monotonic() >= deadline:
                holder = self._holder(self._connection) or "a process that has just ended"
                raise BusyError(
                    f"another run of pipeline {self._pipeline!r} is at work",
                    where=holder,
                    way_out="wait until it has ended, then run the command again; nothing has changed. The "
                    f"lock is in {self._place.key} ({redact(self._place.dsn)}) and ends with that process",
                )
            time.sleep(_PAUSE_SECONDS)

    def _tried(self, function: str, number: int) -> bool:
        assert self._connection is not None
        attempt = f"SELECT {function}({number}) {self._comment}"
        with self._errors():
            return self._connection.execute(attempt.encode()).fetchone() == (True,)
        raise AssertionError("unreachable")

    def _is_pooled(self) -> bool:
        """Whether a pooler is in between: it names another process than the server does."""
        assert self._connection is not None
        with self._errors():
            row = self._connection.execute("SELECT pg_backend_pid()").fetchone()
            if row != (self._connection.info.backend_pid,):
                return True
            stay_alive(self._connection)
        return False

    def _call(self, function: str) -> bytes:
        return f"SELECT {function}({self._number}) {self._comment}".encode()

    def _lock_is(self) -> str:
        high, low = (self._number >> 32) & 0xFFFFFFFF, self._number & 0xFFFFFFFF
        return (
            f"locktype = 'advisory' AND classid = {high} AND objid = {low} AND objsubid = 1 AND granted "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )

    def _holder(self, connection: psycopg.Connection[Any]) -> str | None:
        ask = (
            f"SELECT pid, query FROM pg_locks LEFT JOIN pg_stat_activity USING (pid) WHERE {self._lock_is()}"
        )
        with self._errors():
            row = connection.execute(ask.encode()).fetchone()
        if row is None:
            return None
        said = _SAID.search(str(row[1]))
        if said is None:
            return f"server process {row[0]}; who that is, this role may not see"
        return text_of(json.loads(said[1]))

    def _connect(self) -> psycopg.Connection[Any]:
        with self._errors():
            return psycopg.connect(
                self._place.dsn, autocommit=True, application_name=APPLICATION_NAME, **_CONNECTION
            )
        raise AssertionError("unreachable")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            failure: SlotlakeError = explain(error, self._place.dsn, "taking the pipeline's lock")
            raise LockUnreachableError(
                f"the pipeline's lock cannot be taken: {failure.what}",
                where=f"{self._place.key}: {failure.where}",
                way_out=failure.way_out,
            ) from None


def stay_alive(connection: psycopg.Connection[Any]) -> None:
    """Let a session live as long as its client's machine, and end within half a minute when that is gone.

    Raises:
        psycopg.Error: it was lost.
    """
    for setting in _SESSION:
        with suppress(psycopg.errors.UndefinedObject):  # of a later version
            connection.execute(setting.encode())


def lock_number(key: str) -> int:
    """Return the number of an advisory lock.

    Args:
        key: what no other lock has.
    """
    return int.from_bytes(hashlib.sha256(f"slotlake {key}".encode()).digest()[:8], signed=True)


def _description(step: str) -> str:
    return json.dumps(description(step)).replace("*/", "")


def _is_in_transaction(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE
