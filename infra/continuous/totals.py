"""What a run has brought so far."""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import TYPE_CHECKING

from slotlake.decoder.lsn import format_lsn
from slotlake.infra.reports import RunReport

if TYPE_CHECKING:
    from slotlake.infra.reports import SyncReport

_LAGS_MAX = 10_000  # of a run that never ends, the newest


class RunTotals:
    """Counts of a run."""

    def __init__(self) -> None:
        self._batch: str | None = None
        self._began = time.monotonic()
        self._batches = self._transactions = self._changes = 0
        self._lags: deque[float] = deque(maxlen=_LAGS_MAX)
        self._set_aside: dict[str, str] = {}
        self._warnings: list[str] = []

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self._began

    def count(self, report: SyncReport) -> bool:
        """Count a micro-batch; return whether it brought something that is worth a line."""
        news = (report.set_aside, report.warnings) != (self._set_aside, self._warnings)
        self._set_aside, self._warnings = dict(report.set_aside), [*report.warnings]
        if report.lag_seconds is not None:
            self._lags.append(report.lag_seconds)
        if report.transactions:
            self._batch = report.batch
        self._batches += report.transactions > 0
        self._transactions += report.transactions
        self._changes += report.changes
        return bool(report.transactions or report.added_tables or report.joining or report.resumed or news)

    def report(self, pipeline: str, positions: tuple[int, int], ended_by: str | None) -> RunReport:
        """Return the report of the run.

        Args:
            positions: the lake's, before and after, as LSNs.
            ended_by: what ended the run.
        """
        return RunReport(
            pipeline=pipeline,
            start_lsn=format_lsn(positions[0]),
            lsn=format_lsn(positions[1]),
            ended_by=ended_by or "",
            batch=self._batch,
            batches=self._batches,
            transactions=self._transactions,
            changes=self._changes,
            seconds=round(self.seconds, 3),
            lag_seconds_median=round(median(self._lags), 3) if self._lags else None,
            lag_seconds_max=round(max(self._lags), 3) if self._lags else None,
        )
