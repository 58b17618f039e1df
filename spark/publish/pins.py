"""The snapshot that a point gives each table of the lake: a number for each, of tables that may be thousands.

A batch changes few of them, so the next point's are made of the last one's in a few steps whose number does
not follow the tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slotlake.spark.names import LakeName

_Snapshots = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Names:
    """The tables that have a snapshot, by their names as text."""

    names: tuple[LakeName, ...]
    _within: list[AbstractSet[LakeName]] = field(default_factory=list)

    @cached_property
    def index(self) -> Mapping[LakeName, int]:
        return {name: number for number, name in enumerate(self.names)}

    @cached_property
    def texts(self) -> pa.StringArray:
        return pa.array([str(name) for name in self.names], pa.string())

    def are_within(self, existing: AbstractSet[LakeName]) -> bool:
        """Return whether all of them are in a set that nobody changes; of the same one, asked once."""
        if not (self._within and self._within[0] is existing):
            if not self.index.keys() <= existing:
                return False
            self._within[:] = [existing]
        return True


class Pins(Mapping[LakeName, int]):
    """Table → snapshot, at one point; never changed."""

    def __init__(self, names: _Names, snapshots: _Snapshots) -> None:
        self._names, self._snapshots = names, snapshots

    @classmethod
    def of(cls, snapshots: Mapping[str, int]) -> Self:
        """Take what a row of `commits` has, by the tables' names as text."""
        texts = sorted(snapshots)
        names = _Names(tuple(map(LakeName.parse, texts)))
        return cls(names, np.array([snapshots[text] for text in texts], np.int64))

    def after(
        self,
        published: Mapping[LakeName, int],
        existing: AbstractSet[LakeName],
        may_leave: Callable[[LakeName], bool] = lambda _: True,
    ) -> Pins:
        """Return the pins of the next point.

        Args:
            published: the snapshots that the point makes those of their tables.
            may_leave: says of a table that the catalog lacks whether the point may do without it.
        """
        index = self._names.index
        if published.keys() <= index.keys() and self._names.are_within(existing):
            snapshots = self._snapshots.copy()
            for name, snapshot in published.items():
                snapshots[index[name]] = snapshot
            return Pins(self._names, snapshots)
        remaining = {
            str(name): snapshot for name, snapshot in self.items() if name in existing or not may_leave(name)
        }
        return Pins.of(remaining | {str(name): snapshot for name, snapshot in published.items()})

    def changed_since(self, earlier: Pins) -> list[LakeName] | None:
        """Return the tables that have another snapshot than earlier; None if they are not the same tables."""
        if earlier._names is not self._names and earlier._names.names != self._names.names:
            return None
        return [self._names.names[at] for at in np.flatnonzero(earlier._snapshots != self._snapshots)]

    def as_map(self) -> pa.Array[Any]:
        """Return them as the column `tables` of a row of `commits`: one map."""
        offsets: Any = pa.array([0, len(self._snapshots)], pa.int32())
        items: Any = pa.array(self._snapshots, pa.int64())
        return pa.MapArray.from_arrays(offsets, self._names.texts, items)

    def __getitem__(self, name: LakeName) -> int:
        return int(self._snapshots[self._names.index[name]])

    def __iter__(self) -> Iterator[LakeName]:
        return iter(self._names.names)

    def __len__(self) -> int:
        return len(self._snapshots)
