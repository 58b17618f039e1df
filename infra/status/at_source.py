"""The tables of a source, for who chooses some of them: size, key, and what `validate` would say of each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable, publishable_tables, unfit_tables
from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import source_session
from slotlake.infra.selection.aside import require_columns
from slotlake.infra.selection.types import texts_of_numerics
from slotlake.infra.status.room import bytes_by_table
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile

_IDENTITIES = {"d": "default", "n": "nothing", "f": "full", "i": "index"}


@dataclass(frozen=True)
class TableAtSource:
    """A table that could be published.

    Attributes:
        name: schema and table.
        bytes: its size without indexes, with all partitions.
        key: the columns that identify a row in the stream.
        replica_identity: ``default``, ``nothing``, ``full`` or ``index``.
        notes: what a pipeline that follows it would be warned of.
    """

    name: tuple[str, str]
    bytes: int
    key: tuple[str, ...]
    replica_identity: str
    is_partitioned: bool
    notes: tuple[str, ...]

    @property
    def written(self) -> str:
        """The name, as PostgreSQL writes it."""
        return postgres_name(*self.name)


def tables_at_source(file: PipelineFile) -> list[TableAtSource]:
    """Return all tables that the source could publish, the largest first; the role need not read them.

    Args:
        file: a pipeline file, whose rules for types the notes are about.

    Raises:
        SourceError: the source cannot be asked.
    """
    with source_session(file.dsn(), "listing the tables") as connection:
        tables = publishable_tables(connection)
        sizes = bytes_by_table(connection, tables)
    listed = [
        TableAtSource(
            (table.schema, table.table),
            sizes.get(table.relation_id, 0),
            table.key,
            _IDENTITIES.get(table.replica_identity, table.replica_identity),
            table.kind == "p",
            tuple(_notes(file, table)),
        )
        for table in tables
    ]
    return sorted(listed, key=lambda each: (-each.bytes, each.name))


def _notes(file: PipelineFile, table: SourceTable) -> list[str]:
    notes = [warning.what for warning in unfit_tables([table])]
    notes += [what for what, _ in texts_of_numerics(file, [table])]
    try:
        require_columns([table])
    except SourceError as error:
        notes.append(error.what)
    return notes
