"""Readings of the source's WAL position, with their times: from them follow its rate, and the lake's lag.

A line of JSON in the state folder, ``wal-seen.json``: pairs of this machine's clock and the source's WAL
position, of the last hour.  `status`, the monitor and each pull add one.  Invariant: derived, never needed;
if the folder cannot be written, or the file is damaged, only the readings are lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from time import time as clock
from typing import NamedTuple

from slotlake.decoder.errors import SourceError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import SourceSettings, source_session
from slotlake.decoder.slots.pressure import wal_now
from slotlake.decoder.slots.slot import inspect_slot
from slotlake.infra.state.events import note_sample, sample_is_due
from slotlake.infra.state.notes import WAL_SEEN, shared_place

_HISTORY_SECONDS = 3600.0
_READINGS_MAX = 240
_RECENT_SECONDS = 60.0
_APART_SECONDS_MIN = 1.0
_PAGE = 8192


class WalReading(NamedTuple):
    """The source's WAL stood at ``position`` at ``time`` (seconds since 1970, this machine's clock)."""

    time: float
    position: int


def note_source_position(
    state_dir: Path, dsn: str, position: int | None = None, asked_at: float | None = None
) -> list[WalReading]:
    """Note where the source's WAL stands, and when; the lake's lag in seconds follows from these readings.

    Args:
        position: the source's WAL position; None to ask the source.
        asked_at: when it was asked, in seconds since 1970; None for now.

    Returns:
        All readings, the oldest first.
    """
    asked_at = clock() if asked_at is None else asked_at
    if position is None:
        with source_session(dsn) as connection:
            position = wal_now(connection)
    return add_wal_reading(state_dir, WalReading(asked_at, position))


def read_wal_readings(folder: Path) -> list[WalReading]:
    """Read the readings, the oldest first."""
    try:
        noted = WAL_SEEN.of(folder).read() or []
        return sorted(WalReading(float(time), int(position)) for time, position in noted)
    except (ValueError, TypeError):
        return []


def add_wal_reading(folder: Path, now: WalReading) -> list[WalReading]:
    """Add a reading; return all that there are then, the oldest first."""
    # A source that stands before what was seen of it is another one (or an earlier state of it); by less
    # than a page it only was looked at in another way.
    before = read_wal_readings(folder)
    readings = [old for old in before if old.position <= now.position + _PAGE and old.time < now.time]
    readings = [*_thinned(readings, now.time), now, *(later for later in before if later.time > now.time)]
    with contextlib.suppress(OSError):
        note = WAL_SEEN.of(folder)
        if folder.is_dir() or shared_place(note.path) is not None:
            note.write(readings)
    return readings


def _thinned(readings: list[WalReading], now: float) -> list[WalReading]:
    """The readings of the last hour, and the newest one before it.

    If there are too many, every other one of the older half is dropped.
    """
    recent = [each for each in readings if now - each.time <= _HISTORY_SECONDS]
    before = [each for each in readings if now - each.time > _HISTORY_SECONDS][-1:]
    if len(recent) >= _READINGS_MAX:
        middle = len(recent) // 2
        recent = recent[:middle:2] + recent[middle:]
    return before + recent


def wal_rate(readings: Sequence[WalReading]) -> float | None:
    """Bytes of WAL per second: over all readings, or over the last minute if that is more.

    The greater of the two, because it says when the room for WAL is used up.  None if there is no reading
    that is at least a second older.
    """
    if not readings:
        return None
    now = readings[-1]
    earlier = [old for old in readings if now.time - old.time >= _APART_SECONDS_MIN]
    if not earlier:
        return None
    recent = [old for old in earlier if now.time - old.time >= _RECENT_SECONDS]
    bases = [earlier[0], recent[-1] if recent else earlier[-1]]
    return max(0.0, *((now.position - base.position) / (now.time - base.time) for base in bases))


def lag_seconds(
    readings: Sequence[WalReading], position: int, source: int, complete_until: float | None, now: float
) -> float | None:
    """For how many seconds at most there has been something in the source that is not in the lake.

    Args:
        readings: the readings, the oldest first.
        source: the source's WAL position now.
        complete_until: a moment up to which the lake holds all commits, such as that of its newest commit, in
            seconds since 1970; None if none is known.
        now: the time now, in seconds since 1970.

    Returns:
        Seconds; None if nothing says since when.
    """
    if source <= position:
        return 0.0
    moments = [old.time for old in readings if old.position <= position]
    moments += [] if complete_until is None else [complete_until]
    return max(0.0, now - max(moments)) if moments else None


def note_measures(state_dir: Path, source: SourceSettings, position: int) -> None:
    """Note in the journal what a batch has changed: the lag, and the WAL that the slot retains.

    Nothing is noted if it was a moment ago, or if the source does not answer.

    Args:
        position: where the lake stands now, as an LSN.
    """
    if not sample_is_due(state_dir):
        return
    try:
        with source_session(source.dsn) as connection:
            slot, now, wal = inspect_slot(connection, source.slot), clock(), wal_now(connection)
    except SourceError:
        return
    readings = add_wal_reading(state_dir, WalReading(now, wal))
    measures = {
        "lag_bytes": max(0, wal - position),
        "lag_seconds": lag_seconds(readings, position, wal, None, now),
        "retained_wal_bytes": None if slot is None else slot.retained_bytes,
        "safe_wal_size": None if slot is None else slot.safe_wal_size,
        "last_consistent_lsn": format_lsn(position),
        "source_lsn": format_lsn(wal),
    }
    note_sample(state_dir, {"time": now, **{k: v for k, v in measures.items() if v is not None}})
