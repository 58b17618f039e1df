"""How a table's columns get their representations: chosen in the pipeline file, kept with the table.

Rules decide when a column comes to the lake: in the copy, or with the first change after it was added.  What
a column has become it stays until the table is taken anew; a pipeline file that says something else is
refused (`infra.selection.types`).

Invariant: a column's form depends on the rules, its type and whether it is part of the key, on nothing
else; so the same rules give the same lake again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, Protocol

from slotlake.decoder.errors import LAKE_ALTERED, LakeError
from slotlake.decoder.types import oids
from slotlake.decoder.types.catalog import Kind, TypeCatalog, TypeEntry
from slotlake.decoder.types.representations import AS_TEXT, as_decimal, as_list, as_range, as_record
from slotlake.decoder.types.table import column_type
from slotlake.spark.names import lake_columns

Word = str  # "text", "list", "struct", "typed", or a decimal with precision and scale
Fields = Mapping[int, Sequence[tuple[str, int, int]]]
DECIMAL = re.compile(r"decimal\(([1-9][0-9]?),\s*([0-9]{1,2})\)")
_BUILTIN = TypeCatalog()


class TypedColumn(Protocol):
    """A source column."""

    @property
    def name(self) -> str: ...
    @property
    def type_oid(self) -> int: ...
    @property
    def typmod(self) -> int: ...


@dataclass(frozen=True)
class TypeRules:
    """What becomes of columns.

    Attributes:
        arrays, ranges, composites: of columns of such types that are no part of the key.
        inexact: ``text`` for those whose typed column could not hold every value.
        columns: for single columns; ``typed`` is what the table of types says.
        numerics: ``text`` or ``decimal(p,s)``, of `numeric` without precision that is no part of the key.
    """

    arrays: Literal["text", "list"] = "text"
    ranges: Literal["text", "struct"] = "text"
    composites: Literal["text", "struct"] = "text"
    inexact: Literal["typed", "text"] = "typed"
    columns: Mapping[str, Word] = field(default_factory=dict)
    numerics: str = "text"

    def to_json(self) -> str:
        """For `TableSchema.types`; "" for the usual."""
        if self == TypeRules():
            return ""
        rules = asdict(self)
        if self.numerics == "text":  # as earlier versions have written it
            del rules["numerics"]
        return json.dumps(rules, ensure_ascii=False, sort_keys=True, separators=(",", ":"))

    @classmethod
    @lru_cache(256)
    def from_json(cls, text: str) -> TypeRules:
        """The opposite.

        Raises:
            LakeError: it is not what `to_json` wrote.
        """
        try:
            return cls(**json.loads(text)) if text else cls()
        except (ValueError, TypeError) as error:
            raise LakeError(
                "the rules for a table's types cannot be read", where=text[:80], way_out=LAKE_ALTERED
            ) from error

    def form(
        self,
        column: TypedColumn,
        key: Collection[str],
        catalog: TypeCatalog = _BUILTIN,
        fields: Fields = MappingProxyType({}),
    ) -> str:
        """The form that a column gets.

        Args:
            key: the columns that identify a row; as lists or structs they would only be slower to find.
            catalog: what is known of user types; a type that it does not know stays text.
            fields: of composites, by type OID: name, type OID and modifier.
        """
        chosen = self.columns.get(column.name)
        if chosen in {"list", "struct"}:
            return nested_form(column, catalog, fields)
        inexact = column_type(column.type_oid, column.typmod).inexact
        if is_numeric_text(column):
            usual = self.numerics if column.name not in key and self.inexact == "typed" else "text"
            decimal = DECIMAL.fullmatch(chosen or usual)
            return "" if decimal is None else as_decimal(int(decimal[1]), int(decimal[2]))
        if chosen == "text" or (chosen is None and self.inexact == "text"):
            return AS_TEXT if inexact else ""
        entry = catalog.get(column.type_oid)
        if entry is None or chosen is not None or column.name in key:
            return ""
        return nested_form(column, catalog, fields) if self._nests(entry) else ""

    def _nests(self, entry: TypeEntry) -> bool:
        nested: dict[Kind, Any] = {
            Kind.ARRAY: self.arrays == "list",
            Kind.RANGE: self.ranges == "struct",
            Kind.COMPOSITE: self.composites == "struct",
        }
        return bool(nested.get(entry.kind, False))


def is_numeric_text(column: TypedColumn) -> bool:
    """Return whether the column is a `numeric` whose digits have no bound that a decimal can have."""
    return column.type_oid == oids.NUMERIC and column_type(column.type_oid, column.typmod).spark == "string"


def nested_form(column: TypedColumn, catalog: TypeCatalog, fields: Fields) -> str:
    """Return the representation of an array as a list, of a range or composite as a struct; else "".

    Args:
        fields: of composites, by type OID: name, type OID and modifier of each field.
    """
    entry = catalog.get(column.type_oid)
    if entry is None:
        return ""
    if entry.kind is Kind.ARRAY:
        element = catalog.resolved(entry.of)
        return as_list(entry.of, element.delimiter) if element is not None else ""
    if entry.kind is Kind.RANGE:
        return as_range(entry.of)
    of_row = list(fields.get(column.type_oid, ()))
    if entry.kind is not Kind.COMPOSITE or not of_row:
        return ""
    names = lake_columns([name for name, _, _ in of_row])
    return as_record([(name, oid, typmod) for name, (_, oid, typmod) in zip(names, of_row, strict=True)])
