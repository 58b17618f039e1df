"""Decides the shape of a lake table after the source's columns have changed.

`schema_after_change` keeps the rows of the lake: a new column is added and is empty in them; a dropped column
stays and is empty in new rows; a renamed column is renamed; a type is widened where Iceberg can do so.  The
source's attribute numbers say which column is which (`spark.publish.sidecar`).  Without them only names can
say it, and every doubtful case is refused: a dropped column and a new one may be a rename, and a column that
comes back would show the values that it had before.

`schema_after_copy` is for a table whose rows are all read again: then every change is possible.

A field of a lake table cannot become another column, or get any other type, while readers use it.  So a
column that needs another field gets one with a name of its own until it is published
(`spark.tables.settle`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from slotlake.decoder.errors import ApplyError
from slotlake.spark.names import exact_name, lake_columns
from slotlake.spark.tables.schema import LakeColumn, TableSchema
from slotlake.spark.tables.shapes import TableShape
from slotlake.spark.tables.type_rules import TypeRules

Numbers = Mapping[str, int]
Types = Mapping[int, tuple[int, int, str]]  # attribute number → type's OID, modifier, name
_WIDER = {("int", "bigint"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


class CannotFollowError(ApplyError):
    """The lake's table cannot follow the source's unless all rows are read again."""


def schema_after_change(
    schema: TableSchema,
    relation: TableShape,
    numbers: Numbers = MappingProxyType({}),
    *,
    same_values: bool = False,
) -> TableSchema:
    """Return the lake table's shape after the source's became ``relation``.

    Args:
        numbers: column name → attribute number of the relation's columns; empty if they are unknown.
        same_values: the source rewrote its rows, and their values are proven to be the same.

    Raises:
        CannotFollowError: the lake cannot follow; the error names the column and the way out.
    """
    new_schema = _numbered(TableSchema.of(relation), numbers)
    before = _paired(schema, new_schema)
    continued = {
        column.name: _retyped(schema, before[column.name], column, same_values)
        for column in new_schema.columns
        if column.name in before
    }
    added = [column for column in new_schema.columns if column.name not in continued]
    missing = [column for column in schema.live if column not in before.values()]
    if not numbers:
        _refuse_doubtful(schema, added, missing)
    fresh = _with_own_fields(schema, _with_representations(schema, added), unfilled=not numbers)
    return _combined_schema(schema, relation, new_schema, {**continued, **fresh})


def schema_after_copy(schema: TableSchema, new_schema: TableSchema) -> TableSchema:
    """Return the lake table's shape when all of its rows come from a copy.

    Args:
        new_schema: the source's table; the numbers of its columns say which is which, or the names where a
            number is 0.
    """
    before = _paired(schema, new_schema)
    continued = {
        column.name: _continued(old, column)
        for column in new_schema.columns
        if (old := before.get(column.name)) is not None and _can_hold(old, column)
    }
    fresh = _with_own_fields(
        schema, [c for c in new_schema.columns if c.name not in continued], unfilled=False
    )
    shape = _combined_schema(schema, new_schema, new_schema, {**continued, **fresh})
    retyped = {id(old) for name, old in before.items() if name not in continued}
    retyped_names = {old.lake_name for old in schema.columns if id(old) in retyped}
    columns = tuple(
        column for column in shape.columns if column.lake_name not in retyped_names or not column.dropped
    )
    return replace(
        shape,
        columns=columns,
        selection=new_schema.selection,
        types=new_schema.types,
        soft_deletes=new_schema.soft_deletes,
    )


def _numbered(new_schema: TableSchema, numbers: Numbers) -> TableSchema:
    return replace(
        new_schema,
        columns=tuple(replace(c, number=numbers.get(c.name, c.number)) for c in new_schema.columns),
    )


def _paired(schema: TableSchema, new_schema: TableSchema) -> dict[str, LakeColumn]:
    """Return the lake column of each new column that the lake has, by new name.

    Columns pair by number where both sides know theirs; a number that the lake does not know is another
    column.
    """
    by_number = {column.number: column for column in schema.live if column.number}
    by_name = {column.name: column for column in schema.columns[::-1]}
    pairs = {}
    for column in new_schema.columns:
        old = by_number.get(column.number) if column.number else by_name.get(column.name)
        if old is None and column.number:
            named = by_name.get(column.name)
            old = named if named is not None and not named.number and not named.dropped else None
        if old is not None:
            pairs[column.name] = old
    return pairs


def _refuse_doubtful(schema: TableSchema, added: list[LakeColumn], missing: list[LakeColumn]) -> None:
    if added and missing:
        raise _cannot_follow(
            schema, f"column {missing[0].name} is gone and {added[0].name} is new, which may be a rename"
        )


def with_types(schema: TableSchema, types: Types) -> TableSchema:
    """Return the table with columns of other types; their fields can be widened to these."""
    columns = (
        replace(c, type_oid=new_type[0], typmod=new_type[1], type_name=new_type[2])
        if not c.dropped and (new_type := types.get(c.number)) is not None
        else c
        for c in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def _retyped(schema: TableSchema, old: LakeColumn, new: LakeColumn, same_values: bool) -> LakeColumn:
    if old.dropped:
        raise _cannot_follow(schema, f"column {old.name} was dropped and is back")
    same_type = (old.type_oid, old.typmod) == (new.type_oid, new.typmod)
    alike = (old.type.spark, old.type.inexact) == (new.type.spark, new.type.inexact)
    # Another type's text is other text: with a form, only the type itself is the same.
    wider = _wider_decimal(old, new) or (same_values and _wider(old, new))
    if not (same_type if old.form else alike or wider):
        raise _cannot_follow(
            schema, f"the type of column {old.name} changed from {old.type_name} to {new.type_name}"
        )
    return _continued(old, replace(new, form=old.form))


def _wider_decimal(old: LakeColumn, new: LakeColumn) -> bool:
    """Widening a numeric leaves the source's rows as they are; any other widening rewrites them."""
    return bool(new.number) and old.type_oid == new.type_oid and can_widen(old.type.spark, new.type.spark)


