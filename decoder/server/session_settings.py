"""What every session at the source depends on, whatever is set for its role, its database or its server.

Texts of values are compared and are keys, so each session prints and reads them alike; and none may end by a
time that was meant for an application.  Given when the session begins, they come before what ALTER ROLE and
ALTER DATABASE say.  Invariant: no session is used that did not take them (`take_settings`).

``lc_monetary`` is C, as the plugins print money.  ``search_path`` is PostgreSQL's own default: it decides how
regclass and its like are printed, and what a condition's names mean.
"""

from __future__ import annotations

from typing import Any

import psycopg

from slotlake.decoder.errors import SourceError

# An ordinary statement waits for no lock longer: all others wait with it, and a table that is locked for
# longer is copied by a later run.
LOCK_SECONDS_MAX = 10.0
LOCKED_WAY_OUT = (
    "an open transaction holds it (ALTER TABLE, LOCK TABLE), perhaps a prepared one: end it (pg_locks, "
    "pg_prepared_xacts), then run the same command again"
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
    # What our own SQL means.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "row_security": "on",
    "default_transaction_isolation": "read committed",
    "default_transaction_read_only": "off",
    "default_transaction_deferrable": "off",
    # What the stream leaves out, it says in a warning; see receive.py.
    "client_min_messages": "warning",
    # A copy, a snapshot and a stream take as long as they take; an interrupted one leaves nothing that waits,
    # because the connection's own watch (keepalives, silence.py) ends it.
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
    "lead source.dsn to the PostgreSQL server itself, with its own host and port: a slot is read over a "
    "replication connection, and a snapshot is held by a session; "
    "each needs a server connection for itself"
)


def startup_options(*, lock_seconds_max: float) -> str:
    """For the connection's ``options``; of a setting that is given twice, the last counts."""
    settings = _settings(lock_seconds_max)
    return " ".join(f"-c {name}={value.replace(' ', chr(92) + ' ')}" for name, value in settings.items())


def take_settings(connection: psycopg.Connection[Any], where: str, *, lock_seconds_max: float) -> None:
    """See that the session took what it was given, and give it what only some versions know.

    Args:
        where: the server, for the error.
        lock_seconds_max: how long a statement waits for a lock.

    Raises:
        SourceError: it did not, because something in between shares sessions among clients.
    """
    since_17 = connection.info.server_version >= _FIRST_WITH_TRANSACTION_TIMEOUT
    row = connection.execute((_TAKEN + (_NO_TRANSACTION_TIMEOUT if since_17 else "")).encode()).fetchone()
    if row is not None and row[0] == "on":
        return
    if row is None or row[1] != connection.info.backend_pid:
        what = POOLER.format("it does not pass on the settings of a session")
        raise SourceError(what, where=where, way_out=POOLER_WAY_OUT)
    for name, value in _settings(lock_seconds_max).items():  # a proxy that leaves them out
        command = f"SELECT pg_catalog.set_config({_literal(name)}, {_literal(value)}, false)"
        connection.execute(command.encode())


def _settings(lock_seconds_max: float) -> dict[str, str]:
    return {**_SETTINGS, "lock_timeout": str(int(lock_seconds_max * 1000))}


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
