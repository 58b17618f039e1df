"""What is foretold of a slot, from numbers: rate, lag, time left, and which of it is a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotlake.decoder.slots.pressure import Holder, Pressure, span
from slotlake.decoder.slots.slot import SlotState
from slotlake.infra.config.sections import MonitorSection
from slotlake.infra.source.wal_notes import (
    WalReading,
    add_wal_reading,
    lag_seconds,
    read_wal_readings,
    wal_rate,
)
from slotlake.infra.status.watch import alarms_of, gauges, time_left

MB = 1 << 20
NOBODY = Pressure(None, None, None, (), (), sees_all=True)


def _slot(safe: int | None, status: str = "reserved") -> SlotState:
    return SlotState(
        "s", "pgoutput", "logical", "d", False, None, 1, 1, status, safe, 5 * MB, False, False, False, None
    )


def test_the_rate_is_the_greater_of_the_hour_and_the_last_minute() -> None:
    quiet = [WalReading(0, 0), WalReading(1800, 1800 * 100), WalReading(3600, 3600 * 100)]
    assert wal_rate(quiet) == 100
    assert wal_rate([*quiet, WalReading(3660, 3600 * 100 + 60 * 5000)]) == 5000
    assert wal_rate([*quiet, WalReading(3660, 3600 * 100)]) == pytest.approx(3600 * 100 / 3660)
    assert wal_rate([]) is None
    assert wal_rate([WalReading(10, 5), WalReading(10.5, 500)]) is None  # too near to say


def test_what_was_seen_is_kept_for_an_hour_and_bounded(tmp_path: Path) -> None:
    for second in range(0, 8000, 40):
        known = add_wal_reading(tmp_path, WalReading(second, second))
    assert known == read_wal_readings(tmp_path)
    assert len(known) <= 250
    assert known[0].time < 7960 - 3600 <= known[1].time
    (tmp_path / "wal-seen.json").write_text("{")
    assert add_wal_reading(tmp_path, WalReading(9000, 1)) == [WalReading(9000, 1)]
    assert add_wal_reading(tmp_path / "nowhere", WalReading(1, 1)) == [WalReading(1, 1)]


def test_a_source_that_stands_before_what_was_seen_is_another_one(tmp_path: Path) -> None:
    add_wal_reading(tmp_path, WalReading(100, 9 * MB))
    assert add_wal_reading(tmp_path, WalReading(200, 5 * MB)) == [WalReading(200, 5 * MB)]
    known = add_wal_reading(tmp_path, WalReading(300, 5 * MB - 24))  # looked at in another way, within a page
    assert known == [WalReading(200, 5 * MB), WalReading(300, 5 * MB - 24)]
    assert wal_rate(known) == 0


def test_the_lag_is_since_the_last_moment_at_which_the_lake_had_all() -> None:
    known = [WalReading(100, 1000), WalReading(200, 2000), WalReading(300, 3000)]
    assert lag_seconds(known, 2500, 3000, None, 310) == 110
    assert lag_seconds(known, 2500, 3000, 250.0, 310) == 60  # a commit of then is in the lake
    assert lag_seconds(known, 3000, 3000, None, 310) == 0
    assert lag_seconds(known, 500, 3000, None, 310) is None
    assert lag_seconds([], 500, 3000, 300.0, 310) == 10


def test_the_time_left_is_what_may_be_written_over_the_rate() -> None:
    assert time_left(_slot(64 * MB), NOBODY, MB) == (64.0, "max_slot_wal_keep_size")
    assert time_left(_slot(64 * MB), NOBODY, None) == (None, None)
    assert time_left(_slot(64 * MB), NOBODY, 0.0) == (None, None)
    assert time_left(_slot(None), NOBODY, MB) == (None, None)
    assert time_left(_slot(-5, "unreserved"), NOBODY, 0.0) == (0.0, "max_slot_wal_keep_size")
    assert time_left(_slot(None, "lost"), NOBODY, MB) == (None, None)


def test_a_slot_that_nobody_reads_has_its_own_time() -> None:
    idle = Pressure(None, 600.0, 500.0, (), (), sees_all=True)
    assert time_left(_slot(None), idle, MB) == (100.0, "idle_replication_slot_timeout")
    assert time_left(_slot(MB), idle, MB) == (1.0, "max_slot_wal_keep_size")  # the nearer one
    read = Pressure(None, 600.0, None, (), (), sees_all=True)
    assert time_left(_slot(None), read, MB) == (None, None)


def test_durations_and_holders_in_words() -> None:
    assert [span(s) for s in (0.4, 59, 119, 120, 7199, 7200, 172800)] == [
        *("0 s", "59 s", "119 s", "2 min", "120 min", "2.0 h", "2.0 days"),
    ]
    session = Holder("idle in transaction", 7, None, "u", None, "d", 300.0)
    assert (
        str(session) == "pid 7 (user u, application unnamed, database d, idle in transaction, open for 5 min)"
    )


def test_the_gauges_leave_out_what_is_not_known() -> None:
    report = {
        **dict.fromkeys(("lag_seconds", "batch_lag_seconds", "safe_wal_size", "wal_bytes_per_second"), None),
        "lag_bytes": 5,
        "retained_wal_bytes": 7,
        "seconds_to_invalidation": 1.5,
        "alarms": [1, 2],
        "state": "slot lost",
    }
    expected = {"lag_bytes": 5, "retained_wal_bytes": 7, "seconds_to_invalidation": 1.5}
    assert gauges(report) == {**expected, "alarms": 2, "ready": 0}


def test_little_is_left_whatever_the_rate() -> None:
    """A lull after a load says nothing of the next one."""
    limits = MonitorSection()
    limited = Pressure(100 * MB, None, None, (), (), sees_all=True)
    kinds = {
        safe: [
            alarm.kind
            for alarm in alarms_of(_slot(safe), limited, limits, (0.0, *time_left(_slot(safe), limited, 0.0)))
        ]
        for safe in (60 * MB, 20 * MB)
    }
    assert kinds == {60 * MB: [], 20 * MB: ["invalidation"]}
    never = MonitorSection(warn_invalidation_minutes=None)
    assert alarms_of(_slot(20 * MB), limited, never, (0.0, None, None)) == []
