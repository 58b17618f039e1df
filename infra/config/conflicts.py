"""The pipeline file's choices for conflicts, for all tables and for single ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.spark.fold.conflicts import Choices


def on_conflict(file: PipelineFile) -> Choices:
    """Return the choice for all tables, and the choices of single tables by schema and name."""
    from slotlake.spark.fold.conflicts import Choices
    from slotlake.spark.names import parse_postgres_name

    own = {name: section.on_conflict for name, section in file.tables.items()}
    chosen = {parse_postgres_name(name): choice for name, choice in own.items() if choice}
    return Choices(file.on_conflict, chosen)
