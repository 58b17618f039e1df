"""Bounds of what a batch has of a column: with them Iceberg leaves out files that cannot hold any of it.

Invariant: a row's value never becomes SQL.  The statement has a marker (``:v0``) where the bound stands, and
Spark gets the bound's text beside the statement.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

# A longer key would make the statement, and the plan, larger than what it saves.
_STRING_BOUND_CHARACTERS_MAX = 64
# Bounds are rounded to between a sixteenth and a thirty-second of what lies between them.
_WIDTH_BITS = 5


@dataclass(frozen=True)
class Markers:
    """The values that the statements for one table name by markers."""

    _texts: dict[str, str] = field(default_factory=dict)

    def put(self, text: str, kind: str) -> str:
        """An expression in Spark SQL for a value.

        Args:
            kind: the value's type in Spark SQL, which Spark reads the text as.
        """
        name = f"v{len(self._texts)}"
        self._texts[name] = text
        return f"CAST(:{name} AS {kind})"

    def of(self, sql: str) -> Mapping[str, str]:
        """The values that a statement needs, by the names of their markers."""
        return {name: text for name, text in self._texts.items() if f":{name} " in sql}


def value_range(markers: Markers, rows: pa.Table, typed: str, exact: str, name: str) -> list[str]:
    """Bounds of one column of ``rows`` for the lake's column ``name``; none if none can be given.

    Args:
        typed: the column of ``rows``; ``exact``: that of its exact texts, which need not be there.
    """
    if exact in rows.column_names and rows[exact].null_count < rows.num_rows:
        return []
    values = rows[typed]
    if (typed.startswith("n") and values.null_count) or values.null_count == len(values):
        return []
    type_and_writer = _written(values.type)
    if type_and_writer is None:
        return []
    kind, write = type_and_writer
    ends = pc.min_max(values)
    low, high = ends["min"].as_py(), ends["max"].as_py()
    if isinstance(low, str) and max(len(low), len(high)) > _STRING_BOUND_CHARACTERS_MAX:
        return []
    if isinstance(low, int):
        low, high = _rounded(low, high, values.type)
    least, most = (markers.put(write(end), kind) for end in (low, high))
    return [f"{name} >= {least}", f"{name} <= {most}"]


def _rounded(low: int, high: int, kind: pa.DataType) -> tuple[int, int]:
    """Bounds a little wider, which the next batches are likely to have too.

    Spark writes an integer into the Java that it makes of a statement.  With bounds of its own, each batch
    is another program, which the driver and every executor compile anew (docs/adr/0072).
    """
    step = 1 << max(0, (high - low).bit_length() - _WIDTH_BITS)
    least, most = -(1 << (kind.bit_width - 1)), (1 << (kind.bit_width - 1)) - 1
    return max(least, low // step * step), min(most, high // step * step + step - 1)


def _written(kind: pa.DataType) -> tuple[str, Callable[[Any], str]] | None:
    """An orderable type's name in Spark SQL, and how Spark reads its values; floats have none (NaN, -0)."""
    if pa.types.is_integer(kind):
        return ("BIGINT" if pa.types.is_int64(kind) else "INT"), str
    if pa.types.is_date(kind):
        return "DATE", datetime.date.isoformat
    if pa.types.is_timestamp(kind):
        return ("TIMESTAMP_NTZ" if kind.tz is None else "TIMESTAMP"), _moment
    if pa.types.is_decimal(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})", lambda value: f"{decimal.Decimal(value):f}"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "STRING", str
    return None


def _moment(value: datetime.datetime) -> str:
    text = value.replace(tzinfo=None).isoformat(sep=" ", timespec="microseconds")
    return f"{text}Z" if value.tzinfo else text
