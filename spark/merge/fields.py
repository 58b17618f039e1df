"""Which fields a lake table must have for its columns, and what ALTER TABLE must do for that.

Invariant: a field that some column of the published shape has, or had, stays.  One that none has is what an
attempt left that never was published: if it has another type than a column of that name needs now, it steps
aside.  It holds nothing then; but should somebody else have made it, nothing of it is lost.
"""

from __future__ import annotations

from collections.abc import Collection

from slotlake.spark.catalog.base import Loaded
from slotlake.spark.names import quote
from slotlake.spark.publish.derived_tables import is_other_type, sql_types, unused_field_name
from slotlake.spark.tables.change import can_widen
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import TableSchema, add_columns, schema_of


def field_types(metadata: Metadata) -> dict[str, str]:
    """The table's fields, and their types as Spark SQL writes them where these can be widened."""
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    spark_names = {"long": "bigint"}
    return {f["name"]: spark_names.get(str(f["type"]), str(f["type"])) for f in current["fields"]}


def key_fields(
    schema: TableSchema, companions: Collection[str], key: Collection[str] | None = None
) -> list[str]:
    """Return the fields of a mirror that hold its key, with those of their exact texts.

    Args:
        companions: lake names of the exact-text columns that the table has.
        key: source names of the key's columns; None for those that the shape says.
    """
    columns = [schema.column(name) for name in sorted(schema.key if key is None else key)]
    names = [(c.lake_name, [c.exact_name] if c.exact_name in companions else []) for c in columns]
    return [field for name, exact in names for field in (name, *exact)]


def field_changes(table: Loaded, catalog: str, schema: TableSchema) -> list[str]:
    """Return the ALTER TABLE statements that make the fields of all columns; new fields are empty."""
    present, name = field_types(table.metadata), table.name.sql(catalog)
    misfits = _misfit_fields(table, schema)
    missing = [c.definition for c in schema.columns if c.lake_name not in present or c.lake_name in misfits]
    missing += [
        c.exact_definition
        for c in schema.columns
        if c.exact and (c.exact_name not in present or c.exact_name in misfits)
    ]
    changes = [
        f"ALTER TABLE {name} RENAME COLUMN {quote(field)} TO {quote(unused_field_name(field, present))}"
        for field in misfits
    ]
    changes += [add_columns(table.name, catalog, missing)] if missing else []
    return changes + [
        f"ALTER TABLE {name} ALTER COLUMN {quote(column.lake_name)} TYPE {column.spark_type}"
        for column in schema.live
        if column.lake_name not in misfits and can_widen(present.get(column.lake_name, ""), column.spark_type)
    ]


def _misfit_fields(table: Loaded, schema: TableSchema) -> list[str]:
    before = schema_of(table.metadata, table.name)
    published_fields = {name for column in before.columns for name in (column.lake_name, column.exact_name)}
    kinds = {column.lake_name: column.spark_type for column in schema.live}
    kinds |= {column.exact_name: "string" for column in schema.live if column.exact}
    present = sql_types(table.metadata)
    return [
        name
        for name, kind in kinds.items()
        if name not in published_fields
        and is_other_type(present.get(name, ""), kind)
        and not can_widen(present[name], kind)
    ]
