"""Folding is held equal to a subscriber that applies one change after the other.

The histories come from a small model of a source table that writes what pgoutput would send.  Lakes may
lack rows of it.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotlake.spark.fold.batch import fold
from slotlake.spark.fold.conflicts import Conflicts
from tests.spark.fold_model import (
    KEY_VALUES,
    NAMES,
    UNCHANGED,
    Lake,
    Message,
    Relation,
    Row,
    Subscriber,
    assert_equal,
    fold_known,
    key_of,
    relation,
    replay,
    stretches_of,
    table_of,
)

pytestmark = pytest.mark.fast

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


EXAMPLES = int(os.environ.get("SLOTLAKE_FOLD_EXAMPLES", "100"))


@pytest.mark.seconds
@pytest.mark.parametrize("skip", [False, True])
@settings(max_examples=EXAMPLES, deadline=None)
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


@pytest.mark.seconds
@pytest.mark.parametrize("skip", [False, True])
@settings(max_examples=EXAMPLES, deadline=None)
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


def test_a_row_known_before_a_column_joins_is_whole() -> None:
    """An update of a missing row makes it, whether or not the batch is cut before ADD COLUMN."""
    before, after = relation(("a",), "avt"), relation(("a",), "avtw")
    messages = [
        Message("U", before, {"a": 1, "v": 7, "t": "shown"}),
        Message("U", before, {"a": 2, "v": 7, "t": UNCHANGED}),
        Message("U", after, {"a": 1, "v": 0, "t": UNCHANGED, "w": 5}),
    ]
    subscriber = Subscriber(("a",))
    for message in messages:
        subscriber.apply(message)
    (stretch,) = stretches_of(list(enumerate(messages)))
    folded = fold_known({}, stretch, skip=False)
    assert_equal(replay({}, folded), subscriber.rows)
    assert subscriber.rows == {(1,): dict.fromkeys(NAMES) | {"a": 1, "v": 0, "t": "shown", "w": 5}}
    assert folded.counts.conflicts.counts == {"update_missing": 2} == subscriber.conflicts


def test_a_version_of_which_a_filter_took_no_row_is_not_the_newest() -> None:
    """Else a column that joined after it would be NULL in all rows."""
    before, after = relation(("a",), "av"), relation(("a",), "avw")
    nothing = table_of(before, [(0, Message("I", before, {"a": 1, "v": 2}))]).slice(0, 0)
    rows = table_of(after, [(5, Message("I", after, {"a": 1, "v": 2, "w": 3}))])
    (folded,) = fold([(before, nothing), (after, rows)])
    assert_equal(replay({}, folded), {(1,): dict.fromkeys(NAMES) | {"a": 1, "v": 2, "w": 3}})


@pytest.mark.parametrize("value", [math.nan, -math.nan])
def test_all_nans_are_one_key(value: float) -> None:
    assert key_of({"f": value}, ("f",)) == ("NaN",)
