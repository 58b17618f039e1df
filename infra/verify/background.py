"""Verification in the background of a run of many batches (`slotlake run`, `airflow.run: continuous`).

The loop brings the lake to the LSN of a snapshot, under the lock that it has after a batch; a thread compares
there, and the loop goes on with the next batch.  One verification is at work at a time: what changes
meanwhile is compared by the next one.  Invariant: a verification that fails, or finds a difference, never
ends the run; the line that it leaves in the journal, and the run's own line, say it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from slotlake.decoder.errors import SlotlakeError
from slotlake.expectations.results import CHANGED, ROLLING, Report
from slotlake.expectations.sessions.pace import StoppedError
from slotlake.infra.progress import silent
from slotlake.infra.verify.verification import Begun, Verification, VerifyRequest

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline

_LOOP_SHARE = 0.1  # of the loop's own time, for bringing the lake to a snapshot
_WAIT_SECONDS = 1.0  # for open transactions, where the source's snapshots cannot be judged
_ROLLING_SECONDS_MAX, _ROLLING_PARTS = 3600.0, 24


class BackgroundVerifier:
    """Verifies as the section ``verify`` of the pipeline file says, after batches of a run.

    Args:
        pipeline: the run's pipeline.
        line: called with a line for people, when something is wrong.
    """

    def __init__(self, pipeline: OpenPipeline, line: Callable[[str], None]) -> None:
        self._pipeline, self._line = pipeline, line
        self._settings = pipeline.file.verify
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="slotlake-verify")
        self._at_work: Future[None] | None = None
        self._begun: Begun | None = None
        self._not_before = 0.0
        self._rolling_at = time.monotonic()  # cdc_verify may have done it a moment ago
        self._changes = True  # what changed while nothing ran

    def after_batch(self, *, brought: bool) -> None:
        """Begin a verification, if one is due; call it with the pipeline's lock.

        Args:
            brought: the batch had transactions.
        """
        self._changes = self._changes or brought
        scope = self._due()
        if scope is None:
            return
        started = time.monotonic()
        try:
            request = VerifyRequest(
                scope, source_load=self._settings.source_load, slot_timeout_seconds=_WAIT_SECONDS
            )
            self._begun = Verification(self._pipeline).begin(request, silent)
        except SlotlakeError as error:
            self._line(f"not verified: {error.what}; the next batch tries again")
        else:
            self._at_work = self._thread.submit(self._compare, self._begun, scope)
            self._changes = self._changes and scope != CHANGED
        ended = time.monotonic()
        self._not_before = ended + (ended - started) * (1 - _LOOP_SHARE) / _LOOP_SHARE
        if scope == ROLLING:
            self._rolling_at = ended

    def end(self) -> None:
        """End; what is being compared is given up, and compared again by the next run."""
        if self._begun is not None and self._at_work is not None and not self._at_work.done():
            self._begun.stop()
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _due(self) -> str | None:
        now = time.monotonic()
        if (self._at_work is not None and not self._at_work.done()) or now < self._not_before:
            return None
        within = self._settings.full_within
        rolling_seconds = min(_ROLLING_SECONDS_MAX, (within or 0.0) / _ROLLING_PARTS)
        if within is not None and now - self._rolling_at >= rolling_seconds:
            return ROLLING
        return CHANGED if self._changes and self._settings.changed == "every_batch" else None

    def _compare(self, begun: Begun, scope: str) -> None:
        try:
            report = begun.finish(silent)
        except StoppedError:
            return
        except SlotlakeError as error:
            self._line(f"not verified ({scope}): {error.what}")
            return
        if not report.equal:
            self._line(difference_line(report))


def difference_line(report: Report) -> str:
    """Return a line that says which tables differ, without keys."""
    different = [(name, table) for name, table in report.tables.items() if not table.equal]
    tables = ", ".join(f"{name} ({_kinds(table.totals)})" for name, table in different[:5])
    more = f", and {len(different) - 5} more tables" if len(different) > 5 else ""
    return (
        f"source and lake differ at {report.lsn} ({report.scope} rows): {tables}{more}; "
        "slotlake verify with the pipeline file lists the keys"
    )


def _kinds(totals: dict[str, int]) -> str:
    return ", ".join(f"{rows:,} {kind}" for kind, rows in totals.items())
