"""The steps a scheduler runs, one function each, with JSON in and JSON out.

Every step may be repeated, cleared, or run twice at once: what is already so is left as it is, and
whoever comes second is refused (`BusyError`, which a scheduler may retry).  Progress is read from
the lake, never from what an earlier step returned; the batch name passed along only makes sure that
a step works on the batch its predecessor meant.
"""

from __future__ import annotations

import logging
from datetime import datetime
from typing import Any

from slotlake.infra.cli.output import lines
from slotlake.infra.pipeline import Pipeline
from slotlake.infra.reports import ApplyReport, PullReport

_log = logging.getLogger(__name__)


def bootstrap(pipeline_file: str) -> dict[str, Any]:
    """Make publication, slot and lake tables, and copy what the source holds. Idempotent."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.init(progress=lines(_log.info)).as_dict()


def pull(pipeline_file: str) -> dict[str, Any]:
    """Write the next change log batch, or find the one already written. Confirms nothing."""
    with Pipeline.open(pipeline_file) as pipeline:
        return _told(pipeline.pull())


def apply(pipeline_file: str, batch: str) -> dict[str, Any]:
    """Stage the batch: one fold and one MERGE per touched table, invisible to readers."""
    with Pipeline.open(pipeline_file) as pipeline:
        return _told(pipeline.apply(batch))


def publish(pipeline_file: str, batch: str) -> dict[str, Any]:
    """Move all tables to the staged batch in one catalog transaction."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.publish(batch).as_dict()


def confirm(pipeline_file: str, batch: str | None = None) -> dict[str, Any]:
    """Let the server forget WAL up to the lake's position (never further, whatever ``batch`` says)."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.confirm().as_dict()


def verify(pipeline_file: str, expect: dict[str, Any] | None = None) -> dict[str, Any]:
    """Compare lake and source at an exact LSN, at or after the range ``expect`` names.

    Raises:
        LakeError: the lake is behind the position that the caller was told it has.
    """
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.verify(at_least=(expect or {}).get("end_lsn"))
        return pipeline.verification_summary(report)


def maintain(pipeline_file: str) -> dict[str, Any]:
    """Compact the lake's tables, and let go of what no kept point needs."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.maintain(wait_seconds=60.0).as_dict()


def recover(pipeline_file: str, carry_out: bool = False) -> dict[str, Any]:
    """What is wrong and what would mend it; with ``carry_out`` do so. Idempotent."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.recover(carry_out=carry_out).as_dict()


def status(pipeline_file: str) -> dict[str, Any]:
    """Where the pipeline stands; changes nothing, waits for nobody."""
    with Pipeline.open(pipeline_file) as pipeline:
        return pipeline.status().as_dict()


def backfill(
    pipeline_file: str,
    table: str | list[str],
    where: str | None = None,
    key_range: str | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    """Read tables, or some rows of them, again from the source, at an exact LSN, while the stream goes on."""
    with Pipeline.open(pipeline_file) as pipeline:
        report = pipeline.backfill(table, where=where, key_range=key_range, dry_run=dry_run)
        return report.as_dict()


def replay(pipeline_file: str, namespace: str, start: str, end: str) -> dict[str, Any]:
    """Bring a scratch namespace to what the lake held at the end of a range of time."""
    from slotlake.infra.backfill.replay import extend

    with Pipeline.open(pipeline_file) as pipeline:
        begin, last = datetime.fromisoformat(start), datetime.fromisoformat(end)
        return extend(pipeline, namespace, begin, last).as_dict()


def _told(report: PullReport | ApplyReport) -> dict[str, Any]:
    """A step's report; tables that are set aside stand in its log too, for the run stays green."""
    for table, reason in report.set_aside.items():
        _log.warning("table %s is set aside: %s", table, reason)
    return report.as_dict()
