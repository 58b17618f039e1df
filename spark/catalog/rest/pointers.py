"""The pointers of a REST catalog's tables: each is a request, made when somebody asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, ItemsView, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from slotlake.spark.catalog.looks import Looks
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN

# A table asked for is a request that mostly waits; the session keeps ten connections.
_AT_ONCE = 8


class Pointers(Mapping[LakeName, str]):
    """Pointers, each read once, when it is asked for; several at a time where all are.

    Args:
        names: gives the names of all tables.
        location: gives a table's pointer; None if it is not there.
    """

    def __init__(
        self, names: Callable[[], Collection[LakeName]], location: Callable[[LakeName], str | None]
    ) -> None:
        self._names = names
        self._location = location
        self._read: dict[LakeName, str | None] = {}

    def __getitem__(self, name: LakeName) -> str:
        if name not in self._read:
            self._read[name] = self._location(name)
        location = self._read[name]
        if location is None:
            raise KeyError(str(name))
        return location

    def __iter__(self) -> Iterator[LakeName]:
        return iter(self.all())

    def items(self) -> ItemsView[LakeName, str]:
        """Read the pointers of all tables, without a question for each of them to what was read."""
        return self.all().items()

    def all(self) -> dict[LakeName, str]:
        """Read the pointers of all tables, in the order of their names."""
        return self.of(sorted(self._names()))

    def of(self, names: Collection[LakeName]) -> dict[LakeName, str]:
        """Read the pointers of these tables; those that are not there are left out."""
        unread = [name for name in names if name not in self._read]
        if len(unread) > 1:
            with ThreadPoolExecutor(_AT_ONCE) as pool:
                self._read.update(zip(unread, pool.map(self._location, unread), strict=True))
        else:
            self._read.update((name, self._location(name)) for name in unread)
        return {name: location for name in names if (location := self._read[name]) is not None}

    def __len__(self) -> int:
        return len(self.all())


class SparingPointers(Pointers):
    """As :class:`Pointers`, but all tables may be as they were read lately (spark/catalog/looks.py).

    Args:
        lake: the lake.
        names: as for :class:`Pointers`.
        location: as for :class:`Pointers`.
    """

    def __init__(
        self,
        lake: LakeSettings,
        names: Callable[[], Collection[LakeName]],
        location: Callable[[LakeName], str | None],
    ) -> None:
        super().__init__(names, location)
        self._lake = lake

    def all(self) -> dict[LakeName, str]:
        """Read the pointers of all tables, or only of those that were not read lately."""
        commits = LakeName(self._lake.namespace, COMMITS)
        location = self.get(commits)
        head = None if location is None else catalog_metadata.ref(catalog_metadata.load(location), MAIN)
        looks = self._lake.memory.of(Looks)
        seen = looks.remembered(head)
        if seen is None:
            started = time.monotonic()
            names = frozenset(self._names())
            pointers = self.of(sorted(names))
            looks.remember(head, pointers, names, time.monotonic() - started)
            return pointers
        changed = [name for name, where in seen.items() if where is None]
        known = {**seen}
        for name in changed:
            del known[name]
        self._read = {**known, **self._read}  # `commits` was read just now
        pointers = self.of(sorted(seen))
        if changed:
            looks.amend({name: pointers[name] for name in changed if name in pointers})
        return pointers
