"""Folding is held equal to a subscriber that applies one change after the other.

The model below is worker.c read row by row, and what `spark.conflicts` says of applying; the histories
come from a small model of a source table that writes what pgoutput would send.  Lakes may lack rows of it.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.conflicts import Conflicts
from spark.fold import Folded, Stretch, stretches

pytestmark = pytest.mark.fast
UNCHANGED = object()
Row = dict[str, Any]
Lake = dict[tuple[Any, ...], Row]
NAN = float("nan")
FLOAT8, INT4, TEXT, DATE = 701, 23, 25, 1082
ARROW = {FLOAT8: pa.float64(), INT4: pa.int32(), TEXT: pa.string(), DATE: pa.date32()}
NAMES = {"a": INT4, "b": TEXT, "f": FLOAT8, "d": DATE, "v": INT4, "t": TEXT, "w": INT4}
KEY_VALUES: dict[str, list[Any]] = {
    "a": [1, 2, 3],
    "b": ["1.0", "1.00"],
    "f": [-0.0, 0.0, NAN, 1.5],
    "d": ["2024-02-29", "infinity", "-infinity"],
}


@dataclass(frozen=True)
class Column:
    name: str
    in_key: bool

    @property
    def type_oid(self) -> int:
        return NAMES[self.name]

    @property
    def typmod(self) -> int:
        return -1


@dataclass(frozen=True)
class Relation:
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    replica_identity: str = "d"
    schema: str = "public"
    table: str = "t"


def relation(key: Sequence[str], columns: str, identity: str = "d") -> Relation:
    shaped = tuple(Column(name, name in key or identity == "f") for name in columns)
    return Relation(shaped, tuple(key), identity)


@dataclass(frozen=True)
class Message:
    op: str
    relation: Relation
    new: Row | None = None
    old: Row | None = None
    old_kind: str = ""


# ---------------------------------------------------------------- the change log's form, both ways


def table_of(relation: Relation, messages: list[tuple[int, Message]]) -> pa.Table:
    """Messages of one relation version as the change log holds them."""
    columns: dict[str, Any] = {
        "seq": pa.array([seq for seq, _ in messages], pa.int64()),
        "op": pa.array([ord(message.op) for _, message in messages], pa.int8()),
        "txn": pa.array([0] * len(messages), pa.int32()),
        "lsn": pa.array([seq for seq, _ in messages], pa.int64()),
        "old": pa.array([ord(m.old_kind) if m.old_kind else 0 for _, m in messages], pa.int8()),
    }
    for position, column in enumerate(relation.columns):
        for side, rows in (("n", [m.new for _, m in messages]), ("o", [m.old for _, m in messages])):
            values = [None if row is None else row.get(column.name) for row in rows]
            unchanged = [value is UNCHANGED for value in values]
            typed, exact = encode([None if v is UNCHANGED else v for v in values], column.type_oid)
            if side == "n" or any(row is not None and column.name in row for row in rows):
                columns[f"{side}{position}"] = typed
            if exact is not None:
                columns[f"x{side}{position}"] = exact
            if any(unchanged):
                columns[f"u{position}"] = pa.array(unchanged)
    return pa.table(columns)


def encode(values: list[Any], oid: int) -> tuple[pa.Array, pa.Array | None]:
    if oid != DATE:
        return pa.array(values, ARROW[oid]), None
    exact = [value if value is not None and "inf" in value else None for value in values]
    typed = [None if v is None or "inf" in v else datetime.date.fromisoformat(v) for v in values]
    return pa.array(typed, ARROW[oid]), pa.array(exact, pa.string()) if any(exact) else None


def decode(rows: pa.Table, prefix: str, folded: Folded, name: str) -> list[Any]:
    position = [column.name for column in folded.columns].index(name)
    typed = rows[f"{prefix}{position}"].to_pylist()
    if f"x{prefix}{position}" in rows.column_names:
        exact = rows[f"x{prefix}{position}"].to_pylist()
        typed = [t if e is None else e for t, e in zip(typed, exact, strict=True)]
    return [value.isoformat() if isinstance(value, datetime.date) else value for value in typed]


def key_of(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    """Equality of the lake: floats as PostgreSQL and Spark compare them, the rest by value."""
    values = (row[name] for name in key)
    return tuple(one_float(v) if isinstance(v, float) else v for v in values)


def one_float(value: float) -> Any:
    return "NaN" if math.isnan(value) else value + 0.0


# ---------------------------------------------------------------- worker.c


@dataclass
class Subscriber:
    """One that skips what conflicts, as PostgreSQL's can; or applies it as far as it is known."""

    key: tuple[str, ...]
    rows: Lake = field(default_factory=dict)
    skip: bool = False
    conflicts: Counter[str] = field(default_factory=Counter)

    def apply(self, message: Message) -> None:
        new, old = message.new or {}, message.old or {}
        if message.op == "T":
            self.rows.clear()
            self.conflicts.clear()
        elif message.op == "I":
            self._put({name: new.get(name) for name in NAMES}, "insert_exists")
        elif message.op == "D":
            gone = self.rows.pop(key_of(old, self.key), None)
            self.conflicts["delete_missing"] += gone is None
        else:
            at = key_of(old or new, self.key)
            row = self.rows.get(at)
            known = {n: old.get(n, UNCHANGED) if v is UNCHANGED else v for n, v in new.items()}
            if row is None:
                self.conflicts["update_missing"] += 1
                if not self.skip and UNCHANGED not in known.values():
                    after = dict.fromkeys(NAMES) | known
                    self._put(after, "update_exists" if key_of(after, self.key) != at else "")
                return
            after = row | {n: v for n, v in known.items() if v is not UNCHANGED}
            if key_of(after, self.key) == at or self._put(after, "update_exists"):
                del self.rows[at]
                self.rows[key_of(after, self.key)] = after

    def _put(self, row: Row, conflict: str) -> bool:
        at = key_of(row, self.key)
        if conflict and at in self.rows:
            self.conflicts[conflict] += 1
            if self.skip:
                return False
        self.rows[at] = row
        return True


