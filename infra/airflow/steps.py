"""The steps that a scheduler runs: one function per step, with JSON-able arguments and results.

A scheduler may repeat a step, clear it, or run it twice at once. A step keeps what is already done, and a
second run at the same time gets a `BusyError`, which the scheduler may retry.  A step reads the position from
the lake, never from the result of an earlier step; the batch name only makes sure that a step works on the
batch that the step before it wrote.  A step that publishes says under ``brought`` what asset events tell.
"""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from datetime import datetime
from typing import Any

from slotlake.expectations.results import one_report
from slotlake.infra.airflow import lineage
from slotlake.infra.airflow.brought import Brought
from slotlake.infra.cli.progress_display import progress_lines
from slotlake.infra.cli.run import stopped_by_signals
from slotlake.infra.cli.texts.run import batch_lines, run_line
from slotlake.infra.health.look import look
from slotlake.infra.pipeline import Pipeline
from slotlake.infra.recover.approved import note_plan
from slotlake.infra.reports import Report, SyncReport
from slotlake.infra.source.bell import Bell
from slotlake.infra.state_file import DROPPED

_log = logging.getLogger(__name__)
_COPY_WAIT_SECONDS = 600.0  # `bootstrap` may be queued, and starts Spark before it copies
_WAIT_SECONDS = 60.0  # for another run: between two batches of `slotlake run` there is a turn for each


def is_dropped(pipeline_file: str) -> bool:
    """Return whether `slotlake drop` has noted that the pipeline has ended."""
    with Pipeline.open(pipeline_file) as pipeline:
        return DROPPED.of(pipeline.file.state_dir).exists()


def bootstrap(pipeline_file: str) -> dict[str, Any]:
    """Create publication, slot and lake tables, and copy all rows of the source. Idempotent."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.init(progress=progress_lines(_log.info)).as_dict()


def copy_worker(pipeline_file: str) -> dict[str, Any]:
    """Copy ranges of the initial copy that the task `bootstrap` runs, on another worker. Idempotent."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.help_copy(progress=progress_lines(_log.info), wait_seconds=_COPY_WAIT_SECONDS)
        return report.as_dict()


def pull(pipeline_file: str) -> dict[str, Any]:
    """Write the next batch of the change log, or use the one on disk. Confirms nothing."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.pull(wait_seconds=_WAIT_SECONDS).as_dict()


def sync(pipeline_file: str) -> dict[str, Any]:
    """Make one micro-batch: pull, apply, publish, confirm."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.sync(wait_seconds=_WAIT_SECONDS)
        _log_batch(report)
        brought = Brought.by_syncs([report], report.start_lsn, report.lsn)
        return _with_brought(pipeline, report, brought)


def run(pipeline_file: str) -> dict[str, Any]:
    """Make micro-batches for the time that the pipeline file says, or until a signal; log each of them."""
    from slotlake.infra.sync.loop import RunLimits, RunListener

    bell = Bell()
    # Airflow's own handler of SIGTERM would let the loop go on until it is killed.
    is_main = threading.current_thread() is threading.main_thread()
    with stopped_by_signals(bell) if is_main else nullcontext(), Pipeline.open(pipeline_file) as pipeline:
        limits = RunLimits(seconds=pipeline.file.airflow.run_for)
        brought = Brought("", "")

        def batch(made: SyncReport) -> None:
            _log_batch(made)
            brought.add(made)

        report = pipeline.run(limits, bell=bell, listener=RunListener(batch, _log.info))
        _log.info(run_line(report))
        brought.start_lsn, brought.end_lsn = report.start_lsn, report.lsn
        return _with_brought(pipeline, report, brought)


def apply(pipeline_file: str, batch: str) -> dict[str, Any]:
    """Write the batch to the branch `stage`: one fold and one MERGE per table. Readers do not see it."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.apply(batch).as_dict()


def publish(pipeline_file: str, batch: str) -> dict[str, Any]:
    """Publish the staged batch in all tables with one catalog transaction."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.publish(batch)
        return _with_brought(pipeline, report, Brought.by_batch(pipeline, batch))


