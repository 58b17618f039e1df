"""What the event trigger says of a batch's tables: their columns' numbers, at each place of the batch.

Invariant: numbers are proven by three things together: the lake's columns before, a message at each change,
and the catalog behind the batch, which agrees with the last message.  A trigger that was missing or disabled
for a while leaves a gap somewhere in that, and then no number is proven.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow.compute as pc

from slotlake.decoder.catalog.ddl_trigger import PREFIX

if TYPE_CHECKING:
    from slotlake.decoder.catalog.fingerprints import TableFingerprint
    from slotlake.decoder.changelog.batches import Batch, BatchRelation
    from slotlake.spark.tables.schema import TableSchema

Columns = Mapping[int, tuple[str, int, int]]
Numbers = Mapping[str, int]


@dataclass(frozen=True)
class AlteredTable:
    """A table as an ALTER TABLE left it.

    Attributes:
        seq: its place among the batch's changes.
        columns: attribute number → name, type OID, typmod; without generated ones.
    """

    seq: int
    columns: Columns


def altered_tables(batch: Batch) -> dict[int, list[AlteredTable]]:
    """Return OID of a table → its ALTER TABLE events, in order; empty if the trigger sent none."""
    messages = None if batch.empty else batch.message_table()
    events: dict[int, list[AlteredTable]] = {}
    if messages is None:
        return events
    own_messages = messages.filter(pc.and_(messages["transactional"], pc.equal(messages["prefix"], PREFIX)))
    for message in own_messages.select(["seq", "content"]).to_pylist():
        event = _read(message["content"])
        if event is not None:
            oid, columns = event
            events.setdefault(oid, []).append(AlteredTable(int(message["seq"]), columns))
    return events


def _read(content: bytes) -> tuple[int, Columns] | None:
    """Parse a message of the trigger; None for another one, because anyone may write such messages."""
    try:
        event = json.loads(content)
        columns = {int(n): (str(name), int(kind), int(mod)) for n, name, kind, mod in event["columns"]}
        return int(event["oid"]), dict(sorted(columns.items()))
    except (ValueError, TypeError, KeyError):
        return None


def proven_numbers(
    mirror: TableSchema,
    events: Sequence[AlteredTable],
    relations: Sequence[tuple[BatchRelation, Any]],
    now: TableFingerprint,
) -> dict[int, Numbers] | None:
    """Prove which column of each relation version has which attribute number.

    Args:
        mirror: the table as the lake has it, at the batch's start.
        events: the ALTER TABLE events of this table, in order.
        relations: the relation versions that have rows, each with the ``seq`` of these rows, ascending.
        now: what the catalog says behind the batch.

    Returns:
        Relation version → column name → attribute number; None if that is not proven.
    """
    present = {number: a for number, a in now.attributes.items() if not a.dropped}
    if not events or mirror.selection or not all(column.number for column in mirror.live):
        return None
    last = events[-1].columns
    if any(_described(present.get(number)) != column for number, column in last.items()):
        return None
    if any(number not in last and number < max(last, default=0) for number in present):
        return None
    shapes = _distinct(mirror, events)
    if any(_leap(before, after) for (_, before), (_, after) in pairwise(shapes)):
        return None
    numbers: dict[int, Numbers] = {}
    for relation, seqs in relations:
        places = {bisect_right([seq for seq, _ in shapes], int(end)) - 1 for end in (seqs[0], seqs[-1])}
        columns = shapes[places.pop()][1]
        signatures = [(c.name, c.type_oid, c.typmod) for c in relation.columns]
        if places or signatures != list(columns.values()):
            return None
        numbers[relation.ordinal] = {name: number for number, (name, _, _) in columns.items()}
    return None if _other_by_that_name(numbers, last) else numbers


def _described(attribute: Any) -> tuple[str, int, int] | None:
    return None if attribute is None else (attribute.name, attribute.type_oid, attribute.typmod)


def _distinct(mirror: TableSchema, events: Sequence[AlteredTable]) -> list[tuple[int, Columns]]:
    """The columns that the table had, each with the ``seq`` from where on; equal neighbours are one entry."""
    before = {c.number: (c.name, c.type_oid, c.typmod) for c in mirror.live}
    shapes: list[tuple[int, Columns]] = [(-1, dict(sorted(before.items())))]
    for event in events:
        if event.columns != shapes[-1][1]:
            shapes.append((event.seq, event.columns))
    return shapes


def _leap(before: Columns, after: Columns) -> bool:
    """Return whether columns were removed and others added at once. Then an event may be missing between.

    A column that was dropped and made again meanwhile looks, by its name and type, like the one before.
    """
    return bool(before.keys() - after.keys()) and bool(after.keys() - before.keys())


def _other_by_that_name(numbers_by_version: Mapping[int, Numbers], last: Columns) -> bool:
    """Return whether a removed column had the name of one that exists.

    The columns of a batch's rows are distinguished by name.
    """
    names = {name: number for number, (name, _, _) in last.items()}
    pairs = [(name, number) for numbers in numbers_by_version.values() for name, number in numbers.items()]
    return any(number not in last and name in names for name, number in pairs)


def row_places(batch: Batch, relation: BatchRelation) -> Any:
    """The ``seq`` of a relation version's rows, ascending."""
    return np.sort(batch.relation_table(relation)["seq"].to_numpy())