def replay(lake: Lake, folded: Folded) -> Lake:
    """What a MERGE of the folded rows makes of the lake. Reads only the lake as it was."""
    before = {} if folded.truncated else lake
    after = dict(before)
    rows = folded.rows
    names = [column.name for column in folded.columns]
    values = {name: decode(rows, "n", folded, name) for name in names}
    kept = {
        name: rows[f"u{i}"].to_pylist() if f"u{i}" in rows.column_names else [False] * rows.num_rows
        for i, name in enumerate(names)
    }
    moved = [name for name in folded.key if f"m{names.index(name)}" in rows.column_names]
    origins = {name: decode(rows, "m", folded, name) for name in moved}
    seen = set()
    for i, action in enumerate(bytes(rows["action"].to_numpy().astype(np.uint8)).decode()):
        key = key_of({name: values[name][i] for name in folded.key}, folded.key)
        assert key not in seen, "a key has more than one action"
        seen.add(key)
        at = key_of({n: v[i] for n, v in origins.items()}, folded.key) if action == "M" else key
        lake_row = before.get(at)
        if action in "DM" and (action == "D" or lake_row is None):
            after.pop(key, None)
        elif action == "I" or lake_row is not None:
            assert action != "I" or not any(flags[i] for flags in kept.values())
            base = lake_row if lake_row is not None and action != "I" else dict.fromkeys(NAMES)
            after[key] = base | {n: base[n] if kept[n][i] else values[n][i] for n in names}
    return after


def stretches_of(messages: list[tuple[int, Message]]) -> list[Stretch]:
    by_relation: dict[Relation, list[tuple[int, Message]]] = {}
    for seq, message in messages:
        by_relation.setdefault(message.relation, []).append((seq, message))
    return stretches([(relation, table_of(relation, found)) for relation, found in by_relation.items()])


def fold_known(lake: Lake, stretch: Stretch, skip: bool) -> Folded:
    """Ask the lake about every key, then fold."""
    asked = stretch.asked()
    values = {name: decode(asked, "n", stretch.fold(), name) for name in stretch.key if asked.num_rows}
    held = {
        asked["code"][i].as_py(): 1
        for i in range(asked.num_rows)
        if key_of({name: values[name][i] for name in stretch.key}, stretch.key) in lake
    }
    return stretch.fold(held, skip=skip)


