"""Which tables keep, marked, the rows that the source deleted (`on_delete: mark`), and which cannot."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.table_names import by_name
from slotlake.spark.names import lake_columns
from slotlake.spark.tables.soft_deletes import require_unused_names

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile

Name = tuple[str, str]


def chooses_soft_deletes(file: PipelineFile) -> bool:
    """Return whether the file wants the deleted rows of any table to stay."""
    sections = (section.on_delete for section in file.tables.values())
    return "mark" in (file.on_delete, *sections)


def marking(file: PipelineFile, tables: Iterable[Name]) -> dict[Name, bool]:
    """Return for each table, by schema and name, whether the file wants its deleted rows to stay."""
    own = by_name({name: section.on_delete for name, section in file.tables.items()})
    return {name: (own.get(name) or file.on_delete) == "mark" for name in tables}


def require_soft_deletable(table: SourceTable) -> None:
    """Check that deleted rows of a table can stay in its mirror.

    Raises:
        PipelineFileError: changes do not name its rows by a key, or a column has a name that the mirror
            needs; the error is of that table only.
    """
    if not table.key or table.replica_identity == "n":
        raise PipelineFileError(
            f"deleted rows of {table.quoted} cannot be marked: its changes do not name rows by a primary key",
            where=f"tables.{table.schema}.{table.table}.on_delete",
            way_out="give the table a primary key and REPLICA IDENTITY DEFAULT (or FULL); or set "
            f"on_delete: delete for it (tables.{table.schema}.{table.table}.on_delete), and use "
            "mode: history to keep what its rows were",
        ).of(table.schema, table.table)
    require_unused_names(table.schema, table.table, lake_columns([column.name for column in table.columns]))
