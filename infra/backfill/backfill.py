"""Read tables, or chosen rows of them, again from the source, at an exact LSN, while the stream goes on.

The lake is brought exactly to the snapshot's LSN first, so an older image can never win over a newer one.
All tables of one backfill are read under one snapshot and published in one point.  A dry run goes as far as
the comparison.

Chosen rows, and what a dry run counts, are compared and read without the pipeline's lock (`ChosenRows`). So
are whole tables (`WholeTables`), unless they are small, or what batches change meanwhile cannot be brought
in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.condition import Condition, checked, range_condition
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import ApplyError, ChangedMeanwhileError, PipelineFileError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.backfill import ahead
from slotlake.infra.backfill.ahead import WholeTables
from slotlake.infra.backfill.chosen import ChosenRows
from slotlake.infra.backfill.named import named_tables
from slotlake.infra.backfill.report import BackfillReport, TableBackfilled, reports_of
from slotlake.infra.backfill.rows import amending, compare, publish_rows, read_rows, stage_rows
from slotlake.infra.config.private_files import with_private_files
from slotlake.infra.copy.tables import TableCopies
from slotlake.infra.selection.aside import tables_aside
from slotlake.infra.selection.tables import refuse_changed
from slotlake.infra.sync.batch_steps import BatchSteps
from slotlake.infra.sync.reading_again import WholeTablesAgain, mirrors_of

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.names import LakeName

_Alone = Callable[[], AbstractContextManager[None]]
SLOT_WAIT_SECONDS = 60.0
_PART = "backfilling"
_TRIES = 3


@dataclass(frozen=True)
class BackfillRequest:
    """What is to be read again.

    Attributes:
        tables: as PostgreSQL writes them.
        where: an SQL condition over the columns of each; None for all rows.
        key_range: ``A..B`` of the key's first column; None for all rows.
        dry_run: only compare.
    """

    tables: Sequence[str]
    where: str | None = None
    key_range: str | None = None
    dry_run: bool = False


@with_private_files
def backfill(
    pipeline: OpenPipeline, request: BackfillRequest, progress: Progressing, wait_seconds: float = 0.0
) -> BackfillReport:
    """Make the lake's tables, or the chosen rows of them, equal to the source's at an exact LSN.

    A published table that the lake lacks is added, as a whole.

    Args:
        pipeline: a pipeline whose lake has its tables.
        request: which tables and rows are read again.
        wait_seconds: how long to wait for another run, for each step that needs the lock.

    Raises:
        PipelineFileError: the publications have no such table; the condition is not one that can choose rows.
        BusyError: another run is at work, or another backfill.
        ChangedMeanwhileError: a table was altered each time that it was read.
    """
    for _ in range(_TRIES - 1):
        with suppress(ChangedMeanwhileError):
            return _backfill(pipeline, request, progress, wait_seconds)
    return _backfill(pipeline, request, progress, wait_seconds)


def _backfill(
    pipeline: OpenPipeline, request: BackfillRequest, progress: Progressing, wait_seconds: float
) -> BackfillReport:
    started = time.monotonic()

    def alone() -> AbstractContextManager[None]:
        return pipeline.exclusively(wait_seconds, step="backfill")

    with pipeline.locks.part(_PART), ExitStack() as resources:
        with alone():
            pipeline.position()  # is there a lake at all?
            tables = named_tables(pipeline, request.tables)
            run = _Run(pipeline, _conditions(pipeline, tables, request), request.dry_run, progress)
            begun = run.begin(tables, resources)
            if begun is None:
                lsn = _whole_tables(pipeline, run, tables)
                BatchSteps(pipeline).confirm_position()
            else:
                pipeline.end_stream()  # another run may pull meanwhile
        if isinstance(begun, ChosenRows):
            lsn, run = _chosen_rows(begun, run, request, alone)
        elif begun is not None:
            lsn, run = _ahead(begun, run, request, alone)
    return BackfillReport.of(
        run.done,
        format_lsn(lsn),
        time.monotonic() - started,
        dry_run=request.dry_run,
        where=next((condition.text for condition in run.conditions.values()), None),
    )


def _chosen_rows(chosen: ChosenRows, run: _Run, request: BackfillRequest, alone: _Alone) -> tuple[int, _Run]:
    """Compare and read without the lock, then publish under it."""
    with run.pipeline.reading():
        chosen.compare(run.progress)
        reach("backfill.compared")
    run.done = chosen.reports
    if not chosen.has_rows:
        return chosen.snapshot.lsn, run
    with alone():
        lsn, run = _publish_chosen(chosen, run, request)
        BatchSteps(run.pipeline).confirm_position()
        return lsn, run


def _ahead(whole: WholeTables, run: _Run, request: BackfillRequest, alone: _Alone) -> tuple[int, _Run]:
    """Read whole tables without the lock, then publish them under it."""
    pipeline = run.pipeline
    with pipeline.reading():
        whole.read(run.progress)
        reach("backfill.read")
    run.done = whole.reports
    with alone():
        lsn = whole.publish(run.wait_seconds, run.progress)
        if lsn is None:
            run = _Run(pipeline, {}, False, run.progress)
            lsn = _whole_tables(pipeline, run, named_tables(pipeline, request.tables))
        BatchSteps(pipeline).confirm_position()
        return lsn, run


def _publish_chosen(chosen: ChosenRows, run: _Run, request: BackfillRequest) -> tuple[int, _Run]:
    """Publish chosen rows; if they may have changed since, compare again first."""
    lsn = chosen.publish(run.progress)
    if lsn is not None:
        return lsn, run
    tables = named_tables(run.pipeline, request.tables)  # perhaps with other columns by now
    again = _Run(run.pipeline, _conditions(run.pipeline, tables, request), False, run.progress)
    return again.at_one_point(tables), again


def _whole_tables(pipeline: OpenPipeline, run: _Run, tables: Sequence[SourceTable]) -> int:
    """Read whole tables again, and return the LSN at which they are published."""
    try:
        lsn, copies = WholeTablesAgain(pipeline).read_again(tables, run.wait_seconds, run.progress)
    except ApplyError:
        # A filter that no longer fits a table holds up the very batches that lead to the copy.
        if not WholeTablesAgain(pipeline).drop_filtered(tables):
            raise
        lsn, copies = WholeTablesAgain(pipeline).read_again(tables, run.wait_seconds, run.progress)
    run.done = reports_of(copies)
    return lsn


@dataclass
class _Run:
    """One backfill of some tables under one snapshot."""

    pipeline: OpenPipeline
    conditions: Mapping[SourceTable, Condition]
    dry_run: bool
    progress: Progressing
    wait_seconds: float = SLOT_WAIT_SECONDS
    done: list[TableBackfilled] = field(default_factory=list)

    def begin(self, tables: Sequence[SourceTable], resources: ExitStack) -> ChosenRows | WholeTables | None:
        """Bring the lake to a snapshot of the source, under which rows are read without the lock.

        None if whole tables are to be read under it.
        """
        if not self.conditions and not self.dry_run:
            return self._begin_ahead(tables, resources)
        snapshot = resources.enter_context(self._at_snapshot(tables))
        if self.conditions:  # what was met on the way here may have set one of them aside
            _refuse_aside(self.pipeline.lake, tables)
        return ChosenRows.begin(
            self.pipeline, tables, self.conditions, snapshot, resources, dry_run=self.dry_run
        )

    def _begin_ahead(self, tables: Sequence[SourceTable], resources: ExitStack) -> WholeTables | None:
        if not ahead.suits(self.pipeline, tables):
            return None
        try:
            snapshot = resources.enter_context(self._at_snapshot(tables))
        except ApplyError:
            return None  # the way under the lock knows what to do about it
        if not ahead.suits(self.pipeline, tables):  # what was met on the way here may have changed that
            return None
        return WholeTables.begin(self.pipeline, tables, snapshot, resources)

    def at_one_point(self, tables: Sequence[SourceTable]) -> int:
        """Compare and read the chosen rows of all tables at one LSN, and return it."""
        self.done.clear()
        with self._at_snapshot(tables) as snapshot, ExitStack() as resources:
            _refuse_aside(self.pipeline.lake, tables)
            staged = [self._stage(table, snapshot, tables, resources) for table in tables]
            names = [name for names in staged for name in names]
            publish_rows(self.pipeline, names, snapshot.lsn, tables, self.done)
            return snapshot.lsn

    def _at_snapshot(self, tables: Sequence[SourceTable]) -> AbstractContextManager[ExportedSnapshot]:
        return WholeTablesAgain(self.pipeline).snapshot_for(tables, self.wait_seconds, self.progress)

    def _stage(
        self,
        table: SourceTable,
        snapshot: ExportedSnapshot,
        tables: Sequence[SourceTable],
        resources: ExitStack,
    ) -> list[LakeName]:
        from slotlake.spark.read.point import ReadPoint

        latest, condition = ReadPoint.latest(self.pipeline.lake), self.conditions[table]
        difference = compare(self.pipeline, table, condition, snapshot, latest, self.progress)
        self.done.append(difference.report(self.pipeline, dry_run=False))
        if difference.is_empty:
            return []
        amendment = resources.enter_context(amending(self.pipeline, difference.mirror))
        rows = read_rows(self.pipeline, amendment, difference, snapshot, self.progress)
        point = TableCopies(self.pipeline).backfill_point(snapshot.lsn, tables, 0)
        return stage_rows(amendment, difference, rows, point, self.progress)


def _conditions(
    pipeline: OpenPipeline, tables: Sequence[SourceTable], request: BackfillRequest
) -> dict[SourceTable, Condition]:
    """The checked condition of each table; empty if whole tables are read."""
    if request.where is None and request.key_range is None:
        return {}
    refuse_changed(pipeline)
    mirrors, conditions = mirrors_of(pipeline.lake), {}
    _refuse_aside(pipeline.lake, tables)
    source = pipeline.source
    with source_session(source.dsn, "checking the condition") as connection:
        for table in tables:
            mirror = mirrors.get((table.schema, table.table))
            if mirror is None:
                raise PipelineFileError(
                    f"the lake has no table {table.quoted} yet",
                    where="--where",
                    way_out="run slotlake sync, which copies it; or read it whole, without a condition",
                )
            columns = [column.name for column in mirror.live]
            conditions[table] = checked(connection, table, _text(table, request), columns)
    return conditions


def _refuse_aside(lake: LakeSettings, tables: Sequence[SourceTable]) -> None:
    """Refuse to choose rows of a table that is set aside: its rows have no one LSN."""
    aside = tables_aside(lake)
    for table in tables:
        if (table.schema, table.table) in aside:
            raise PipelineFileError(
                f"the table {table.quoted} is set aside, so no rows of it can be chosen",
                where="--where",
                way_out=f"slotlake resume brings all of it back: {aside[table.schema, table.table].way_out}",
            )


def _text(table: SourceTable, request: BackfillRequest) -> str:
    if request.key_range is None:
        return request.where or ""
    keys = range_condition(table, request.key_range)
    return keys if request.where is None else f"({request.where}) AND {keys}"
