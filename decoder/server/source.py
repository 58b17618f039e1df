"""Connections to the source; each way in which one can fail becomes one clear error.

Statements may take long, but none waits for ever (waiting.py).

Owns: how a connection string becomes a session with the settings of session_settings.py, and the server's
identity.

Invariant: no message, exception chain or process title made here contains a password.  A place is
shown by :func:`redact`, which prints host, port, database and user and nothing else; libpq's own
messages go through :func:`_without_secrets`.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from slotlake.decoder.errors import SourceError, SourceUnavailableError
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.server.libpq import message_and_state
from slotlake.decoder.server.refusals import meaning_of, require_supported_version
from slotlake.decoder.server.refusals_by_words import CHECK_REACH, PATTERNS
from slotlake.decoder.server.reuse import left, taken_up
from slotlake.decoder.server.services import GIVE_REPLICATION, SET_LOGICAL, advised
from slotlake.decoder.server.session_settings import (
    LOCK_SECONDS_MAX,
    startup_options,
    take_settings,
)
from slotlake.decoder.server.short_lived import password_part
from slotlake.decoder.server.waiting import WatchedConnection

APPLICATION_NAME = "slotlake"
CONNECT_TIMEOUT_SECONDS = 10
Streaming = Literal["off", "on", "parallel"]
Origin = Literal["any", "none"]
# With wal_level = 'replica' the server writes what logical decoding needs while there is a logical slot.
_FIRST_WITH_LOGICAL_AT_NEED = 190000
_SHOWN_PARTS = ("host", "hostaddr", "port", "dbname", "user")
_SECRET = ("password", "sslpassword", "oauth_client_secret")


@dataclass(frozen=True)
class SourceSettings:
    """What is read from a source, and how (section ``source`` of the pipeline file).

    Attributes:
        proto_version, streaming: None means the most that the server supports (see options.py).
        plugin: the slot's output plugin.
        bulk: a backlog may be read through SQL (see bulk.py).
        failover: standbys keep the slot. None: if the server supports it (see failover.py).
    """

    dsn: str
    publications: tuple[str, ...]
    slot: str
    proto_version: int | None = None
    streaming: Streaming | None = None
    two_phase: bool = False
    binary: bool = False
    messages: bool = False
    origin: Origin = "any"
    plugin: str = "pgoutput"
    bulk: bool = True
    failover: bool | None = None

    def __repr__(self) -> str:
        return f"SourceSettings({redact(self.dsn)}, slot={self.slot!r}, publications={self.publications!r})"


@dataclass(frozen=True)
class ServerIdentity:
    """Which server, which timeline of it, and which database."""

    system_identifier: str
    timeline: int
    database: str
    server_version: int  # as libpq gives it: 180004
    wal_level: str
    position: int  # the server's flushed WAL position at the moment of asking

    @property
    def version_text(self) -> str:
        return f"{self.server_version // 10000}.{self.server_version % 10000}"


def redact(dsn: str) -> str:
    """The place that a connection string names, without any secret: ``host=… port=… dbname=… user=…``."""
    try:
        parts = _parse(dsn)
    except SourceError:
        return "(a connection string that cannot be read)"
    return (
        " ".join(f"{name}={parts[name]}" for name in _SHOWN_PARTS if parts.get(name)) or "(libpq's defaults)"
    )


def connect(dsn: str) -> WatchedConnection:
    """Open an ordinary session, in autocommit, with our settings.

    It waits for no lock longer than `session_settings.LOCK_SECONDS_MAX`.

    Raises:
        SourceUnavailableError: the server cannot be reached now.
        SourceError: the server refuses, a pooler is in between, or the connection string is wrong.
    """
    return _open(dsn, {}, LOCK_SECONDS_MAX)


def connect_replication(dsn: str) -> WatchedConnection:
    """Open a session that also takes replication commands (``replication=database``).

    Raises:
        SourceUnavailableError: the server cannot be reached now.
        SourceError: the server refuses; also when the role may not use replication or no WAL sender is free.
    """
    try:
        return _open(dsn, {"replication": "database"}, 0.0)
    except SourceError as refused:
        if GIVE_REPLICATION in refused.way_out:
            with suppress(SourceError), closing(connect(dsn)) as connection:
                refused.way_out = advised(connection, refused.way_out)
        raise


async def connect_async(dsn: str) -> psycopg.AsyncConnection[Any]:
    """Open an ordinary session, in autocommit, for a program with an event loop, which it does not block.

    Raises:
        SourceUnavailableError: the server cannot be reached now.
        SourceError: the server refuses, or the connection string is wrong.
    """
    password = await asyncio.to_thread(password_part, dsn)  # another program may give it out
    conninfo = make_conninfo("", **_session_parts(_parse(dsn) | password, LOCK_SECONDS_MAX))
    with source_errors(dsn):
        connection = await psycopg.AsyncConnection.connect(conninfo, autocommit=True)
        require_supported_version(connection.info.server_version, redact(dsn))
        return connection
    raise AssertionError("unreachable")


def as_stored(connection: psycopg.Connection[Any], *, always: bool = False) -> bool:
    """Make the server send text as it is stored, if the database has no encoding (SQL_ASCII); true if so.

    Otherwise such a server would check that text is UTF-8 and fail at the first text that is not, without
    naming its table.  The reader here can name it.  (From now on psycopg returns text as bytes.)

    Args:
        always: do so also for a database that has an encoding.
    """
    if not always and connection.info.parameter_status("server_encoding") != "SQL_ASCII":
        return False
    connection.execute("SET client_encoding = 'SQL_ASCII'")
    return True


def stored_texts(connection: psycopg.Connection[Any], texts: Sequence[str]) -> list[bytes]:
    """Texts as the database stores them: after `as_stored`, the server does not translate what we send."""
    one = sql.SQL("convert_to({}, getdatabaseencoding())")
    asked = sql.SQL("SELECT {}").format(sql.SQL(", ").join(one.format(sql.Literal(text)) for text in texts))
    row = connection.execute(asked).fetchone()  # without parameters: a replication connection takes none
    assert row is not None
    return [bytes(each) for each in row]


def identify(dsn: str) -> ServerIdentity:
    """Ask the server for its identity (IDENTIFY_SYSTEM, protocol manual section 54.4).

    Raises:
        SourceError: as :func:`connect_replication`, or when ``wal_level`` allows no logical decoding.
    """
    with source_session(dsn, replication=True) as connection:
        return identity_of(connection, dsn)
    raise AssertionError("unreachable")


def identity_of(connection: psycopg.Connection[Any], dsn: str) -> ServerIdentity:
    """:func:`identify` over a replication connection that is open already.

    Raises:
        SourceError: wal_level is too low for logical decoding.
    """
    row = connection.execute("IDENTIFY_SYSTEM").fetchone()
    level = connection.execute("SHOW wal_level").fetchone()
    assert row is not None
    assert level is not None
    version = connection.pgconn.server_version
    if level[0] not in ({"logical", "replica"} if version >= _FIRST_WITH_LOGICAL_AT_NEED else {"logical"}):
        raise SourceError(
            f"the server's wal_level is {level[0]!r}; logical decoding needs 'logical'",
            where=redact(dsn),
            way_out=advised(connection, SET_LOGICAL),
        )
    return ServerIdentity(
        system_identifier=str(row[0]),
        timeline=int(row[1]),
        database=str(row[3]),
        server_version=version,
        wal_level=str(level[0]),
        position=parse_lsn(str(row[2])),
    )


class source_errors:  # noqa: N801 - used as a function: `with source_errors(…):`
    """Turn an error of psycopg inside the block into a SourceError, without the chain, which has the dsn.

    Args:
        doing: what the block does, for the message: ``reading the publications``.
    """

    def __init__(self, dsn: str, doing: str = "") -> None:
        self._dsn, self._doing = dsn, doing

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not isinstance(error, psycopg.Error):
            return
        failure = explain(error, self._dsn, self._doing)
        try:
            raise failure from None
        finally:
            failure.__context__ = None


class source_session:  # noqa: N801 - used as a function: `with source_session(…):`
    """A session at the source that ends with its block, or goes on (reuse.py); errors are SourceErrors.

    Args:
        doing: what the block does, for the message: ``reading the publications``.
        replication: one as `connect_replication`; else an ordinary one, as `connect`.
    """

    def __init__(self, dsn: str, doing: str = "", *, replication: bool = False) -> None:
        self._dsn, self._errors, self._kind = dsn, source_errors(dsn, doing), (dsn, replication)

    def __enter__(self) -> WatchedConnection:
        open_new = connect_replication if self._kind[1] else connect
        self._connection = taken_up(self._kind) or open_new(self._dsn)
        return self._connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and left(self._kind, self._connection):
            return
        with self._connection:  # rolls back and closes if what follows raises
            self._errors.__exit__(kind, error, trace)
            if error is not None:
                self._connection.close()


def explain(error: psycopg.Error, dsn: str, doing: str = "", *, rows: bool = False) -> SourceError:
    """Return the SourceError for what libpq or the server said.

    Args:
        dsn: the connection string, whose secrets are removed from the message.
        doing: what slotlake did at that time, as "copying a table".
        rows: rows of one table were being read, so a value may be at fault.
    """
    text, state = message_and_state(error)
    message = _without_secrets(text, dsn)
    where = redact(dsn)
    for pattern, kind, what, way_out in PATTERNS:
        if pattern.search(message):
            return kind(f"{what}: {message}" if what else message, where=where, way_out=way_out)
    if isinstance(error, psycopg.OperationalError) and not state:
        return SourceUnavailableError(
            f"the connection to PostgreSQL failed: {message}", where=where, way_out=CHECK_REACH
        )
    meaning = meaning_of(state or None, rows=rows)
    action = f" while {doing}" if doing else ""
    return meaning.kind(f"{meaning.what}{action}: {message}", where=where, way_out=meaning.way_out)


def _open(dsn: str, extra: dict[str, str], lock_seconds_max: float) -> WatchedConnection:
    parts = _session_parts(_parse(dsn) | password_part(dsn), lock_seconds_max)
    conninfo = make_conninfo("", **(parts | extra))
    with source_errors(dsn):
        connection = WatchedConnection.connect(conninfo, autocommit=True)
        connection.dsn, connection.conninfo, connection.where = dsn, conninfo, redact(dsn)
        if "replication" in extra:
            connection.prepare_threshold = None  # such a session takes no prepared statement
        try:
            require_supported_version(connection.info.server_version, connection.where)
            take_settings(connection, connection.where, lock_seconds_max=lock_seconds_max)
        except BaseException:
            connection.close()
            raise
        return connection
    raise AssertionError("unreachable")


def _session_parts(parts: dict[str, Any], lock_seconds_max: float) -> dict[str, Any]:
    settings = startup_options(lock_seconds_max=lock_seconds_max)
    defaults = {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "keepalives": 1,
        "keepalives_idle": 30,
        "keepalives_interval": 10,
        "keepalives_count": 6,
        # Keepalives do not run while something sent has not been acknowledged.
        "tcp_user_timeout": 90_000,
    }
    fixed = {
        "application_name": APPLICATION_NAME,
        "client_encoding": "UTF8",
        # Our settings come last: source and lake are compared by texts that must be the same on every server.
        "options": f"{parts.get('options', '')} {settings}".strip(),
    }
    return defaults | parts | fixed


def _parse(dsn: str) -> dict[str, Any]:
    try:
        parts = dict(conninfo_to_dict(dsn))
    except psycopg.Error:
        raise _unreadable() from None  # libpq's message may quote a piece of the password
    ports = str(parts.get("port") or "5432").split(",")
    hosts = str(parts.get("host") or "")
    if not all(port.isdigit() for port in ports) or "@" in hosts or ("/" in hosts and hosts[0] != "/"):
        raise _unreadable()
    return parts


def _unreadable() -> SourceError:
    return SourceError(
        "source.dsn is not a connection string that PostgreSQL understands",
        where="source.dsn (not shown: it may contain a password)",
        way_out="write postgresql://user@host:5432/database; in a password write @ : / % as %40 %3A %2F %25",
    )


def _without_secrets(message: str, dsn: str) -> str:
    try:
        parts = conninfo_to_dict(dsn)
    except psycopg.Error:
        return "(message not shown: the connection string cannot be read)"
    for name in _SECRET:
        secret = str(parts.get(name) or "")
        if secret:
            # Only as a whole word, so that the password "a" does not replace every "a" of the message.
            message = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", "***", message)
    lines = [" ".join(line.split()) for line in message.splitlines()]
    return "; ".join(line for line in lines if line)
