"""Which tables have a format of their own in the pipeline file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotlake.spark.names import parse_postgres_name, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile


def table_formats(file: PipelineFile) -> dict[str, int]:
    """Return the formats that ``tables.<name>.format`` chooses, by source name."""
    return {
        postgres_name(*parse_postgres_name(name)): section.format
        for name, section in file.tables.items()
        if section.format is not None
    }
