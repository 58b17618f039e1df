"""One source, with pipelines on several roads: begun, taken from sync to sync, and judged at the end."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from tests.conftest import Database
from tests.roads import histories, judge
from tests.roads.kinds import ALL, USUAL
from tests.roads.road import Road
from tests.roads.travel import Services, Traveller

_UPDATED_OR_NEW: Final = {(True, True), (False, True)}


@dataclass
class Journey:
    """One source, and a pipeline for each of some roads."""

    source: Database
    chance: random.Random
    travellers: list[Traveller]
    written: Sequence[str]

    def begin(self) -> None:
        """Make the tables, and copy them down each road."""
        with self.source.connect() as connection:
            for name in self.written:
                connection.execute(ALL[name].create().encode())
                histories.run(connection, histories.first_rows(ALL[name], self.chance))
        held = judge.held(self.source, self.written)
        for each in self.travellers:
            each.begin(held)

    def step(self) -> None:
        """Write to each table, and take it down each road."""
        with self.source.connect() as connection:
            for transaction in histories.transactions(self.chance, self.written):
                histories.run(connection, transaction)
        held = judge.held(self.source, self.written)
        for each in self.travellers:
            each.step(held)

    def end(self) -> list[str]:
        """Judge what is judged at the end; return all that is wrong."""
        for each in self.travellers:
            each.end()
        return [*(what for each in self.travellers for what in each.wrong), *self._other_numbers()]

    def _other_numbers(self) -> Iterator[str]:
        """Rows that keep their number, or count as changed, on one road and not on another.

        Not compared between modes: a marked row is still there, and comes back with the number that it loses
        elsewhere; a table with a history is copied again for the default of an added column (docs/modes.md).
        In slices a row may be deleted in one and inserted again in the next: it has a new number there, and
        is an updated row where the batch is one slice.
        """
        first: dict[tuple[str, int, str], tuple[Traveller, dict[Any, Any]]] = {}
        for each in self.travellers:
            for (table, step), rows in each.lineage.items():
                if step not in each.comparable_steps:
                    continue
                own = each.road.mode == "marked" or ALL[table].shifts
                group = (table, step, each.road.mode if own else "")
                other, expected = first.setdefault(group, (each, rows))
                may_be_new = each.road.slices != other.road.slices
                for key in rows.keys() & expected.keys():
                    if may_be_new and {rows[key], expected[key]} == _UPDATED_OR_NEW:
                        continue
                    if rows[key] != expected[key]:
                        what = f"after sync {step} the row {key} (kept its number, changed)"
                        there = f"{expected[key]} on {other.road}"
                        yield f"{each.road} {table}: {what} is {rows[key]}, and {there}"
                        break


def begun(
    roads: Sequence[Road],
    tables: Sequence[Sequence[str]],
    source: Database,
    services: Services,
    seed: int,
    written: Sequence[str] = tuple(USUAL),
) -> Journey:
    """Make the source's tables, and a pipeline for each road with some of them."""
    travellers = [
        Traveller(number, road, names, source, services)
        for number, (road, names) in enumerate(zip(roads, tables, strict=True))
        if names
    ]
    made = Journey(source, random.Random(seed), travellers, written)
    made.begin()
    return made
