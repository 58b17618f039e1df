"""Do the positions that the server's functions return mean the same as those of its slots?

slotlake takes the end of the WAL from `pg_current_wal_insert_lsn()` and reads a slot up to there.  On
PostgreSQL both count bytes of one WAL.  A server that keeps its storage in another way may count them apart;
then no batch would end where its changes do.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from slotlake.decoder.errors import SourceError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.position import page_floor
from slotlake.decoder.server.source import SourceSettings, redact, source_session

_WAIT_MILLISECONDS = 3000
_NOW = "SELECT pg_current_wal_insert_lsn()::text"


def require_comparable(source: SourceSettings) -> str:
    """Compare the WAL's end with the position of a new temporary slot; return what was found, for people.

    Nothing is compared on a standby, while transactions are open for long, or if no slot is free.

    Raises:
        SourceError: the slot's position is not between the WAL's ends before and after it was made.
    """
    name = f"{source.slot[:40]}_position_{time.time_ns() & 0xFFFFFFFF:08x}"
    with source_session(source.dsn, "comparing positions") as connection:
        if _one(connection, "SELECT pg_is_in_recovery()::text") == "true":
            return "not compared on a standby"
        try:
            with connection.transaction():
                connection.execute(f"SET LOCAL statement_timeout = {_WAIT_MILLISECONDS}".encode())
                before = parse_lsn(_one(connection, _NOW))
                create = "SELECT lsn::text FROM pg_create_logical_replication_slot(%s, %s, true)"
                slot = parse_lsn(_one(connection, create, (name, source.plugin)))
                after = parse_lsn(_one(connection, _NOW))
                connection.execute("SELECT pg_drop_replication_slot(%s)", (name,))
        except psycopg.errors.QueryCanceled:
            return "not compared: transactions are open, for which a new slot waits"
        except psycopg.errors.ConfigurationLimitExceeded:
            return "not compared: no slot is free"
    judge(before, slot, after, redact(source.dsn))
    return f"the WAL's end and a slot's position are comparable ({format_lsn(slot)})"


def judge(before: int, slot: int, after: int, where: str) -> None:
    """Check that a slot's position is between two ends of the WAL, of before and after it was made.

    Raises:
        SourceError: it is not.
    """
    if page_floor(before) <= slot <= after:
        return
    raise SourceError(
        f"pg_current_wal_insert_lsn() was {format_lsn(before)} and {format_lsn(after)}, but a slot that was "
        f"made in between is at {format_lsn(slot)}: this server counts the two apart",
        where=where,
        way_out="slotlake cannot read from this server. If the address is a proxy's or a cluster's, name the "
        "writer itself in source.dsn; or replicate to a PostgreSQL server, and read from that one",
    )


def _one(connection: psycopg.Connection[Any], query: str, parameters: tuple[str, ...] = ()) -> str:
    row = connection.execute(query.encode(), parameters).fetchone()
    assert row is not None
    return str(row[0])