def _wider(old: LakeColumn, new: LakeColumn) -> bool:
    same_kind = old.type.inexact == new.type.inexact
    return bool(new.number) and same_kind and can_widen(old.type.spark, new.type.spark)


def _continued(old: LakeColumn, new: LakeColumn) -> LakeColumn:
    """Return the new column in the field that the old one has."""
    return replace(
        new,
        lake_name=old.lake_name,
        exact=old.exact,
        unfilled=old.unfilled,
        lost=old.lost,
        number=new.number or old.number,
        renamed=old.renamed or old.name != new.name,
    )


def _can_hold(old: LakeColumn, new: LakeColumn) -> bool:
    """Return whether the old column's field can hold the new one's values."""
    if old.dropped:
        return False
    return old.spark_type == new.spark_type or can_widen(old.spark_type, new.spark_type)


def can_widen(old: str, new: str) -> bool:
    """Return whether Iceberg can widen one Spark type to the other (table spec, "Schema Evolution")."""
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before and after:
        return before[2] == after[2] and int(before[1]) < int(after[1])
    return (old, new) in _WIDER


def _with_representations(schema: TableSchema, added: Sequence[LakeColumn]) -> list[LakeColumn]:
    rules = TypeRules.from_json(schema.types)
    return [column.formed(rules.form(column, schema.key)) for column in added]


def _with_own_fields(
    schema: TableSchema, added: Sequence[LakeColumn], *, unfilled: bool
) -> dict[str, LakeColumn]:
    """Give new columns a field each: with their own name if no other column has it."""
    used_names = {name.lower() for c in schema.columns for name in (c.lake_name, c.exact_name)}
    present = [column.name for column in schema.live]
    own = lake_columns(present + [column.name for column in added])[len(present) :]
    named = {}
    for column, name in zip(added, own, strict=True):
        new_column = replace(column, unfilled=unfilled)
        clashes = name.lower() in used_names or exact_name(name).lower() in used_names
        field = f"{name}__as_{re.sub(r'[^0-9a-z]+', '_', new_column.spark_type.lower()).strip('_')}"
        named[column.name] = replace(new_column, lake_name=field if clashes else name, renamed=clashes)
    return named


def _combined_schema(
    schema: TableSchema, relation: TableShape, new_schema: TableSchema, columns: Mapping[str, LakeColumn]
) -> TableSchema:
    live = tuple(columns[column.name] for column in new_schema.columns)
    fields = {column.lake_name for column in live}
    past = tuple(replace(c, dropped=True) for c in schema.columns if c.lake_name not in fields)
    source = relation if isinstance(relation, TableSchema) else schema
    return replace(
        new_schema,
        columns=live + past,
        selection=schema.selection,
        partitions=source.partitions,
        types=schema.types,
        fingerprint=source.fingerprint,
        drop=schema.drop,
        soft_deletes=schema.soft_deletes,
    )


def _cannot_follow(schema: TableSchema, what: str) -> CannotFollowError:
    return CannotFollowError(
        f"the source table's columns changed in a way that the lake cannot follow: {what}",
        where=f"table {schema.source_name}",
        way_out=f"copy it again: slotlake backfill --table '{schema.source_name}'; nothing was published",
    )
