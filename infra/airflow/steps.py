"""The steps that a scheduler runs: one function per step, with JSON-able arguments and results.

Each opens the pipeline, calls one method, logs what was done (infra/airflow/words.py), and returns the report
as it fits into an XCom.

A scheduler may repeat a step, clear it, or run it twice at once. A step keeps what is already done, and a
second run at the same time gets a `BusyError`, which the scheduler may retry.  A step reads the position from
the lake, never from the result of an earlier step; the batch name only makes sure that a step works on the
batch that the step before it wrote.  A step that publishes makes the asset events of what it brought.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.expectations.results import NOT_COMPARED, one_report
from slotlake.infra.airflow import lineage, words
from slotlake.infra.airflow.brought import Brought
from slotlake.infra.airflow.scheduling import shortened
from slotlake.infra.pipeline import Pipeline
from slotlake.infra.progress import progress_lines
from slotlake.infra.recover.approved import note_plan
from slotlake.infra.reports import Alarm, SyncReport
from slotlake.infra.source.bell import Bell
from slotlake.infra.state.notes import DROPPED
from slotlake.infra.sync.loop import RunLimits, RunListener, batch_lines, run_line, stopped_by_signals

_log = logging.getLogger(__name__)
logging.getLogger("pyiceberg").setLevel(logging.WARNING)  # it writes a line for each table that it opens
_COPY_WAIT_SECONDS = 600.0  # `bootstrap` may be queued, and starts Spark before it copies
_WAIT_SECONDS = 60.0  # for another run: between two batches of `slotlake run` there is a turn for each
_TABLES_MAX = 20  # in the error of a verification
_PULLED = ("batch", "start_lsn", "end_lsn", "transactions", "changes", "set_aside", "resumed")


def is_dropped(pipeline_file: str) -> bool:
    """Return whether `slotlake drop` has noted that the pipeline has ended."""
    with Pipeline.open(pipeline_file) as pipeline:
        return DROPPED.of(pipeline.file.state_dir).exists()


def bootstrap(pipeline_file: str) -> dict[str, Any]:
    """Create publication, slot and lake tables, and copy all rows of the source. Idempotent."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.init(progress=progress_lines(_log.info)).as_dict()
        words.log_step(words.bootstrap_lines(report))
        return shortened(report)


def copy_worker(pipeline_file: str) -> dict[str, Any]:
    """Copy ranges of the initial copy that the task `bootstrap` runs, on another worker. Idempotent."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.help_copy(progress=progress_lines(_log.info), wait_seconds=_COPY_WAIT_SECONDS)
        return shortened(report.as_dict())


def pull(pipeline_file: str) -> dict[str, Any]:
    """Write the next batch of the change log, or use the one on disk. Confirms nothing.

    Returns:
        What the next steps need, and the tables that are set aside or resumed.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.pull(wait_seconds=_WAIT_SECONDS).as_dict()
        words.log_step(words.pull_lines(report))
        return shortened({name: report[name] for name in _PULLED})


def sync(pipeline_file: str, outlet_events: Any = None, store: Any = None) -> dict[str, Any]:
    """Make one micro-batch: pull, apply, publish, confirm.

    Args:
        outlet_events: Airflow's, of a task with `assets.outlets`.
        store: Airflow's ``asset_state_store``; None before Airflow 3.3.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.sync(wait_seconds=_WAIT_SECONDS)
        _log_batch(report)
        brought = Brought.by_syncs([report], report.start_lsn, report.lsn)
        _emit(pipeline, brought, outlet_events, store)
        return shortened(report.as_dict())


def run(pipeline_file: str, outlet_events: Any = None, store: Any = None) -> dict[str, Any]:
    """Make micro-batches for the time that the pipeline file says, or until a signal; log each of them."""
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
        _emit(pipeline, brought, outlet_events, store)
        return shortened(report.as_dict())


def apply(pipeline_file: str, batch: str) -> dict[str, Any]:
    """Write the batch to the branch `stage`: one fold and one MERGE per table. Readers do not see it."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.apply(batch).as_dict()
        words.log_step(words.apply_lines(report))
        return shortened(report)


def publish(pipeline_file: str, batch: str, outlet_events: Any = None, store: Any = None) -> dict[str, Any]:
    """Publish the staged batch in all tables with one catalog transaction."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.publish(batch).as_dict()
        brought = Brought.by_batch(pipeline, batch)
        words.log_step(words.publish_lines(report))
        _emit(pipeline, brought, outlet_events, store)
        return shortened(report)


def confirm(pipeline_file: str, batch: str | None = None) -> dict[str, Any]:
    """Confirm the lake's position to the server, then pack small files of the tables that a batch changed.

    Args:
        batch: the published batch; it does not change the position. None: no table is looked at.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.confirm(batch).as_dict()
        words.log_step(words.confirm_lines(report))
        return shortened(report)


