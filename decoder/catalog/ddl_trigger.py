"""Slotlake's event trigger at the source: its names, and whether the catalog has it."""

from __future__ import annotations

from typing import Any

import psycopg

from slotlake.decoder.server.source import source_session

PREFIX = "slotlake.ddl"
SCHEMA, TRIGGER = "slotlake_ddl", "slotlake_ddl"
_STATE = """
SELECT t.evtenabled FROM pg_event_trigger t
JOIN pg_proc p ON p.oid = t.evtfoid JOIN pg_namespace n ON n.oid = p.pronamespace
WHERE t.evtname = %s AND n.nspname = %s
"""
_STATES = {"A": "installed", "O": "installed", "R": "disabled", "D": "disabled"}


def state(connection: psycopg.Connection[Any]) -> str:
    """``installed``, ``disabled`` (or only for replicas), ``not installed``."""
    row = connection.execute(_STATE.encode(), (TRIGGER, SCHEMA)).fetchone()
    return "not installed" if row is None else _STATES.get(str(row[0]), "disabled")


def is_installed(dsn: str) -> bool:
    """True if the source has the event trigger that reports altered tables.

    Raises:
        SourceError: the source cannot be reached or refuses.
    """
    with source_session(dsn, "looking for the event trigger") as connection:
        return state(connection) == "installed"
