"""The pointers of a lake's tables as this process has read them last, and what has changed since.

A sync looks at all tables several times, and of thousands ten have changed.  So what is made of all pointers
is remembered together with the listing that it was made of, and the next listing says what to look at again.

Invariant: nothing is answered from memory.  The catalog is read each time; what it says is compared with what
it said before, and where that is the same, it is the same object.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName, belongs

Row = tuple[str, str, str]
_Key = tuple[str, str, str]
# Who has not looked for so many changes looks at all tables.
_CHANGES_MAX = 64


@dataclass(frozen=True, eq=False)
class Listing:
    """The pointers of a lake's tables at one moment, without those of other lakes in the catalog.

    Attributes:
        pointers: table → metadata location; nobody changes it.
    """

    pointers: Mapping[LakeName, str]
    _number: int
    _changes: dict[int, frozenset[LakeName]]

    def changed_since(self, earlier: Listing) -> Collection[LakeName] | None:
        """Return the tables that came, went or changed since an earlier listing; None if that is not known.

        Args:
            earlier: a listing, perhaps of another lake.
        """
        if earlier._changes is not self._changes or earlier._number > self._number:
            return None
        steps = [self._changes.get(number) for number in range(earlier._number + 1, self._number + 1)]
        return None if None in steps else frozenset().union(*(each for each in steps if each is not None))


@dataclass
class _Seen:
    """What was read of a lake last.

    Attributes:
        rows: as the catalog gave them.
        own: those of the lake's own tables.
    """

    newest: Listing
    rows: list[Row]
    own: frozenset[Row]
    changes: dict[int, frozenset[LakeName]] = field(default_factory=dict)


_lock = threading.Lock()
_seen: dict[_Key, _Seen] = {}


def listing_of_rows(lake: LakeSettings, rows: list[Row]) -> Listing:
    """Return the listing that a look at the catalog gives; the same as before, if nothing has changed.

    Args:
        lake: the lake.
        rows: namespace, table and metadata location of all tables in the catalog.
    """
    key = lake.uri, lake.catalog, lake.namespace
    with _lock:
        seen = _seen.get(key)
        if seen is None:
            own = _own(lake, rows)
            changes: dict[int, frozenset[LakeName]] = {}
            seen = _seen[key] = _Seen(Listing(_pointers(own), 0, changes), rows, own, changes)
        elif rows != seen.rows:
            _take(seen, rows, _own(lake, rows))
        return seen.newest


def listing_of_pointers(lake: LakeSettings, pointers: Mapping[LakeName, str]) -> Listing:
    """Return the listing of a catalog that gives pointers one by one.

    Args:
        lake: the lake.
        pointers: of all tables; `commits` is read first, so that no table is older than it says.
    """
    if pointers.get(LakeName(lake.namespace, COMMITS)) is None:
        return listing_of_rows(lake, [])
    return listing_of_rows(lake, [(*name, location) for name, location in pointers.items()])


def _take(seen: _Seen, rows: list[Row], own: frozenset[Row]) -> None:
    """Note what the catalog says now."""
    gone, new = seen.own - own, own - seen.own
    seen.rows, seen.own = rows, own
    if not gone and not new:
        return  # another order, or tables of others
    pointers = {**seen.newest.pointers}
    for namespace, table, _ in gone:
        del pointers[LakeName(namespace, table)]
    pointers.update(_pointers(new))
    number = seen.newest._number + 1  # noqa: SLF001 - made here only
    seen.changes[number] = frozenset(LakeName(namespace, table) for namespace, table, _ in gone | new)
    seen.changes.pop(number - _CHANGES_MAX, None)
    seen.newest = Listing(pointers, number, seen.changes)


def _own(lake: LakeSettings, rows: Iterable[Row]) -> frozenset[Row]:
    every = frozenset(rows)
    foreign = {space for space in {row[0] for row in every} if not belongs(space, lake.namespace)}
    return frozenset(row for row in every if row[0] not in foreign) if foreign else every


def _pointers(rows: Iterable[Row]) -> dict[LakeName, str]:
    return {LakeName(namespace, table): location for namespace, table, location in rows}