def confirm(pipeline_file: str, batch: str | None = None) -> dict[str, Any]:
    """Confirm the lake's position to the server, then pack small files of the tables that a batch changed.

    Args:
        batch: the published batch; it does not change the position. None: no table is looked at.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.confirm(batch).as_dict()


def verify(
    pipeline_file: str, expect: dict[str, Any] | None = None, scope: str | None = None
) -> dict[str, Any]:
    """Compare lake and source at an exact LSN, at or after the end of the range ``expect``.

    Args:
        expect: a range of LSNs with ``end_lsn``.
        scope: which rows; None: as the section ``verify`` of the pipeline file says, else all.

    Raises:
        LakeError: the lake is behind the end of that range.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        settings = pipeline.file.verify
        scopes = (scope,) if scope else settings.scopes
        load = settings.source_load if settings.is_left_on and not scope else None
        at_least = (expect or {}).get("end_lsn")
        reports = [pipeline.verify(each, source_load=load, at_least=at_least) for each in scopes]
        return pipeline.verification_summary(one_report(reports))


def maintain(pipeline_file: str) -> dict[str, Any]:
    """Pack the files of the lake's tables, and remove what no kept point needs."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.maintain(wait_seconds=60.0).as_dict()


def plan_recovery(pipeline_file: str) -> dict[str, Any]:
    """Say what is wrong and how to repair it; change nothing. ``plan_name``: to carry out this plan by."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.recover(progress=progress_lines(_log.info))
        name = note_plan(pipeline.file, report) if report.findings else None
        return {**report.as_dict(), "plan_name": name}


def recover(pipeline_file: str, plan_name: str) -> dict[str, Any]:
    """Carry out a plan of `plan_recovery`. Idempotent.

    Raises:
        LakeError: the plan would be another one now; nothing was changed.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        progress = progress_lines(_log.info)
        return pipeline.recover(carry_out=True, approved=plan_name, progress=progress).as_dict()


def status(pipeline_file: str) -> dict[str, Any]:
    """Return the pipeline's status, and note it for the pages; changes nothing and waits for no other run."""
    with Pipeline.open(pipeline_file) as pipeline:
        status: dict[str, Any] = look(pipeline)["status"]
        return status


def backfill(
    pipeline_file: str,
    table: str | list[str],
    where: str | None = None,
    key_range: str | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Read tables, or some of their rows, again from the source at an exact LSN.

    Args:
        table: one or several, as PostgreSQL writes them.
        where: an SQL condition; None: all rows.
        key_range: ``A..B`` of the key's first column; None: all keys.
        dry_run: change nothing, only report.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.backfill(table, where=where, key_range=key_range, dry_run=dry_run)
        return report.as_dict()


def change_tables(
    pipeline_file: str, added: list[str], removed: list[str], drop: bool = False
) -> dict[str, Any]:
    """Add tables to the pipeline, then remove others. Idempotent.

    Args:
        added: as PostgreSQL writes them.
        drop: remove the lake's tables of these, too.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        report: dict[str, Any] = {"added": None, "removed": None}
        if added:
            progress = progress_lines(_log.info)
            report["added"] = pipeline.add(added, progress=progress).as_dict()
        if removed:
            report["removed"] = pipeline.remove(removed, drop=drop).as_dict()
        return report


def replay(pipeline_file: str, namespace: str, start: str, end: str) -> dict[str, Any]:
    """Bring the tables of a scratch namespace to the lake's content at the end of a time range.

    Args:
        start: begin of the range, ISO 8601.
        end: end of the range, ISO 8601.
    """
    from slotlake.infra.backfill.replay import extend

    with Pipeline.open(pipeline_file) as pipeline:
        begin, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
        return extend(pipeline, namespace, begin, last).as_dict()


def _with_brought(pipeline: Pipeline, report: Report, brought: Brought) -> dict[str, Any]:
    """Return a report with what was brought under ``brought``; note the latter for lineage."""
    lineage.note(pipeline, brought)
    return {**report.as_dict(), "brought": brought.as_dict()}


def _log_batch(report: SyncReport) -> None:
    for line in batch_lines(report):
        _log.info(line)
