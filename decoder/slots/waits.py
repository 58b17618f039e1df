"""Who holds up the making of a slot, and for how long that is borne.

A slot starts from a moment at which every transaction that was open before has ended (snapbuild.c,
SnapBuildWaitSnapshot), so one forgotten session can hold it up for ever.  Invariant: the command is
cancelled after its time, and the error names what it waited for.
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
    """Make the error for a slot that was not made within its time.

    Args:
        name: of the slot.
        seconds: how long was waited.
        limit: who held it up.
    """
    by = "transactions that are still open: "
    by += "; ".join(limit.holders or []) or "one that this role may not see"
    way_out = (
        "let them end (or end them: pg_terminate_backend(pid), ROLLBACK PREPARED 'gid'), then run the same "
        "command again, or allow a longer wait"
    )
    if limit.standby:  # it learns of transactions only from what the primary logs of them
        by = "the primary to log which transactions run, and for those to end"
        way_out = "run SELECT pg_log_standby_snapshot() on the primary while this command waits"
    error = SlotError(
        f"making slot {name!r} waited {seconds:g} s for {by}",
        where=redact(source.dsn),
        way_out=way_out,
    )
    error.retryable = True  # type: ignore[misc]  # this one alone of its class passes by itself
    return error


class TimeLimit:
    """Who held the command up, once it has been cancelled; None while it has not."""

    holders: list[str] | None = None
    standby = False


@contextmanager
def time_limit(
    connection: psycopg.Connection[Any], source: SourceSettings, seconds: float
) -> Iterator[TimeLimit]:
    """Cancel what runs on the connection after some time, having first noted who holds it up.

    Args:
        connection: whose command is cancelled.
        source: where to ask who holds it up.
        seconds: the limit.
    """
    limit = TimeLimit()

    def cancel() -> None:
        with suppress(psycopg.Error):  # what is lost needs no cancelling, and the command fails by itself
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
