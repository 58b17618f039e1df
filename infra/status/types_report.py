"""`slotlake status --types`: the type of each column in the source and in the lake.

It reads only the lake: the tables' metadata hold the types, and the counts in the manifests say how many rows
have an exact text.  Invariant: the report never calls a column exact that cannot hold every value of the
source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.types.names import written
from slotlake.infra.reports import Report
from slotlake.infra.selection.types import on_lossy
from slotlake.spark.names import lake_table

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.apply.lossy import OnLossy
    from slotlake.spark.read.pinned import Pinned
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.schema import LakeColumn


@dataclass(frozen=True)
class ColumnTypes(Report):
    """One column.

    Attributes:
        column, lake_column: its name in the source and in the lake.
        postgres, arrow, iceberg: its type in the source, in a reader's memory, and in the lake.
        exact: every value of the type fits the lake's column.
        on_lossy: the pipeline file's choice for values that do not fit; None if every value fits.
        otherwise: what happens to such a value; "" if every value fits.
        companion: the lake column with the exact text of such values; None if there is none.
        exact_texts: rows with an exact text; an upper bound while deleted rows are still in the files. None
            in a table with so many columns that Iceberg counts only some.
    """

    column: str
    lake_column: str
    postgres: str
    arrow: str
    iceberg: str
    exact: bool
    on_lossy: str | None = None
    otherwise: str = ""
    companion: str | None = None
    exact_texts: int | None = 0


@dataclass(frozen=True)
class TableTypes(Report):
    """A source table's columns, in its order."""

    table: str
    lake_table: str
    columns: list[ColumnTypes]


@dataclass(frozen=True)
class TypesReport(Report):
    """All tables of a pipeline at a position."""

    pipeline: str
    lsn: str
    tables: list[TableTypes]


def types_report(pipeline: OpenPipeline) -> TypesReport:
    """Report the type of every column.

    Raises:
        LakeError: the pipeline has not been initialised, or the lake cannot be reached.
    """
    from slotlake.spark.read.point import ReadPoint

    pipeline.position()  # raises a clear error if there is no lake yet
    point = ReadPoint.latest(pipeline.lake)
    return TypesReport(pipeline.name, format_lsn(point.position), _tables(pipeline, point))


def _tables(pipeline: OpenPipeline, point: ReadPoint) -> list[TableTypes]:
    tables, lossy = [], on_lossy(pipeline.file)
    for table in point.tables():
        name = lake_table(pipeline.lake.namespace, table.schema, table.table)
        pinned = point.pinned[point.find(table.source_name)]
        present = [column for column in table.live if column.lake_name in pinned.field_ids]
        counted = _exact_texts(pinned, [column for column in present if column.exact])
        columns = [
            _column(pinned, c, counted.get(c.name, 0), lossy.of(table.schema, table.table, c.name))
            for c in present
        ]
        tables.append(TableTypes(table.source_name, str(name), columns))
    return tables


def _column(pinned: Pinned, column: LakeColumn, exact_texts: int | None, choice: OnLossy) -> ColumnTypes:
    companion = column.exact_name if column.exact and column.exact_name in pinned.field_ids else None
    return ColumnTypes(
        column=column.name,
        lake_column=column.lake_name,
        postgres=written(column.type_name, column.type_oid, column.typmod),
        arrow=str(column.representation.arrow),
        iceberg=_iceberg(pinned, column.lake_name),
        exact=not column.representation.inexact,
        on_lossy=choice if column.representation.inexact or column.form else None,
        otherwise=_otherwise(column, choice),
        companion=companion,
        exact_texts=exact_texts,
    )


def _otherwise(column: LakeColumn, choice: OnLossy) -> str:
    if not column.representation.inexact:
        return ""
    if choice == "fail":
        return "refused with its batch"
    return f"NULL, its text in {column.exact_name}"


def _iceberg(pinned: Pinned, lake_column: str) -> str:
    """Return the type as the table's metadata has it."""
    metadata = pinned.metadata
    schema_id = (pinned.snapshot or {}).get("schema-id", metadata["current-schema-id"])
    schema = next(s for s in metadata["schemas"] if s["schema-id"] == schema_id)
    return _type_text(next(field["type"] for field in schema["fields"] if field["name"] == lake_column))


def _type_text(kind: Any) -> str:
    if isinstance(kind, str):
        return kind.replace(" ", "")
    if kind["type"] == "list":
        return f"list<{_type_text(kind['element'])}>"
    fields = ", ".join(f"{field['name']}: {_type_text(field['type'])}" for field in kind["fields"])
    return f"struct<{fields}>"


def _exact_texts(pinned: Pinned, columns: list[LakeColumn]) -> Mapping[str, int | None]:
    """Return how many rows have an exact text, by source column, from the counts in the manifests."""
    from slotlake.spark.read.scan import filled_counts
    from slotlake.spark.tables.schema import COLUMNS_COUNTED

    if not columns:
        return {}
    if len(pinned.field_ids) > COLUMNS_COUNTED:
        return {column.name: None for column in columns}
    ids = {column.name: pinned.field_ids[column.exact_name] for column in columns}
    counts = filled_counts(pinned.location, int((pinned.snapshot or {})["snapshot-id"]), set(ids.values()))
    return {name: counts[field] for name, field in ids.items()}
