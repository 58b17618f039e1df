"""A batch that is folded in slices ends as it does in one piece, wherever the slices end."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotlake.decoder.compiled.arrays import python_values
from slotlake.spark.fold.batch import SegmentFold
from slotlake.spark.fold.columns import Part
from slotlake.spark.fold.conflicts import Conflicts
from slotlake.spark.fold.slices import NO_ROWS, Outline, by_transactions, slice_folds, slices, weight
from slotlake.spark.history.fold import HistoryFold
from tests.spark import test_fold_bag as bags
from tests.spark.fold_model import (
    KEY_VALUES,
    NAMES,
    UNCHANGED,
    Lake,
    Message,
    Relation,
    Subscriber,
    answers,
    assert_equal,
    fold_known,
    key_of,
    relation,
    replay,
    table_of,
)
from tests.spark.test_fold_history import STEPS, Rows, agrees, keyed
from tests.spark.test_fold_oracle import EXAMPLES, Source, arbitrary, histories

SIZES = st.tuples(st.integers(1, 5), st.integers(1, 4))


def pieces(rows: pa.Table, size: int) -> Iterator[pa.Table]:
    for start in range(0, rows.num_rows, size):
        yield rows.slice(start, size)


def cut(parts: Sequence[Part], sizes: tuple[int, int]) -> Iterator[dict[int, pa.Table]]:
    """Slices of about so many changes, read in pieces of so many."""
    changes, piece = sizes
    heaviest = max(weight(rows.slice(i, 1)) for _, rows in parts for i in range(rows.num_rows))
    return slices([pieces(rows, piece) for _, rows in parts], changes * heaviest)


def outline_of(parts: Sequence[Part], sizes: tuple[int, int]) -> Outline:
    outline = Outline([relation for relation, _ in parts])
    for rows in cut(parts, sizes):
        outline.add(rows, rows)
    return outline


def of_all(parts: Sequence[Part], rows: dict[int, pa.Table]) -> list[Part]:
    return [(relation, rows.get(number, NO_ROWS)) for number, (relation, _) in enumerate(parts)]


def folds(parts: Sequence[Part], sizes: tuple[int, int]) -> Iterator[SegmentFold]:
    return slice_folds(outline_of(parts, sizes), (of_all(parts, rows) for rows in cut(parts, sizes)))


def parts_of(messages: Sequence[Message]) -> list[Part]:
    by_relation: dict[Relation, list[tuple[int, Message]]] = {}
    for seq, message in enumerate(messages):
        by_relation.setdefault(message.relation, []).append((seq, message))
    return [(relation, table_of(relation, found)) for relation, found in by_relation.items()]


@settings(deadline=None, max_examples=30)
@given(case=histories(), sizes=SIZES)
def test_slices_are_the_changes_in_order(
    case: tuple[Source, Lake, list[int]], sizes: tuple[int, int]
) -> None:
    parts = parts_of(case[0].sent)
    before = -1
    seen: list[int] = []
    for rows in cut(parts, sizes) if parts else ():
        found = sorted(seq for each in rows.values() for seq in python_values(each["seq"]))
        assert found[0] > before
        before, seen = found[-1], [*seen, *found]
    assert seen == list(range(len(case[0].sent)))


@pytest.mark.parametrize("sizes", list(itertools.product((1, 2, 9), (1, 2, 9))))
def test_versions_that_take_turns(sizes: tuple[int, int]) -> None:
    """All slices get the columns of the version that is in force at the end, wherever they end."""
    before, after = relation(("a",), "avt"), relation(("a",), "tvaw")
    messages = [
        Message("I", before, {"a": 1, "v": 1, "t": "one"}),
        Message("I", after, {"a": 2, "v": 2, "t": "two", "w": 5}),
        Message("I", before, {"a": 3, "v": 3, "t": "three"}),
        Message("U", after, {"a": 1, "v": 4, "t": UNCHANGED, "w": 6}),
        Message("U", before, {"a": 2, "v": 5, "t": UNCHANGED}),
        Message("I", after, {"a": 4, "v": 4, "t": "four", "w": 7}),
    ]
    subscriber = Subscriber(("a",))
    lake: Lake = {}
    for message in messages:
        subscriber.apply(message)
    for each in folds(parts_of(messages), sizes):
        lake = replay(lake, each.fold())
    assert_equal(lake, subscriber.rows)
    seqs = [python_values(each["seq"]) for rows in cut(parts_of(messages), sizes) for each in rows.values()]
    assert sorted(itertools.chain(*seqs)) == list(range(6))


@pytest.mark.seconds
@pytest.mark.parametrize("skip", [False, True])
@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(case=histories(), sizes=SIZES)
def test_a_batch_in_slices_is_what_a_subscriber_would_hold(
    case: tuple[Source, Lake, list[int]], sizes: tuple[int, int], skip: bool
) -> None:
    source, lake, _ = case
    if not source.sent:
        return
    complete = len(lake) == len(source.first)
    subscriber = Subscriber(source.key, dict(lake), skip)
    for message in source.sent:
        subscriber.apply(message)
    found = Conflicts()
    for each in folds(parts_of(source.sent), sizes):
        folded = each.fold() if complete else fold_known(lake, each, skip)
        lake, found = replay(lake, folded), found + folded.counts.conflicts
    assert_equal(lake, subscriber.rows)
    assert found.counts == +subscriber.conflicts


@pytest.mark.seconds
@pytest.mark.parametrize("skip", [False, True])
@settings(max_examples=EXAMPLES // 4, deadline=None)
@given(messages=arbitrary(), lacking=st.sets(st.integers(0, 3)), sizes=SIZES)
def test_slices_with_collisions_and_missing_rows_end_as_a_subscriber_would_end(
    messages: list[Message], lacking: set[int], sizes: tuple[int, int], skip: bool
) -> None:
    key = messages[0].relation.key
    blank = dict.fromkeys(NAMES) | {"v": -1, "t": "lake"}
    values = [value for i, value in enumerate(KEY_VALUES[key[0]]) if i not in lacking]
    lake = {key_of({key[0]: value}, key): blank | {key[0]: value} for value in values}
    subscriber = Subscriber(key, dict(lake), skip)
    for message in messages:
        subscriber.apply(message)
    found = Conflicts()
    for each in folds(parts_of(messages), sizes):
        folded = fold_known(lake, each, skip)
        lake, found = replay(lake, folded), found + folded.counts.conflicts
    assert_equal(lake, subscriber.rows)
    assert found.counts == +subscriber.conflicts


@settings(deadline=None)
@given(bags.histories(), SIZES)
def test_a_bag_in_slices_is_what_a_subscriber_would_hold(
    case: tuple[Counter[bags.Row], list[bags.Message], list[int], list[Counter[bags.Row]]],
    sizes: tuple[int, int],
) -> None:
    lake, sent, _, states = case
    parts: list[Part] = [(bags.BAG, bags.table(sent))]
    for each in folds(parts, sizes) if sent else ():
        lake = bags.replay(lake, each.fold())
    assert lake == states[-1]


@settings(deadline=None)
@given(STEPS, st.dictionaries(st.sampled_from("0123"), st.just(("lake", "kept"))), SIZES)
def test_versions_of_a_keyed_table_in_slices(
    steps: Sequence[tuple[str, int, int]], lake: Rows, sizes: tuple[int, int]
) -> None:
    """What no reader could see at the end of a transaction is no version, though a slice ended there."""
    course = keyed(steps, lake)
    parts, transactions = course.batch()
    outline = outline_of(parts, sizes) if parts else None
    held: dict[str, tuple[int, Any]] = {key: (0, (key, *row)) for key, row in lake.items()}
    found: list[tuple[int, int | None, Any]] = []
    for rows in cut(parts, sizes) if outline else ():
        assert outline is not None
        for segment in outline.segments(of_all(parts, rows)):
            held = _with_slice(HistoryFold(segment), transactions, held, found)
    found += [(begun, None, row) for begun, row in held.values()]
    agrees(course, found)


def _with_slice(
    fold: HistoryFold,
    transactions: pa.Table,
    held: dict[str, tuple[int, Any]],
    ended: list[tuple[int, int | None, Any]],
) -> dict[str, tuple[int, Any]]:
    """What `slotlake.spark.history.table.statements` do: the versions that are open then."""
    asked = fold.lookup_rows()
    keys = python_values(asked["n0"]) if asked.num_rows else []
    codes = zip(python_values(asked["code"]), keys, strict=True)
    versions = fold.versions(answers({code: 1 for code, key in codes if str(key) in held}), transactions)
    before, after = dict(held), dict(held)
    for row in versions.rows.to_pylist():
        if row["close"]:
            begun, values = after.pop(str(row["n0"]))
            if begun != row["to_lsn"]:
                ended.append((begun, row["to_lsn"], values))
    if versions.truncated is not None:
        at = versions.truncated[0]
        ended += [(begun, at, values) for begun, values in after.values() if begun != at]
        after.clear()
    for row in versions.rows.to_pylist():
        if not row["close"]:
            origin = before[str(row["m0"])][1] if row.get("m0") is not None else ()
            values = tuple(
                origin[i] if row.get(f"u{i}") else str(row["n0"]) if not i else row[f"n{i}"] for i in range(3)
            )
            if row["to_lsn"] is None:
                after[str(row["n0"])] = (row["from_lsn"], values)
            else:
                ended.append((row["from_lsn"], row["to_lsn"], values))
    return after


@settings(deadline=None, max_examples=100)
@given(
    numbers=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 2)), min_size=1, max_size=20),
    size=st.integers(1, 5),
    carried=st.integers(0, 500),
)
def test_slices_have_whole_transactions_or_changes_of_one(
    numbers: list[tuple[int, int]], size: int, carried: int
) -> None:
    """``numbers``: per change its relation version, and how far its transaction is from the one before."""
    steps = itertools.accumulate(step for _, step in numbers)
    changes = [
        (version, seq, txn) for (seq, txn), (version, _) in zip(enumerate(steps), numbers, strict=True)
    ]
    whole = [
        {
            version: pa.table(
                {"seq": [c[1] for c in mine], "txn": pa.array([c[2] for c in mine], pa.int32())}
            )
            for version in (0, 1)
            if (mine := [c for c in changes[start : start + size] if c[0] == version])
        }
        for start in range(0, len(changes), size)
    ]
    cut_again = list(by_transactions(iter(whole), carried))
    found = [
        sorted(zip(*(python_values(pa.chunked_array(c)) for c in _columns(rows)), strict=True))
        for rows in cut_again
    ]
    assert list(itertools.chain(*found)) == [(seq, txn) for _, seq, txn in changes]
    holders = Counter(txn for rows in found for txn in {txn for _, txn in rows})
    for rows in found:
        several = len({txn for _, txn in rows}) > 1
        assert not several or all(holders[txn] == 1 for _, txn in rows)


def _columns(rows: dict[int, pa.Table]) -> list[list[pa.Array]]:
    return [[chunk for each in rows.values() for chunk in each[name].chunks] for name in ("seq", "txn")]
