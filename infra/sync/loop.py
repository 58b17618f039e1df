"""Micro-batches in a loop: wait until the source has changes, sync, say what came, wait again.

The loop has the pipeline's lock only during a batch.  Whoever waits for the lock gets it between two batches
(infra/opened/): a verification, a backfill, maintenance, a scheduled run.  The slot has one reader: while a
loop on another machine reads it, this one stands by, and goes on when that one has ended.  Invariant: the
loop remembers nothing that the next batch needs, so it can be killed at any moment, and another run goes on.

It tries again after errors that waiting mends, for a limited time.  All other errors end it, but an error of
one table sets that table aside in the sync (infra/selection/aside.py) and does not reach the loop.
"""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING, Protocol

from slotlake.decoder.errors import BusyError, SlotlakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.reuse import sessions_go_on
from slotlake.infra.kernels import compile_all
from slotlake.infra.progress import brought, conflict_counts, counted
from slotlake.infra.reports import RunReport
from slotlake.infra.sync.catch_up import Sync
from slotlake.infra.sync.wal_watch import WalWatch

if TYPE_CHECKING:
    from types import FrameType

    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.infra.reports import SyncReport
    from slotlake.infra.source.bell import Bell

_LOCK_SECONDS = 1.0
_IDLE_SECONDS, _IDLE_SECONDS_MAX = 10.0, 60.0
_EMPTY_SECONDS = 1.0
_COMPACT_SECONDS = 0.0  # one table per batch: tables that grow alike are due in the same batch
_RETRY_SECONDS, _RETRY_SECONDS_MAX = 1.0, 30.0
_STAND_BY_SECONDS = 2.0
ALIVE = "run.alive"
_LAGS_MAX = 10_000  # of a run that never ends, the newest
_ENDINGS = {"stop": "stopped", "time": "its time is over", "lsn": "it has reached its LSN"}


@dataclass(frozen=True)
class RunLimits:
    """When a run ends, and how it works until then.

    Attributes:
        seconds: it ends after so long, with the batch at hand; None: never.
        until: it ends when the lake has reached this LSN; None: never.
        interval_seconds: the least time from the begin of a batch to the begin of the next one.
        retry_seconds: for how long it tries again after errors that waiting mends.
    """

    seconds: float | None = None
    until: int | None = None
    interval_seconds: float = 0.0
    retry_seconds: float = 300.0


@dataclass(frozen=True)
class RunListener:
    """Who is called during a run.

    Attributes:
        batch: called after each micro-batch that brought something.
        line: called with a line of text for each other event.
        tried: called after each attempt, with its error if it is made again, else with None.
    """

    batch: Callable[[SyncReport], None] = lambda report: None
    line: Callable[[str], None] = lambda line: None
    tried: Callable[[SlotlakeError | None], None] = lambda error: None


class Verifier(Protocol):
    """Verifies in the background of a run."""

    def after_batch(self, *, brought: bool) -> None:
        """Begin a verification, if one is due; called with the pipeline's lock."""

    def end(self) -> None:
        """End soon."""


def run(
    pipeline: OpenPipeline,
    limits: RunLimits,
    bell: Bell,
    listener: RunListener,
    progress: Progressing,
    verifier: Verifier | None = None,
) -> RunReport:
    """Work until a limit is reached, or the bell is stopped.

    Args:
        pipeline: a pipeline whose lake has its tables.
        limits: when the run ends.
        bell: its `stop` ends the run after the batch at hand.
        listener: who is called.
        verifier: verifies meanwhile; None: nothing does.

    Raises:
        SlotlakeError: something that waiting does not mend, or has not mended in time.
    """
    start = pipeline.position()  # before anything is started: `init` may be missing
    loop = _Loop(pipeline, limits, bell, listener, progress)
    loop.verifier = verifier
    try:
        loop.work(start)
    finally:
        if verifier is not None:
            verifier.end()
    end = pipeline.position()
    return loop.totals.report(pipeline.name, (start, end), loop.ended_by(end))


