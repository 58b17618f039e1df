"""What becomes of a lake table when the source's columns are no longer those it has.

`follow` takes a change as it comes, with the rows that are there: a column that is new is added, empty in
them; a column that is gone is kept, and empty in new rows; a column with another name is renamed; a type is
widened where Iceberg can.  Which column is which is told by the source's attribute numbers
(`spark.publish.sidecar`).
Without them it is told by name, and whatever may then be something else is refused: a column gone and another
new may be a rename, a column that comes back would show the values it had before.

`replaced` is for a table all of whose rows are read anew: every change is possible then.

A field of a lake table cannot become another column, or another type, while readers look at it.  So a column
that needs another field gets one under a name of its own until it is published (`spark.tables.settle`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from slotlake.decoder.errors import ApplyError
from slotlake.spark.names import exact_name, lake_columns
from slotlake.spark.tables.schema import LakeColumn, TableSchema
from slotlake.spark.tables.shapes import TableShape
from slotlake.spark.tables.type_rules import TypeRules

Numbers = Mapping[str, int]
Types = Mapping[int, tuple[int, int, str]]  # attribute number → type's OID, modifier, name
_UNKNOWN: Numbers = {}
_WIDER = {("int", "bigint"), ("float", "double")}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(\d+)\)")


class CannotFollowError(ApplyError):
    """The lake's table cannot become what the source's is without being read anew."""


def follow(
    schema: TableSchema, relation: TableShape, numbers: Numbers = _UNKNOWN, *, same_values: bool = False
) -> TableSchema:
    """The lake table's shape after the source's became ``relation``.

    Args:
        numbers: the attribute number of each of the relation's columns, if they are known.
        same_values: the source wrote its rows anew, and their values are proven to be what they were.

    Raises:
        CannotFollowError: it cannot follow; says which column, and the way out.
    """
    wanted = _numbered(TableSchema.of(relation), numbers)
    before = _paired(schema, wanted)
    kept = {
        column.name: _retyped(schema, before[column.name], column, same_values)
        for column in wanted.columns
        if column.name in before
    }
    added = [column for column in wanted.columns if column.name not in kept]
    gone = [column for column in schema.live if column not in before.values()]
    if not numbers:
        _refuse_doubtful(schema, added, gone)
    fresh = _named(schema, _formed(schema, added), unfilled=not numbers)
    return _changed(schema, relation, wanted, {**kept, **fresh})


def replaced(schema: TableSchema, wanted: TableSchema) -> TableSchema:
    """The lake table's shape when all of its rows are those of a copy.

    Args:
        wanted: the source's table; its columns' numbers say which is which, their names where those are 0.
    """
    before = _paired(schema, wanted)
    kept = {
        column.name: _continued(old, column)
        for column in wanted.columns
        if (old := before.get(column.name)) is not None and _holds(old, column)
    }
    fresh = _named(schema, [c for c in wanted.columns if c.name not in kept], unfilled=False)
    shape = _changed(schema, wanted, wanted, {**kept, **fresh})
    retyped = {id(old) for name, old in before.items() if name not in kept}
    gone = {old.lake_name for old in schema.columns if id(old) in retyped}
    left = tuple(column for column in shape.columns if column.lake_name not in gone or not column.dropped)
    return replace(shape, columns=left, selection=wanted.selection, types=wanted.types)


def _numbered(wanted: TableSchema, numbers: Numbers) -> TableSchema:
    return replace(
        wanted, columns=tuple(replace(c, number=numbers.get(c.name, c.number)) for c in wanted.columns)
    )


def _paired(schema: TableSchema, wanted: TableSchema) -> dict[str, LakeColumn]:
    """Of the wanted columns those that the lake has, by their new name.

    By number where both sides know theirs; a number that the lake does not know is another column.
    """
    by_number = {column.number: column for column in schema.live if column.number}
    by_name = {column.name: column for column in schema.columns[::-1]}
    found = {}
    for column in wanted.columns:
        old = by_number.get(column.number) if column.number else by_name.get(column.name)
        if old is None and column.number:
            named = by_name.get(column.name)
            old = named if named is not None and not named.number and not named.dropped else None
        if old is not None:
            found[column.name] = old
    return found


def _refuse_doubtful(schema: TableSchema, added: list[LakeColumn], gone: list[LakeColumn]) -> None:
    if added and gone:
        raise _refused(
            schema, f"column {gone[0].name} is gone and {added[0].name} is new, which may be a rename"
        )


def with_types(schema: TableSchema, types: Types) -> TableSchema:
    """The table with columns of other types, each of which its field can be widened to."""
    columns = (
        replace(c, type_oid=told[0], typmod=told[1], type_name=told[2])
        if not c.dropped and (told := types.get(c.number)) is not None
        else c
        for c in schema.columns
    )
    return replace(schema, columns=tuple(columns))


def _retyped(schema: TableSchema, old: LakeColumn, new: LakeColumn, same_values: bool) -> LakeColumn:
    if old.dropped:
        raise _refused(schema, f"column {old.name} was dropped and is back")
    same_type = (old.type_oid, old.typmod) == (new.type_oid, new.typmod)
    alike = (old.type.spark, old.type.inexact) == (new.type.spark, new.type.inexact)
    # Another type's text is other text: with a form, only the type itself is the same.
    wider = _wider_decimal(old, new) or (same_values and _wider(old, new))
    if not (same_type if old.form else alike or wider):
        raise _refused(
            schema, f"the type of column {old.name} changed from {old.type_name} to {new.type_name}"
        )
    return _continued(old, replace(new, form=old.form))


def _wider_decimal(old: LakeColumn, new: LakeColumn) -> bool:
    """Widening a numeric leaves the source's rows as they are; any other widening rewrites them."""
    return bool(new.number) and old.type_oid == new.type_oid and promotes(old.type.spark, new.type.spark)


