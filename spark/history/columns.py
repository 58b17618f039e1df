"""The names of a history's columns: its own ones, and those of the mirror's columns in it.

The columns are the mirror's; one with a name that the history needs itself gets its first letter escaped.
"""

from __future__ import annotations

from dataclasses import replace

from slotlake.spark.names import EXACT_SUFFIX, unreserve
from slotlake.spark.tables.schema import LakeColumn

_BOUNDS = {
    "valid_from_lsn": "bigint",
    "valid_to_lsn": "bigint",
    "valid_from_time": "timestamp",
    "valid_to_time": "timestamp",
}
IS_OPEN = "is_open"
OWN = {**_BOUNDS, IS_OPEN: "boolean"}
# Of the partition of the versions that hold now.
HOLDS = f"{IS_OPEN} = true"


def field_name(name: str) -> str:
    """Return the name that a field of the mirror has in the history."""
    base = name.removesuffix(EXACT_SUFFIX)
    return unreserve(base, base) + name[len(base) :] if base.lower() in OWN else name


def derived_column(column: LakeColumn) -> LakeColumn:
    """Return a column of the mirror under the name that it has in the history."""
    return replace(column, lake_name=field_name(column.lake_name))
