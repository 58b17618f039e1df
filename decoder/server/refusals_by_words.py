"""Refusals that are recognized by the words of their message.

These are libpq's own messages about a connection, and messages of a server in English that say more than
their SQLSTATE.  Invariant: a narrower pattern stands before a wider one.  For a server with translated
messages the SQLSTATE alone decides (refusals.py).
"""

from __future__ import annotations

import re

from slotlake.decoder.errors import LockedError, SourceError, SourceUnavailableError
from slotlake.decoder.server.services import GIVE_REPLICATION, RESTART, SET_LOGICAL
from slotlake.decoder.server.session_settings import LOCKED_WAY_OUT, POOLER, POOLER_WAY_OUT

CHECK_REACH = "check that the server runs and that this machine can reach it, then run the same command again"


def _pattern(
    pattern: str, kind: type[SourceError], what: str, way_out: str
) -> tuple[re.Pattern[str], type[SourceError], str, str]:
    return re.compile(pattern, re.IGNORECASE), kind, what, way_out


# The first match wins.
PATTERNS = (
    _pattern(
        r"unsupported startup parameter",  # PgBouncer's own words
        SourceError,
        POOLER.format("it forwards neither replication connections nor a session's settings"),
        POOLER_WAY_OUT,
    ),
    _pattern(
        r"canceling statement due to lock timeout",
        LockedError,
        "a table of the source is locked",
        LOCKED_WAY_OUT,
    ),
    _pattern(
        r"failed to resolve host|could not translate host name",
        SourceUnavailableError,
        "the source's host name cannot be resolved",
        "check the host in source.dsn and this machine's DNS",
    ),
    _pattern(
        r"connection refused|timeout expired|connection timeout|no route to host|network is unreachable"
        r"|\.s\.PGSQL\.\d+. failed|server closed the connection unexpectedly|connection reset",
        SourceUnavailableError,
        "the source cannot be reached",
        CHECK_REACH,
    ),
    _pattern(
        r"No space left on device|disk is full|Disk quota exceeded",
        SourceUnavailableError,
        "a disk of the server is full",
        "free space on it or enlarge it (see df on the server: pg_wal, the data directory, temporary files), "
        "then run the same command again: nothing of an unfinished batch was stored",
    ),
    _pattern(
        r"the database system is (starting up|shutting down|in recovery mode|not yet accepting)"
        r"|terminating connection (due to (administrator command|immediate shutdown)|because of crash)",
        SourceUnavailableError,
        "the source does not accept connections now",
        "wait until it accepts connections, then run the same command again",
    ),
    _pattern(
        r"password authentication failed|no password supplied|PAM authentication failed"
        r"|LDAP authentication failed|wrong password",
        SourceError,
        "the source does not accept the user or the password",
        "check user and password of source.dsn (env:NAME keeps them out of the file)",
    ),
    _pattern(
        r"no pg_hba\.conf entry|pg_hba\.conf rejects",
        SourceError,
        "the server's pg_hba.conf has no entry that allows this user to connect from here",
        "add a line for this user, database and address to pg_hba.conf (a logical replication "
        "connection is matched by the database's name, not by the word replication), then SELECT "
        "pg_reload_conf()",
    ),
    _pattern(
        r"database .* does not exist",
        SourceError,
        "there is no such database on the source",
        "check the database's name in source.dsn",
    ),
    _pattern(
        r"conversion between .?UTF8.? and .* is not supported",
        SourceError,
        "the server cannot translate the texts of this database to UTF-8",
        "move its tables to a database with the encoding UTF8: pg_dump --encoding with the encoding of its "
        "texts (LATIN1, EUC_JP, …), CREATE DATABASE … ENCODING 'UTF8' TEMPLATE template0, then restore",
    ),
    _pattern(
        r"role .* (does not exist|is not permitted to log in)",
        SourceError,
        "the source has no such login role",
        "check the user in source.dsn, or CREATE ROLE … LOGIN REPLICATION",
    ),
    _pattern(
        r"permission denied to (start WAL sender|use replication slots)"
        r"|must be superuser or replication role",
        SourceError,
        "the role may not use replication",
        f"{GIVE_REPLICATION}, or use a role that has REPLICATION",
    ),
    _pattern(
        r"max_wal_senders",
        SourceUnavailableError,
        "all of the server's WAL senders are in use",
        f"end a replication connection that is not needed, or raise max_wal_senders {RESTART}",
    ),
    _pattern(
        r"all replication slots are in use",
        SourceError,
        "the server has no free replication slot",
        "drop a slot that is not needed (SELECT slot_name, active FROM pg_replication_slots), or raise "
        f"max_replication_slots {RESTART}",
    ),
    _pattern(
        r"too many clients already|remaining connection slots|too many connections for",
        SourceUnavailableError,
        "the source has no free connection",
        "end sessions that are not needed, or raise max_connections, then run the same command again",
    ),
    _pattern(
        r"logical decoding cannot be used while in recovery",
        SourceError,
        "the source is a standby of a version that has no logical decoding on standbys, perhaps the primary "
        "until a failover",
        "point source.dsn at the primary (an address that follows it, or several hosts with "
        "target_session_attrs=read-write), or use a standby of PostgreSQL 16 or later",
    ),
    _pattern(
        r"^recovery is in progress",
        SourceUnavailableError,
        "the source is a standby now, and was the primary a moment ago",
        "point source.dsn at the primary (an address that follows it, or several hosts with "
        "target_session_attrs=read-write), then run the same command again",
    ),
    _pattern(
        r"logical decoding on (a )?standby requires",
        SourceError,
        "the WAL of the standby's primary lacks what logical decoding needs",
        "ALTER SYSTEM SET wal_level = 'logical' on the primary, then restart it (from PostgreSQL 19 on, a "
        "logical slot on the primary is enough where its wal_level is 'replica')",
    ),
    _pattern(
        r"replication slots can only be used if .?wal_level",
        SourceError,
        "the server's wal_level is too low for replication slots",
        SET_LOGICAL,
    ),
    _pattern(
        r"replication slots can only be used if .?max_replication_slots",
        SourceError,
        "the server allows no replication slots",
        "ALTER SYSTEM SET max_replication_slots = 10, then restart the server",
    ),
    _pattern(
        r"may not be used as an output plugin",
        SourceError,
        "the server does not let this output plugin be used",
        "add it to output_plugin_libraries on the server, if every role with REPLICATION may use it, then "
        "SELECT pg_reload_conf(); or use pgoutput (source.plugin)",
    ),
    _pattern(
        r"logical decoding requires .?wal_level|wal_level.* (must be|requires) .*logical",
        SourceError,
        "the server's wal_level is not 'logical'",
        SET_LOGICAL,
    ),
    _pattern(
        r"SSL|certificate",
        SourceError,
        "the TLS connection that source.dsn asks for cannot be made",
        "check that sslmode, sslrootcert, sslcert and sslkey of source.dsn fit the server",
    ),
    _pattern(
        r"permission denied",
        SourceError,
        "the role lacks a privilege",
        "GRANT it (SELECT on every published table, USAGE on their schemas)",
    ),
)