def _wider(old: LakeColumn, new: LakeColumn) -> bool:
    same_kind = old.type.inexact == new.type.inexact
    return bool(new.number) and same_kind and promotes(old.type.spark, new.type.spark)


def _continued(old: LakeColumn, new: LakeColumn) -> LakeColumn:
    """The column in the field it had."""
    return replace(
        new,
        lake_name=old.lake_name,
        exact=old.exact,
        unfilled=old.unfilled,
        lost=old.lost,
        number=new.number or old.number,
        renamed=old.renamed or old.name != new.name,
    )


def _holds(old: LakeColumn, new: LakeColumn) -> bool:
    """Can the old column's field hold the new one's values?"""
    if old.dropped:
        return False
    return old.kept.spark == new.kept.spark or promotes(old.kept.spark, new.kept.spark)


def promotes(old: str, new: str) -> bool:
    """Return whether Iceberg can widen a Spark type to the other (table spec, "Schema Evolution")."""
    before, after = _DECIMAL.fullmatch(old), _DECIMAL.fullmatch(new)
    if before and after:
        return before[2] == after[2] and int(before[1]) < int(after[1])
    return (old, new) in _WIDER


def _formed(schema: TableSchema, added: Sequence[LakeColumn]) -> list[LakeColumn]:
    rules = TypeRules.from_json(schema.types)
    return [column.formed(rules.form(column, schema.key)) for column in added]


def _named(schema: TableSchema, added: Sequence[LakeColumn], *, unfilled: bool) -> dict[str, LakeColumn]:
    """New columns with a field of their own: under their own name if no other column has it."""
    taken = {name.lower() for c in schema.columns for name in (c.lake_name, c.exact_name)}
    present = [column.name for column in schema.live]
    own = lake_columns(present + [column.name for column in added])[len(present) :]
    named = {}
    for column, name in zip(added, own, strict=True):
        made = replace(column, unfilled=unfilled)
        clashes = name.lower() in taken or exact_name(name).lower() in taken
        field = f"{name}__as_{re.sub(r'[^0-9a-z]+', '_', made.kept.spark.lower()).strip('_')}"
        named[column.name] = replace(made, lake_name=field if clashes else name, renamed=clashes)
    return named


def _changed(
    schema: TableSchema, relation: TableShape, wanted: TableSchema, columns: Mapping[str, LakeColumn]
) -> TableSchema:
    live = tuple(columns[column.name] for column in wanted.columns)
    fields = {column.lake_name for column in live}
    past = tuple(replace(c, dropped=True) for c in schema.columns if c.lake_name not in fields)
    told = relation if isinstance(relation, TableSchema) else schema
    return replace(
        wanted,
        columns=live + past,
        selection=schema.selection,
        partitions=told.partitions,
        types=schema.types,
        mark=told.mark,
        drop=schema.drop,
    )


def _refused(schema: TableSchema, what: str) -> CannotFollowError:
    return CannotFollowError(
        f"the source table's columns changed in a way that the lake cannot follow: {what}",
        where=f"table {schema.source_name}",
        way_out=f"take it anew: slotlake backfill --table '{schema.source_name}'; nothing was published",
    )
