"""Which slices of which tables have their turn, so that all rows are compared within a chosen time.

Each table is cut into slices of some hundred thousand rows (`expectations.scopes.slices`).  A run compares
the slices that were compared longest ago, as many as its share of the time says: with seven days and a run
each hour, a run compares somewhat more than a hundred-and-sixty-eighth of all rows.  The note of what was
verified has each slice with the time at which it was last found equal.

Invariant: a slice that differs keeps its time, and is compared by each run until it is equal.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import source_session
from slotlake.expectations.scopes.slices import Slice, sliced
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.spark.read.point import ReadPoint

SLICE_ROWS = 200_000
_SLICES_MAX = 4096
_GROWN = 1.5  # a table that has so many times the rows is cut anew
_SHARE = 0.8  # of the time, in which all slices get their turn if runs are regular
_SLICE_COSTS_ROWS = 1000  # what a slice costs besides its rows
RUN_SECONDS_MAX = 900.0

Note = dict[str, Any]


@dataclass(frozen=True)
class Turn:
    """A slice whose turn it is.

    Attributes:
        number: its place among the table's slices, from 0.
        of: how many slices the table has.
        rows: about how many rows it has.
    """

    table: SourceTable
    slice: Slice
    number: int
    of: int
    rows: int

    @property
    def words(self) -> str:
        """Which rows these are."""
        return "all rows" if self.slice.is_all else f"slice {self.number + 1} of {self.of}"


@dataclass(frozen=True)
class Plan:
    """What a run compares.

    Attributes:
        entries: table → its relation, rows and slices, as they are noted.
        turns: the slices, those that were compared longest ago first.
        credit_from: from when on the time counts that this run makes up for.
        rows: of all tables.
    """

    entries: dict[str, Note]
    turns: list[Turn]
    credit_from: float
    rows: int


def plan_turns(
    dsn: str,
    tables: Sequence[SourceTable],
    point: ReadPoint,
    verified: Mapping[str, Any],
    within_seconds: float,
) -> Plan:
    """Choose the slices that this run compares.

    Args:
        point: the lake, whose manifests count rows.
        verified: the note of what was found equal.
        within_seconds: in which time all rows are to be compared.
    """
    now = time.time()
    entries = {}
    with source_session(dsn, "cutting tables into slices") as connection:
        for table in tables:
            name, rows = postgres_name(table.schema, table.table), point.count(_name(table))
            entry = verified["tables"].get(name, {})
            if _needs_slicing(entry, table, rows):
                slices = sliced(connection, (table.schema, table.table), _key(table), _count(rows))
                entry = _sliced_again(entry, table, rows, slices, now)
            entries[name] = entry
    candidates = sorted(_turns(tables, entries), key=lambda each: each[0])
    total = sum(turn.rows for _, turn in candidates)
    credit_from = float(verified.get("credit_from") or now)
    budget = total * (now - credit_from) / (_SHARE * within_seconds)
    late = now - 0.9 * within_seconds
    turns, used = list[Turn](), 0.0
    for _, turn in candidates:
        note = _note(entries, turn)
        if note["failed"]:
            turns.append(turn)
        elif used < budget or note["time"] < late or (not turns and "credit_from" not in verified):
            turns.append(turn)
            used += turn.rows
    return Plan(entries, turns, credit_from, total)


def credit_after(plan: Plan, done: Sequence[Turn], within_seconds: float) -> float:
    """Return from when on the time counts for which the next run makes up.

    Args:
        plan: what was to be compared.
        done: what was compared.
        within_seconds: in which time all rows are to be compared.
    """
    seconds = _SHARE * within_seconds * sum(turn.rows for turn in done) / max(1, plan.rows)
    return min(time.time(), max(plan.credit_from + seconds, time.time() - within_seconds))


def note_turn(entry: Note, turn: Turn, position: int, *, equal: bool) -> None:
    """Note that a slice was compared.

    Args:
        entry: of its table, with slices.
        position: the LSN of the comparison.
        equal: whether it was equal.
    """
    for note in entry.get("slices", ()):
        if Slice.of(note) == turn.slice:
            note["failed"] = not equal
            if equal:
                note.update(time=round(time.time(), 3), lsn=format_lsn(position))


def _needs_slicing(entry: Note, table: SourceTable, rows: int) -> bool:
    if entry.get("relation") != table.relation_id or not entry.get("slices"):
        return True
    return bool(rows > _GROWN * entry.get("rows", 0) + SLICE_ROWS)


def _sliced_again(entry: Note, table: SourceTable, rows: int, slices: Sequence[Slice], now: float) -> Note:
    """The table's entry with other slices; each has the oldest time of those that it overlaps."""
    same = entry.get("relation") == table.relation_id
    old = [(Slice.of(note), note) for note in entry.get("slices", ())] if same else []
    notes = []
    for each in slices:
        inherited = [note for piece, note in old if piece.overlaps(each)]
        oldest = min(inherited, key=lambda note: note["time"], default={"time": now, "lsn": None})
        lsn = None if any(note["lsn"] is None for note in inherited) else oldest["lsn"]
        failed = any(note.get("failed") for note in inherited)
        notes.append({**each.noted, "time": oldest["time"], "lsn": lsn, "failed": failed})
    return {**(entry if same else {}), "relation": table.relation_id, "rows": rows, "slices": notes}


def _turns(tables: Sequence[SourceTable], entries: Mapping[str, Note]) -> Iterator[tuple[float, Turn]]:
    for table in tables:
        entry = entries[_name(table)]
        notes = entry["slices"]
        rows = entry["rows"] // len(notes) + _SLICE_COSTS_ROWS
        for number, note in enumerate(notes):
            # What was never compared comes first.
            at = 0.0 if note["lsn"] is None else note["time"]
            yield at, Turn(table, Slice.of(note), number, len(notes), rows)


def _note(entries: Mapping[str, Note], turn: Turn) -> Note:
    note: Note = entries[_name(turn.table)]["slices"][turn.number]
    return note


def _count(rows: int) -> int:
    return min(_SLICES_MAX, -(-rows // SLICE_ROWS))


def _key(table: SourceTable) -> list[tuple[str, int]]:
    oids = {column.name: column.type_oid for column in table.columns}
    return [(name, oids[name]) for name in table.key]


def _name(table: SourceTable) -> str:
    return postgres_name(table.schema, table.table)
