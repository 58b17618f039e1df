"""Stages a batch of a mirror without Spark.

The rows that the changes name are looked up in the files that may have them, so it is known what the lake
has before anything is written, for every choice of what a conflict leads to.  Then one snapshot is written
and becomes the head of the branch ``stage``.  Its summary names the batch, as that of the last statement of a
MERGE does, so the publication, and what a killed run leaves behind, are the same for both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.failpoints import reach
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.spread import PartitionError
from slotlake.spark.direct.bags import bag_indices, bag_matches
from slotlake.spark.direct.branch import move_stage, named, newest
from slotlake.spark.direct.choice import require_not_asked_for, require_suitable
from slotlake.spark.direct.live import Live, live_files
from slotlake.spark.direct.naming import counts_of, key_columns, keys_of, whole_rows
from slotlake.spark.direct.packing import files_to_pack, with_packed
from slotlake.spark.direct.positions import KeyColumn, Places, indices_in, places_of
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.rows import Old, fields_of, new_rows, written_rows
from slotlake.spark.direct.snapshot import Change, merged, with_snapshot
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.fold.batch import Folded, SegmentFold
from slotlake.spark.fold.conflicts import Conflicts, OnConflict, conflict_error
from slotlake.spark.merge.representation import in_representation
from slotlake.spark.merge.run import Work
from slotlake.spark.merge.sql import MOVED, Target
from slotlake.spark.merge.stage import Staged
from slotlake.spark.publish.swap import reset_stage, steps_staged
from slotlake.spark.tables.metadata import STAGE, Metadata, ancestry, head, summary, with_properties
from slotlake.spark.tables.position_deletes import Positions
from slotlake.spark.tables.schema import (
    SCHEMA_PROPERTY,
    STAGED_SCHEMA_PROPERTY,
    TableSchema,
    schema_of,
)
from slotlake.spark.tables.settle import settle


def stage_directly(
    work: Work,
    schema: TableSchema,
    part: SegmentFold,
    choice: OnConflict,
    *,
    filled: bool = False,
) -> Staged | None:
    """Stage a batch's changes in the table's branch ``stage``; None if they are for Spark: nothing is staged.

    Args:
        work: the table; nothing is staged of it.
        filled: columns get a constant in all rows first.

    Raises:
        ApplyError: a conflict, and the choice is ``fail``.
        StageConflictError: another writer changed the table meanwhile.
        LakeError: a file cannot be read or written, or a row has no partition.
    """
    try:
        require_suitable(work, schema, filled=filled)
        return _Staging(newest(work), schema, part).run(choice)
    except PartitionError as error:
        raise error.of(schema.schema, schema.table) from None
    except UnsuitableError as why:
        require_not_asked_for(work, why)
        return None


def stage_slices_directly(
    work: Work,
    schema: TableSchema,
    folds: Iterable[SegmentFold],
    choice: OnConflict,
    *,
    filled: bool = False,
) -> Staged | None:
    """Stage a batch slice by slice, each on what the slices before it left in the branch ``stage``.

    Only the last snapshot, which changes nothing, gets the point's name (as `spark.merge.slices` does it).
    None: it is for Spark.

    Args:
        work: the table; nothing is staged of it.
        filled: columns get a constant in all rows first.

    Raises:
        ApplyError: a conflict, and the choice is ``fail``.
        StageConflictError: another writer changed the table meanwhile.
        LakeError: a file cannot be read or written, or a row has no partition.
    """
    try:
        before = Conflicts.total_in(map(summary, ancestry(work.table.metadata)))
        rows, conflicts = 0, Conflicts()
        for fold in folds:
            require_suitable(work, schema, filled=filled)
            staged = _Staging(newest(work), schema, fold, whole=False).run(choice)
            rows, conflicts = rows + staged.folded, conflicts + staged.conflicts
            del fold
            reach("apply.between_slices")
            pa.default_memory_pool().release_unused()
        _Staging(newest(work), schema, None, whole=False).complete(conflicts.properties(before))
        return Staged(rows, conflicts)
    except PartitionError as error:
        raise error.of(schema.schema, schema.table) from None
    except UnsuitableError as why:
        require_not_asked_for(work, why)
        with open_catalog(work.lake) as catalog:
            reset_stage(catalog, [load_one(catalog, work.table.name)])
        return None


class _Staging:
    """The staging of one fold; ``whole``: it is all that the batch has for the table."""

    def __init__(
        self, work: Work, schema: TableSchema, part: SegmentFold | None, *, whole: bool = True
    ) -> None:
        self._whole = whole
        self._work, self._schema, self._part = work, schema, part
        self._metadata: Metadata = work.table.metadata
        if whole and steps_staged(self._metadata):
            raise UnsuitableError("something is staged already")
        self._live: Live = live_files(self._metadata, head(self._metadata, STAGE))
        self._reading = Reading(self._live)
        fields = {f.name: f for f in fields_of(self._metadata)}
        self._fields = fields
        self._companions = frozenset(c.exact_name for c in schema.columns if c.exact_name in fields)

    def run(self, choice: OnConflict) -> Staged:
        part = self._part
        assert part is not None
        before = Conflicts.total_in(map(summary, ancestry(self._metadata)))
        looking = self._target(part.unfolded())
        lookup = in_representation(looking.columns, part.lookup_rows())
        if part.bag:
            return self._run_bag(part, lookup, choice, before)
        key = key_columns(looking, self._fields, lookup)
        places = places_of(self._live, self._reading, key) if lookup.num_rows else None
        lake_counts = None if places is None else counts_of(lookup, places)
        fold = part.fold(lake_counts, skip=choice == "skip")
        conflicts = fold.counts.conflicts
        if conflicts and choice == "fail":
            raise conflict_error(self._schema.source_name, conflicts)
        target = self._target(fold)
        old = _nothing(fold.rows.num_rows) if places is None else self._old(target, key, places)
        pieces = new_rows(self._metadata, target, old, self._reading, written_rows(target, old))
        # A folded row whose key the lake has always takes that row away: it deletes or replaces it.
        gone = {file: old.replaced.position[indices] for file, indices in old.replaced.by_file()}
        self._commit(pieces, gone, conflicts.properties(before), truncated=part.truncated)
        return Staged(fold.rows.num_rows, conflicts)

    def _run_bag(self, part: SegmentFold, lookup: pa.Table, choice: OnConflict, before: Conflicts) -> Staged:
        """Stage the changes of a table without a key, whose rows are named by all their values."""
        wanted = whole_rows(self._target(part.unfolded()), self._fields, lookup)
        matches = bag_matches(self._live, self._reading, wanted, large=part.has_large_rows)
        counts = pa.array(np.bincount(matches.index, minlength=lookup.num_rows))
        fold = part.fold(pa.table({"code": lookup["code"], "held": counts}), skip=choice == "skip")
        conflicts = fold.counts.conflicts
        if conflicts and choice == "fail":
            raise conflict_error(self._schema.source_name, conflicts)
        target = self._target(fold)
        rows = target.fold.rows
        removed = rows.filter(pc.greater(rows["remove"], 0))
        index = bag_indices(whole_rows(target, self._fields, removed), wanted, large=part.has_large_rows)
        gone = matches.first(index, removed["remove"].to_numpy())
        written = np.repeat(np.arange(rows.num_rows), rows["add"].to_numpy())
        pieces = new_rows(self._metadata, target, _nothing(rows.num_rows), self._reading, written)
        self._commit(pieces, gone, conflicts.properties(before), truncated=part.truncated)
        return Staged(rows.num_rows, conflicts)

    def _target(self, fold: Folded) -> Target:
        return Target.of(self._work.table.name, self._work.lake.catalog, self._schema, fold, self._companions)

    def _old(self, target: Target, key: Sequence[KeyColumn], places: Places) -> Old:
        """Where the lake's rows are that the folded rows replace, and those that they come from."""
        replaced = places.take(indices_in(keys_of(target, self._fields, "n"), key))
        moved = target.fold.rows["action"].to_numpy() == MOVED
        if not moved.any():
            return Old(replaced, replaced)
        origin = places.take(indices_in(keys_of(target, self._fields, "m"), key))
        return Old(
            replaced,
            Places(
                places.files,
                np.where(moved, origin.file, replaced.file),
                np.where(moved, origin.position, replaced.position),
            ),
        )

    def _commit(
        self,
        pieces: Iterator[pa.Table],
        gone: Mapping[str, Positions],
        properties: Mapping[str, str],
        *,
        truncated: bool,
    ) -> None:
        work = self._work
        deleted = {file: merged(self._reading.deleted(file), some) for file, some in gone.items()}
        if truncated:
            change = Change(pieces, {}, list(self._live.data))
        else:
            packed = files_to_pack(self._live, self._metadata["default-spec-id"]) if work.lake.packs else []
            first = with_packed(next(pieces), self._reading, packed, deleted)
            change = Change(chain([first], pieces), deleted, packed)
        self._move_stage(change, named(self._work, properties) if self._whole else {})

    def complete(self, properties: Mapping[str, str]) -> None:
        """Give the point's name to what is staged, by a snapshot that changes nothing."""
        self._move_stage(Change((), {}), named(self._work, properties))

    def _move_stage(self, change: Change, properties: Mapping[str, str]) -> None:
        def staged(entries: Mapping[str, str]) -> Metadata:
            return self._shaped(with_snapshot(self._metadata, self._live, change, entries))

        move_stage(self._work, staged, properties)

    def _shaped(self, staged: Metadata) -> Metadata:
        """The metadata with the shape that waits for the publication; all its fields are there."""
        final = settle(self._schema, schema_of(self._metadata, self._work.table.name)).schema.to_json()
        if final == self._metadata["properties"].get(SCHEMA_PROPERTY):
            return staged
        return with_properties(staged, {STAGED_SCHEMA_PROPERTY: final})


def _nothing(rows: int) -> Old:
    nowhere = Places.nowhere(rows)
    return Old(nowhere, nowhere)
