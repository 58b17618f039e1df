"""Whether `partition_by` and `sort_by` of the pipeline file fit the tables, and which tables differ."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from slotlake.decoder.errors import LakeError, PipelineFileError
from slotlake.infra.config.of_tables import table_layouts
from slotlake.infra.selection.tables import lake_schema
from slotlake.spark.layout import Layout, Term, suits, types_of
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.decoder.catalog.publications import SourceTable
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.schema import TableSchema


def require_layouts(file: PipelineFile, tables: Iterable[SourceTable]) -> None:
    """Check that tables can be partitioned and sorted as the pipeline file says.

    Args:
        tables: as the lake takes them.

    Raises:
        PipelineFileError: a column is unknown, or not one that the lake takes, or its type does not suit the
            transform. The error names its table.
    """
    layouts = table_layouts(file)
    if not layouts:
        return
    for table in tables:
        layout = layouts.get(postgres_name(table.schema, table.table))
        if layout is not None:
            require_layout(layout, lake_schema(table))


def require_layout(layout: Layout, schema: TableSchema) -> None:
    """Check that one table can have a layout.

    Args:
        layout: by the source's columns.
        schema: the table as the lake has it.

    Raises:
        PipelineFileError: as `require_layouts`.
    """
    types = {column.name: column.spark_type for column in schema.live}
    for key, terms in (("partition_by", layout.partition), ("sort_by", layout.sort)):
        for term in terms:
            if reason := _unsuited(term, types):
                what, way_out = reason
                where = f"tables.{schema.source_name}.{key} of the pipeline file"
                raise PipelineFileError(what, where=where, way_out=way_out).of(schema.schema, schema.table)


def _unsuited(term: Term, types: dict[str, str]) -> tuple[str, str] | None:
    """What is wrong with a term, and the way out; None if nothing is."""
    if term.column not in types:
        listed = ", ".join(types)
        return (
            f"the table has no column {term.column!r} that the lake takes",
            f"name one of these: {listed}; if `columns` of the table leaves it out, add it there",
        )
    kind = types[term.column]
    if suits(term, kind):
        return None
    fitting = ", ".join(name for name in types if suits(Term(name, term.transform), types[name]))
    needed = f"{_of(term)} needs {' or '.join(types_of(term))}"
    return (
        f"{term} is not possible: the column {term.column!r} is {kind} in the lake, and {needed}",
        f"choose another transform, or a column that suits it{f': {fitting}' if fitting else ''}",
    )


def _of(term: Term) -> str:
    return "a plain column" if term.kind == "identity" else f"{term.kind}(…)"


def other_layouts(
    point: ReadPoint, only: Collection[LakeName] | None = None
) -> dict[LakeName, tuple[str, str]]:
    """Return the tables, derived ones included, with their layout and the one that the file asks for.

    Args:
        only: look only at these mirrors and what is derived from them.
    """
    from slotlake.spark.history.layouts import lake_layout
    from slotlake.spark.tables.layout import LAYOUT_PROPERTY, layout_of

    others: dict[LakeName, tuple[str, str]] = {}
    mirrors = point.mirrors()
    for mirror in mirrors if only is None else only:
        schema = mirrors[mirror]
        layout = point.lake.layout_of(schema.source_name)
        names = {"": mirror, **point.derived_tables_of(mirror)}
        for mode, name in names.items():
            if not layout and LAYOUT_PROPERTY not in point.pinned[name].properties:
                continue
            present = layout_of(point.pinned[name].metadata)
            try:
                wanted = lake_layout(layout, schema, mode)
            except LakeError as error:
                others[name] = str(present), f"{layout}, but {error.what}"
                continue
            if wanted is not None and present != wanted:
                others[name] = str(present), str(wanted)
    return others
