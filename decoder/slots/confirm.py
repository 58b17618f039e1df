"""Confirm: tell the slot what the lake has published.

The only place that moves a slot.  Invariant: afterwards ``confirmed_flush_lsn`` is exactly the position
given, which the lake holds; the server may forget everything before it.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from slotlake.decoder.errors import SlotError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.source import SourceSettings, redact, source_session
from slotlake.decoder.slots.slot import BUSY_WAIT_SECONDS, check_slot


def confirm(source: SourceSettings, lsn: int) -> None:
    """Move the slot's confirmed position to exactly ``lsn``; only after the lake has published it.

    By pg_replication_slot_advance, which skims the WAL without decoding rows and brings ``restart_lsn``
    up behind ``lsn``.  A flush report on a short stream is quicker by itself (0.03 s against 0.4 s after
    230 MB of WAL), but leaves ``restart_lsn`` where it was: that WAL would stay on disk, and the next pull
    would decode all of it again.

    Raises:
        SlotError: the slot is gone, lost or ahead of ``lsn``.
        SlotBusyError: another reader holds it.
        SourceError: the server cannot be reached or refuses.
    """
    with source_session(source.dsn, "confirming the slot") as connection:
        state = check_slot(connection, source, position=lsn)
        if state.confirmed_flush_lsn == lsn:
            return
        reached = _advance(connection, source, lsn)
        if reached != lsn:
            raise SlotError(
                f"the slot was to be confirmed up to {format_lsn(lsn)}, but stands at {format_lsn(reached)}",
                where=f"slot {source.slot!r} at {redact(source.dsn)}",
                way_out="nothing is lost in the lake; see whether this server feeds the lake",
            )


def _advance(connection: psycopg.Connection[Any], source: SourceSettings, lsn: int) -> int:
    deadline = time.monotonic() + BUSY_WAIT_SECONDS
    while True:
        try:
            row = connection.execute(
                "SELECT end_lsn FROM pg_replication_slot_advance(%s, %s::pg_lsn)",
                (source.slot, format_lsn(lsn)),
            ).fetchone()
        except psycopg.errors.ObjectInUse:
            if time.monotonic() >= deadline:
                check_slot(connection, source, wait_seconds=0)  # names who holds it
                raise
            time.sleep(0.1)
            continue
        except psycopg.errors.ObjectNotInPrerequisiteState:
            check_slot(connection, source, position=lsn, wait_seconds=0)  # moved beyond it meanwhile
            raise
        assert row is not None
        return parse_lsn(row[0])
