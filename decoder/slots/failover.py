"""Failover slots (PostgreSQL 17 on): which slots are made so, and how far their readers may read.

A standby with ``sync_replication_slots = on`` keeps copies of the primary's slots that are marked
``failover``; after its promotion such a copy is the pipeline's slot.  Invariant: what is read for a batch has
reached every standby that ``synchronized_standby_slots`` names, so that the lake is never ahead of the server
that takes over.  The server holds a WAL sender back for that (walsender.c, NeedToWaitForStandbys) but says
nothing about it, and it does not hold back a copy of the slot, by which backlogs are read (bulk.py); so the
wait is here, with an end and a name.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import psycopg

from slotlake.decoder.errors import SourceError, SourceUnavailableError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.source import (
    SourceSettings,
    connect_replication,
    redact,
    source_errors,
    source_session,
)

FIRST_WITH_FAILOVER = 170000
STANDBY_WAIT_SECONDS = 10.0
_POLL_SECONDS = 0.05


def wants_failover(connection: psycopg.Connection[Any], source: SourceSettings) -> bool:
    """Is the pipeline's slot to be one that standbys keep?

    Left open, it is wherever the server can: nothing is paid for it as long as no standby asks for it.  A
    standby cannot make one, for what it would hand on is not its own.

    Raises:
        SourceError: asked for by name, of a server that cannot.
    """
    if source.failover is False:
        return False
    if connection.info.server_version < FIRST_WITH_FAILOVER:
        return False if source.failover is None else _refused(connection, source)
    standby = connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
    if standby and source.failover:
        raise SourceError(
            "a standby cannot make a slot with failover",
            where=redact(source.dsn),
            way_out="lead source.dsn to the primary, or leave source.failover out: a slot made on a standby "
            "stays when that is promoted",
        )
    return not standby


def _refused(connection: psycopg.Connection[Any], source: SourceSettings) -> bool:
    raise SourceError(
        f"PostgreSQL {connection.info.server_version // 10000} cannot make a slot with failover",
        where=redact(source.dsn),
        way_out="leave source.failover out, or use PostgreSQL 17 or later",
    )


def turn_failover(source: SourceSettings, has_failover: bool, server_version: int) -> None:
    """Change an existing slot to what the pipeline file asks for by name; nobody may be reading it.

    Args:
        source: its ``failover`` is what is asked for; None changes nothing.
        has_failover: whether the slot has failover now.
        server_version: as libpq gives it: 180004.
    """
    if source.failover is None or source.failover == has_failover:
        return
    with connect_replication(source.dsn) as connection, source_errors(source.dsn, "changing the slot"):
        if server_version < FIRST_WITH_FAILOVER:
            _refused(connection, source)
        setting = "true" if source.failover else "false"
        connection.execute(f'ALTER_REPLICATION_SLOT "{source.slot}" (FAILOVER {setting})'.encode())


@dataclass(frozen=True)
class StandbySlot:
    """A slot that ``synchronized_standby_slots`` names; ``received``: None if there is none of that name."""

    name: str
    received: int | None
    active: bool

    def __str__(self) -> str:
        if self.received is None:
            return f"{self.name} (there is no such physical slot)"
        attached = "" if self.active else ", no standby is connected"
        return f"{self.name} (at {format_lsn(self.received)}{attached})"


_STANDBYS = """
SELECT n.name, s.restart_lsn::text, coalesce(s.active, false)
FROM unnest(string_to_array(current_setting('synchronized_standby_slots'), ',')) u(raw)
CROSS JOIN LATERAL (SELECT trim(both ' "' FROM u.raw)) n(name)
LEFT JOIN pg_replication_slots s ON s.slot_name::text = n.name AND s.slot_type = 'physical'
     AND s.invalidation_reason IS NULL
WHERE n.name <> '' AND NOT pg_is_in_recovery()
  AND (SELECT p.failover FROM pg_replication_slots p WHERE p.slot_name = %s)
"""


def behind(connection: psycopg.Connection[Any], slot: str, until: int) -> list[StandbySlot]:
    """Return the standbys that the slot's reader has to wait for before it may read up to a position.

    Args:
        slot: name of the logical slot.
        until: the position.
    """
    if connection.info.server_version < FIRST_WITH_FAILOVER:
        return []
    rows = connection.execute(_STANDBYS.encode(), (slot,)).fetchall()
    standbys = [StandbySlot(name, parse_lsn(at) if at else None, active) for name, at, active in rows]
    return [standby for standby in standbys if standby.received is None or standby.received < until]


def await_standbys(source: SourceSettings, until: int) -> None:
    """Wait until every standby that is to have it first has the WAL up to there.

    Raises:
        SourceUnavailableError: none of them has come any further for STANDBY_WAIT_SECONDS; they are named.
    """
    with source_session(source.dsn, "looking at the standbys") as connection:
        since, last = time.monotonic(), None
        while waiting := behind(connection, source.slot, until):
            stands = [(standby.name, standby.received) for standby in waiting]
            if stands != last:
                since, last = time.monotonic(), stands
            if time.monotonic() - since > STANDBY_WAIT_SECONDS:
                raise _standbys_error(source, until, waiting)
            time.sleep(_POLL_SECONDS)


def _standbys_error(source: SourceSettings, until: int, waiting: list[StandbySlot]) -> SourceUnavailableError:
    listed = "; ".join(str(standby) for standby in waiting)
    return SourceUnavailableError(
        f"the WAL up to {format_lsn(until)} has not reached all standbys of synchronized_standby_slots, and "
        f"nothing has come in {STANDBY_WAIT_SECONDS:g} s: {listed}",
        where=f"slot {source.slot!r} at {redact(source.dsn)}",
        way_out="start those standbys, or take their slots out of synchronized_standby_slots (then SELECT "
        "pg_reload_conf()); until then the lake would be ahead of the server that takes over",
    )
