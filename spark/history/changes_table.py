"""The table ``<table>__changes``: the change log itself, one row per change, and one per row of a copy.

Read in the order of ``commit_lsn`` and ``seq`` it holds every change of the table since it was copied:

* ``C`` a copy of the table was made; earlier content is void. ``R``: a row of that copy;
  where a few rows were read again (a backfill of some), their keys are deleted first (``D`` without ``xid``);
* ``I`` ``U`` ``D`` a row was inserted, updated, deleted; ``T`` the table was truncated.

``new`` and ``old`` hold the row's columns; ``old_row`` says how much of the old row the server sent (its key,
or the whole row).  Invariant, and the test: applied one after the other the changes give the mirror.

Rows are appended, in the same consistency point as the mirror's, and never changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from slotlake.spark.names import LakeName, literal, quote
from slotlake.spark.publish.derived_tables import Field, Source, column_types, create, fields_of, timestamp
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import LakeColumn, TableSchema, unbounded

_COLUMNS = {
    "op": "string",
    "lsn": "bigint",
    "commit_lsn": "bigint",
    "change_lsn": "bigint",
    "seq": "bigint",
    "xid": "bigint",
    "commit_time": "timestamp",
    "origin": "string",
    "old_row": "string",
    "unchanged": "array<string>",
}
_COPY = "op, lsn, commit_lsn, seq, commit_time"
_SIDES = {"new": "n", "old": "o"}
IMAGES: Sequence[str] = tuple(_SIDES)


def definition(
    name: LakeName, catalog: str, schema: TableSchema, pipeline: str, location: str, table_format: int
) -> str:
    """Return the SQL that makes the table."""
    inner = ", ".join(f"{quote(field.name)}: {field.kind}" for field in fields_of(schema))
    columns = [f"{quote(column)} {kind}" for column, kind in _COLUMNS.items()]
    columns += [f"{quote(image)} struct<{inner}>" for image in _SIDES]
    options = {
        "mode": "append",
        "pipeline": pipeline,
        "location": location,
        "format": table_format,
        "partitioned": "days(commit_time)",
        "unbounded": {k: v for image in IMAGES for k, v in unbounded(schema.columns, image).items()},
    }
    return create(name, catalog, columns, options)


def field_name(name: str) -> str:
    """Return the name that a field of the mirror has within an image: its own."""
    return name


def derived_column(column: LakeColumn) -> LakeColumn:
    """Return a column of the mirror as it is within an image: unchanged."""
    return column


def copy_statements(metadata: Metadata, target: str, source: Source) -> list[str]:
    """Return the SQL that adds a copy of the mirror's rows; the last statement completes the table."""
    at = f"{source.position}L, {source.position}L"
    return [
        f"INSERT INTO {target} ({_COPY}) VALUES ('C', {at}, -1L, {timestamp(source.time)})",
        _rows_of(metadata, target, source),
    ]


def amend_statements(
    metadata: Metadata, target: str, new_rows: Source, touched: str, key: Sequence[str]
) -> list[str]:
    """Return the SQL for rows that were read again: a `D` without xid for each key, and the new rows."""
    names = _inner(column_types(metadata)["old"])
    row = _row([(name, quote(name) if name in key else "NULL") for name in names])
    positions, when = f"{new_rows.position}L, {new_rows.position}L", timestamp(new_rows.time)
    key_deletes = (
        f"INSERT INTO {target} ({_COPY}, old_row, old) "
        f"SELECT 'D', {positions}, -1L, {when}, 'key', {row} FROM {quote(touched)}"
    )
    return [key_deletes, _rows_of(metadata, target, new_rows)]


def _rows_of(metadata: Metadata, target: str, source: Source) -> str:
    names = _inner(column_types(metadata)["new"])
    row = _row([(name, quote(name) if name in source.fields else "NULL") for name in names])
    positions, when = f"{source.position}L, {source.position}L", timestamp(source.time)
    return (
        f"INSERT INTO {target} ({_COPY}, new) SELECT 'R', {positions}, 0L, {when}, {row} FROM {source.name}"
    )


def append_statement(schema: TableSchema, metadata: Metadata, target: str, rows: pa.Table, view: str) -> str:
    """Return the SQL that adds the changes of a batch.

    Args:
        target: the branch to write to, as Spark SQL names it.
    """
    numbers = {field.name: _number(schema, field) for field in fields_of(schema)}
    view_columns = set(rows.column_names)
    images = []
    for image, side in _SIDES.items():
        names = _inner(column_types(metadata)[image])
        fields = [(name, numbers.get(name, "{}").format(side)) for name in names]
        row = _row([(name, f"s.{value}" if value in view_columns else "NULL") for name, value in fields])
        has_image = "s.has_new" if image == "new" else "s.old_row IS NOT NULL"
        images.append(f"CASE WHEN {has_image} THEN {row} END")
    columns = ", ".join([*_COLUMNS, *_SIDES])
    values = ", ".join([*(f"s.{column}" for column in _COLUMNS), *images])
    return f"INSERT INTO {target} ({columns}) SELECT {values} FROM {quote(view)} AS s"


def view_schema(schema: TableSchema, rows: pa.Table) -> str:
    """DDL of the view's columns."""
    kinds = {**_COLUMNS, "has_new": "boolean"}
    for number, column in enumerate(schema.columns):
        for side in _SIDES.values():
            kinds |= {f"{side}{number}": column.spark_type, f"x{side}{number}": "string"}
    return ", ".join(f"{name} {kinds[name]}" for name in rows.column_names)


def _number(schema: TableSchema, field: Field) -> str:
    """The field's column in the view, its side left open."""
    return ("x{}" if field.exact else "{}") + str(schema.columns.index(field.column))


def _row(values: Sequence[tuple[str, str]]) -> str:
    return f"named_struct({', '.join(f'{literal(name)}, {value}' for name, value in values)})"


def _inner(kind: dict[str, Any]) -> list[str]:
    return [field["name"] for field in kind["fields"]]
