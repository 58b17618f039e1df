"""`slotlake layout`: the lake's tables get the partitions and the sort order that the pipeline file asks for.

All tables change in one catalog transaction, without Spark. What is written from then on follows the new
layout; files that are there keep theirs, and readers read both, until `slotlake maintain --rewrite-layout`
writes them anew.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotlake.decoder.failpoints import reach
from slotlake.infra.advance.findings import require_whole
from slotlake.infra.care.table_format import chosen_tables
from slotlake.infra.reports import LayoutReport
from slotlake.infra.selection.layouts import other_layouts, require_layout

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.catalog.base import Move
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint


def change_layout(pipeline: OpenPipeline, tables: Sequence[str], progress: Progressing) -> LayoutReport:
    """Give tables the layout of the pipeline file.

    Args:
        pipeline: the pipeline.
        tables: only these and their derived tables, as PostgreSQL writes them; none: all.
        progress: is called for each table.

    Raises:
        PipelineFileError: the lake has no such table, or a table cannot have that layout.
        LakeError: the catalog cannot be reached, or was changed meanwhile.
    """
    from slotlake.spark.read.point import ReadPoint

    started = time.monotonic()
    pipeline.position()  # raises a clear error if there is no lake
    require_whole(pipeline)
    point = ReadPoint.latest(pipeline.lake)
    chosen = chosen_tables(point, tables, "slotlake layout")
    layouts = {name: pair for name, pair in other_layouts(point).items() if not tables or name in chosen}
    _change(pipeline, point, set(layouts), progress)
    changed = {str(name): layouts[name] for name in sorted(layouts)}
    return LayoutReport(pipeline.name, changed, round(time.monotonic() - started, 3))


def _change(pipeline: OpenPipeline, point: ReadPoint, names: set[LakeName], progress: Progressing) -> None:
    from slotlake.spark.catalog.base import PointerMovedError, load
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.history.layouts import laid_out

    works = []
    for schema in point.tables():
        layout = pipeline.lake.layout_of(schema.source_name)
        by_mode = {"": point.find(schema.source_name), **point.derived_tables(schema.source_name)}
        works += [(name, mode, layout, schema) for mode, name in by_mode.items() if name in names]
    for _, _, layout, schema in works:
        require_layout(layout, schema)
    with open_catalog(pipeline.lake) as catalog:
        pointers = catalog.pointers()
        moves: list[Move] = []
        for name, mode, layout, schema in works:
            progress("layout: tables", len(moves) + 1, len(works))
            table = load(pointers, name)
            moves.append(catalog.prepared(table, laid_out(table.metadata, layout, schema, mode)))
        if not moves:
            return
        reach("layout.before_swap")
        try:
            catalog.move(moves)
        except PointerMovedError:
            catalog.forget(moves)
            raise
