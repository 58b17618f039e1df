"""The pointers of a lake's tables as this process has read them last, and what has changed since.

A sync looks at all tables several times, and of thousands ten have changed.  So what is made of all pointers
is remembered together with the listing that it was made of, and the next listing says what to look at again.

Invariant: nothing is answered from memory.  The catalog is read each time; what it says is compared with what
it said before, and where that is the same, it is the same object.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from operator import ne

from slotlake.spark.catalog.sql.pointer_texts import PointerTexts, Row, split
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName, belongs

# Who has not looked for so many changes looks at all tables.
_CHANGES_MAX = 64


@dataclass(frozen=True, eq=False)
class Listing:
    """The pointers of a lake's tables at one moment, without those of other lakes in the catalog.

    Attributes:
        pointers: table → metadata location; nobody changes it.
        names: its tables; the same object as in the listing before, if none came or went.
    """

    pointers: Mapping[LakeName, str]
    names: frozenset[LakeName]
    _number: int
    _changes: dict[int, frozenset[LakeName]]

    def changed_since(self, earlier: Listing) -> Collection[LakeName] | None:
        """The tables that came, went or changed since an earlier listing; None if that is not known."""
        if earlier._changes is not self._changes or earlier._number > self._number:
            return None
        steps = [self._changes.get(number) for number in range(earlier._number + 1, self._number + 1)]
        return None if None in steps else frozenset().union(*(each for each in steps if each is not None))


@dataclass
class _Seen:
    """What was read of a lake last.

    Attributes:
        rows: as the catalog gave them, if it gave rows.
        own: the rows of the lake's own tables, if they are known as such.
        texts: as the catalog gave them, if it gave texts.
        locations: the pointers that are in these texts.
        places: the table at each place of the texts; None: another lake's.
    """

    changes: dict[int, frozenset[LakeName]] = field(default_factory=dict)
    newest: Listing = field(init=False)
    lock: threading.Lock = field(default_factory=threading.Lock)
    rows: list[Row] | None = None
    own: frozenset[Row] | None = None
    texts: PointerTexts | None = None
    locations: Sequence[str] = ()
    places: list[LakeName | None] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.newest = Listing({}, frozenset(), 0, self.changes)


def listing_of_texts(lake: LakeSettings, texts: PointerTexts) -> Listing | None:
    """Return the listing that a look at the catalog gives; the same as before, if nothing has changed.

    Args:
        texts: of all tables in the catalog.

    Returns:
        The listing; None if the names can only be told apart in rows.
    """
    seen = lake.memory.of(_Seen)
    with seen.lock:
        if texts == seen.texts:
            return seen.newest
        locations = split(texts.locations)
        if seen.texts is not None and texts.has_names_of(seen.texts) and len(locations) == texts.number:
            _take_locations(seen, locations)
        else:
            rows = texts.rows()
            if rows is None:
                return None
            _take(seen, _own(lake, rows))
            pointers = seen.newest.pointers
            names = (LakeName(namespace, table) for namespace, table, _ in rows)
            seen.places = [name if name in pointers else None for name in names]
        seen.texts, seen.locations, seen.rows = texts, locations, None
        return seen.newest


def listing_of_rows(lake: LakeSettings, rows: list[Row]) -> Listing:
    """Return the listing that a look at the catalog gives; the same as before, if nothing has changed.

    Args:
        rows: namespace, table and metadata location of all tables in the catalog.
    """
    seen = lake.memory.of(_Seen)
    with seen.lock:
        if rows != seen.rows:
            _take(seen, _own(lake, rows))
            seen.texts, seen.locations, seen.rows = None, (), rows
        return seen.newest


def listing_of_pointers(lake: LakeSettings, pointers: Mapping[LakeName, str]) -> Listing:
    """Return the listing of a catalog that gives pointers one by one.

    Args:
        pointers: of all tables; `commits` is read first, so that no table is older than it says.
    """
    if pointers.get(LakeName(lake.namespace, COMMITS)) is None:
        return listing_of_rows(lake, [])
    every = dict(pointers.items())
    foreign = {space for space in {name.namespace for name in every} if not belongs(space, lake.namespace)}
    if foreign:
        every = {name: location for name, location in every.items() if name.namespace not in foreign}
    seen = lake.memory.of(_Seen)
    with seen.lock:
        before = seen.newest.pointers
        new = {name: location for name, location in every.items() if before.get(name) != location}
        gone = [name for name in before if name not in every]
        if new or gone:
            _note(seen, gone, new)
        seen.own = seen.rows = seen.texts = None
        seen.locations = ()
        return seen.newest


def _take(seen: _Seen, own: frozenset[Row]) -> None:
    """Note what the catalog says now of all tables of the lake."""
    before = seen.own
    if before is None:
        before = frozenset((*name, location) for name, location in seen.newest.pointers.items())
    seen.own = own
    gone, new = before - own, own - before
    if gone or new:  # else: another order, or tables of others
        _note(seen, (LakeName(namespace, table) for namespace, table, _ in gone), _pointers(new))


def _take_locations(seen: _Seen, locations: Sequence[str]) -> None:
    """Note what the catalog says now of the tables that it had before, in the order that it had."""
    are_other = map(ne, locations, seen.locations)
    changed = list(compress(count(), are_other))
    new = {name: locations[place] for place in changed if (name := seen.places[place]) is not None}
    if new:
        seen.own = None
        _note(seen, (), new)


def _note(seen: _Seen, gone: Iterable[LakeName], new: Mapping[LakeName, str]) -> None:
    pointers, names = {**seen.newest.pointers}, seen.newest.names
    changed = set(new)
    for name in gone:
        del pointers[name]
        changed.add(name)
    pointers.update(new)
    if len(pointers) != len(names) or not changed <= names:
        names = frozenset(pointers)
    number = seen.newest._number + 1  # noqa: SLF001 - made here only
    seen.changes[number] = frozenset(changed)
    seen.changes.pop(number - _CHANGES_MAX, None)
    seen.newest = Listing(pointers, names, number, seen.changes)


def _own(lake: LakeSettings, rows: Iterable[Row]) -> frozenset[Row]:
    every = frozenset(rows)
    foreign = {space for space in {row[0] for row in every} if not belongs(space, lake.namespace)}
    return frozenset(row for row in every if row[0] not in foreign) if foreign else every


def _pointers(rows: Iterable[Row]) -> dict[LakeName, str]:
    return {LakeName(namespace, table): location for namespace, table, location in rows}
