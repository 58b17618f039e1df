"""What a pipeline's slot costs the source, when the server will invalidate it, and which alarms there are.

The prediction: the server invalidates a slot when more than ``safe_wal_size`` bytes of WAL are written before
the slot moves (pg_replication_slots; max_slot_wal_keep_size). The time left is this size divided by
the measured rate of the WAL (infra/source/wal_notes.py).  From version 18, the server also invalidates a slot
that nobody has read for ``idle_replication_slot_timeout``.  Invariant: this module changes nothing at the
source and waits for no other run.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.pressure import OtherSlot, Pressure, slot_pressure, span, wal_now
from slotlake.infra.reports import Alarm, Watched
from slotlake.infra.source.wal_notes import WalReading, add_wal_reading, lag_seconds, wal_rate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    import psycopg

    from slotlake.decoder.slots.slot import SlotState
    from slotlake.infra.config.sections import MonitorSection
    from slotlake.infra.opened.open_pipeline import OpenPipeline

_SAMPLE_SECONDS = 1.0
_TRANSACTIONS_MAX = 5
_LOW_WAL_PART = 0.25


def watched(
    pipeline: OpenPipeline, slot: SlotState | None, position: int | None, committed: datetime | None
) -> Watched:
    """Measure the source's side now, and find its alarms.

    Args:
        pipeline: says where source and state folder are, and which thresholds the alarms have.
        slot: the pipeline's slot; None if it does not exist.
        position: the lake's position, None before `init`.
        committed: when the newest transaction in the lake was committed.

    Raises:
        SourceError: the source cannot be reached.
    """
    now = time.time()
    with source_session(pipeline.source.dsn, "looking at what the slot holds") as connection:
        pressure = slot_pressure(connection, pipeline.source.slot)
        wal_position = wal_now(connection)
        notes = add_wal_reading(pipeline.file.state_dir, WalReading(now, wal_position))
        rate = _wal_rate(connection, notes, slot)
    commit_seconds = None if committed is None else committed.timestamp()
    lag = None if position is None else lag_seconds(notes, position, wal_position, commit_seconds, now)
    seconds, setting = time_left(slot, pressure, rate)
    return Watched(
        lag_seconds=_rounded(lag),
        wal_bytes_per_second=_rounded(rate),
        max_slot_wal_keep_bytes=pressure.keep_bytes_max,
        idle_timeout_seconds=pressure.idle_seconds_max,
        slot_inactive_seconds=_rounded(pressure.inactive_seconds),
        seconds_to_invalidation=_rounded(seconds),
        invalidation_by=setting,
        held_back_by=[asdict(holder) for holder in pressure.holders],
        sees_all_transactions=pressure.sees_all,
        other_slots=[asdict(other) for other in pressure.others],
        alarms=alarms_of(slot, pressure, pipeline.file.monitor, (lag, seconds, setting), pipeline.name),
    )


def complete_until(pipeline: OpenPipeline) -> float:
    """Return up to which moment the lake holds all that was committed, in seconds since 1970; 0: not known.

    It is this machine's clock when it saw the source's WAL end at or before the lake's position, or the
    source's clock at the newest commit in the lake, whichever is later.

    Raises:
        SourceError: the source cannot be reached.
        LakeError: there is no lake.
    """
    from slotlake.spark.read.point import ReadPoint

    position = pipeline.position()
    with source_session(pipeline.source.dsn) as connection:
        now, wal = time.time(), wal_now(connection)
    readings = add_wal_reading(pipeline.file.state_dir, WalReading(now, wal))
    committed, _ = ReadPoint.latest(pipeline.lake).newest_times()
    lag = lag_seconds(readings, position, wal, None if committed is None else committed.timestamp(), now)
    return 0.0 if lag is None else now - lag


def _wal_rate(
    connection: psycopg.Connection[Any], notes: Sequence[WalReading], slot: SlotState | None
) -> float | None:
    """Return bytes of WAL per second; without earlier notes, measure for a second if the slot has a limit."""
    rate = wal_rate(notes)
    if rate is None and slot is not None and slot.safe_wal_size is not None:
        time.sleep(_SAMPLE_SECONDS)
        rate = wal_rate([notes[-1], WalReading(time.time(), wal_now(connection))])
    return rate


def _rounded(number: float | None) -> float | None:
    return None if number is None else round(number, 1)


def time_left(
    slot: SlotState | None, pressure: Pressure, rate: float | None
) -> tuple[float | None, str | None]:
    """Return the seconds until the server invalidates the slot, and by which setting; None if it will not.

    Args:
        slot: the pipeline's slot; None if it does not exist.
        pressure: the server's limits, and for how long nobody has read the slot.
        rate: bytes of WAL per second; None if unknown.
    """
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
    """Return what needs a person.

    Args:
        slot: the pipeline's slot; None if it does not exist.
        pressure: what the server says about slots and transactions.
        limits: the thresholds of the pipeline file.
        measured: the lag in seconds, and what :func:`time_left` returns.
    """
    lag, seconds, setting = measured
    alarms = [] if slot is None else _slot_alarms(slot, limits)
    if seconds is not None and setting is not None and _is_near(seconds, setting, pressure, limits):
        alarms.append(_invalidation_alarm(seconds, setting))
    elif slot is not None and _is_wal_nearly_used_up(slot, pressure, limits):
        alarms.append(_wal_limit_alarm(slot, pressure))
    if lag is not None and limits.warn_lag_seconds is not None and lag > limits.warn_lag_seconds:
        alarms.append(_lag_alarm(name, lag, slot))
    return alarms + _transaction_alarms(pressure, limits) + _other_slot_alarms(pressure, limits)


def _is_near(seconds: float, setting: str, pressure: Pressure, limits: MonitorSection) -> bool:
    if limits.warn_invalidation_minutes is None:
        return False
    near = limits.warn_invalidation_minutes * 60
    if setting == "idle_replication_slot_timeout" and pressure.idle_seconds_max is not None:
        near = min(near, pressure.idle_seconds_max / 2)  # each sync sets the clock back
    return seconds <= near


def _is_wal_nearly_used_up(slot: SlotState, pressure: Pressure, limits: MonitorSection) -> bool:
    """Return whether little WAL is left, at any rate: the next load may be fast."""
    if limits.warn_invalidation_minutes is None or slot.lost:
        return False
    safe, most = slot.safe_wal_size, pressure.keep_bytes_max
    return safe is not None and most is not None and safe < most * _LOW_WAL_PART


def _wal_limit_alarm(slot: SlotState, pressure: Pressure) -> Alarm:
    safe, most = megabytes(max(0, slot.safe_wal_size or 0)), megabytes(pressure.keep_bytes_max or 0)
    what = f"after {safe} more of WAL, the server may invalidate the slot (max_slot_wal_keep_size {most})"
    return Alarm("invalidation", what, "sync now, or raise max_slot_wal_keep_size")


def _invalidation_alarm(seconds: float, setting: str) -> Alarm:
    when = "at its next checkpoint" if seconds <= 0 else f"in about {span(seconds)} at this rate of WAL"
    way_out = f"sync now, or raise {setting}"
    if setting == "idle_replication_slot_timeout":
        when, way_out = f"in {span(seconds)}, because nobody reads it", "sync now; each sync resets this time"
    return Alarm("invalidation", f"the server will invalidate the slot {when} ({setting})", way_out)


def _slot_alarms(slot: SlotState, limits: MonitorSection) -> list[Alarm]:
    if slot.lost:
        reason = slot.invalidation_reason or slot.wal_status
        return [Alarm("slot lost", f"the slot is lost ({reason})", "slotlake recover")]
    alarms = []
    if slot.wal_status == "unreserved":
        what = "the slot retains more WAL than max_slot_wal_keep_size (wal_status unreserved)"
        alarms.append(Alarm("wal status", what, "sync at once: the next checkpoint may invalidate the slot"))
    most, retained = limits.warn_retained_bytes, slot.retained_bytes
    if most is not None and retained is not None and retained > most:
        what = f"the slot retains {megabytes(retained)} of WAL, more than monitor.warn_retained_bytes"
        alarms.append(Alarm("retained", what, "sync; if transactions hold the slot back, status names them"))
    return alarms


def _lag_alarm(name: str, lag: float, slot: SlotState | None) -> Alarm:
    retained = None if slot is None else slot.retained_bytes
    now = "" if retained is None else f" ({megabytes(retained)} now)"
    return Alarm(
        "lag",
        f"the lake has nothing newer than {span(lag)} ago, and the slot retains more and more WAL{now}",
        f"sync; check whether cdc_sync_{name} is paused or fails; to end the pipeline: slotlake drop",
    )


def _transaction_alarms(pressure: Pressure, limits: MonitorSection) -> list[Alarm]:
    limit = limits.warn_transaction_seconds
    if limit is None:
        return []
    return [
        Alarm(
            "held back",
            f"WAL is held back by {holder}",
            _way_to_end(holder.kind, holder.pid, holder.gid),
            str(holder.gid or holder.pid),
        )
        for holder in pressure.holders[:_TRANSACTIONS_MAX]
        if holder.seconds > limit
    ]


def _way_to_end(kind: str, pid: int | None, gid: str | None) -> str:
    if kind == "prepared":
        quoted = str(gid).replace("'", "''")
        return f"COMMIT PREPARED '{quoted}' or ROLLBACK PREPARED '{quoted}', in its database"
    return f"let it end, or end it: SELECT pg_terminate_backend({pid})"


def _other_slot_alarms(pressure: Pressure, limits: MonitorSection) -> list[Alarm]:
    most = limits.warn_retained_bytes
    if most is None:
        return []
    return [
        _other_slot_alarm(other)
        for other in pressure.others
        if not other.active and other.retained_bytes is not None and other.retained_bytes > most
    ]


def _other_slot_alarm(other: OtherSlot) -> Alarm:
    since = "" if other.inactive_seconds is None else f" for {span(other.inactive_seconds)}"
    return Alarm(
        "other slot",
        f"nobody has read the slot {other.name} (database {other.database or 'any'}){since}, and it retains "
        f"{megabytes(other.retained_bytes or 0)} of WAL",
        f"if nothing needs the slot any more: SELECT pg_drop_replication_slot('{other.name}')",
        other.name,
    )


def megabytes(count: int) -> str:
    """Return a number of bytes with its unit: ``17 kB``, ``1.4 GB``."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit in ("B", "kB") else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TB"


_GAUGES = (
    "lag_bytes",
    "lag_seconds",
    "batch_lag_seconds",
    "retained_wal_bytes",
    "safe_wal_size",
    "wal_bytes_per_second",
    "seconds_to_invalidation",
)


def gauges(report: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a status report for metrics; unknown numbers are left out."""
    numbers = {name: float(report[name]) for name in _GAUGES if report[name] is not None}
    ready = 1.0 if report["state"] == "ready" else 0.0
    return {**numbers, "alarms": float(len(report["alarms"])), "ready": ready}
