"""`slotlake format`: the lake's tables get the Iceberg format that the pipeline file asks for.

All tables change in one catalog transaction, without Spark, and no row is read or written
(`spark.copy.table_format`).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from slotlake.decoder.errors import LakeError, PipelineFileError
from slotlake.decoder.failpoints import reach
from slotlake.infra.advance.findings import require_whole
from slotlake.infra.reports import FormatReport
from slotlake.infra.selection.formats import other_formats

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.catalog.base import Loaded, Move
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint


def change_format(pipeline: OpenPipeline, tables: Sequence[str], progress: Progressing) -> FormatReport:
    """Give tables the format of the pipeline file.

    Args:
        pipeline: the pipeline.
        tables: only these and their derived tables, as PostgreSQL writes them; none: all.
        progress: is called for each table.

    Raises:
        PipelineFileError: the lake has no such table.
        LakeError: a table cannot have that format; nothing was changed.
    """
    from slotlake.spark.read.point import ReadPoint

    started = time.monotonic()
    pipeline.position()  # raises a clear error if there is no lake
    require_whole(pipeline)
    point = ReadPoint.latest(pipeline.lake)
    chosen = chosen_tables(point, tables, "slotlake format")
    formats = {name: pair for name, pair in other_formats(point).items() if not tables or name in chosen}
    _change(pipeline, {name: wanted for name, (_, wanted) in formats.items()}, progress)
    changed = {str(name): formats[name] for name in sorted(formats)}
    return FormatReport(pipeline.name, changed, round(time.monotonic() - started, 3))


def chosen_tables(point: ReadPoint, tables: Collection[str], command: str) -> set[LakeName]:
    """Return the lake tables, derived ones included, that a user names.

    Args:
        point: has the tables.
        tables: as PostgreSQL writes them.
        command: for the error.

    Raises:
        PipelineFileError: the lake has no such table.
    """
    chosen: set[LakeName] = set()
    for table in tables:
        try:
            chosen |= {point.find(table), *point.derived_tables(table).values()}
        except (KeyError, ValueError):
            raise PipelineFileError(
                f"the lake has no table {table}",
                where=command,
                way_out="write a table's name as PostgreSQL does; slotlake status lists the tables",
            ) from None
    return chosen


def _change(pipeline: OpenPipeline, formats: Mapping[LakeName, int], progress: Progressing) -> None:
    from slotlake.spark.catalog.base import PointerMovedError, load
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.copy.table_format import with_format

    with open_catalog(pipeline.lake) as catalog:
        pointers = catalog.pointers()
        loaded = [load(pointers, name) for name in sorted(formats)]
        _require_possible(pipeline, loaded, formats)
        moves: list[Move] = []
        for table in loaded:
            progress("format: tables", len(moves) + 1, len(loaded))
            moves.append(catalog.prepared(table, with_format(table, formats[table.name])))
        reach("format.before_swap")
        try:
            catalog.move(moves)
        except PointerMovedError:
            catalog.forget(moves)
            raise


def _require_possible(
    pipeline: OpenPipeline, tables: Sequence[Loaded], formats: Mapping[LakeName, int]
) -> None:
    """Check all tables before anything is written for one of them."""
    from slotlake.spark.copy.table_format import require_plain

    lowered = [table for table in tables if formats[table.name] < table.metadata["format-version"]]
    if lowered and pipeline.lake.is_rest:
        raise LakeError(
            "a REST catalog cannot give a table a lower format",
            where=f"table {lowered[0].name}, {pipeline.lake.place}",
            way_out="keep its format in the pipeline file (tables.<name>.format: 3), or make the lake again: "
            "slotlake drop --lake, then slotlake init",
        )
    for table in lowered:
        require_plain(table)
