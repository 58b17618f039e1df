"""The names of a history's columns: its own, and what the mirror's are called beside them.

The columns are the mirror's; one of a name that the history needs itself has its first letter escaped.
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


def field_here(name: str) -> str:
    """What a field of the mirror is called here."""
    base = name.removesuffix(EXACT_SUFFIX)
    return unreserve(base, base) + name[len(base) :] if base.lower() in OWN else name


def column_here(column: LakeColumn) -> LakeColumn:
    """A column of the mirror as it is here."""
    return replace(column, lake_name=field_here(column.lake_name))
