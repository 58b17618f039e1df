"""The shapes of a lake's tables, remembered by their pointers: a sync looks at all of them several times.

A metadata file never changes, so what it says of a table at its newest point, and at any later position, is
always the same.  Of a thousand tables, of which a batch changed ten, ten are looked at again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import SCHEMA_PROPERTY, TableSchema


class PinnedTable(Protocol):
    """A table as `spark.read.point.Pinned` has it."""

    @property
    def name(self) -> LakeName: ...
    @property
    def pointer(self) -> str: ...
    @property
    def location(self) -> str: ...
    @property
    def properties(self) -> dict[str, str]: ...
    @property
    def snapshot(self) -> Metadata | None: ...
    @property
    def shape(self) -> TableSchema: ...


@dataclass(frozen=True)
class _Newest:
    """What a pointer says from a position on; ``shape``: None if it is no mirror."""

    reached: int
    shape: TableSchema | None


_remembered: dict[tuple[str, str, str], dict[str, _Newest]] = {}


def mirrors(
    lake: LakeSettings, pinned: Mapping[LakeName, PinnedTable], position: int
) -> dict[LakeName, TableSchema]:
    """Return the shapes of those tables that are mirrors and were there at a position.

    Args:
        lake: the lake.
        pinned: its tables, pinned at the position.
        position: the position.

    Raises:
        LakeError: a metadata file cannot be read.
    """
    key = lake.uri, lake.catalog, lake.namespace
    before = _remembered.get(key, {})
    catalog_metadata.read_ahead(each.pointer for each in pinned.values() if each.pointer not in before)
    now: dict[str, _Newest] = {}
    shapes: dict[LakeName, TableSchema] = {}
    for name, each in pinned.items():
        known = before.get(each.pointer)
        if known is not None and known.reached <= position:
            shape = known.shape
        else:
            shape = _shape(each)
            known = _newest(each, position, shape) or known
        if known is not None:
            now[each.pointer] = known
        if shape is not None:
            shapes[name] = shape
    _remembered[key] = now
    return shapes


def _shape(table: PinnedTable) -> TableSchema | None:
    is_mirror = table.name.table != COMMITS and SCHEMA_PROPERTY in table.properties
    return table.shape if is_mirror and table.snapshot is not None else None


def _newest(table: PinnedTable, position: int, shape: TableSchema | None) -> _Newest | None:
    """What may be remembered; None if the position is before the table's newest point."""
    reached = catalog_metadata.newest_position(catalog_metadata.load_top(table.pointer))
    if reached is None or reached > position or table.location != table.pointer:
        return None
    return _Newest(reached, shape)
