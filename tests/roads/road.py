"""The roads into the lake, and which of their combinations a run goes down: all pairs, or drawn ones."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import combinations, product
from typing import Final

from tests.roads.kinds import USUAL, Kind

# Each line is one question to which there are several answers; a new road is a new word here.
CHOICES: Final[Mapping[str, Sequence[str]]] = {
    "engine": ("direct", "merge", "mixed"),
    "format": ("3", "2"),
    "mode": ("mirror", "history", "append", "marked"),
    "storage": ("folder", "s3"),
    "catalog": ("sqlite", "postgresql", "rest", "staged", "per_table"),
    "slices": ("one", "many"),
    "rows": ("small", "large"),
    "stream": ("streamed", "bulk", "binary", "test_decoding"),
    "spark": ("embedded", "connect"),
    "copy": ("whole", "over_syncs", "backfilled", "recovered"),
    "steps": ("sync", "tasks", "left_staged"),
}
# How a table's rows are written; what is around them (catalog, storage, stream) is the same for all tables.
OF_TABLES: Final = ("engine", "format", "mode", "slices", "rows")
# What takes a minute to start is for the long form. What stands here more often is drawn more often.
LONG_CHOICES: Final[Mapping[str, Sequence[str]]] = {
    **CHOICES,
    "spark": (*["embedded"] * 12, *["connect"] * 7, "cluster"),
}


@dataclass(frozen=True)
class Road:
    """One combination of roads."""

    engine: str
    format: str
    mode: str
    storage: str
    catalog: str
    slices: str
    rows: str
    stream: str
    spark: str
    copy: str
    steps: str

    def __str__(self) -> str:
        return "-".join(self.values())

    def values(self) -> list[str]:
        return [getattr(self, each.name) for each in fields(self)]

    def takes(self, kind: Kind) -> bool:
        """Whether a table of this kind can go down it.

        test_decoding knows no publication through a root, and refuses columns that change within a batch.
        """
        if self.stream == "test_decoding" and (kind.partitioned or kind.shifts):
            return False
        return kind.has_key or kind.name == "by_index" or self.mode != "marked"

    def engine_at(self, step: int) -> str:
        """How the batch of a step is staged."""
        return ("direct", "merge")[step % 2] if self.engine == "mixed" else self.engine


# Answers that exclude each other: other machines see no folder of this one, and a road that is to be direct
# has nothing that never is (`spark/direct/choice.py`).
_CONFLICTS: Final = frozenset({
    (("storage", "folder"), ("spark", "cluster")),
    (("catalog", "sqlite"), ("spark", "cluster")),
    (("catalog", "staged"), ("spark", "cluster")),
    (("engine", "direct"), ("format", "2")),
    (("engine", "direct"), ("mode", "marked")),
})  # fmt: skip


def is_possible(road: Road) -> bool:
    """Whether there is such a road."""
    return not _pairs(road) & _CONFLICTS


def covering(choices: Mapping[str, Sequence[str]], seed: int) -> list[Road]:
    """Few roads in which every possible pair of answers to two questions comes together (greedily).

    Args:
        choices: question → answers.
        seed: which of the many such lists.
    """
    chance, names = random.Random(seed), list(choices)
    missing = {
        ((one, x), (two, y))
        for one, two in combinations(names, 2)
        for x, y in product(choices[one], choices[two])
    } - _CONFLICTS
    roads = []
    while missing:
        (one, x), (two, y) = chance.choice(sorted(missing))
        tries = [_filled(choices, {one: x, two: y}, chance) for _ in range(200)]
        best = max(filter(is_possible, tries), key=lambda road: len(_pairs(road) & missing), default=None)
        if best is None:
            continue
        missing -= _pairs(best)
        roads.append(best)
    return roads


def drawn(choices: Mapping[str, Sequence[str]], chance: random.Random) -> Iterator[Road]:
    """Roads at random, without end; each engine as often as the others, whatever it excludes."""
    while True:
        engine, road = {"engine": chance.choice(choices["engine"])}, None
        while road is None or not is_possible(road):
            road = _filled(choices, engine, chance)
        yield road


def tables_of(roads: Sequence[Road], seed: int) -> list[list[str]]:
    """Which tables go down which road: each meets all answers to `OF_TABLES`, on few roads."""
    chance = random.Random(seed)
    met = {
        (number, name): {(answer, name) for answer in _answers(road) if answer[0] in OF_TABLES}
        for number, road in enumerate(roads)
        for name, kind in USUAL.items()
        if road.takes(kind)
    }
    missing = set().union(*met.values())
    chosen: list[list[str]] = [[] for _ in roads]
    while missing:
        most = max(len(each & missing) for each in met.values())
        best = [visit for visit, each in met.items() if len(each & missing) == most]
        number, name = min(best, key=lambda visit: (len(chosen[visit[0]]), chance.random()))
        chosen[number].append(name)
        missing -= met[number, name]
    return chosen


def _answers(road: Road) -> list[tuple[str, str]]:
    return [(each.name, getattr(road, each.name)) for each in fields(road)]


def _pairs(road: Road) -> set[tuple[tuple[str, str], tuple[str, str]]]:
    return set(combinations(_answers(road), 2))


def _filled(choices: Mapping[str, Sequence[str]], given: Mapping[str, str], chance: random.Random) -> Road:
    return Road(**{name: given.get(name) or chance.choice(answers) for name, answers in choices.items()})
