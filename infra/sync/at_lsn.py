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
from slotlake.decoder.server.timeline import AnotherClusterError
from slotlake.decoder.slots.slot import ExportedSnapshot, create_slot
from slotlake.infra.config.identity import note_identity
from slotlake.infra.copy.joining_record import note_changes
from slotlake.infra.reports import PullReport
from slotlake.infra.selection.aside import SettingAside
from slotlake.infra.source.history import follow_history
from slotlake.infra.source.own_slot import require_own_slot_name
from slotlake.infra.source.pulling import pull_batch
from slotlake.infra.source.wal_notes import note_source_position
from slotlake.infra.state.batch_notes import note_pulled
from slotlake.infra.sync.batch_steps import BatchSteps, Totals
from slotlake.infra.sync.findings import Judgement
from slotlake.infra.sync.gates import Gates
from slotlake.infra.sync.schema.evolution import SchemaChanges
from slotlake.infra.sync.upgraded import go_on_upgraded

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing


class Advance:
    """The way of the lake to an LSN, batch after batch."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def advance(self, until: int, progress: Progressing, snapshot: ExportedSnapshot | None = None) -> None:
        """Bring the lake exactly to a position.

        Takes more than one batch when a killed run has left one behind, or when one batch would be too large.

        Args:
            until: the position to reach, as an LSN.
            snapshot: a snapshot of the source at that position; None if there is none.

        Raises:
            SlotlakeError: something is wrong with source, slot, lake or change log; the message says what.
        """
        self._finish_published_partly(until)
        totals = Totals()
        while True:
            pulled = SettingAside(self._pipeline).retry_without_troubled(
                lambda: self._pull_to(until, snapshot, progress)
            )
            BatchSteps(self._pipeline).apply_and_publish(pulled, totals, progress)
            if pulled.batch is None or self._pipeline.position() >= until:
                return

    def _pull_to(self, until: int, snapshot: ExportedSnapshot | None, progress: Progressing) -> PullReport:
        started = time.monotonic()
        position = self.require_fit(at_snapshot=True)
        batch = self.next_batch(position, until, snapshot, progress)
        report = pull_report(batch, position, started)
        note_pulled(self._file.state_dir, report.batch, report.seconds)
        return report

    def require_fit(self, *, at_snapshot: bool) -> int:
        """Check that source, slot, lake and change log are fit for a pull, and return the lake's position.

        After a major upgrade of the server that has kept the slot, the position is taken to that slot first.

        Args:
            at_snapshot: the pull ends at a snapshot of the source.
        """
        position = self._pipeline.position()
        require_own_slot_name(self._file, self._source)
        note_identity(self._file, self._lake, slot=False)
        try:
            follow_history(self._pipeline, position)
        except AnotherClusterError as error:
            position = go_on_upgraded(self._pipeline, position, error)
        Judgement(self._pipeline).require_whole(at_snapshot=at_snapshot)
        Judgement(self._pipeline).require_same_content(position)
        return position

    def next_batch(
        self,
        position: int,
        until: int | None,
        snapshot: ExportedSnapshot | None,
        progress: Progressing,
    ) -> Batch:
        """Return the batch that follows a position, pulled or found on disk, with its sidecar written.

        Args:
            position: the lake's position, as an LSN.
            until: the LSN at which the batch ends; None for where the source is now.
            snapshot: a snapshot of the source at ``until``; None if there is none.
        """
        Gates(self._pipeline).forget_refused(position)
        batch = pull_batch(self._pipeline, position, until, progress)
        SettingAside(self._pipeline).set_aside_unreadable(batch)
        batch = SchemaChanges(self._pipeline).with_schema_changes(batch, snapshot, progress)
        SettingAside(self._pipeline).set_aside_unreadable(batch)
        note_changes(self._file.state_dir, batch)
        return batch

    def _finish_published_partly(self, until: int) -> None:
        """Finish a batch that a killed run has published for some tables only: no other batch can follow it.

        Such batches exist only where tables are published one after another (`lake.publish: per_table`).
        """
        from slotlake.spark.publish.rewind import ahead

        if self._lake.publish == "atomic":
            return
        batch = batch_starting_at(self._file.changelog_dir, self._pipeline.position())
        if batch is None or batch.empty or batch.end_lsn > until:
            return
        if ahead(self._lake, self._pipeline.name):
            BatchSteps(self._pipeline).apply_named(batch.name)
            BatchSteps(self._pipeline).publish_named(batch.name)

    @contextmanager
    def at_slot_snapshot(self, timeout_seconds: float, progress: Progressing) -> Iterator[ExportedSnapshot]:
        """Bring the lake exactly to the position of a temporary slot's snapshot, and keep that snapshot open.

        Args:
            timeout_seconds: how long transactions may stay open; the slot waits for all of them.

        Raises:
            SlotError: transactions stayed open for longer; the message names them.
        """
        progress("waiting for a snapshot of the source", 0)
        asked_at = time.time()
        with create_slot(self._source, temporary=True, wait_seconds=timeout_seconds) as snapshot:
            note_source_position(self._file.state_dir, self._source.dsn, snapshot.lsn, asked_at)
            self.advance(snapshot.lsn, progress, snapshot)
            yield snapshot


def pull_report(batch: Batch, position: int, started: float) -> PullReport:
    """Return the report of a pull.

    Args:
        batch: the batch that was pulled.
        position: the lake's position before the pull; a batch that ends there is empty.
        started: when the pull began, as `time.monotonic` says it, in seconds.
    """
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
        oldest_commit=batch.manifest.get("first_commit_time"),
        newest_commit=batch.manifest.get("last_commit_time"),
        seconds=time.monotonic() - started,
    )
