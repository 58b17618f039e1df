"""Stages a batch's versions in a table's history without Spark.

The versions that hold have a partition of their own, and only they are looked through.  One that ends is
deleted there by a vector, and written again among those of the past, with its number.  A TRUNCATE ends all
that hold, so it is left to Spark where there are any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.failpoints import reach
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.direct.bags import bag_matches
from slotlake.spark.direct.branch import move_stage, named, newest
from slotlake.spark.direct.choice import require_not_asked_for, require_suitable_derived
from slotlake.spark.direct.live import Live, LiveFile, live_files, schema_now
from slotlake.spark.direct.naming import counts_of, key_columns, keys_of, whole_rows
from slotlake.spark.direct.positions import KeyColumn, Matches, Places, indices_in, places_of
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.rows import (
    field_id,
    fields_of,
    fold_values,
    old_bytes,
    piece_bounds,
    row_numbers,
    sources_of,
    stored_values,
    text_bytes,
    with_numbers,
)
from slotlake.spark.direct.snapshot import Change, merged, with_snapshot
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.fold.conflicts import OnConflict
from slotlake.spark.history.columns import IS_OPEN
from slotlake.spark.history.fold import HistoryFold, Versions
from slotlake.spark.history.modes import MirrorChanges
from slotlake.spark.history.table import target_of
from slotlake.spark.merge.run import Work
from slotlake.spark.merge.sql import Target
from slotlake.spark.publish.swap import reset_stage
from slotlake.spark.tables.layout import default_spec
from slotlake.spark.tables.metadata import STAGE, Metadata, head
from slotlake.spark.tables.schema import TableSchema

# Column of the history → that of `Versions.rows`.
_BEGINS: Final = {"valid_from_lsn": "from_lsn", "valid_from_time": "from_time"}
_ENDS: Final = {"valid_to_lsn": "to_lsn", "valid_to_time": "to_time"}
_Numbers = np.ndarray[Any, np.dtype[np.int64]]
_Flags = np.ndarray[Any, np.dtype[np.bool_]]


def stage_versions_directly(work: Work, changes: MirrorChanges, choice: OnConflict) -> bool:
    """Stage a mirror's changes in the branch ``stage`` of its history; False if they are for Spark.

    Then nothing is staged.  Each stretch of changes has a snapshot of its own; the last one gets the point's
    name.

    Raises:
        StageConflictError: another writer changed the table meanwhile.
        LakeError: a file cannot be read or written.
    """
    staged = 0
    try:
        require_suitable_derived(work, "history", changes)
        for each in changes.slices():
            for number, parts in enumerate(each.segments):
                final = not changes.sliced and number == len(each.segments) - 1
                segment = _Segment(newest(work), changes.schema, HistoryFold(parts), choice)
                segment.stage(each.transactions, continued=changes.sliced and staged > 0, whole=final)
                staged += 1
                if final:
                    return True
                del parts, segment
            del each
            reach("apply.between_slices")
            pa.default_memory_pool().release_unused()
        _stage(newest(work), Change((), {}), whole=True)
        return True
    except UnsuitableError as why:
        require_not_asked_for(work, why)
        if staged:
            with open_catalog(work.lake) as catalog:
                reset_stage(catalog, [load_one(catalog, work.table.name)])
        return False


def _stage(work: Work, change: Change, live: Live | None = None, *, whole: bool) -> None:
    metadata = work.table.metadata
    files = live or live_files(metadata, head(metadata, STAGE))

    def staged(entries: Mapping[str, str]) -> Metadata:
        return with_snapshot(metadata, files, change, entries)

    move_stage(work, staged, named(work, {}) if whole else {})


class _Segment:
    """Changes that name their row by the same columns, and the history that they meet."""

    def __init__(self, work: Work, schema: TableSchema, fold: HistoryFold, choice: OnConflict) -> None:
        metadata = work.table.metadata
        self._work, self._schema, self._fold, self._choice = work, schema, fold, choice
        self._live = live_files(metadata, head(metadata, STAGE))
        self._open = replace(self._live, data=_open_files(metadata, self._live))
        self._reading = Reading(self._live)
        self._fields = {field.name: field for field in fields_of(metadata)}

    def stage(self, transactions: pa.Table, *, continued: bool, whole: bool) -> None:
        """Stage the versions.

        Args:
            continued: as `history.table.statements` has it.
            whole: they complete the table.
        """
        lookup = self._fold.lookup_rows()
        place = self._place_in_bag if self._fold.bag else self._place_by_key
        versions, target, placed = place(lookup, transactions)
        if versions.truncated is not None and self._remain(placed.ended):
            raise UnsuitableError("a TRUNCATE ends all versions that hold")
        self._commit(target, placed, continued=continued, whole=whole)

    def _place_by_key(self, lookup: pa.Table, transactions: pa.Table) -> tuple[Versions, Target, _Placed]:
        if not lookup.num_rows:
            versions = self._versions(None, transactions)
            target, nowhere = self._target(versions), Places.nowhere(versions.rows.num_rows)
            return versions, target, _Placed(0, nowhere.take(np.empty(0, np.int64)), nowhere)
        looking = self._target(self._fold.without_versions(lookup))
        key = key_columns(looking, self._fields, looking.fold.rows)
        places = places_of(self._open, self._reading, key)
        versions = self._versions(counts_of(lookup, places), transactions)
        target = self._target(versions)
        ended = places.take(self._indices(target, "n", key)[: versions.closes])
        return versions, target, _Placed(versions.closes, ended, places.take(self._indices(target, "m", key)))

    def _place_in_bag(self, lookup: pa.Table, transactions: pa.Table) -> tuple[Versions, Target, _Placed]:
        looking = self._target(self._fold.without_versions(lookup))
        wanted = whole_rows(looking, self._fields, looking.fold.rows)
        matches = bag_matches(self._open, self._reading, wanted, large=self._fold.has_large_rows)
        counts = np.bincount(matches.index, minlength=lookup.num_rows)
        versions = self._versions(pa.table({"code": lookup["code"], "held": counts}), transactions)
        target, rows = self._target(versions), versions.rows
        ended = self._oldest(rows.slice(0, versions.closes), lookup["code"], matches)
        return versions, target, _Placed(versions.closes, ended, Places.nowhere(rows.num_rows))

    def _versions(self, open_counts: pa.Table | None, transactions: pa.Table) -> Versions:
        return self._fold.versions(open_counts, transactions, skip=self._choice == "skip")

    def _target(self, versions: Versions) -> Target:
        work = self._work
        return target_of(work.table.name, work.lake.catalog, self._schema, work.table.metadata, versions)

    def _indices(self, target: Target, prefix: str, key: Sequence[KeyColumn]) -> _Numbers:
        rows = target.fold.rows
        if not any(f"{prefix}{i}" in rows.column_names for i, _ in target.keys):
            return np.full(rows.num_rows, -1, np.int64)
        return indices_in(keys_of(target, self._fields, prefix), key)

    def _oldest(self, closes: pa.Table, codes: pa.ChunkedArray, matches: Matches) -> Places:
        """Where the rows stand that end: of those that are alike, the oldest first."""
        places = Places(matches.files, matches.file, matches.position)
        by_name = np.empty(len(matches.files), np.int64)
        by_name[np.argsort(np.array(matches.files, object))] = np.arange(len(matches.files))
        order = np.lexsort((matches.position, by_name[matches.file], self._began(places), matches.index))
        first = np.searchsorted(matches.index[order], np.arange(len(codes)))
        index = pc.index_in(closes["code"], codes.combine_chunks()).to_numpy()
        return places.take(order[first[index] + closes["number"].to_numpy() - 1])

    def _began(self, places: Places) -> _Numbers:
        """The positions at which versions began."""
        field = self._fields["valid_from_lsn"]
        began = stored_values(self._reading, places, {field_id(field): field.type})[field_id(field)]
        return np.asarray(began.to_numpy(), np.int64)

    def _remain(self, ended: Places) -> bool:
        """Whether versions hold that no row of the fold ends."""
        return sum(map(self._open.live_rows, self._open.data)) > len(ended.file)

    def _commit(self, target: Target, placed: _Placed, *, continued: bool, whole: bool) -> None:
        written = np.arange(target.fold.rows.num_rows)
        if continued and placed.closes:  # begun and ended by one transaction: nobody ever saw it
            ends = target.fold.rows["to_lsn"].slice(0, placed.closes).to_numpy()
            written = np.delete(written, np.flatnonzero(self._began(placed.ended) == ends))
        gone = {file: placed.ended.position[some] for file, some in placed.ended.by_file()}
        deleted = {file: merged(self._reading.deleted(file), some) for file, some in gone.items()}
        _stage(self._work, Change(self._pieces(target, placed, written), deleted), self._live, whole=whole)

    def _pieces(self, target: Target, placed: _Placed, written: _Numbers) -> Iterator[pa.Table]:
        """The rows that are written, in pieces with few bytes each."""
        taken = placed.taken.take(written)
        kinds = {
            field_id(f): f.type
            for f in self._fields.values()
            if self._from_lake(target, placed, f, written).any()
        }
        sizes = old_bytes(self._reading, taken, kinds) + text_bytes(target.fold.rows)[written]
        for piece in np.split(written, piece_bounds(sizes)):
            if len(piece):
                yield self._piece(target, placed, piece)

    def _piece(self, target: Target, placed: _Placed, written: _Numbers) -> pa.Table:
        from_lake = {
            name: self._from_lake(target, placed, field, written) for name, field in self._fields.items()
        }
        needed = {field_id(f): f.type for name, f in self._fields.items() if from_lake[name].any()}
        stored = stored_values(self._reading, placed.taken.take(written), needed)
        sources = sources_of(target) | _BEGINS | _ENDS
        arrays: list[pa.Array] = []
        for name, field in self._fields.items():
            if name == IS_OPEN:
                arrays.append(fold_values(target, "to_lsn", written, pa.int64()).is_null())
                continue
            values = fold_values(target, sources.get(name, ""), written, field.type)
            if field_id(field) in needed:
                values = pc.if_else(pa.array(from_lake[name]), stored[field_id(field)], values)
            arrays.append(values)
        rows = pa.Table.from_arrays(arrays, schema=pa.schema(list(self._fields.values())))
        return with_numbers(rows, row_numbers(self._reading, placed.numbered.take(written)), None)

    def _from_lake(self, target: Target, placed: _Placed, field: pa.Field, written: _Numbers) -> _Flags:
        """Which of the written rows have the lake's value of a column."""
        rows, closes = target.fold.rows, written < placed.closes
        if field.name == IS_OPEN or field.name in _ENDS:
            return np.zeros(len(written), np.bool_)
        source = sources_of(target).get(field.name)
        if field.name in _BEGINS or source is None:
            return closes
        if not source:  # a column of the past
            return closes | (placed.taken.file[written] >= 0)
        flags = f"u{source.lstrip('xn')}"
        if flags not in rows.column_names:
            return closes
        unchanged: _Flags = rows[flags].combine_chunks().to_numpy(zero_copy_only=False)[written]
        return closes | unchanged