def verify(
    pipeline_file: str, ranges: Iterable[Mapping[str, Any]] = (), scope: str | None = None
) -> dict[str, Any]:
    """Compare lake and source at an exact LSN, at or after the batches of the asset events.

    Args:
        ranges: the extras of the asset events, with ``start_lsn`` and ``end_lsn``.
        scope: which rows; None: as the section ``verify`` of the pipeline file says, else all.

    Raises:
        LakeError: the lake is behind the end of the last batch.
        AirflowFailException: lake and source differ.
        AirflowException: a table was locked or rewritten, and all others are equal; a new attempt can help.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        settings = pipeline.file.verify
        scopes = (scope,) if scope else settings.scopes
        load = settings.source_load if settings.is_left_on and not scope else None
        at_least = covered(ranges).get("end_lsn")
        reports = [pipeline.verify(each, source_load=load, at_least=at_least) for each in scopes]
        report = pipeline.verification_summary(one_report(reports))
    words.log_step(words.verify_lines(report))
    _require_equal(pipeline_file, report)
    return shortened(report)


def _require_equal(pipeline_file: str, report: Mapping[str, Any]) -> None:
    from slotlake.infra.airflow.versions import AirflowException, AirflowFailException

    if not report["equal"]:
        kinds = {kind for table in report["tables"].values() for kind in table.get("kinds", ())}
        raise (AirflowException if kinds <= NOT_COMPARED else AirflowFailException)(
            "\n".join(
                [
                    *_different_tables(report["tables"]),
                    f"lake and source differ at {report['lsn']}",
                    f"  what to do: slotlake verify {Path(pipeline_file).name} lists the keys that differ",
                    *([f"  Data Docs: {docs}"] if (docs := report.get("data_docs")) else []),
                ]
            )
        )
    if failed := report.get("failed_suites"):
        raise AirflowFailException(
            f"lake and source are equal at {report['lsn']}, but rows fail suites: {'; '.join(failed)}\n"
            "  what to do: correct the rows at the source, or the suite; the Data Docs have examples"
        )


def _different_tables(tables: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return a line per table that differs; the first ones, for a message."""
    lines = [words.table_differs(name, table) for name, table in tables.items() if not table["equal"]]
    more = len(lines) - _TABLES_MAX
    return [*lines[:_TABLES_MAX], *([f"and {more:,} more tables"] if more > 0 else [])]


def covered(ranges: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the range from the first start to the last end of several batches; empty without batches."""
    positions = [(parse_lsn(r["start_lsn"]), parse_lsn(r["end_lsn"])) for r in ranges if "end_lsn" in r]
    if not positions:
        return {}
    return {
        "start_lsn": format_lsn(min(start for start, _ in positions)),
        "end_lsn": format_lsn(max(end for _, end in positions)),
    }


def maintain(pipeline_file: str) -> dict[str, Any]:
    """Pack the files of the lake's tables, remove what no kept point needs; report tables that changed."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.maintain(wait_seconds=60.0).as_dict()
    words.log_step(words.maintain_lines(report))
    counts = ("rewritten_files", "expired_snapshots", "removed_files")
    tables = [table for table in report["tables"] if any(table[count] for count in counts)]
    return shortened({**report, "tables": tables, "all_tables": len(report["tables"])})


def plan_recovery(pipeline_file: str) -> dict[str, Any]:
    """Say what is wrong and how to repair it; change nothing. ``plan_name``: to carry out this plan by."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.recover(progress=progress_lines(_log.info))
        name = note_plan(pipeline.file, report) if report.findings else None
        planned = {**report.as_dict(), "plan_name": name}
        words.log_step(words.recover_lines(planned))
        return planned


def recover(pipeline_file: str, plan_name: str) -> dict[str, Any]:
    """Carry out a plan of `plan_recovery`. Idempotent.

    Raises:
        LakeError: the plan would be another one now; nothing was changed.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        progress = progress_lines(_log.info)
        report = pipeline.recover(carry_out=True, approved=plan_name, progress=progress).as_dict()
        words.log_step(words.recover_lines(report))
        return shortened(report)


def status(
    pipeline_file: str, more: Callable[[Mapping[str, Any]], Sequence[Alarm]] | None = None
) -> dict[str, Any]:
    """Return the pipeline's status; note it for the pages, and tell receivers. It waits for no other run.

    Args:
        more: finds alarms that only Airflow knows of, from the status.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        status: dict[str, Any] = pipeline.look(more)["status"]
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
        report = pipeline.backfill(table, where=where, key_range=key_range, dry_run=dry_run).as_dict()
        words.log_step(words.backfill_lines(report))
        return shortened(report)


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
        words.log_step(words.change_tables_lines(report))
        return shortened(report)


def replay(pipeline_file: str, namespace: str, start: str, end: str) -> dict[str, Any]:
    """Bring the tables of a scratch namespace to the lake's content at the end of a time range.

    Args:
        start: begin of the range, ISO 8601.
        end: end of the range, ISO 8601.
    """
    from slotlake.infra.backfill.replay import extend

    with Pipeline.open(pipeline_file) as pipeline:
        begin, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
        report = extend(pipeline, namespace, begin, last).as_dict()
        words.log_step(words.replay_lines(report))
        return shortened(report)


def _emit(pipeline: Pipeline, brought: Brought, outlet_events: Any, store: Any) -> None:
    """Make the asset events of what was brought, in a task that has some; note it for lineage."""
    lineage.note(pipeline, brought)
    if outlet_events is not None:
        from slotlake.infra.airflow import assets

        assets.emit(pipeline.file.name, brought.as_dict(), outlet_events, store)


def _log_batch(report: SyncReport) -> None:
    for line in batch_lines(report):
        _log.info(line)
