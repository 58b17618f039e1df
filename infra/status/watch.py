"""What a pipeline's slot costs, how long the server will bear it, and what to be warned of.

The prediction: the server invalidates a slot when more than ``safe_wal_size`` bytes are written before the
slot moves on (pg_replication_slots; max_slot_wal_keep_size), so the time left is that over the WAL's rate,
which is measured (infra/source/wal_notes.py).  From 18 on it also does when nobody has read the slot for
``idle_replication_slot_timeout``.  Invariant: changes nothing at the source, waits for no other run.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.pressure import Pressure, slot_pressure, span, wal_now
from slotlake.infra.reports import Alarm, Watched
from slotlake.infra.source.wal_notes import WalReading, add_wal_reading, lag_seconds, wal_rate

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from slotlake.decoder.slots.slot import SlotState
    from slotlake.infra.config.sections import MonitorSection
    from slotlake.infra.pipeline_open import OpenPipeline

_SAMPLE_SECONDS = 1.0
_NAMED_MAX = 5
_LITTLE_LEFT = 0.25


def watched(
    pipeline: OpenPipeline, slot: SlotState | None, position: int | None, committed: datetime | None
) -> Watched:
    """The source's side measured now, with what of it is worth a warning.

    Args:
        position: the lake's, None when it has none yet.
        committed: when the newest transaction in the lake was committed.

    Raises:
        SourceError: the source cannot be asked.
    """
    dsn = pipeline.source.dsn
    asked = time.time()
    with source_session(dsn, "looking at what the slot holds") as connection:
        pressure = slot_pressure(connection, pipeline.source.slot)
        source = wal_now(connection)
        known = add_wal_reading(pipeline.file.state_dir, WalReading(asked, source))
        rate = wal_rate(known)
        if rate is None and slot is not None and slot.safe_wal_size is not None:
            time.sleep(_SAMPLE_SECONDS)  # nothing is known of before: two looks, a second apart
            later = WalReading(time.time(), wal_now(connection))
            rate = wal_rate([known[-1], later])
    lag = (
        None
        if position is None
        else lag_seconds(known, position, source, None if committed is None else committed.timestamp(), asked)
    )
    left, why = time_left(slot, pressure, rate)
    return Watched(
        lag_seconds=None if lag is None else round(lag, 1),
        wal_bytes_per_second=None if rate is None else round(rate, 1),
        max_slot_wal_keep_bytes=pressure.keep_bytes_max,
        idle_timeout_seconds=pressure.idle_seconds_max,
        slot_inactive_seconds=None
        if pressure.inactive_seconds is None
        else round(pressure.inactive_seconds, 1),
        seconds_to_invalidation=None if left is None else round(left, 1),
        invalidation_by=why,
        held_back_by=[asdict(holder) for holder in pressure.holders],
        sees_all_transactions=pressure.sees_all,
        other_slots=[asdict(other) for other in pressure.others],
        alarms=alarms_of(slot, pressure, pipeline.file.monitor, (lag, left, why), pipeline.name),
    )


def time_left(
    slot: SlotState | None, pressure: Pressure, rate: float | None
) -> tuple[float | None, str | None]:
    """Seconds until the server invalidates the slot, and by which setting; None when it is not in sight."""
    if slot is None or slot.lost:
        return None, None
    moments: list[tuple[float, str]] = []
    if slot.safe_wal_size is not None:
        if slot.safe_wal_size <= 0 or slot.wal_status == "unreserved":
            moments.append((0.0, "max_slot_wal_keep_size"))
        elif rate:
            moments.append((slot.safe_wal_size / rate, "max_slot_wal_keep_size"))
    if pressure.idle_seconds_max is not None and pressure.inactive_seconds is not None:
        idle_left = max(0.0, pressure.idle_seconds_max - pressure.inactive_seconds)
        moments.append((idle_left, "idle_replication_slot_timeout"))
    return min(moments) if moments else (None, None)


def alarms_of(
    slot: SlotState | None,
    pressure: Pressure,
    limits: MonitorSection,
    measured: tuple[float | None, float | None, str | None],
    name: str = "",
) -> list[Alarm]:
    """What needs somebody.

    Args:
        measured: the lag in seconds, and what :func:`time_left` says.
        name: the pipeline's.
    """
    lag, left, why = measured
    found = [] if slot is None else _of_slot(slot, limits)
    if left is not None and why is not None and _near(left, why, pressure, limits):
        found.append(_invalidation(left, why))
    elif slot is not None and _nearly_used_up(slot, pressure, limits):
        found.append(_little_left(slot, pressure))
    if lag is not None and limits.warn_lag_seconds is not None and lag > limits.warn_lag_seconds:
        found.append(_behind(name, lag, slot))
    return found + _held_back(pressure, limits) + _of_others(pressure, limits)


def _near(left: float, why: str, pressure: Pressure, limits: MonitorSection) -> bool:
    if limits.warn_invalidation_minutes is None:
        return False
    near = limits.warn_invalidation_minutes * 60
    if why == "idle_replication_slot_timeout" and pressure.idle_seconds_max is not None:
        near = min(near, pressure.idle_seconds_max / 2)  # each sync sets the clock back
    return left <= near


def _nearly_used_up(slot: SlotState, pressure: Pressure, limits: MonitorSection) -> bool:
    """Whatever the rate is now: the next load may be quick."""
    if limits.warn_invalidation_minutes is None or slot.lost:
        return False
    safe, most = slot.safe_wal_size, pressure.keep_bytes_max
    return safe is not None and most is not None and safe < most * _LITTLE_LEFT


def _little_left(slot: SlotState, pressure: Pressure) -> Alarm:
    left, most = megabytes(max(0, slot.safe_wal_size or 0)), megabytes(pressure.keep_bytes_max or 0)
    what = f"{left} of WAL may still be written before the server may invalidate the slot "
    return Alarm("invalidation", f"{what}(max_slot_wal_keep_size {most})", "sync now; or raise it")


def _invalidation(left: float, why: str) -> Alarm:
    when = "at its next checkpoint" if left <= 0 else f"in about {span(left)} at this rate of WAL"
    way_out = f"sync now; or raise {why}"
    if why == "idle_replication_slot_timeout":
        when, way_out = f"in {span(left)}, because nobody reads it", "sync now; any sync sets the clock back"
    return Alarm("invalidation", f"the server invalidates the slot {when} ({why})", way_out)


def _of_slot(slot: SlotState, limits: MonitorSection) -> list[Alarm]:
    if slot.lost:
        reason = slot.invalidation_reason or slot.wal_status
        return [Alarm("slot lost", f"the slot is lost ({reason})", "slotlake recover")]
    found = []
    if slot.wal_status == "unreserved":
        what = "the slot holds back more WAL than max_slot_wal_keep_size (wal_status unreserved)"
        found.append(Alarm("wal status", what, "sync at once: the next checkpoint may invalidate it"))
    most, retained = limits.warn_retained_bytes, slot.retained_bytes
    if most is not None and retained is not None and retained > most:
        what = f"the slot holds back {megabytes(retained)} of WAL, more than monitor.warn_retained_bytes"
        found.append(Alarm("retained", what, "sync; what holds the slot back is named, if anything does"))
    return found


def _behind(name: str, lag: float, slot: SlotState | None) -> Alarm:
    held = "" if slot is None or slot.retained_bytes is None else f" ({megabytes(slot.retained_bytes)} now)"
    return Alarm(
        "lag",
        f"nothing newer than {span(lag)} ago is in the lake, and the slot goes on holding WAL{held}",
        f"sync: is cdc_sync_{name} paused, or failing? If the pipeline is to end: slotlake drop",
    )


def _held_back(pressure: Pressure, limits: MonitorSection) -> list[Alarm]:
    limit = limits.warn_transaction_seconds
    if limit is None:
        return []
    return [
        Alarm("held back", f"WAL is held back by {holder}", _ending(holder.kind, holder.pid, holder.gid))
        for holder in pressure.holders[:_NAMED_MAX]
        if holder.seconds > limit
    ]


def _ending(kind: str, pid: int | None, gid: str | None) -> str:
    if kind == "prepared":
        quoted = str(gid).replace("'", "''")
        return f"COMMIT PREPARED '{quoted}' or ROLLBACK PREPARED '{quoted}', in its database"
    return f"let it end, or end it: SELECT pg_terminate_backend({pid})"


def _of_others(pressure: Pressure, limits: MonitorSection) -> list[Alarm]:
    most = limits.warn_retained_bytes
    found = []
    for other in pressure.others:
        if other.active or other.retained_bytes is None or most is None or other.retained_bytes <= most:
            continue
        since = "" if other.inactive_seconds is None else f" for {span(other.inactive_seconds)}"
        found.append(
            Alarm(
                "other slot",
                f"nobody reads the slot {other.name} (database {other.database or 'any'}){since}, and it "
                f"holds back {megabytes(other.retained_bytes)} of WAL",
                "if nothing needs it any more: SELECT pg_drop_replication_slot('" + other.name + "')",
            )
        )
    return found


def megabytes(count: int) -> str:
    """A size in words: ``17 kB``, ``1.4 GB``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit in ("B", "kB") else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


_GAUGES = (
    "lag_bytes",
    "lag_seconds",
    "retained_wal_bytes",
    "safe_wal_size",
    "wal_bytes_per_second",
    "seconds_to_invalidation",
)


def gauges(report: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a status report that are worth a curve; what is not known is left out."""
    known = {name: float(report[name]) for name in _GAUGES if report[name] is not None}
    ready = 1.0 if report["state"] == "ready" else 0.0
    return {**known, "alarms": float(len(report["alarms"])), "ready": ready}
