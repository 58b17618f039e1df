"""Which layout a mirror, and each of its derived tables, gets by what the pipeline file says of the mirror.

A history is partitioned by ``is_open`` first, whatever the file says, so that neither reading the present nor
applying a batch looks at the past.  The rows of a change log have the mirror's columns inside structs, twice;
it stays partitioned by the day of the commit.
"""

from __future__ import annotations

from slotlake.decoder.errors import LakeError
from slotlake.spark.history.columns import IS_OPEN, field_name
from slotlake.spark.layout import Layout, Term, renamed
from slotlake.spark.tables.layout import with_layout
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import TableSchema

_OWN = {"": (), "history": (Term(IS_OPEN),)}


def lake_layout(layout: Layout, schema: TableSchema, mode: str = "") -> Layout | None:
    """Return the layout of a table in the lake, by the names of its fields; None: it keeps its own.

    Args:
        layout: by the source's columns.
        mode: the kind of derived table; empty for the mirror.

    Raises:
        LakeError: the mirror has no such column; the error names its table.
    """
    if mode not in _OWN:
        return None
    names = {column.name: column.lake_name for column in schema.live}
    for column in layout.columns:
        if column not in names:
            raise LakeError(
                f"the table has no column {column!r} any more",
                where=f"table {schema.source_name}",
                way_out="correct partition_by and sort_by of the table in the pipeline file",
            ).of(schema.schema, schema.table)
    if mode:
        names = {name: field_name(lake_name) for name, lake_name in names.items()}
    return renamed(layout, names, _OWN[mode])


def laid_out(metadata: Metadata, layout: Layout, schema: TableSchema, mode: str = "") -> Metadata:
    """Return a table with its layout for files that are written from now on; the same if it has it.

    Args:
        layout: by the source's columns.
        mode: the kind of derived table; empty for the mirror.

    Raises:
        LakeError: the mirror has no such column.
    """
    wanted = lake_layout(layout, schema, mode)
    return metadata if wanted is None else with_layout(metadata, wanted, len(_OWN[mode]))
