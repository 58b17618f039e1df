"""Compare and read chosen rows while batches go on, and publish them where the lake is then.

The lake is brought to the LSN L of a snapshot under the lock.  Then both sides are read without it: the
snapshot of the source, and the lake's point at L.  When the lock is taken again, the lake is at a later P.

Invariant: what was read at L is published at P only if no change between L and P has touched one of the keys
that differ, and nobody copied the table meanwhile.  Then source and lake have the same rows of these keys at
P as at L.  Else the whole backfill is done again under the lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.condition import Condition
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.changelog.touched import touched_keys
from slotlake.decoder.server.position import source_position
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.backfill.batches_between import batches_between
from slotlake.infra.backfill.report import TableBackfilled
from slotlake.infra.backfill.rows import Difference, amending, compare, publish_rows, read_rows, stage_rows
from slotlake.infra.backfill.whole import would_replace
from slotlake.infra.copy.tables import TableCopies
from slotlake.infra.opened.readers import reading_noted
from slotlake.infra.selection.aside import tables_aside
from slotlake.infra.state.verified import copied_since, read_verified
from slotlake.infra.sync.at_lsn import Advance
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.copy.amend import Amendment
    from slotlake.spark.read.point import ReadPoint


@dataclass(frozen=True)
class _Read:
    """Rows of a table that differ, and where the source's are."""

    difference: Difference
    amendment: Amendment
    rows: int


@dataclass
class ChosenRows:
    """A backfill of chosen rows, or a dry run, whose LSN the lake has reached.

    Attributes:
        tables: all that the backfill reads.
        conditions: which rows of each; those of a dry run may have none.
        snapshot: the source's snapshot.
        point: the lake at its LSN.
        reports: what was found in each table.
    """

    pipeline: OpenPipeline
    tables: Sequence[SourceTable]
    conditions: Mapping[SourceTable, Condition]
    dry_run: bool
    snapshot: ExportedSnapshot
    point: ReadPoint
    amendments: Mapping[SourceTable, Amendment]
    reports: list[TableBackfilled] = field(default_factory=list)
    _read: list[_Read] = field(default_factory=list)

    @classmethod
    def begin(
        cls,
        pipeline: OpenPipeline,
        tables: Sequence[SourceTable],
        conditions: Mapping[SourceTable, Condition],
        snapshot: ExportedSnapshot,
        resources: ExitStack,
        *,
        dry_run: bool,
    ) -> ChosenRows:
        """Prepare the comparison; under the pipeline's lock.

        Args:
            pipeline: the pipeline, whose lake stands at the snapshot's LSN.
            tables: all that the backfill reads.
            conditions: which rows of each.
            resources: keeps the point readable, and has the places for rows.
            dry_run: nothing is published.
        """
        from slotlake.spark.read.point import ReadPoint

        point = ReadPoint.at(pipeline.lake, snapshot.lsn)
        resources.enter_context(reading_noted(pipeline.file.state_dir))
        amendments = {
            table: resources.enter_context(amending(pipeline, point.schema(table.quoted)))
            for table in ([] if dry_run else tables)
        }
        return cls(pipeline, tables, conditions, dry_run, snapshot, point, amendments)

    @property
    def has_rows(self) -> bool:
        """Return whether there is anything to publish."""
        return bool(self._read)

    def compare(self, progress: Progressing) -> None:
        """Compare both sides, and read the source's rows that differ; without the lock."""
        for table in self.tables:
            condition = self.conditions.get(table)
            sides = self.pipeline, table, self.snapshot, self.point
            if condition is None:
                self.reports.append(would_replace(*sides, progress))
                continue
            difference = compare(self.pipeline, table, condition, self.snapshot, self.point, progress)
            self.reports.append(difference.report(self.pipeline, dry_run=self.dry_run))
            if not self.dry_run and not difference.is_empty:
                amendment = self.amendments[table]
                rows = read_rows(self.pipeline, amendment, difference, self.snapshot, progress)
                self._read.append(_Read(difference, amendment, rows))

    def publish(self, progress: Progressing) -> int | None:
        """Stage the rows and publish them where the lake is now; under the pipeline's lock.

        Returns:
            The LSN; None if a change since the comparison may concern one of these rows: nothing was staged.

        Raises:
            LakeError: Spark failed, or the lake was changed meanwhile; nothing was published.
        """
        if self.pipeline.source.plugin != "pgoutput":
            return None
        # A batch that is staged by now builds on the rows of before: it is published first.
        Advance(self.pipeline).advance(
            max(source_position(self.pipeline.source), self.pipeline.position()), progress
        )
        position = self.pipeline.position()
        if not self._holds(position):
            progress("rows that differ were changed meanwhile: comparing again", 0)
            return None
        point = TableCopies(self.pipeline).backfill_point(position, self.tables, 0)
        names = [
            name
            for each in self._read
            for name in stage_rows(each.amendment, each.difference, each.rows, point, progress)
        ]
        publish_rows(self.pipeline, names, position, self.tables, self.reports)
        return position

    def _holds(self, position: int) -> bool:
        """Return whether what was read at the snapshot's LSN is true of a later position too."""
        from slotlake.spark.read.point import ReadPoint

        since = self.snapshot.lsn
        chain = batches_between(self.pipeline, since, position)
        if chain is None:
            return False
        latest, verified = ReadPoint.latest(self.pipeline.lake), read_verified(self.pipeline.file.state_dir)
        mirrors = {(mirror.schema, mirror.table): mirror for mirror in latest.tables()}
        aside = tables_aside(self.pipeline.lake)
        return not any(
            (table.schema, table.table) in aside
            or mirrors.get((table.schema, table.table)) != each.difference.mirror
            or copied_since(verified, postgres_name(table.schema, table.table), since)
            or _touches(chain, each.difference)
            for each in self._read
            for table in [each.difference.table]
        )


def _touches(chain: Sequence[Batch], difference: Difference) -> bool:
    """Return whether a batch touched one of the keys that differ, or touched rows that it does not name."""
    table = difference.table
    touched = touched_keys(chain, {table.relation_id: table.key}).get(table.relation_id)
    if touched is None:
        return False
    keys = difference.chosen.keys
    ours = set(zip(*(keys[name].to_pylist() for name in table.key), strict=True))
    theirs = zip(*(touched.keys[name].to_pylist() for name in table.key), strict=True)
    return bool(touched.unknown) or not ours.isdisjoint(theirs)
