"""The shapes of a lake's tables, remembered by their pointers: a sync looks at all of them several times.

A metadata file never changes, so what it says of a table at its newest point, and at any later position, is
always the same.  Of a thousand tables, of which a batch changed ten, ten are looked at again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, TypeVar

from slotlake.spark.catalog.listing import Listing
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata
from slotlake.spark.tables.schema import SCHEMA_PROPERTY, TableSchema

T = TypeVar("T")


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


@dataclass(frozen=True, eq=False)
class Mirrors:
    """The mirrors of a lake at a point.

    The same object as at the point before, if all have the same shapes: what is made of it may be remembered
    with it.

    Attributes:
        shapes: by name in the lake; nobody changes it.
    """

    shapes: Mapping[LakeName, TableSchema]

    @cached_property
    def tables(self) -> Sequence[TableSchema]:
        """The shapes, by source name."""
        return sorted(self.shapes.values(), key=lambda shape: (shape.schema, shape.table))

    @cached_property
    def by_source_name(self) -> Mapping[tuple[str, str], TableSchema]:
        """The same, by the source's schema and name."""
        return {(shape.schema, shape.table): shape for shape in self.tables}

    @cached_property
    def unfilled(self) -> Mapping[tuple[str, str], frozenset[str]]:
        """By source name, the columns of which rows may lack values that no row event had."""
        columns = {
            name: frozenset(column.name for column in shape.live if column.unfilled)
            for name, shape in self.by_source_name.items()
        }
        return {name: unfilled for name, unfilled in columns.items() if unfilled}

    @cached_property
    def lost(self) -> frozenset[tuple[str, str]]:
        """The source names of tables to which a row came with a value that was not sent."""
        shapes = self.by_source_name.items()
        return frozenset(name for name, shape in shapes if any(column.lost for column in shape.live))

    @cached_property
    def partitioned(self) -> Sequence[TableSchema]:
        """The shapes that say with which partitions a table was copied."""
        return [shape for shape in self.tables if shape.partitions]


@dataclass(frozen=True)
class _Newest:
    """What a pointer says from a position on; ``shape``: None if it is no mirror."""

    pointer: str
    reached: int
    shape: TableSchema | None


@dataclass(frozen=True)
class _Known:
    """What is known of the tables of a listing, from a position on.

    Attributes:
        newest: what the pointers say, of those tables of which it may be remembered.
        unsettled: the others; they are looked at each time.
    """

    listing: Listing
    position: int
    newest: Mapping[LakeName, _Newest]
    unsettled: frozenset[LakeName]
    mirrors: Mirrors


def mirrors(
    lake: LakeSettings, pinned: Mapping[LakeName, PinnedTable], position: int, listing: Listing | None
) -> Mirrors:
    """Return those tables that are mirrors and were there at a position, with their shapes.

    Args:
        pinned: its tables, pinned at the position.
        listing: what they are pinned by; None if they are some others, too.

    Raises:
        LakeError: a metadata file cannot be read.
    """
    known = lake.memory.get(_Known)
    if listing is None or (known is not None and position < known.position):
        newest, shapes = _looked_at(lake, pinned, pinned, position, {} if known is None else known.newest)
        return Mirrors(shapes)
    changed = None if known is None else listing.changed_since(known.listing)
    if known is None or changed is None:
        newest, shapes = _looked_at(lake, pinned, pinned, position, {} if known is None else known.newest)
        present = Mirrors(shapes)
    else:
        names = known.unsettled.union(changed)
        newest, some = _looked_at(lake, names, pinned, position, known.newest)
        same = all(known.mirrors.shapes.get(name) is some.get(name) for name in names)
        present = known.mirrors if same else Mirrors(_with(known.mirrors.shapes, names, some))
        newest = _with(known.newest, names, newest)
    unsettled = frozenset(pinned.keys() - newest.keys()) if len(newest) < len(pinned) else frozenset()
    lake.memory.put(_Known(listing, position, newest, unsettled, present))
    return present


def _with(
    before: Mapping[LakeName, T], names: Collection[LakeName], now: Mapping[LakeName, T]
) -> dict[LakeName, T]:
    """What was known, with these names as they are now, or gone."""
    remaining = {**before}
    for name in names:
        remaining.pop(name, None)
    return {**remaining, **now}


def _looked_at(
    lake: LakeSettings,
    names: Iterable[LakeName],
    pinned: Mapping[LakeName, PinnedTable],
    position: int,
    before: Mapping[LakeName, _Newest],
) -> tuple[dict[LakeName, _Newest], dict[LakeName, TableSchema]]:
    """What tables' pointers say, as far as it may be remembered; and the shapes of the mirrors."""
    tables = [pinned[name] for name in names if name in pinned]
    known = {t.name: n for t in tables if (n := before.get(t.name)) is not None and n.pointer == t.pointer}
    catalog_metadata.read_ahead(each.pointer for each in tables if each.name not in known)
    newest: dict[LakeName, _Newest] = {}
    shapes: dict[LakeName, TableSchema] = {}
    for each in tables:
        of = known.get(each.name)
        if of is not None and of.reached <= position:
            shape = of.shape
        else:
            shape = _shape(each, lake.namespace)
            of = _newest(each, position, shape) or of
        if of is not None:
            newest[each.name] = of
        if shape is not None:
            shapes[each.name] = shape
    return newest, shapes


def _shape(table: PinnedTable, namespace: str) -> TableSchema | None:
    """Its shape; None if it is no mirror, or one that somebody gave another name: nobody follows it there."""
    is_mirror = table.name.table != COMMITS and SCHEMA_PROPERTY in table.properties
    shape = table.shape if is_mirror and table.snapshot is not None else None
    return shape if shape is not None and shape.lake_name(namespace) == table.name else None


def _newest(table: PinnedTable, position: int, shape: TableSchema | None) -> _Newest | None:
    """What may be remembered; None if the position is before the table's newest point."""
    reached = catalog_metadata.newest_position(catalog_metadata.load_top(table.pointer))
    if reached is None or reached > position or table.location != table.pointer:
        return None
    return _Newest(table.pointer, reached, shape)
