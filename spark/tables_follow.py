"""A batch's changes under the names that their columns have at its end, and the lake's shape then."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark.annex import Annex
from spark.fold_columns import Part
from spark.tables import TableSchema
from spark.tables_change import follow


def followed(schema: TableSchema, changes: Sequence[Part], annex: Annex) -> tuple[list[Part], TableSchema]:
    """The changes, and the table's shape after them.

    Args:
        schema: the lake's, before.
        changes: (relation version, its rows), oldest first.

    Raises:
        CannotFollowError: the lake's table cannot become what the source's is.
    """
    schema = replace(schema, drop=schema.source_name in annex.drops)
    for relation, _ in changes:
        schema = follow(schema, relation, annex.numbers.get(relation.ordinal, {}))
    schema = replace(schema, mark=annex.marks.get(schema.source_name, schema.mark))
    names = {column.number: column.name for column in schema.columns[::-1] if column.number}
    return [(_renamed(r, annex.numbers.get(r.ordinal, {}), names), rows) for r, rows in changes], schema


def _renamed(relation: Any, numbers: Mapping[str, int], names: Mapping[int, str]) -> Any:
    """The relation version as if its columns had had their present names when its rows were changed."""
    now = {old: names.get(number, old) for old, number in numbers.items()}
    if all(old == new for old, new in now.items()):
        return relation
    return replace(
        relation,
        columns=tuple(replace(c, name=now.get(c.name, c.name)) for c in relation.columns),
        key=tuple(now.get(name, name) for name in relation.key),
    )
