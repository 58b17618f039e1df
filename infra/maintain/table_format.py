"""`slotlake format`: the lake's tables get the Iceberg format that the pipeline file asks for.

No row is read or written (`spark.copy.table_format`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from slotlake.decoder.errors import LakeError
from slotlake.infra.maintain.table_changes import change_tables
from slotlake.infra.reports import FormatReport
from slotlake.infra.selection.pending import FORMAT

if TYPE_CHECKING:
    from slotlake.infra.maintain.table_changes import Others
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.catalog.base import Loaded
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.metadata import Metadata


def change_format(pipeline: OpenPipeline, tables: Sequence[str], progress: Progressing) -> FormatReport:
    """Give tables the format of the pipeline file.

    Args:
        tables: only these and their derived tables, as PostgreSQL writes them; none: all.
        progress: is called for each table.

    Raises:
        PipelineFileError: the lake has no such table.
        LakeError: a table cannot have that format; nothing was changed.
    """
    started = time.monotonic()
    changed = change_tables(pipeline, FORMAT, tables, _plan, progress)
    named = {str(name): changed[name] for name in sorted(changed)}
    return FormatReport(pipeline.name, named, round(time.monotonic() - started, 3))


def _plan(point: ReadPoint, tables: Sequence[Loaded], others: Others) -> Callable[[Loaded], Metadata]:
    from slotlake.spark.copy.table_format import require_plain, with_format

    lowered = [table for table in tables if others[table.name][1] < table.metadata["format-version"]]
    if lowered and not point.lake.can_lower_formats:
        raise LakeError(
            "a REST catalog cannot give a table a lower format",
            where=f"table {lowered[0].name}, {point.lake.place}",
            way_out="keep its format in the pipeline file (tables.<name>.format: 3), or make the lake again: "
            "slotlake drop --lake, then slotlake init",
        )
    for table in lowered:
        require_plain(table)
    return lambda table: with_format(table, others[table.name][1])