def assert_equal(lake: Lake, expected: Lake) -> None:
    def shown(rows: Lake) -> list[str]:
        return sorted(repr((key, sorted(row.items()))) for key, row in rows.items())

    assert shown(lake) == shown(expected)


# ---------------------------------------------------------------- a source that writes histories


@dataclass
class Source:
    """A table with a key; its changes as pgoutput sends them."""

    relation: Relation
    rows: Lake = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)
    first: Lake = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, ...]:
        return self.relation.key

    def tuple_of(self, row: Row) -> Row:
        return {column.name: row[column.name] for column in self.relation.columns}

    def old_of(self, row: Row, needed: bool) -> tuple[Row | None, str]:
        if self.relation.replica_identity == "f":
            return self.tuple_of(row), "O"
        return ({name: row[name] for name in self.key}, "K") if needed else (None, "")

    def insert(self, row: Row) -> None:
        if key_of(row, self.key) not in self.rows:
            self.rows[key_of(row, self.key)] = row
            self.sent.append(Message("I", self.relation, self.tuple_of(row)))

    def update(self, at: tuple[Any, ...], changes: Row, *, big_key: bool = False) -> None:
        row = self.rows.get(at)
        if row is None:
            return
        after = row | changes
        if key_of(after, self.key) != at and key_of(after, self.key) in self.rows:
            return
        key_changed = repr([row[n] for n in self.key]) != repr([after[n] for n in self.key])
        old, kind = self.old_of(row, key_changed or big_key)
        new = self.tuple_of(after)
        if "t" not in changes and str(row["t"]).startswith("big"):
            new["t"] = UNCHANGED
        if big_key:
            new |= {name: UNCHANGED for name in self.key if repr(row[name]) == repr(after[name])}
        del self.rows[at]
        self.rows[key_of(after, self.key)] = after
        self.sent.append(Message("U", self.relation, new, old, kind))

    def delete(self, at: tuple[Any, ...]) -> None:
        row = self.rows.pop(at, None)
        if row is not None:
            old, kind = self.old_of(row, True)
            self.sent.append(Message("D", self.relation, None, old, kind))

    def truncate(self) -> None:
        self.rows.clear()
        self.sent.append(Message("T", self.relation))


KEYS = st.sampled_from([("a",), ("b",), ("f",), ("d",), ("a", "b"), ("d", "a"), ("f", "b")])
TOAST = st.sampled_from(["big1", "big2", "small", "", None])


@st.composite
def rows(draw: st.DrawFn, key: tuple[str, ...]) -> Row:
    row: Row = {name: draw(st.sampled_from(values)) for name, values in KEY_VALUES.items()}
    row |= {name: None if name not in key and draw(st.booleans()) else value for name, value in row.items()}
    return row | {"v": draw(st.sampled_from([None, 0, 7])), "t": draw(TOAST), "w": None}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Source, Lake, list[int]]:
    """A source's history, a lake that may lack rows of its start, and where batches are cut."""
    key = draw(KEYS)
    identity = draw(st.sampled_from("dif"))
    source = Source(relation(key, draw(st.sampled_from(["abfdvt", "tvdfba"])), identity))
    for row in draw(st.lists(rows(key), max_size=6)):
        source.insert(row)
    complete = draw(st.booleans())
    lake = {at: row for at, row in source.rows.items() if complete or draw(st.booleans())}
    source.sent.clear()
    source.first = dict(source.rows)
    later = [relation(key, columns, draw(st.sampled_from("dif"))) for columns in ("abfdvtw", "wtvdfba")]
    for _ in range(draw(st.integers(1, 25))):
        step(draw, source, later)
    cuts = sorted(draw(st.lists(st.integers(0, len(source.sent)), max_size=3)))
    return source, lake, [0, *cuts, len(source.sent)]


def step(draw: st.DrawFn, source: Source, later: list[Relation]) -> None:
    key = source.key
    kind = draw(st.sampled_from("IIUUUUMMMMSDDTV"))
    row = draw(rows(key))
    held = list(source.rows)
    at = draw(st.sampled_from(held)) if held else key_of(row, key)
    if kind == "I":
        source.insert(row)
    elif kind in "UM":
        names = draw(st.sets(st.sampled_from(["v", "t", *source.relation.columns[-1].name])))
        names |= set(key) if kind == "M" else set()
        source.update(at, {n: row[n] for n in names}, big_key=draw(st.booleans()))
    elif kind == "S":
        swap(draw, source, held)
    elif kind == "D":
        source.delete(at)
    elif kind == "T":
        if draw(st.integers(0, 3)) == 0:
            source.truncate()
    else:
        source.relation = draw(st.sampled_from(later))


