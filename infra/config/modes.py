"""Which tables the pipeline file asks for beside the mirrors: histories and change logs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slotlake.spark.names import parse_postgres_name, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile


def wanted_modes(file: PipelineFile, tables: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """What is asked for beside the mirrors of these tables (schema, table), by source name."""
    own = {parse_postgres_name(name): section.mode for name, section in file.tables.items()}
    found: dict[str, list[str]] = {}
    for table in tables:
        beside: list[str] = [mode for mode in own.get(table) or file.mode if mode != "mirror"]
        if beside:
            found[postgres_name(*table)] = beside
    return found
