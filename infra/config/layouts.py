"""Which tables are partitioned or sorted by the pipeline file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotlake.spark.layout import Layout, parse_partition, parse_sort
from slotlake.spark.names import parse_postgres_name, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile


def table_layouts(file: PipelineFile) -> dict[str, Layout]:
    """Return what `partition_by` and `sort_by` say, by source name, of tables that have one of them."""
    return {
        postgres_name(*parse_postgres_name(name)): Layout(
            parse_partition(section.partition_by), parse_sort(section.sort_by)
        )
        for name, section in file.tables.items()
        if section.partition_by or section.sort_by
    }