class _Loop:
    def __init__(
        self,
        pipeline: OpenPipeline,
        limits: RunLimits,
        bell: Bell,
        listener: RunListener,
        progress: Progressing,
    ) -> None:
        self._pipeline, self._limits, self._bell = pipeline, limits, bell
        self._listener, self._progress = listener, progress
        self._watch = WalWatch(pipeline, bell, listener.line)
        self.totals = RunTotals()
        self.verifier: Verifier | None = None
        self._position = 0
        self._failing_since: float | None = None
        self._stands_by_for: str | None = None
        self._retry_seconds = _RETRY_SECONDS
        self._idle_seconds = _IDLE_SECONDS

    def work(self, position: int) -> None:
        """Make batches until the run ends."""
        self._position = position
        try:
            compile_all()  # so that the first batch does not wait for it
            while not self.ended_by(self._position):
                self._batch_and_wait()
        finally:
            self._watch.end()

    def ended_by(self, position: int) -> str | None:
        """Return what ends the run: ``stop``, ``lsn`` or ``time``; None if it goes on."""
        limits = self._limits
        if self._bell.stopped:
            return "stop"
        if limits.until is not None and position >= limits.until:
            return "lsn"
        return "time" if limits.seconds is not None and self.totals.seconds >= limits.seconds else None

    def _batch_and_wait(self) -> None:
        began = time.monotonic()
        self._note_alive()
        try:
            report = None if self._stand_by() else self._sync()
        except SlotlakeError as error:
            self._wait_after(error)
            return
        if report is None:
            return
        self._failing_since, self._retry_seconds = None, _RETRY_SECONDS
        self._listener.tried(None)
        self._count(report)
        if report.joining:  # the next batch copies more of these tables
            return
        least = self._limits.interval_seconds - (time.monotonic() - began)
        self._bell.pause(self._bounded(max(least, 0.0 if report.transactions else _EMPTY_SECONDS)))
        if not self.ended_by(self._position):
            self._watch.wait(self._bounded(self._idle_seconds))

    def _note_alive(self) -> None:
        """Touch a file of this machine, for those who watch over the process, as Kubernetes does."""
        with suppress(OSError):
            (self._pipeline.file.state_dir / ALIVE).touch(mode=0o600)

    def _stand_by(self) -> bool:
        """Wait a moment if a run on another machine reads the slot; return whether one does."""
        holder = self._watch.elsewhere()
        if holder is not None:
            if holder != self._stands_by_for:
                self._listener.line(
                    f"another machine works on pipeline {self._pipeline.name!r} ({holder}): this run stands "
                    "by, and goes on when that one has ended"
                )
            self._failing_since = None
            self._position = self._pipeline.position()
            self._bell.pause(self._bounded(_STAND_BY_SECONDS))
        elif self._stands_by_for is not None:
            self._listener.line(f"that one has ended ({self._stands_by_for}): this run goes on")
        self._stands_by_for = holder
        return holder is not None

    def _sync(self) -> SyncReport | None:
        """Make one micro-batch; None if the run must end before it has the lock."""
        with ExitStack() as stack:
            if not self._take_lock(stack):
                return None
            self._watch.begin()
            with sessions_go_on():
                report = Sync(self._pipeline).catch_up(self._progress, _COMPACT_SECONDS)
            if self.verifier is not None:
                self.verifier.after_batch(brought=report.transactions > 0)
            self._position = self._pipeline.position()
            return report

    def _take_lock(self, stack: ExitStack) -> bool:
        said = False
        while True:
            try:
                stack.enter_context(self._pipeline.exclusively(_LOCK_SECONDS, step="run"))
            except BusyError as error:
                if self.ended_by(self._position):
                    return False
                if not said:
                    self._listener.line(f"{error.what} ({error.where}): the next batch begins after it")
                said = True
            else:
                return True

    def _count(self, report: SyncReport) -> None:
        brought = self.totals.count(report)
        self._idle_seconds = _IDLE_SECONDS if brought else min(2 * self._idle_seconds, _IDLE_SECONDS_MAX)
        if brought:
            self._listener.batch(report)

    def _wait_after(self, error: SlotlakeError) -> None:
        """Wait before the next attempt.

        Raises:
            SlotlakeError: the error itself, if waiting does not mend it, or has not in time.
        """
        now = time.monotonic()
        self._failing_since = self._failing_since or now
        left = self._limits.retry_seconds - (now - self._failing_since)
        if not error.retryable or left <= 0:
            raise error
        pause = min(self._retry_seconds, left)
        self._listener.tried(error)
        self._listener.line(f"{error.what}; tried again in {pause:.0f} s, and for {left:.0f} s at most")
        self._retry_seconds = min(2 * self._retry_seconds, _RETRY_SECONDS_MAX)
        self._bell.pause(self._bounded(pause))

    def _bounded(self, seconds: float) -> float:
        """Not longer than the run has left."""
        limit = self._limits.seconds
        return seconds if limit is None else max(0.0, min(seconds, limit - self.totals.seconds))


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


def batch_lines(report: SyncReport) -> Iterator[str]:
    """Yield the line of a micro-batch: LSN, transactions, rows per table, lag, seconds per step.

    Other lines follow only for events: tables that join, are set aside or come back, warnings, conflicts,
    compaction.
    """
    tables = ", ".join(f"{table} {changes:,}" for table, changes in report.tables.items())
    steps = " ".join(f"{step} {seconds:.2f}" for step, seconds in report.seconds_by_step.items())
    lag = "" if report.lag_seconds is None else f"; lag {report.lag_seconds:.2f} s"
    transactions = counted(report.transactions, "transaction")
    yield f"{report.lsn}: {transactions} ({tables or 'no changes'}){lag}; {steps} s"
    yield from (f"  {table}: a new table of the lake" for table in report.added_tables)
    yield from (f"  {table}: a new table, {done} are copied" for table, done in report.joining.items())
    yield from (f"  {table}: followed again" for table in report.resumed)
    yield from (f"  {table}: set aside: {reason}" for table, reason in report.set_aside.items())
    yield from (f"  warning: {warning}" for warning in report.warnings)
    yield from (
        f"  {table}: conflicts: {conflict_counts(counts)}" for table, counts in report.conflicts.items()
    )
    for table in report.compacted:
        packed = f"{table.rewritten_files:,} small files packed into {table.written_files:,}"
        yield f"  {table.lake_table}: {f'not compacted: {table.failed}' if table.failed else packed}"


def run_line(report: RunReport) -> str:
    """Return the last line: why the run ended, and what it brought."""
    lag = ""
    if report.lag_seconds_median is not None and report.lag_seconds_max is not None:
        lag = f"; lag: median {report.lag_seconds_median:.2f} s, worst {report.lag_seconds_max:.2f} s"
    return (
        f"the run has ended ({_ENDINGS.get(report.ended_by, report.ended_by)}) at {report.lsn}: "
        f"{counted(report.batches, 'batch')}, {brought(report.transactions, report.changes)} "
        f"in {report.seconds:,.0f} s{lag}"
    )


@contextmanager
def stopped_by_signals(bell: Bell) -> Iterator[None]:
    """Let SIGTERM and SIGINT end the loop after the batch at hand; a second one is as any Ctrl-C."""

    def stop(number: int, frame: FrameType | None) -> None:
        if bell.stopped:
            interrupt = before[signal.SIGINT]
            (interrupt if callable(interrupt) else signal.default_int_handler)(number, frame)
        bell.stop()

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
