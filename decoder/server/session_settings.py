"""The settings of every session at the source, whatever is set for its role, its database or its server.

Texts of values are compared and serve as keys, so each session must print and read them in the same way; and
no session may end by a time limit that is meant for an application.  The settings are given when the session
begins, so they have priority over ALTER ROLE and ALTER DATABASE.  Invariant: only a session that took the
settings is used (`take_settings`).

``lc_monetary`` is C, as in the plugins' output of money.  ``search_path`` is PostgreSQL's own default: it
decides how regclass and similar types are printed, and what the names in a condition mean.
"""

from __future__ import annotations

from typing import Any

import psycopg

from slotlake.decoder.errors import SourceError

# No ordinary statement waits longer for a lock, because all other tables wait with it.  A later run copies a
# table that is locked for longer.
LOCK_SECONDS_MAX = 10.0
LOCKED_WAY_OUT = (
    "an open transaction, perhaps a prepared one, holds the lock (ALTER TABLE, LOCK TABLE): end it (see "
    "pg_locks, pg_prepared_xacts), then run the same command again"
)
_MARKER = "slotlake.session"
_SETTINGS = {
    # How values are printed.
    "DateStyle": "ISO,MDY",
    "IntervalStyle": "postgres",
    "extra_float_digits": "1",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "lc_monetary": "C",
    "search_path": '"$user",public',
    "quote_all_identifiers": "off",
    # How our own SQL is understood.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "row_security": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # The server reports in a warning what it leaves out of the stream; see receive.py.
    "client_min_messages": "warning",
    # A copy, a snapshot and a stream have no time limit.  An interrupted one leaves no waiting session,
    # because the connection's own checks (keepalives, silence.py) end it.
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    _MARKER: "on",
}
_FIRST_WITH_TRANSACTION_TIMEOUT = 170000
_TAKEN = f"SELECT pg_catalog.current_setting('{_MARKER}', true), pg_catalog.pg_backend_pid()"
_NO_TRANSACTION_TIMEOUT = ", pg_catalog.set_config('transaction_timeout', '0', false)"
POOLER = "source.dsn leads to a connection pooler (PgBouncer or its like): {}"
POOLER_WAY_OUT = (
    "point source.dsn at the PostgreSQL server itself, with its own host and port: reading a slot needs a "
    "replication connection, and a snapshot needs a session; each needs a server connection of its own"
)


def startup_options(*, lock_seconds_max: float) -> str:
    """The text for the connection's ``options``; if a setting is given twice, the last one counts."""
    settings = _settings(lock_seconds_max)
    return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items())


def take_settings(connection: psycopg.Connection[Any], where: str, *, lock_seconds_max: float) -> None:
    """Check that the session took its settings, and set those that only some versions know.

    Args:
        lock_seconds_max: how long a statement waits for a lock.

    Raises:
        SourceError: it did not, because a program in between shares sessions among clients.
    """
    since_17 = connection.info.server_version >= _FIRST_WITH_TRANSACTION_TIMEOUT
    row = connection.execute((_TAKEN + (_NO_TRANSACTION_TIMEOUT if since_17 else "")).encode()).fetchone()
    if row is not None and row[0] == "on":
        return
    if row is None or row[1] != connection.info.backend_pid:
        what = POOLER.format("it does not forward the settings of a session")
        raise SourceError(what, where=where, way_out=POOLER_WAY_OUT)
    for name, value in _settings(lock_seconds_max).items():  # a proxy removed them
        command = f"SELECT pg_catalog.set_config({_literal(name)}, {_literal(value)}, false)"
        connection.execute(command.encode())


def _settings(lock_seconds_max: float) -> dict[str, str]:
    return {**_SETTINGS, "lock_timeout": str(int(lock_seconds_max * 1000))}


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
