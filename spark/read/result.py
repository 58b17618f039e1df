"""What a query gives, from whichever engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import pyarrow as pa

from slotlake.spark.read.texts import rows_of


@dataclass(frozen=True)
class QueryResult:
    """Rows as PostgreSQL text, None for NULL; arrays, maps and structs as JSON.

    Attributes:
        numeric: indexes of the columns that hold numbers.
    """

    columns: list[str]
    rows: list[tuple[str | None, ...]]
    position: int
    numeric: frozenset[int] = frozenset()

    @classmethod
    def of(cls, columns: list[str], table: pa.Table, position: int) -> Self:
        """Return the result that a table of Arrow holds.

        Args:
            columns: the names; those of ``table`` may be others.

        Raises:
            LakeError: a value has no text of PostgreSQL's.
        """
        numeric = frozenset(i for i, kind in enumerate(table.schema.types) if _is_number(kind))
        return cls(columns, rows_of(table), position, numeric)


def _is_number(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)
