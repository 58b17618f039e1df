"""Copy tables again whose rows changed without a row event."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.vanished import VanishedError
from slotlake.infra.advance.nonblocking import at_nonblocking_snapshot
from slotlake.infra.copy.tables import published_tables, replace_content
from slotlake.infra.schema.large_tables import postpone_large
from slotlake.infra.selection.aside import setting_aside
from slotlake.infra.selection.pending import note_pending
from slotlake.infra.source.partitions import repartitioned

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.read.newest import Mirrors
    from slotlake.spark.tables.schema import TableSchema

FILL_WAIT_SECONDS = 60.0
_LATELY = 8  # pipelines of one process


def fill_added_columns(pipeline: OpenPipeline, progress: Progressing) -> list[str]:
    """Copy again the tables of which rows got values that no row event had.

    These are tables whose added columns have a default: PostgreSQL stores a constant default in the catalog
    (pg_attribute.attmissingval), or rewrites the table for a volatile one, and neither reaches the stream;
    tables to which a row came with a value that was not sent (`spark.row_filter.selection.Taken.lost`); and
    those that partitions joined or left.  Several at once are read under one snapshot.

    Returns:
        The tables that were copied, quoted.
    """
    stale = _unfilled(pipeline)
    if stale:
        postponed = postpone_large(pipeline, dict.fromkeys(stale, "rows got values that no change had"))
        stale = [table for table in stale if table not in postponed]
    if stale:
        with at_nonblocking_snapshot(pipeline, FILL_WAIT_SECONDS, progress) as snapshot:
            for table in stale:
                # The next batch finds that a table was dropped.
                with suppress(VanishedError), setting_aside(pipeline):
                    replace_content(pipeline, table, snapshot, progress)
    return [table.quoted for table in stale]


def has_unfilled_columns(pipeline: OpenPipeline) -> bool:
    """Return whether a table must be copied again to be exact."""
    return bool(_unfilled(pipeline))


def _unfilled(pipeline: OpenPipeline) -> list[SourceTable]:
    from slotlake.spark.read.point import ReadPoint

    point = ReadPoint.latest(pipeline.lake)
    note_pending(pipeline.memory, point)
    noted, aside = _noted(point.all_mirrors), point.aside.keys()
    unfilled = {name: columns for name, columns in noted.unfilled.items() if name not in aside}
    lost = noted.lost - aside
    lost |= repartitioned(
        pipeline.lake,
        pipeline.source.dsn,
        [mirror for mirror in noted.partitioned if _name(mirror) not in aside],
    )
    if not unfilled and not lost:
        return []
    return [
        table
        for table in published_tables(pipeline, to_read=False)
        if _name(table) in lost
        or any(
            column.has_default and column.name in unfilled.get(_name(table), ()) for column in table.columns
        )
    ]


@dataclass(frozen=True)
class _Noted:
    """What stands in the shapes of mirrors of values that no row event had.

    Attributes:
        unfilled: by schema and name, the columns of which rows may lack values.
        lost: schema and name of tables to which a row came with a value that was not sent.
        partitioned: the shapes that say with which partitions a table was copied.
    """

    unfilled: Mapping[tuple[str, str], frozenset[str]]
    lost: frozenset[tuple[str, str]]
    partitioned: Sequence[TableSchema]


@lru_cache(maxsize=_LATELY)
def _noted(mirrors: Mirrors) -> _Noted:
    """Look through all shapes; these are the same object as long as none has changed."""
    columns = {
        _name(mirror): frozenset(column.name for column in mirror.live if column.unfilled)
        for mirror in mirrors.tables
    }
    return _Noted(
        {name: unfilled for name, unfilled in columns.items() if unfilled},
        frozenset(_name(mirror) for mirror in mirrors.tables if any(column.lost for column in mirror.live)),
        [mirror for mirror in mirrors.tables if mirror.partitions],
    )


def _name(table: SourceTable | TableSchema) -> tuple[str, str]:
    return table.schema, table.table
