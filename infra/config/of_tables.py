"""What the pipeline file says of each table: its derived tables, format, layout, and what a conflict does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from slotlake.infra.config.table_names import by_name, by_source_name
from slotlake.spark.layout import Layout, parse_partition, parse_sort
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.spark.fold.conflicts import Choices


def on_conflict(file: PipelineFile) -> Choices:
    """Return the choice for all tables, and the choices of single tables by schema and name."""
    from slotlake.spark.fold.conflicts import Choices

    return Choices(
        file.on_conflict, by_name({name: section.on_conflict for name, section in file.tables.items()})
    )


def table_formats(file: PipelineFile) -> Mapping[str, int]:
    """Return the formats that ``tables.<name>.format`` chooses, by source name."""
    return by_source_name({name: section.format for name, section in file.tables.items()})


def table_layouts(file: PipelineFile) -> Mapping[str, Layout]:
    """Return what `partition_by` and `sort_by` say, by source name, of tables that have one of them."""
    return by_source_name(
        {
            name: Layout(parse_partition(section.partition_by), parse_sort(section.sort_by))
            if section.partition_by or section.sort_by
            else None
            for name, section in file.tables.items()
        }
    )


def derived_modes(file: PipelineFile, tables: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the modes of the derived tables, by source name.

    Args:
        tables: mirrors by schema and table.
    """
    own = by_name({name: section.mode for name, section in file.tables.items()})
    modes_by_table: dict[str, list[str]] = {}
    for table in tables:
        modes: list[str] = [mode for mode in own.get(table) or file.mode if mode != "mirror"]
        if modes:
            modes_by_table[postgres_name(*table)] = modes
    return modes_by_table
