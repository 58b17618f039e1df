"""Stages a batch's changes in a table's change log without Spark.

Rows are only added to it, so of the files of before none is looked at.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping

import pyarrow as pa

from slotlake.decoder.compiled.arrays import nulls
from slotlake.decoder.failpoints import reach
from slotlake.spark.direct.branch import move_stage, named, newest
from slotlake.spark.direct.choice import require_not_asked_for, require_suitable_derived
from slotlake.spark.direct.reading import one_array
from slotlake.spark.direct.rows import fields_of, piece_bounds, text_bytes
from slotlake.spark.direct.snapshot import with_rows
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.history.changes_table import IMAGES, Numbered, change_rows, image_sources, lacks_image
from slotlake.spark.history.modes import MirrorChanges
from slotlake.spark.merge.run import Work
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import TableSchema


def stage_changes_directly(work: Work, changes: MirrorChanges) -> bool:
    """Stage a mirror's changes in the branch ``stage`` of its change log; False if they are for Spark.

    Then nothing is staged.  Each slice has a snapshot of its own; the last snapshot gets the point's name.

    Raises:
        StageConflictError: another writer changed the table meanwhile.
        LakeError: a file cannot be read or written.
    """
    try:
        require_suitable_derived(work, "append", changes)
    except UnsuitableError as why:
        require_not_asked_for(work, why)
        return False
    numbered = Numbered()
    for each in changes.slices():
        rows = change_rows(changes.schema, each, changes.names, numbered)
        if rows is not None:
            _add(newest(work), _pieces(work.table.metadata, changes.schema, rows), whole=not changes.sliced)
            if not changes.sliced:
                return True
        del each, rows
        reach("apply.between_slices")
        pa.default_memory_pool().release_unused()
    _add(newest(work), iter(()), whole=True)
    return True


def _add(work: Work, rows: Iterator[pa.Table], *, whole: bool) -> None:
    """Stage rows; ``whole``: they complete the table."""

    def staged(entries: Mapping[str, str]) -> Metadata:
        return with_rows(work.table.metadata, rows, entries)

    move_stage(work, staged, named(work, {}) if whole else {})


def _pieces(metadata: Metadata, schema: TableSchema, rows: pa.Table) -> Iterator[pa.Table]:
    """The changes as the table has them, in pieces with few bytes each."""
    fields = fields_of(metadata)
    bounds = [0, *piece_bounds(text_bytes(rows)).tolist(), rows.num_rows]
    for first, end in itertools.pairwise(bounds):
        piece = rows.slice(first, end - first)
        arrays = [
            _image(schema, field, piece) if field.name in IMAGES else one_array(piece[field.name], field.type)
            for field in fields
        ]
        yield pa.Table.from_arrays(arrays, schema=fields)


def _image(schema: TableSchema, field: pa.Field, rows: pa.Table) -> pa.Array:
    """The rows before or after the changes, as structs; NULL where a change shows none."""
    sources, present = image_sources(schema, field.name), set(rows.column_names)
    values = [
        one_array(rows[sources[part.name]], part.type)
        if sources.get(part.name) in present
        else nulls(rows.num_rows, part.type)
        for part in field.type
    ]
    hidden = one_array(lacks_image(rows, field.name), pa.bool_())
    return pa.StructArray.from_arrays(values, fields=list(field.type), mask=hidden)
