"""The sync: catch up with the source's position as it is now, batch after batch.

On the way tables that have joined the publications are copied for a while, tables that were set aside come
back, and histories that the pipeline file asks for are begun.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING

from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.position import source_position
from slotlake.decoder.server.reuse import sessions_go_on
from slotlake.infra.reports import PullReport, SyncReport, TableCompacted
from slotlake.infra.selection import known_tables
from slotlake.infra.selection.aside import SettingAside, tables_aside
from slotlake.infra.selection.derived_gone import gone_warnings
from slotlake.infra.selection.pending import noted_pending
from slotlake.infra.selection.readers import reader_warnings
from slotlake.infra.selection.tables import refuse_changed
from slotlake.infra.source.fingerprints import ask_ahead
from slotlake.infra.source.wal_notes import note_source_position
from slotlake.infra.state.batch_notes import note_pulled
from slotlake.infra.state.events import note_copies
from slotlake.infra.sync.at_lsn import Advance, pull_report
from slotlake.infra.sync.batch_steps import BatchSteps, Totals
from slotlake.infra.sync.compaction import SECONDS_MAX, Compaction
from slotlake.infra.sync.joining_tables import JoiningTables
from slotlake.infra.sync.modes import begin_modes
from slotlake.infra.sync.recopying import RecopiedTables, reasons
from slotlake.infra.sync.refill import Refill
from slotlake.infra.sync.resuming import TablesAside

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.publish.aside import Name


class Sync:
    """A sync: to where the source is now, batch after batch."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def pull_next(self, progress: Progressing) -> PullReport:
        """Return the batch from the lake's position up to the source's of now; pulled, or found on disk."""
        aside = tables_aside(self._lake).keys()
        report = SettingAside(self._pipeline).retry_without_troubled(lambda: self._pull_next(aside, progress))
        warnings = [*report.warnings, *gone_warnings(self._file, self._lake.namespace)]
        return replace(report, set_aside=reasons(self._pipeline), warnings=warnings)

    def _pull_next(self, aside: Collection[Name], progress: Progressing) -> PullReport:
        """As `pull_next`, but an error of one table ends it.

        Args:
            aside: schema and name of tables that may be followed again.
        """
        started = time.monotonic()
        Advance(self._pipeline).require_fit(at_snapshot=False)
        refuse_changed(self._pipeline)
        _bring_views(self._lake)
        joining = JoiningTables(self._pipeline)
        joined = joining.add_new_tables(progress)
        added, half_copied = joined.tables, joining.progress_by_table()
        RecopiedTables(self._pipeline).give_up_stale(progress)
        resumed = TablesAside(self._pipeline).bring_back(
            aside, progress, self._file.source.copy_seconds_per_sync
        )
        known_tables.write_note(self._file.state_dir, self._lake, added)
        begin_modes(self._pipeline, progress)
        Refill(self._pipeline).fill_added_columns(progress)
        position = self._pipeline.position()  # any of these may have moved the lake on
        batch = Advance(self._pipeline).next_batch(position, None, None, progress)
        report = pull_report(batch, position, started)
        note_pulled(self._file.state_dir, report.batch, report.seconds)
        note_copies(self._file.state_dir, [*added, *resumed])
        report = replace(report, added_tables=added, joining=half_copied, resumed=resumed)
        return replace(report, warnings=joined.warnings)

    @sessions_go_on()
    def catch_up(self, progress: Progressing, compact_seconds: float = SECONDS_MAX) -> SyncReport:
        """Bring the lake to the source's position as it is now.

        Takes more than one batch when a killed run has left one behind, or when one batch would be too large.

        Args:
            compact_seconds: after so long, small files of no further table are packed.
        """
        started = time.monotonic()
        first_position = self._pipeline.position()
        asked_at = time.time()
        target = source_position(self._source)
        note_source_position(self._file.state_dir, self._source.dsn, target, asked_at)
        ask_ahead(self._pipeline, target)
        totals = Totals()
        pulls = [self._pull_and_bring_in(totals, progress)]
        while pulls[-1].batch is not None and self._pipeline.position() < target:
            pulls.append(self._pull_and_bring_in(totals, progress))
        if totals.last is not None:
            Refill(self._pipeline).fill_added_columns(progress)
        with totals.timed("compact"):
            compaction = Compaction(self._pipeline)
            compacted = compaction.compact(compaction.lake_names(totals.tables), progress, compact_seconds)
        report = self._report(totals, pulls, first_position, compacted)
        return replace(report, seconds=time.monotonic() - started)

    def _pull_and_bring_in(self, totals: Totals, progress: Progressing) -> PullReport:
        with totals.timed("pull"):
            pulled = self.pull_next(progress)
        BatchSteps(self._pipeline).apply_and_publish(pulled, totals, progress)
        return pulled

    def _warnings(self, totals: Totals, pulls: Sequence[PullReport]) -> list[str]:
        met = [*(warning for pulled in pulls for warning in pulled.warnings), *totals.warnings]
        return list(
            dict.fromkeys([*met, *noted_pending(self._pipeline.memory), *reader_warnings(self._file)])
        )

    def _report(
        self,
        totals: Totals,
        pulls: Sequence[PullReport],
        first_position: int,
        compacted: list[TableCompacted],
    ) -> SyncReport:
        """The report of a sync: what all of its pulls brought, and how the last one left it."""
        return SyncReport(
            batch=None if totals.last is None else totals.last.batch,
            start_lsn=format_lsn(first_position),
            lsn=format_lsn(self._pipeline.position()),
            transactions=totals.transactions,
            changes=totals.changes,
            tables=totals.tables,
            conflicts=totals.conflicts,
            seconds=0.0,
            seconds_by_step={step: round(spent, 3) for step, spent in totals.seconds.items()},
            added_tables=[table for pulled in pulls for table in pulled.added_tables],
            joining=pulls[-1].joining,
            resumed=[table for pulled in pulls for table in pulled.resumed],
            set_aside=reasons(self._pipeline),
            warnings=self._warnings(totals, pulls),
            compacted=compacted,
            lag_seconds=totals.lag_seconds,
            oldest_commit=min(totals.commits, key=datetime.fromisoformat, default=None),
            newest_commit=max(totals.commits, key=datetime.fromisoformat, default=None),
        )


def _bring_views(lake: LakeSettings) -> None:
    """Make, complete or remove the pinned views, if no publication has done so since the file changed.

    Raises:
        LakeError: a table is where the views are to be, or the catalog cannot be reached, or cannot
            have views.
    """
    from slotlake.spark.catalog.open import open_catalog

    with open_catalog(lake) as catalog:
        if lake.is_rest and lake.views and not catalog.view_namespaces():
            from slotlake.spark.catalog.probe import probe_catalog

            probe_catalog(lake)
        catalog.bring_views()
