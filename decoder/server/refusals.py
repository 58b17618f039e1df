"""What a refusal of the server means and how to go on, by its SQLSTATE (manual, appendix A).

For whatever `source` and `receive` do not know by other signs.  The server's own words always go with it;
they may be in any language, a SQLSTATE is in none.  Invariant: no way out tells to repeat what would be
refused again.
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
_OLDEST_NUMBERED = 80000  # what is below is no version of PostgreSQL, but of something between


@dataclass(frozen=True)
class Refusal:
    """One meaning.

    Attributes:
        kind: the class of the error.
        what: goes before the server's words.
        way_out: what the user can do.
    """

    kind: type[SourceError]
    what: str
    way_out: str


_AGAIN = "then run the same command again: nothing of what was unfinished was kept"
_LOST = Refusal(
    SourceUnavailableError,
    "the server ended the session",
    f"wait until it serves again (its log says why it did), {_AGAIN}",
)
_STALE = Refusal(
    SourceError,
    "the source has no such thing any more",
    "if a table, column or schema was dropped or renamed meanwhile, the next run sees the source as it "
    "is; if the "
    "same refusal comes again, the role may lack USAGE on the schema",
)
_CORRECT_BYTES = (
    "correct what the server points at: a value (or leave its column out, tables.<name>.columns), or a name. "
    "If a stream ends there again, its changes hold it for ever: drop the slot "
    "(SELECT pg_drop_replication_slot(…)), then `slotlake recover --yes` compares, and writes what differs"
)
_BY_STATE: dict[str, Refusal] = {
    "0A000": Refusal(
        SourceError,
        "this server cannot do what is needed",
        "docs/servers.md says which version can; another server (the primary instead of a standby) may",
    ),
    "22021": Refusal(
        UntranslatableError,
        "the source holds bytes that are no text in its encoding",
        _CORRECT_BYTES,
    ),
    "25006": Refusal(
        SourceError,
        "the source takes no writes",
        "point source.dsn at the primary, or set default_transaction_read_only = off for the role",
    ),
    "3D000": Refusal(
        SourceError, "there is no such database on the source", "check the database's name in source.dsn"
    ),
    "40001": Refusal(
        SourceUnavailableError,
        "the server gave the statement up in favour of another",
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
        f"free or enlarge it (df on the server; pg_wal, the data directory, its temporary files), {_AGAIN}",
    ),
    "53200": Refusal(
        SourceUnavailableError,
        "the server is out of memory",
        "lower work_mem, logical_decoding_work_mem or max_connections there, source.copy_workers here, "
        "or give "
        f"the server more memory; {_AGAIN}",
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
        f"end the transaction that holds it (pg_locks, pg_prepared_xacts), {_AGAIN}",
    ),
    "57014": Refusal(
        SourceUnavailableError,
        "the server cancelled the statement",
        "no time limit is set by slotlake: somebody cancelled it (pg_cancel_backend), or a time limit is "
        "enforced "
        f"there (statement_timeout, a pooler, a watchdog): lift it for this role, {_AGAIN}",
    ),
    "57P04": Refusal(
        SourceError,
        "the source's database was dropped",
        "restore it (then `slotlake recover`), or point source.dsn at the one that took its place",
    ),
    "58P01": Refusal(
        SourceError,
        "the server misses a file of its own",
        "its log names it; restore the server, or the table, from a backup, then `slotlake recover`",
    ),
}
_LIMIT = Refusal(
    SourceUnavailableError,
    "a time limit of the server ended the transaction",
    "set it to 0 for this role (ALTER ROLE … SET idle_in_transaction_session_timeout = 0, "
    "transaction_timeout = 0), " + _AGAIN,
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
        f"raise the limit that it names, or free what is not needed, {_AGAIN}",
    ),
    "58": Refusal(
        SourceUnavailableError,
        "the server cannot read or write its files",
        f"look at its log and its disks, {_AGAIN}",
    ),
    "XX": Refusal(
        SourceError,
        "the server failed",
        "its log at this moment says more; XX001 and XX002 are damaged data or a damaged index (REINDEX, "
        "amcheck, a "
        "backup). What the server cannot read, no second run can",
    ),
}


# Where rows of one table are read: a value's type or text, a filter's division by zero, a damaged page.
_OF_ROWS = ("0A", "22", "54", "XX")
_ROWS = Refusal(
    UnreadableRowsError,
    "the server fails at a row",
    "the row is at fault: correct it at the source (of damaged data its log says more), or change the "
    "table's filter, or leave the column out (tables.<name>.filter, .columns)",
)


def meaning_of(state: str | None, *, rows: bool = False) -> Refusal:
    """What a refusal with this SQLSTATE means; ``rows``: where rows of one table are read."""
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
        f"the same will be refused until its cause is gone: the words above are the server's "
        f"({sqlstate_text}), its log at this moment shows the statement",
    )


def require_supported_version(server_version: int, where: str) -> None:
    """Check that a server is not older than the oldest that can be read.

    Raises:
        SourceError: it is.
    """
    if _OLDEST_NUMBERED <= server_version < OLDEST_MAJOR * 10000:
        version = f"{server_version // 10000}.{server_version % 10000}"
        raise SourceError(
            f"the source is PostgreSQL {version}; slotlake reads {OLDEST_MAJOR} and later",
            where=where,
            way_out="upgrade the server (pg_upgrade), or read a copy of it on a later version "
            "(logical replication)",
        )
