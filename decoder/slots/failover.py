"""Failover slots (PostgreSQL 17 on): which slots are created as such, and how far their readers may read.

A standby with ``sync_replication_slots = on`` keeps copies of the primary's slots that have ``failover``;
after its promotion such a copy is the pipeline's slot.  Invariant: what a batch reads has reached every
standby that ``synchronized_standby_slots`` names, so that the lake is never ahead of the server that takes
over.  The server makes a WAL sender wait for that (walsender.c, NeedToWaitForStandbys), but does not report
it; and a reader of a copy of the slot, as for backlogs (bulk.py), does not wait at all.  So slotlake waits
itself, with a time limit, and its error names the standbys.
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
    """True if the pipeline's slot must be created with failover.

    Without a setting, it has failover wherever the server supports it: this costs nothing until a standby
    uses it.  A standby cannot create such a slot, because its slots are not copied to other standbys.

    Raises:
        SourceError: source.failover is true, and the server does not support it.
    """
    if source.failover is False:
        return False
    if connection.info.server_version < FIRST_WITH_FAILOVER:
        return False if source.failover is None else _refused(connection, source)
    standby = connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
    if standby and source.failover:
        raise SourceError(
            "source.failover is true, but the server is a standby, which cannot create a slot with failover",
            where=redact(source.dsn),
            way_out="point source.dsn at the primary, or leave source.failover out: a slot that was created "
            "on a standby stays when the standby is promoted",
        )
    return not standby


def _refused(connection: psycopg.Connection[Any], source: SourceSettings) -> bool:
    raise SourceError(
        f"source.failover is true, but PostgreSQL {connection.info.server_version // 10000} cannot create a "
        "slot with failover",
        where=redact(source.dsn),
        way_out="leave source.failover out, or use PostgreSQL 17 or later",
    )


def turn_failover(source: SourceSettings, has_failover: bool, server_version: int) -> None:
    """Change an existing slot to the setting source.failover; nobody may be reading the slot.

    Args:
        source: its ``failover`` is the new state; None changes nothing.
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
    """A slot that ``synchronized_standby_slots`` names; ``received`` is None if the slot does not exist."""

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
    """Return the standbys for which the slot's reader must wait before it reads up to a position."""
    if connection.info.server_version < FIRST_WITH_FAILOVER:
        return []
    rows = connection.execute(_STANDBYS.encode(), (slot,)).fetchall()
    standbys = [StandbySlot(name, parse_lsn(at) if at else None, active) for name, at, active in rows]
    return [standby for standby in standbys if standby.received is None or standby.received < until]


def await_standbys(source: SourceSettings, until: int) -> None:
    """Wait until the standbys of synchronized_standby_slots have the WAL up to ``until``.

    Raises:
        SourceUnavailableError: none of them has advanced for STANDBY_WAIT_SECONDS; the error names them.
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
        f"they have not advanced for {STANDBY_WAIT_SECONDS:g} s: {listed}",
        where=f"slot {source.slot!r} at {redact(source.dsn)}",
        way_out="start those standbys, or remove their slots from synchronized_standby_slots (then SELECT "
        "pg_reload_conf()). Slotlake waits, because a lake that reads on would be ahead of a standby that "
        "takes over",
    )
