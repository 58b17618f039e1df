"""What becomes of a lake table when the source's columns are no longer those it has.

A column that is new is added, empty for the rows that are there.  A column that is gone is kept, and
empty in new rows.  Everything else is refused by name, with the way out: one column gone and another
new may be a rename, a type that changed rewrites values without a row event, and a column that comes
back would show the values it had before.
"""

from __future__ import annotations

from dataclasses import replace

from decoder.errors import ApplyError
from spark.names import lake_columns
from spark.shapes import TableShape
from spark.tables import LakeColumn, TableSchema
from spark.type_rules import TypeRules


def follow(schema: TableSchema, relation: TableShape) -> TableSchema:
    """The lake table's shape after the source's became ``relation``.

    Raises:
        ApplyError: it cannot follow; says which column, and the way out.
    """
    wanted = TableSchema.of(relation)
    known = {column.name: column for column in schema.columns}
    names = {column.name for column in wanted.columns}
    added = [column for column in wanted.columns if column.name not in known]
    gone = [column for column in schema.live if column.name not in names]
    if added and gone:
        raise _refused(
            schema, f"column {gone[0].name} is gone and {added[0].name} is new, which may be a rename"
        )
    kept = [_retyped(schema, known[column.name], column) for column in wanted.columns if column.name in known]
    fresh = _named(schema, added)
    by_name = {column.name: column for column in [*kept, *fresh]}
    live = tuple(by_name[column.name] for column in wanted.columns)
    past = tuple(replace(column, dropped=True) for column in schema.columns if column.name not in names)
    partitions = relation.partitions if isinstance(relation, TableSchema) else schema.partitions
    wanted = replace(wanted, columns=live + past, partitions=partitions)
    return replace(wanted, selection=schema.selection, types=schema.types)


def _retyped(schema: TableSchema, old: LakeColumn, new: LakeColumn) -> LakeColumn:
    if old.dropped:
        raise _refused(schema, f"column {old.name} was dropped and is back")
    same_type = (old.type_oid, old.typmod) == (new.type_oid, new.typmod)
    alike = (old.type.spark, old.type.inexact) == (new.type.spark, new.type.inexact)
    # Another type's text is other text: with a form, only the type itself is the same.
    if not (same_type if old.form else alike):
        raise _refused(
            schema, f"the type of column {old.name} changed from {old.type_name} to {new.type_name}"
        )
    known = replace(new, lake_name=old.lake_name, exact=old.exact, form=old.form)
    return replace(known, unfilled=old.unfilled, lost=old.lost)


def _named(schema: TableSchema, added: list[LakeColumn]) -> list[LakeColumn]:
    present = [column.name for column in schema.columns]
    names = lake_columns(present + [column.name for column in added])[len(present) :]
    rules = TypeRules.from_json(schema.types)
    return [
        replace(column, lake_name=name, unfilled=True).formed(rules.form(column, schema.key))
        for column, name in zip(added, names, strict=True)
    ]


def _refused(schema: TableSchema, what: str) -> ApplyError:
    return ApplyError(
        f"the source table's columns changed in a way that the lake cannot follow: {what}",
        where=f"table {schema.source_name}",
        way_out=f"take it anew: slotlake backfill --table '{schema.source_name}'; nothing was published",
    )
