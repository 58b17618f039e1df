"""Read tables, or chosen rows of them, again from the source, at an exact LSN, while the stream goes on.

The lake is brought exactly to the snapshot's LSN first, so an older image can never win over a newer one.
All tables of one backfill are read under one snapshot and published in one point.  A dry run goes as far as
the comparison.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.condition import Condition, checked, range_condition
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import ApplyError, PipelineFileError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.advance.advance import at_slot_snapshot
from slotlake.infra.advance.nonblocking import at_nonblocking_snapshot
from slotlake.infra.advance.steps import confirm_position
from slotlake.infra.backfill.report import BackfillReport, TableBackfilled
from slotlake.infra.backfill.rows import Difference, amending, compare, stage_rows
from slotlake.infra.backfill.whole import stage_whole, would_replace
from slotlake.infra.copy.tables import copy_all, copy_point, published_tables
from slotlake.infra.selection.aside import tables_aside
from slotlake.infra.selection.tables import lake_schema, refuse_changed
from slotlake.spark.names import parse_postgres_name, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.names import LakeName
    from slotlake.spark.publish.commits import Point
    from slotlake.spark.tables.schema import TableSchema

SLOT_WAIT_SECONDS = 60.0


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


def backfill(pipeline: OpenPipeline, request: BackfillRequest, progress: Progressing) -> BackfillReport:
    """Make the lake's tables, or the chosen rows of them, equal to the source's at an exact LSN.

    A published table that the lake lacks is added, as a whole.

    Args:
        pipeline: a pipeline whose lake has its tables.
        request: which tables and rows are read again.
        progress: called with a line for each longer step.

    Raises:
        PipelineFileError: the publications have no such table; the condition is not one that can choose rows.
    """
    started = time.monotonic()
    pipeline.position()  # is there a lake at all?
    tables = _published_tables(pipeline, request.tables)
    conditions = _conditions(pipeline, tables, request)
    if not conditions and not request.dry_run:
        for table in tables:
            _drop_if_taken_otherwise(pipeline, table)
    run = _Run(pipeline, conditions, request.dry_run, progress)
    try:
        lsn = run.at_one_point(tables)
    except ApplyError:
        # A filter that no longer fits a table holds up the very batches that lead to the copy.
        if conditions or request.dry_run or not _drop_filtered(pipeline, tables):
            raise
        lsn = run.at_one_point(tables)
    if not request.dry_run:
        confirm_position(pipeline)
    return BackfillReport.of(
        run.done,
        format_lsn(lsn),
        time.monotonic() - started,
        dry_run=request.dry_run,
        where=next((condition.text for condition in conditions.values()), None),
    )


def read_again(
    pipeline: OpenPipeline,
    tables: Sequence[SourceTable],
    wait_seconds: float,
    progress: Progressing,
    *,
    at_slot: bool,
) -> tuple[int, int]:
    """Read whole tables again, whatever the lake has of them.

    Args:
        pipeline: a pipeline whose lake has its tables.
        tables: published tables.
        wait_seconds: how long transactions may stay open.
        progress: called with a line for each longer step.
        at_slot: read under a snapshot that waits for open transactions; needed for a table whose place in
            the publications changed.

    Returns:
        The LSN at which the tables are published, and the number of their rows.
    """
    for table in tables:
        _drop_if_taken_otherwise(pipeline, table)
    run = _Run(pipeline, {}, False, progress, wait_seconds, at_slot=at_slot)
    lsn = run.at_one_point(tables)
    return lsn, sum(each.rows for each in run.done)


@dataclass
class _Run:
    """One backfill of some tables under one snapshot."""

    pipeline: OpenPipeline
    conditions: Mapping[SourceTable, Condition]
    dry_run: bool
    progress: Progressing
    wait_seconds: float = SLOT_WAIT_SECONDS
    at_slot: bool = False
    done: list[TableBackfilled] = field(default_factory=list)

    def at_one_point(self, tables: Sequence[SourceTable]) -> int:
        """Read all of the tables at one LSN, and return it."""
        self.done.clear()
        mirrors = _mirrors(self.pipeline)
        present = [table for table in tables if (table.schema, table.table) in mirrors]
        absent = [table for table in tables if table not in present]
        # What is copied for the first time may have joined while transactions of now were open already.
        at_snapshot = at_slot_snapshot if absent or self.at_slot else at_nonblocking_snapshot
        with (
            at_snapshot(self.pipeline, self.wait_seconds, self.progress) as snapshot,
            ExitStack() as resources,
        ):
            if self.conditions:  # what was met on the way here may have set one of them aside
                _refuse_aside(self.pipeline, tables)
            if self.dry_run:
                self.done += [self._would(table, snapshot) for table in tables]
                return snapshot.lsn
            staged = [self._stage(table, snapshot, tables, resources) for table in present]
            self._publish([name for names in staged for name in names], snapshot, tables)
            if absent:
                copies = copy_all(self.pipeline, absent, snapshot, self.progress)
                self.done += [TableBackfilled(copy.table, copy.lake_table, copy.rows) for copy in copies]
            return snapshot.lsn

    def _would(self, table: SourceTable, snapshot: ExportedSnapshot) -> TableBackfilled:
        condition = self.conditions.get(table)
        if condition is None:
            return would_replace(self.pipeline, table, snapshot, self.progress)
        difference = compare(self.pipeline, table, condition, snapshot, self.progress)
        return difference.report(self.pipeline, dry_run=True)

    def _stage(
        self,
        table: SourceTable,
        snapshot: ExportedSnapshot,
        tables: Sequence[SourceTable],
        resources: ExitStack,
    ) -> list[LakeName]:
        point = self._point(snapshot, tables, 0)
        condition = self.conditions.get(table)
        if condition is None:
            names, report = stage_whole(self.pipeline, table, snapshot, point, self.progress)
            self.done.append(report)
            return names
        difference: Difference = compare(self.pipeline, table, condition, snapshot, self.progress)
        self.done.append(difference.report(self.pipeline, dry_run=False))
        if difference.is_empty:
            return []
        amendment = resources.enter_context(amending(self.pipeline, difference))
        return stage_rows(self.pipeline, amendment, difference, snapshot, point, self.progress)

    def _publish(
        self, names: Sequence[LakeName], snapshot: ExportedSnapshot, tables: Sequence[SourceTable]
    ) -> None:
        from slotlake.spark.publish.swap import publish_tables

        if names:
            changed = {t.lake_table: t.changes for t in self.done if t.inserted is None or t.changes}
            point = replace(self._point(snapshot, tables, sum(changed.values())), changed=changed)
            publish_tables(self.pipeline.lake, point, names, start=snapshot.lsn)

    def _point(self, snapshot: ExportedSnapshot, tables: Sequence[SourceTable], changes: int) -> Point:
        others = f"+{len(tables) - 1}" if len(tables) > 1 else ""
        name = f"{postgres_name(tables[0].schema, tables[0].table)}{others}"
        return copy_point(self.pipeline, snapshot.lsn, "backfill", changes, name)


def _published_tables(pipeline: OpenPipeline, names: Sequence[str]) -> list[SourceTable]:
    named = {_parsed(name) for name in names}
    tables = {(t.schema, t.table): t for t in published_tables(pipeline, include_aside=named)}
    chosen = []
    for name in dict.fromkeys(names):
        try:
            chosen.append(tables[parse_postgres_name(name)])
        except KeyError:
            listed = ", ".join(sorted(f"{schema}.{table}" for schema, table in tables)) or "none"
            raise PipelineFileError(
                f"the publications have no table {name}",
                where="--table",
                way_out=f"name one of those published, as PostgreSQL writes it: {listed}",
            ) from None
    if not chosen:
        raise PipelineFileError("no table is named", where="--table", way_out="name at least one")
    return list(dict.fromkeys(chosen))


def _parsed(name: str) -> tuple[str, str]:
    try:
        return parse_postgres_name(name)
    except KeyError:
        raise PipelineFileError(
            f"{name!r} is not a table name",
            where="--table",
            way_out='name it as PostgreSQL writes it: public.orders, "Odd Schema"."Odd Name"',
        ) from None


def _conditions(
    pipeline: OpenPipeline, tables: Sequence[SourceTable], request: BackfillRequest
) -> dict[SourceTable, Condition]:
    """The checked condition of each table; empty if whole tables are read."""
    if request.where is None and request.key_range is None:
        return {}
    refuse_changed(pipeline)
    mirrors, conditions = _mirrors(pipeline), {}
    _refuse_aside(pipeline, tables)
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


def _refuse_aside(pipeline: OpenPipeline, tables: Sequence[SourceTable]) -> None:
    """Refuse to choose rows of a table that is set aside: its rows have no one LSN."""
    aside = tables_aside(pipeline)
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


def _mirrors(pipeline: OpenPipeline) -> dict[tuple[str, str], TableSchema]:
    from slotlake.spark.read.point import ReadPoint

    return {(entry.schema, entry.table): entry for entry in ReadPoint.latest(pipeline.lake).tables()}


def _drop_if_taken_otherwise(pipeline: OpenPipeline, table: SourceTable) -> None:
    """Drop the lake's table if it takes other rows or columns, or has another choice for deleted rows.

    Its readers miss it until the copy is published; in any other case it is replaced in place instead.
    """
    new_schema = lake_schema(table)
    _drop(pipeline, table, lambda mirror: _taken(mirror) != _taken(new_schema))


def _taken(schema: TableSchema) -> tuple[str, bool]:
    return schema.selection, schema.soft_deletes


def _drop_filtered(pipeline: OpenPipeline, tables: Sequence[SourceTable]) -> bool:
    """Drop every one of these tables that the lake has under a row filter; return whether there was one."""
    dropped = [_drop(pipeline, table, lambda mirror: bool(mirror.selection)) for table in tables]
    return any(dropped)


def _drop(pipeline: OpenPipeline, table: SourceTable, condition: Callable[[TableSchema], bool]) -> bool:
    """Drop the lake's table if it exists and meets the condition; return whether it was dropped."""
    from slotlake.spark.maintenance.removal import drop_tables

    mirror = _mirrors(pipeline).get((table.schema, table.table))
    if mirror is None or not condition(mirror):
        return False
    drop_tables(pipeline.lake, pipeline.name, [mirror.lake_name(pipeline.lake.namespace)])
    return True
