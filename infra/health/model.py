"""What is known of a pipeline: its last look, its batches, its samples, its verifications, its failures.

Everything is read from the journal: no query to the source, none to the lake. It is the one source of the
metrics, the report, the page in Airflow and `slotlake top`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.state.batch_notes import STEPS
from slotlake.infra.state.quarters import add_batch
from slotlake.infra.state.recorded import Recorded, recorded

Record = dict[str, Any]
PERIODS = {"hour": 3600, "day": 86_400, "week": 7 * 86_400}
BINS = 120
# The older a look is, the less it says of now; three runs of the monitor's default schedule.
_LOOK_OLD_SECONDS = 900.0
# States in which nothing needs repair.
_CALM = {"ready", "copying", "initial copy unfinished", "not initialised", "dropped"}
# The worst first.
LEVELS = ("broken", "warning", "unknown", "well")


@dataclass(frozen=True)
class Health:
    """A pipeline as its journal shows it.

    Attributes:
        name: the pipeline's.
        now: the moment of reading, in seconds since 1970, as all times here.
        seen: what `slotlake.infra.status.noted.look` returns, of the last look; empty if there was none.
        recorded: all else that the journal has.
    """

    name: str
    file: Path
    now: float
    seen: Record = field(default_factory=dict)
    recorded: Recorded = field(default_factory=Recorded)

    @property
    def batches(self) -> list[Record]:
        """The newest batch lines, the oldest first."""
        return self.recorded.batches

    @property
    def verifications(self) -> list[Record]:
        """The newest verifications, the oldest first."""
        return self.recorded.verifications

    @property
    def failures(self) -> list[Record]:
        """The newest failures, the oldest first."""
        return self.recorded.failures

    @property
    def totals(self) -> Record:
        """The counters."""
        return self.recorded.totals

    @property
    def status(self) -> Record:
        """The status report of the last look, with what was measured since; empty if there was none."""
        status: Record = self.seen.get("status", {})
        measured = self.recorded.measured
        if not status or measured.get("time", 0.0) <= self.seen["time"]:
            return status
        judged = {"time", "state", "alarms"}  # by a look alone
        return {**status, **{name: value for name, value in measured.items() if name not in judged}}

    @property
    def state(self) -> str:
        """The state at the last look."""
        unknown = "not known" if self.recorded.unread else "not looked at yet"
        return str(self.status.get("state", unknown))

    @property
    def look_age(self) -> float | None:
        """Seconds since the last look; None if there was none."""
        return max(0.0, self.now - self.seen["time"]) if self.seen else None

    @property
    def look_is_old(self) -> bool:
        """Return whether the last look says little about now."""
        age = self.look_age
        return age is None or age > _LOOK_OLD_SECONDS

    @property
    def alarms(self) -> list[Record]:
        """The alarms of the last look: kind, what, way_out."""
        return list(self.status.get("alarms", ()))

    @property
    def last_batch(self) -> Record | None:
        """The line of the newest batch with changes."""
        return self.batches[-1] if self.batches else None

    @property
    def verified(self) -> Record | None:
        """The newest verification."""
        return self.verifications[-1] if self.verifications else None

    @property
    def unresolved(self) -> list[str]:
        """The tables that differ, as far as verifications know, and were not found equal since."""
        return [] if self.verified is None else list(self.verified.get("unresolved", ()))

    @property
    def rolling(self) -> Record | None:
        """How much the rolling part of verification covers: slices, never, oldest; None without it."""
        return None if self.verified is None else self.verified.get("rolling")

    @property
    def level(self) -> str:
        """How well it is: one of LEVELS."""
        if self.unresolved or (self.verified is not None and not self.verified["equal"]):
            return "broken"
        if self.seen and self.state not in _CALM:
            return "broken"
        if self.alarms or self.state == "initial copy unfinished":
            return "warning"
        return "unknown" if self.look_is_old else "well"

    @property
    def rate(self) -> float | None:
        """Changes in a second, over the hour before the newest batch; None before the first one.

        Each batch counts from its oldest commit on, so that the rate stays what it is while nothing comes.
        """
        if not self.batches:
            return None
        end = self.batches[-1]["time"]
        recent = [batch for batch in self.batches if batch["time"] > end - 3600]
        begin = min(batch["time"] - (batch["lag"] or 0.0) for batch in recent)
        return float(sum(batch["changes"] for batch in recent) / max(1.0, end - begin))

    @property
    def order(self) -> tuple[int, float, str]:
        """By this, the worst pipeline comes first."""
        lag = self.status.get("lag_seconds") or 0.0
        return LEVELS.index(self.level), -float(lag), self.name


def health_of(file: PipelineFile, now: float | None = None) -> Health:
    """Read a pipeline's journal.

    Args:
        now: the moment, in seconds since 1970; None for now.
    """
    return health_from(file, recorded(file.state_dir), now)


def health_from(file: PipelineFile, known: Recorded, now: float | None = None) -> Health:
    """Return what a journal that was read says.

    Args:
        known: what the journal has.
        now: the moment, in seconds since 1970; None for now.
    """
    return Health(file.name, file.path, time.time() if now is None else now, known.look, known)


@dataclass(frozen=True)
class Bin:
    """What happened in one part of a period.

    Attributes:
        time: where it starts.
        lag: the longest from an oldest commit to queryable; None without a batch.
        changes: of all its batches.
        steps: step → seconds of a batch, on average.
        retained: WAL that the slot retained, the most of its samples; None without a sample.
    """

    time: float
    lag: float | None
    changes: int
    steps: Mapping[str, float]
    retained: int | None


def all_series(health: Health) -> dict[str, list[Bin]]:
    """Return the last hour, day and week, each in equal parts, the oldest first.

    Args:
        health: of the pipeline; ``now`` is the end of the periods.
    """
    oldest = health.now - 2 * PERIODS["week"]  # more than any period begins before
    return {
        name: _series(*health.recorded.over_time(seconds, oldest), name, health.now)
        for name, seconds in PERIODS.items()
    }


def _series(batches: list[Record], samples: list[Record], period: str, end: float) -> list[Bin]:
    length = PERIODS[period]
    width = length // BINS
    start = int((end - length) // width * width)
    sums: dict[int, Record] = {}
    for record in batches:
        if record["time"] >= start:
            add_batch(sums, record, width)
    retained = _most_retained((each for each in samples if each["time"] >= start), width)
    times = range(start, int(end) + 1, width)
    return [_bin(at, sums.get(at, {}), retained.get(at)) for at in times]


def _most_retained(samples: Iterable[Record], width: int) -> dict[int, int]:
    most: dict[int, int] = {}
    for sample in samples:
        at, retained = int(sample["time"] // width * width), sample.get("retained_wal_bytes")
        if retained is not None:
            most[at] = max(most.get(at, 0), int(retained))
    return most


def _bin(at: int, sums: Record, retained: int | None) -> Bin:
    batches = sums.get("batches") or 1
    steps = {step: sums.get("seconds", {}).get(step, 0.0) / batches for step in STEPS}
    return Bin(at, sums.get("lag"), sums.get("changes", 0), steps, retained)