def swap(draw: st.DrawFn, source: Source, held: list[tuple[Any, ...]]) -> None:
    """Exchange two keys by way of a third."""
    if len(held) < 2:
        return
    one, two = draw(st.permutations(held))[:2]
    keys = [{name: source.rows[at][name] for name in source.key} for at in (one, two)]
    spare = next(iter(source.key))
    free = {"a": 99, "b": "free", "f": 99.0, "d": "1999-12-31"}[spare]
    aside = keys[0] | {spare: free}
    source.update(one, aside)
    source.update(two, keys[0])
    source.update(key_of(aside, source.key), keys[1])


@pytest.mark.parametrize("skip", [False, True])
@settings(max_examples=100, deadline=None)
@given(case=histories())
def test_fold_is_what_a_subscriber_would_hold(case: tuple[Source, Lake, list[int]], skip: bool) -> None:
    source, lake, cuts = case
    complete = len(lake) == len(source.first)
    subscriber = Subscriber(source.key, dict(lake), skip)
    for start, stop in pairwise(cuts):
        messages = list(enumerate(source.sent))[start:stop]
        subscriber.conflicts.clear()
        for _, message in messages:
            subscriber.apply(message)
        found = Conflicts()
        for stretch in stretches_of(messages):
            folded = stretch.fold() if complete else fold_known(lake, stretch, skip)
            lake, found = replay(lake, folded), found + folded.counts.conflicts
        assert_equal(lake, subscriber.rows)
        assert found.counts == +subscriber.conflicts
    if complete:
        assert_equal(lake, source.rows)


@st.composite
def arbitrary(draw: st.DrawFn) -> list[Message]:
    """Any messages at all, also such as no source sends: collisions, and rows known to be missing."""
    key = draw(st.sampled_from([("a",), ("f",)]))
    shape = relation(key, "abfdvt", draw(st.sampled_from("df")))
    messages = []
    for op in draw(st.lists(st.sampled_from("IIUUUDDT"), min_size=1, max_size=20)):
        new, old = draw(rows(key)), draw(rows(key))
        kind = "O" if shape.replica_identity == "f" else "K"
        old = old if kind == "O" else {name: old[name] for name in key}
        if op == "U" and draw(st.booleans()):
            new["t"] = UNCHANGED
        if op == "I" or (op == "U" and kind == "K" and draw(st.booleans())):
            messages.append(Message(op, shape, new))
        elif op == "T":
            messages.append(Message(op, shape))
        else:
            messages.append(Message(op, shape, new if op == "U" else None, old, kind))
    return messages


@pytest.mark.parametrize("skip", [False, True])
@settings(max_examples=100, deadline=None)
@given(messages=arbitrary(), lacking=st.sets(st.integers(0, 3)))
def test_collisions_and_missing_rows_end_as_a_subscriber_would_end(
    messages: list[Message], lacking: set[int], skip: bool
) -> None:
    key = messages[0].relation.key
    blank = dict.fromkeys(NAMES) | {"v": -1, "t": "lake"}
    held = [value for i, value in enumerate(KEY_VALUES[key[0]]) if i not in lacking]
    lake = {key_of({key[0]: v}, key): blank | {key[0]: v} for v in held}
    subscriber = Subscriber(key, dict(lake), skip)
    for message in messages:
        subscriber.apply(message)
    found = Conflicts()
    for stretch in stretches_of(list(enumerate(messages))):
        folded = fold_known(lake, stretch, skip)
        lake, found = replay(lake, folded), found + folded.counts.conflicts
    assert_equal(lake, subscriber.rows)
    assert found.counts == +subscriber.conflicts


@pytest.mark.parametrize("value", [math.nan, -math.nan])
def test_all_nans_are_one_key(value: float) -> None:
    assert key_of({"f": value}, ("f",)) == ("NaN",)
