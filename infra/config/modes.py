"""Which derived tables the pipeline file asks for: histories and change logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slotlake.spark.names import parse_postgres_name, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile


def derived_modes(file: PipelineFile, tables: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """Return the modes of the derived tables, by source name.

    Args:
        tables: mirrors by schema and table.
    """
    own = {parse_postgres_name(name): section.mode for name, section in file.tables.items()}
    modes_by_table: dict[str, list[str]] = {}
    for table in tables:
        modes: list[str] = [mode for mode in own.get(table) or file.mode if mode != "mirror"]
        if modes:
            modes_by_table[postgres_name(*table)] = modes
    return modes_by_table