class _Placed:
    """Where the open versions stand that the rows of a fold mean.

    Attributes:
        closes: so many rows, the first ones, end a version; ``ended``: where these stand.
        taken: of each row the version that it takes values from: that which it ends, or that which it
            comes from.
        numbered: of each row the version of which it keeps the number.
    """

    def __init__(self, closes: int, ended: Places, origin: Places) -> None:
        nothing = np.full(len(origin.file) - closes, -1, np.int64)
        self.closes, self.ended = closes, ended
        self.taken = Places(
            ended.files,
            np.concatenate([ended.file, origin.file[closes:]]),
            np.concatenate([ended.position, origin.position[closes:]]),
        )
        self.numbered = Places(
            ended.files,
            np.concatenate([ended.file, nothing]),
            np.concatenate([ended.position, nothing]),
        )


def _open_files(metadata: Metadata, live: Live) -> dict[str, LiveFile]:
    """The files of the versions that hold."""
    spec = default_spec(metadata)
    number = schema_now(metadata).find_field(IS_OPEN).field_id
    terms = [(field["source-id"], field["transform"]) for field in spec["fields"]]
    if terms != [(number, "identity")] or any(f.spec != spec["spec-id"] for f in live.data.values()):
        raise UnsuitableError("the history is partitioned in another way")
    return {location: file for location, file in live.data.items() if file.file.partition[0]}
