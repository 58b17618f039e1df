"""Waiting for a server's answer, but not for an answer that cannot come.

A connection can die without notice (see silence.py).  Behind a proxy TCP does not notice it, because the
proxy's machine still acknowledges.  On the other hand a statement may take long and send nothing: it waits
for a lock, or counts a large table.  So, when nothing has come for `silence.LIMIT_SECONDS`, slotlake asks the
server over a separate connection whether the session is still at work (pg_stat_activity), and again after
each such time.

Invariant: the wait ends without an answer only if the server cannot be asked either, or if it says that the
session is gone or idle, so that its answer was lost on the way.
"""

from __future__ import annotations

import select
import time
from contextlib import closing

import psycopg
from psycopg import pq
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from slotlake.decoder.errors import SlotlakeError, SourceUnavailableError
from slotlake.decoder.server import silence
from slotlake.decoder.server.libpq import StatingConnection, message_and_state
from slotlake.decoder.server.short_lived import password_part

ASK_SECONDS = 10.0
_LATE_SECONDS = 1.0
_INTERVAL_SECONDS = 0.1
_SESSION = """
SELECT pg_catalog.pg_backend_pid(), a.state, a.wait_event
FROM (SELECT) AS one LEFT JOIN pg_catalog.pg_stat_activity a ON a.pid = %s
"""


def readable(pgconn: pq.abc.PGconn, seconds: float) -> bool:
    """Wait until something has come from the server, for at most so long.

    It uses poll, because select does not accept a descriptor above 1023.

    Raises:
        psycopg.OperationalError: the connection is lost.
    """
    watch = select.poll()
    watch.register(pgconn.socket, select.POLLIN)
    return bool(watch.poll(max(0.0, seconds) * 1000))


def no_answer(where: str, seconds: float) -> SourceUnavailableError:
    """The error for a server that sends nothing any more."""
    return SourceUnavailableError(
        f"the server has not answered for {round(seconds, 1):g} s, not even to a request for a reply",
        where=where,
        way_out="check the network between this machine and the source, and the server's load; then run the "
        "same command again: nothing of the unfinished batch was stored",
    )


class Patience:
    """Watches one wait on a connection."""

    def __init__(self, connection: WatchedConnection) -> None:
        self._connection = connection
        self._since = self._asked = time.monotonic()

    def heard(self) -> None:
        """Note that something has come."""
        self._since = self._asked = time.monotonic()

    def nothing(self) -> None:
        """Note that nothing has come so far.

        Raises:
            SourceUnavailableError: nothing will come any more; the connection is closed.
        """
        now = time.monotonic()
        if now - self._asked < silence.LIMIT_SECONDS:
            return
        connection = self._connection
        if not _at_work(connection) and not readable(connection.pgconn, _LATE_SECONDS):
            connection.close()
            raise no_answer(connection.where, now - self._since)
        self._asked = time.monotonic()


class WatchedConnection(StatingConnection):
    """A session that waits for each of its statements with `Patience`.

    Attributes:
        dsn: the connection string that was given, without a short-lived password.
        where: the place, without secrets.
    """

    dsn = ""
    conninfo = ""
    where = ""

    def wait(self, gen: PQGen[RV], interval: float = _INTERVAL_SECONDS, timeout: float | None = None) -> RV:
        """Wait as psycopg does, and watch: psycopg sends READY_NONE when nothing came in an interval.

        Args:
            interval: seconds between two looks.
            timeout: seconds in all; None: no limit.
        """
        return super().wait(self._watched(gen), interval, timeout)

    def _watched(self, gen: PQGen[RV]) -> PQGen[RV]:
        patience, ready = Patience(self), None
        while True:
            try:
                interest = next(gen) if ready is None else gen.send(ready)
            except StopIteration as end:
                result: RV = end.value
                return result
            ready = yield interest
            if ready:
                patience.heard()
            else:
                patience.nothing()


class _Asking(StatingConnection):
    """A connection whose answers must come within a fixed time."""

    def wait(self, gen: PQGen[RV], interval: float = _INTERVAL_SECONDS, timeout: float | None = None) -> RV:
        return super().wait(gen, interval, ASK_SECONDS if timeout is None else timeout)


def _at_work(connection: WatchedConnection) -> bool:
    """True if the server answers and the session is at work, or if this cannot be known."""
    try:
        info = connection.info
        with closing(_Asking.connect(same_server(connection), autocommit=True)) as asking:
            row = asking.execute(_SESSION, (info.backend_pid,)).fetchone()
            pooled = row is None or row[0] != asking.info.backend_pid
    except psycopg.Error as error:
        # A server that refuses (no connection is free, it is starting) can be reached.
        return bool(message_and_state(error)[1])
    except SlotlakeError:
        return True  # nobody gives a password now
    if pooled or row is None:
        return True  # there is a pooler: its process ids are not the server's
    state, waits_for = row[1], row[2]
    return state in ("active", "disabled") and waits_for != "ClientWrite"


def same_server(connection: WatchedConnection) -> str:
    """The connection string of an ordinary session on the same server, if the DSN names several too."""
    parts = conninfo_to_dict(connection.conninfo)
    info = connection.info
    if "," in str(parts.get("host", "")) + str(parts.get("hostaddr", "")):
        parts |= {"host": info.host or None, "port": info.port, "hostaddr": None}
    # This connection may be hours old; its password may have been good for minutes.
    return make_conninfo("", **(parts | {"replication": None} | password_part(connection.dsn)))
