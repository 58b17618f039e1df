"""`slotlake layout`: the lake's tables get the partitions and the sort order that the pipeline file asks for.

What is written from then on follows the new layout; files that are there keep theirs, and readers read both,
until `slotlake maintain --rewrite-layout` writes them anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slotlake.infra.maintain.table_changes import change_tables
from slotlake.infra.reports import LayoutReport
from slotlake.infra.selection.layouts import require_layout
from slotlake.infra.selection.pending import LAYOUT

if TYPE_CHECKING:
    from slotlake.infra.maintain.table_changes import Others
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.catalog.base import Loaded
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.metadata import Metadata
    from slotlake.spark.tables.schema import TableSchema


def change_layout(pipeline: OpenPipeline, tables: Sequence[str], progress: Progressing) -> LayoutReport:
    """Give tables the layout of the pipeline file.

    Args:
        tables: only these and their derived tables, as PostgreSQL writes them; none: all.
        progress: is called for each table.

    Raises:
        PipelineFileError: the lake has no such table, or a table cannot have that layout.
        LakeError: the catalog cannot be reached, or was changed meanwhile.
    """
    started = time.monotonic()
    changed = change_tables(pipeline, LAYOUT, tables, _plan, progress)
    named = {str(name): changed[name] for name in sorted(changed)}
    return LayoutReport(pipeline.name, named, round(time.monotonic() - started, 3))


def _plan(point: ReadPoint, tables: Sequence[Loaded], others: Others) -> Callable[[Loaded], Metadata]:
    from slotlake.spark.history.layouts import laid_out

    modes: dict[LakeName, tuple[TableSchema, str]] = {}
    for schema in point.tables():
        by_mode = {"": point.find(schema.source_name), **point.derived_tables(schema.source_name)}
        modes |= {name: (schema, mode) for mode, name in by_mode.items() if name in others}
    for schema, _ in modes.values():
        require_layout(point.lake.layout_of(schema.source_name), schema)

    def changed(table: Loaded) -> Metadata:
        schema, mode = modes[table.name]
        return laid_out(table.metadata, point.lake.layout_of(schema.source_name), schema, mode)

    return changed
