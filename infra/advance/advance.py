"""Bring the lake exactly to an LSN, at which there may be a snapshot of the source.

One step of the pipeline's journey, taken as often as it needs: pull what follows the lake's position, look at
what the source's tables became meanwhile, apply, publish, confirm.  `infra.sync.catch_up` is the same journey
to wherever the source is now, with the tables that join or come back on the way.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from slotlake.decoder.changelog.batches import Batch, batch_starting_at
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.slots.slot import ExportedSnapshot, create_slot
from slotlake.infra.advance.findings import require_same_content, require_whole
from slotlake.infra.advance.steps import Totals, apply_named, bring_in, publish_named
from slotlake.infra.copy.joining_record import note_changes
from slotlake.infra.reports import PullReport
from slotlake.infra.schema.evolution import with_schema_changes
from slotlake.infra.selection.aside import retry_without_troubled, set_aside_unreadable
from slotlake.infra.source.history import follow_history
from slotlake.infra.source.pulling import pull_batch
from slotlake.infra.source.wal_notes import note_source_position

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing


def advance(
    pipeline: OpenPipeline, until: int, progress: Progressing, snapshot: ExportedSnapshot | None = None
) -> None:
    """Bring the lake exactly to a position.

    Takes more than one batch when a crash has left one behind, or when one batch would be too large.

    Args:
        until: the position, as an LSN.
        snapshot: of the source there, if there is one.

    Raises:
        SlotlakeError: something is wrong with source, slot, lake or change log; the message says what.
    """
    _finish_published_partly(pipeline, until)
    totals = Totals()
    while True:
        pulled = retry_without_troubled(pipeline, lambda: _pull_to(pipeline, until, snapshot, progress))
        bring_in(pipeline, pulled, totals, progress)
        if pulled.batch is None or pipeline.position() >= until:
            return


def _pull_to(
    pipeline: OpenPipeline, until: int, snapshot: ExportedSnapshot | None, progress: Progressing
) -> PullReport:
    started = time.monotonic()
    position = require_fit(pipeline, at_snapshot=True)
    batch = next_batch(pipeline, position, until, snapshot, progress)
    return pull_report(batch, position, started)


def require_fit(pipeline: OpenPipeline, *, at_snapshot: bool) -> int:
    """The lake's position, once source, slot, lake and change log were looked at and found fit for a pull.

    Args:
        at_snapshot: the pull ends at a snapshot of the source.
    """
    position = pipeline.position()
    follow_history(pipeline, position)
    require_whole(pipeline, at_snapshot=at_snapshot)
    require_same_content(pipeline, position)
    return position


def next_batch(
    pipeline: OpenPipeline,
    position: int,
    until: int | None,
    snapshot: ExportedSnapshot | None,
    progress: Progressing,
) -> Batch:
    """The batch that follows a position, pulled or found on disk, with what belongs to it written beside.

    Args:
        until: where it ends; None: where the source is now.
        snapshot: of the source there, if there is one.
    """
    batch = pull_batch(pipeline, position, until, progress)
    set_aside_unreadable(pipeline, batch)
    batch = with_schema_changes(pipeline, batch, snapshot, progress)
    set_aside_unreadable(pipeline, batch)
    note_changes(pipeline, batch)
    return batch


def pull_report(batch: Batch, position: int, started: float) -> PullReport:
    """What a pull reports of its batch; ``started`` is a time of `time.monotonic`."""
    if batch.end_lsn == position:
        at = format_lsn(position)
        return PullReport(None, at, at)
    return PullReport(
        batch=batch.name,
        start_lsn=format_lsn(batch.start_lsn),
        end_lsn=format_lsn(batch.end_lsn),
        transactions=batch.transactions,
        changes=batch.changes,
        bytes=batch.bytes,
        seconds=time.monotonic() - started,
    )


def _finish_published_partly(pipeline: OpenPipeline, until: int) -> None:
    """A batch that a killed run has published for some tables only: no other than that can follow it.

    Such there are where tables are published one after another.
    """
    from slotlake.spark.publish.rewind_tables import ahead

    if pipeline.lake.publish == "atomic":
        return
    batch = batch_starting_at(pipeline.file.changelog_dir, pipeline.position())
    if batch is None or batch.empty or batch.end_lsn > until:
        return
    if ahead(pipeline.lake, pipeline.name):
        apply_named(pipeline, batch.name)
        publish_named(pipeline, batch.name)


@contextmanager
def at_slot_snapshot(
    pipeline: OpenPipeline, timeout_seconds: float, progress: Progressing
) -> Iterator[ExportedSnapshot]:
    """Bring the lake exactly to the position of a snapshot of the source, and keep that snapshot.

    Raises:
        SlotError: transactions stayed open for ``timeout_seconds``; the message names them.
    """
    progress("waiting for a snapshot of the source", 0)
    asked_at = time.time()
    with create_slot(pipeline.source, temporary=True, wait_seconds=timeout_seconds) as snapshot:
        note_source_position(pipeline, snapshot.lsn, asked_at)
        advance(pipeline, snapshot.lsn, progress, snapshot)
        yield snapshot
