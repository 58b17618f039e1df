"""What a refusal of the server means and how to go on, by its SQLSTATE (manual, appendix A).

It serves the errors that `source` and `receive` do not recognize by other signs.  The error always quotes the
server's own message, which may be in any language; a SQLSTATE is the same in all.  Invariant: no way out says
to repeat a request that the server would refuse again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slotlake.decoder.errors import (
    LockedError,
    SourceError,
    SourceUnavailableError,
    UnreadableRowsError,
    UntranslatableError,
)

OLDEST_MAJOR = 14
_OLDEST_NUMBERED = 80000  # a lower number is not PostgreSQL's version, but that of a program in between


@dataclass(frozen=True)
class Refusal:
    """One meaning.

    Attributes:
        kind: the class of the error.
        what: stands before the server's message.
        way_out: what the user can do.
    """

    kind: type[SourceError]
    what: str
    way_out: str


_AGAIN = "then run the same command again: nothing unfinished was stored"
_LOST = Refusal(
    SourceUnavailableError,
    "the server ended the session",
    f"wait until the server accepts connections again (its log gives the reason), {_AGAIN}",
)
_STALE = Refusal(
    SourceError,
    "the source has no such table, column, schema, type or function any more",
    "if it was dropped or renamed during this run, the next run uses the source's catalog as it is then. If "
    "the server refuses again, the role may lack USAGE on the schema",
)
_CORRECT_BYTES = (
    "correct the value or the name that has the bytes of the server's message (or leave the value's column "
    "out, tables.<name>.columns). If a stream fails there again, its WAL has the old value for ever: drop "
    "the slot (SELECT pg_drop_replication_slot(…)); then `slotlake recover --yes` compares source and lake, "
    "and writes what differs"
)
_BY_STATE: dict[str, Refusal] = {
    "0A000": Refusal(
        SourceError,
        "this server does not support a feature that is needed",
        "docs/servers.md says which version supports it; use such a server, or the primary instead of a "
        "standby",
    ),
    "22021": Refusal(
        UntranslatableError,
        "the source has bytes that are not text in its encoding",
        _CORRECT_BYTES,
    ),
    "25006": Refusal(
        SourceError,
        "the source is read-only",
        "point source.dsn at the primary, or set default_transaction_read_only = off for the role",
    ),
    "3D000": Refusal(
        SourceError, "there is no such database on the source", "check the database's name in source.dsn"
    ),
    "40001": Refusal(
        SourceUnavailableError,
        "the server ended the statement because it conflicts with another transaction",
        "on a standby raise max_standby_streaming_delay, or set hot_standby_feedback = on; " + _AGAIN,
    ),
    "40P01": Refusal(
        SourceUnavailableError,
        "the server ended a deadlock with another session",
        f"wait for the other session (an ALTER TABLE, perhaps), {_AGAIN}",
    ),
    "42501": Refusal(
        SourceError,
        "the role lacks a privilege",
        "GRANT it (SELECT on every published table, USAGE on their schemas; a slot or a stream needs ALTER "
        "ROLE … REPLICATION), or use a role that has it",
    ),
    "53100": Refusal(
        SourceUnavailableError,
        "a disk of the server is full",
        "free space on it or enlarge it (see df on the server: pg_wal, the data directory, temporary "
        f"files), {_AGAIN}",
    ),
    "53200": Refusal(
        SourceUnavailableError,
        "the server is out of memory",
        "lower work_mem, logical_decoding_work_mem or max_connections on the server, or source.copy_workers "
        f"in the pipeline file, or give the server more memory; {_AGAIN}",
    ),
    "53300": Refusal(
        SourceUnavailableError,
        "the source has no free connection",
        f"raise max_connections or end sessions that are not needed, {_AGAIN}",
    ),
    "54000": Refusal(
        SourceError,
        "a row of the source is larger than the server can send (1 GB as text)",
        "leave the large column out (tables.<name>.columns), or make the value smaller",
    ),
    "55P03": Refusal(
        LockedError,
        "a table of the source is locked",
        f"end the transaction that holds the lock (see pg_locks, pg_prepared_xacts), {_AGAIN}",
    ),
    "57014": Refusal(
        SourceUnavailableError,
        "the server cancelled the statement",
        "slotlake sets no time limit: somebody cancelled the statement (pg_cancel_backend), or something "
        "at the server limits its time (statement_timeout, a pooler, a monitor): remove the limit for this "
        f"role, {_AGAIN}",
    ),
    "57P04": Refusal(
        SourceError,
        "the source's database was dropped",
        "restore it (then run `slotlake recover`), or point source.dsn at the database that replaces it",
    ),
    "58P01": Refusal(
        SourceError,
        "the server lacks one of its own files",
        "the server's log names the file; restore the server, or the table, from a backup, then run "
        "`slotlake recover`",
    ),
}
_LIMIT = Refusal(
    SourceUnavailableError,
    "a time limit of the server ended the transaction",
    "remove the limits for this role (ALTER ROLE … SET idle_in_transaction_session_timeout = 0, and the same "
    "for transaction_timeout), " + _AGAIN,
)
_BY_STATE |= dict.fromkeys(("25P03", "25P04"), _LIMIT)
_BY_STATE |= dict.fromkeys(("3F000", "42P01", "42703", "42704", "42883"), _STALE)
_BY_STATE |= dict.fromkeys(("22P05", "22P03"), _BY_STATE["22021"])
_BY_CLASS: dict[str, Refusal] = {
    "08": _LOST,
    "57": _LOST,
    "28": Refusal(
        SourceError,
        "the source does not accept the user or the password",
        "check user and password of source.dsn (env:NAME keeps them out of the file), and pg_hba.conf",
    ),
    "53": Refusal(
        SourceUnavailableError,
        "the server has reached a limit",
        f"raise the limit that the message names, or end what is not needed, {_AGAIN}",
    ),
    "58": Refusal(
        SourceUnavailableError,
        "the server cannot read or write its files",
        f"check the server's log and disks, {_AGAIN}",
    ),
    "XX": Refusal(
        SourceError,
        "the server failed",
        "the server's log of this moment says more. XX001 means damaged data, XX002 a damaged index "
        "(REINDEX, amcheck, a backup). A second run does not help while the server cannot read its data",
    ),
}


# While rows of one table are read: a value's type or text, a filter's division by zero, a damaged page.
_OF_ROWS = ("0A", "22", "54", "XX")
_ROWS = Refusal(
    UnreadableRowsError,
    "the server fails at a row",
    "the row is at fault: correct it at the source (for damaged data the server's log says more), or change "
    "the table's filter (tables.<name>.filter), or leave the column out (tables.<name>.columns)",
)


def meaning_of(state: str | None, *, rows: bool = False) -> Refusal:
    """What a refusal with this SQLSTATE means; ``rows``: it came while rows of one table were read."""
    refusal = _BY_STATE.get(state or "") or _BY_CLASS.get((state or "")[:2])
    if rows and state and state[:2] in _OF_ROWS:
        named = state in _BY_STATE and state[:2] != "0A"
        return replace(_ROWS, way_out=_BY_STATE[state].way_out) if named else _ROWS
    if refusal is not None:
        return refusal
    sqlstate_text = f"SQLSTATE {state}" if state else "no SQLSTATE"
    return Refusal(
        SourceError,
        "PostgreSQL refused",
        f"the message above is the server's ({sqlstate_text}); the server's log of this moment shows the "
        "statement. The server refuses it until the cause is gone",
    )


def require_supported_version(server_version: int, where: str) -> None:
    """Check that a server is not older than the oldest that can be read.

    Raises:
        SourceError: the server is older.
    """
    if _OLDEST_NUMBERED <= server_version < OLDEST_MAJOR * 10000:
        version = f"{server_version // 10000}.{server_version % 10000}"
        raise SourceError(
            f"the source is PostgreSQL {version}; slotlake reads {OLDEST_MAJOR} and later",
            where=where,
            way_out="upgrade the server (pg_upgrade), or read from a server of a later version that "
            "replicates it (logical replication)",
        )
