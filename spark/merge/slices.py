"""Stages a batch's changes slice by slice, each on what the slices before it left in the branch ``stage``.

Only the last snapshot, which adds no row, gets the point's name: what a run that was killed between slices
leaves is never published.  A slice is trusted to find the rows that its changes expect, as a whole batch is;
if Spark's counts say otherwise, ``stage`` goes back to where it was before this slice, and the lake is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from slotlake.decoder.failpoints import reach
from slotlake.spark import exchange
from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.fold.batch import Folded, SegmentFold
from slotlake.spark.fold.conflicts import Conflicts, OnConflict, conflict_error
from slotlake.spark.merge.probe import changed_as_expected, counts_on_the_lake
from slotlake.spark.merge.replacement import with_known_moves
from slotlake.spark.merge.run import Work, apply_shape, run_statements, summaries
from slotlake.spark.merge.schema_changes import Constant
from slotlake.spark.merge.sql import Target
from slotlake.spark.merge.stage import Staged, apply_fold, fill_constants, lake_rows, target_of
from slotlake.spark.publish.derived_tables import empty_insert
from slotlake.spark.publish.swap import steps_staged
from slotlake.spark.tables.metadata import STAGE, ancestry, head, ref, summary, with_ref
from slotlake.spark.tables.schema import TableSchema


def stage_slices(
    work: Work,
    schema: TableSchema,
    folds: Iterable[SegmentFold],
    choice: OnConflict,
    constants: Sequence[Constant] = (),
) -> Staged:
    """Stage a batch's changes in the table's branch ``stage``, of which one slice at a time is in memory.

    Args:
        constants: given to all rows first.

    Raises:
        ApplyError: a conflict, and the choice is ``fail``.
        LakeError: Spark failed.
    """
    before = Conflicts.total_in(map(summary, ancestry(work.table.metadata)))
    companions = apply_shape(work, schema)
    if constants:
        fill_constants(work, constants, companions)
    slices = _Slices(work, schema, choice, companions)
    rows, conflicts = 0, Conflicts()
    for fold in folds:
        staged = slices.stage(fold)
        rows, conflicts = rows + staged.folded, conflicts + staged.conflicts
        if conflicts and choice == "fail":
            raise conflict_error(schema.source_name, conflicts)
        del fold
        end_slice(work)
    complete(work, conflicts.properties(before))
    return Staged(rows, conflicts)


def end_slice(work: Work) -> None:
    """Give up what a slice that is staged needed: its rows' files, and memory that Arrow keeps for later."""
    reach("apply.between_slices")
    exchange.remove_directory(work.directory)
    pa.default_memory_pool().release_unused()


def complete(work: Work, properties: dict[str, str] | None = None) -> None:
    """Give the point's name to what is staged of a table, by a snapshot that adds nothing to it.

    Raises:
        LakeError: Spark failed.
    """
    statement = empty_insert(work.table.name, work.lake.catalog)
    run_statements(work, [statement], properties or {}, nothing_staged=False)


@dataclass(frozen=True)
class _Slices:
    work: Work
    schema: TableSchema
    choice: OnConflict
    companions: frozenset[str]

    def stage(self, part: SegmentFold) -> Staged:
        """Stage one slice."""
        before = self._loaded()
        if self.choice == "apply":
            fold = part.fold()
            target = replace(self._target(fold, before), trusted=True)
            if self._stage_trusted(with_known_moves(target), before):
                return Staged(fold.rows.num_rows, fold.counts.conflicts)
            self._go_back(before)
        answers = lake_rows(self.work, self._target(part.fold(), before), part)
        fold = part.fold(answers, skip=self.choice == "skip")
        if not (fold.counts.conflicts and self.choice == "fail"):
            apply_fold(self.work, with_known_moves(self._target(fold, before)), None)
        return Staged(fold.rows.num_rows, fold.counts.conflicts)

    def _stage_trusted(self, target: Target, before: Loaded) -> bool:
        """Stage a slice; return whether the lake had what it expects."""
        apply_fold(self.work, target, None)
        if not counts_on_the_lake(target.fold):
            return True
        return changed_as_expected(target, summaries(self.work, before=steps_staged(before.metadata)))

    def _target(self, fold: Folded, before: Loaded) -> Target:
        totals = summary(head(before.metadata, STAGE))
        rows, files = (int(totals.get(f"total-{what}", 0)) for what in ("records", "data-files"))
        target = target_of(self.work, self.schema, fold, self.companions)
        return replace(target, lake_rows=rows, lake_files=files)

    def _loaded(self) -> Loaded:
        with open_catalog(self.work.lake) as catalog:
            return load_one(catalog, self.work.table.name)

    def _go_back(self, before: Loaded) -> None:
        """Take what was staged since off the branch."""
        with open_catalog(self.work.lake) as catalog:
            table = load_one(catalog, self.work.table.name)
            metadata = with_ref(table.metadata, STAGE, ref(before.metadata, STAGE))
            catalog.move([catalog.prepared(table, metadata)])
