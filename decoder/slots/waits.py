"""The time limit for the creation of a slot, and the transactions for which it waits.

A slot starts at a moment at which every transaction that was open before has ended (snapbuild.c,
SnapBuildWaitSnapshot), so one forgotten session can delay it for ever.  Invariant: the command is
cancelled after its time, and the error names the transactions.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import psycopg

from slotlake.decoder.errors import SlotError, SourceError
from slotlake.decoder.server.source import SourceSettings, redact, source_session


def slot_wait_error(name: str, seconds: float, limit: TimeLimit, source: SourceSettings) -> SlotError:
    """The error for a slot that was not created within its time."""
    by = "transactions that are still open: "
    by += "; ".join(limit.holders or []) or "one that this role may not see"
    way_out = (
        "wait until they end (or end them: pg_terminate_backend(pid), ROLLBACK PREPARED 'gid'), then run the "
        "same command again, or allow a longer wait"
    )
    if limit.standby:  # a standby knows the transactions only from the WAL of the primary
        by = "the primary to log its running transactions, and for these to end"
        way_out = "run SELECT pg_log_standby_snapshot() on the primary while this command waits"
    error = SlotError(
        f"the creation of slot {name!r} waited {seconds:g} s for {by}",
        where=redact(source.dsn),
        way_out=way_out,
    )
    error.retryable = True  # type: ignore[misc]  # unlike other SlotErrors, this one can pass by itself
    return error


class TimeLimit:
    """The transactions for which a cancelled command waited; None while it is not cancelled."""

    holders: list[str] | None = None
    standby = False


@contextmanager
def time_limit(
    connection: psycopg.Connection[Any], source: SourceSettings, seconds: float
) -> Iterator[TimeLimit]:
    """Cancel the connection's command after some time, and note first for which transactions it waits."""
    limit = TimeLimit()

    def cancel() -> None:
        with suppress(psycopg.Error):  # the connection is lost, so the command fails by itself
            try:
                limit.standby, limit.holders = _holders(source, connection.info.backend_pid)
            except SourceError:
                limit.holders = []
            connection.cancel_safe()

    timer = threading.Timer(seconds, cancel)
    timer.daemon = True
    timer.start()
    try:
        yield limit
    finally:
        timer.cancel()
        timer.join()


_HOLDERS = """
SELECT format('pid %%s (user %%s, application %%s, database %%s, %%s, transaction open for %%s s)',
              pid, usename, coalesce(nullif(application_name, ''), 'unnamed'), datname, state,
              round(extract(epoch FROM clock_timestamp() - xact_start)))
FROM pg_stat_activity
WHERE pid <> %(pid)s AND pid <> pg_backend_pid()
  AND (pid = ANY (pg_blocking_pids(%(pid)s))
       OR backend_xid IS NOT NULL
          AND xact_start < (SELECT query_start FROM pg_stat_activity WHERE pid = %(pid)s))
UNION ALL
SELECT format('prepared transaction %%L (owner %%s, database %%s, open for %%s s)', gid, owner, database,
              round(extract(epoch FROM clock_timestamp() - prepared)))
FROM pg_prepared_xacts
WHERE prepared < (SELECT query_start FROM pg_stat_activity WHERE pid = %(pid)s)
"""


def _holders(source: SourceSettings, pid: int) -> tuple[bool, list[str]]:
    with source_session(source.dsn) as connection:
        row = connection.execute("SELECT pg_is_in_recovery()").fetchone()
        holders = [str(row[0]) for row in connection.execute(_HOLDERS, {"pid": pid}).fetchall()]
        return row == (True,), holders
