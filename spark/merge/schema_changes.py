"""A batch's changes under the names that their columns have at its end, and the lake's shape then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.changelog.batches import BatchColumn
from slotlake.decoder.types.table import from_text
from slotlake.spark.fold.columns import Part
from slotlake.spark.publish.sidecar import BatchSidecar
from slotlake.spark.tables.change import schema_after_change, with_types
from slotlake.spark.tables.schema import LakeColumn, TableSchema


def follow_schema_changes(
    schema: TableSchema, changes: Sequence[Part], sidecar: BatchSidecar
) -> tuple[list[Part], TableSchema]:
    """The changes, and the table's shape after them.

    Args:
        changes: (relation version, its rows), oldest first.

    Raises:
        CannotFollowError: the lake's table cannot become what the source's is.
    """
    schema = schema_after(schema, [relation for relation, _ in changes], sidecar)
    return with_present_names(schema, changes, sidecar), schema


def schema_after(schema: TableSchema, relations: Sequence[Any], sidecar: BatchSidecar) -> TableSchema:
    """Return the table's shape after the changes of a batch.

    Args:
        relations: all relation versions of the table in the batch, oldest first.

    Raises:
        CannotFollowError: the lake's table cannot become what the source's is.
    """
    schema = replace(schema, drop=schema.source_name in sidecar.drops)
    promoted = sidecar.promoted.get(schema.source_name, {})
    for relation in relations:
        numbers = sidecar.numbers.get(relation.ordinal, {})
        schema = schema_after_change(schema, relation, numbers, same_values=bool(promoted))
    schema = with_types(schema, promoted)
    return replace(schema, fingerprint=sidecar.fingerprints.get(schema.source_name, schema.fingerprint))


def with_present_names(schema: TableSchema, changes: Sequence[Part], sidecar: BatchSidecar) -> list[Part]:
    """Return changes under the names that their columns have at the batch's end.

    Args:
        changes: (relation version, its rows).
    """
    names = {column.number: column.name for column in schema.columns[::-1] if column.number}
    parts = [(_renamed(r, sidecar.numbers.get(r.ordinal, {}), names), rows) for r, rows in changes]
    for constant in constants(schema, sidecar):
        parts = [_filled(part, constant) for part in parts]
    return parts


@dataclass(frozen=True)
class Constant:
    """What all rows from before a column hold in it, as one value of the change log."""

    column: LakeColumn
    value: pa.Array


def constants(schema: TableSchema, sidecar: BatchSidecar) -> list[Constant]:
    """Those of the columns that join a table in a batch; ``schema``: after it."""
    texts = sidecar.constants.get(schema.source_name, {})
    return [
        Constant(column, from_text(pa.array([texts[column.number]]), column.type, column=column.name)[0])
        for column in schema.live
        if column.number in texts
    ]


def _filled(part: Part, constant: Constant) -> Part:
    """The changes made before a column was added, as if it had been there with its constant.

    So a row that was inserted then has it, and an update then says nothing else.
    """
    relation: Any = part[0]
    rows, column = part[1], constant.column
    if any(each.name == column.name for each in relation.columns):
        return part
    added = BatchColumn(column.name, column.type_oid, column.typmod, column.type_name, in_key=False)
    has_new_row = pc.is_in(rows["op"], pa.array([ord("I"), ord("U")], pa.int8()))
    value = pc.if_else(has_new_row, constant.value[0], pa.scalar(None, constant.value.type))
    columns = (*relation.columns, added)
    return replace(relation, columns=columns), rows.append_column(f"n{len(relation.columns)}", value)


def _renamed(relation: Any, numbers: Mapping[str, int], names: Mapping[int, str]) -> Any:
    """The relation version as if its columns had had their present names when its rows were changed."""
    new_names = {old: names.get(number, old) for old, number in numbers.items()}
    if all(old == new for old, new in new_names.items()):
        return relation
    return replace(
        relation,
        columns=tuple(replace(c, name=new_names.get(c.name, c.name)) for c in relation.columns),
        key=tuple(new_names.get(name, name) for name in relation.key),
    )
