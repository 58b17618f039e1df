"""Without a key: the lake as a bag, held equal to a subscriber that removes one equal row at a time."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.errors import ApplyError
from slotlake.spark.fold.batch import Folded, fold, segment_folds
from slotlake.spark.fold.conflicts import Conflicts
from tests.spark.fold_model import answers

pytestmark = pytest.mark.fast

UNCHANGED = "unchanged"
Row = tuple[Any, ...]


@dataclass(frozen=True)
class Column:
    name: str
    type_oid: int
    in_key: bool = True
    typmod: int = -1
    type_name: str = ""


@dataclass(frozen=True)
class Relation:
    columns: tuple[Column, ...]
    key: tuple[str, ...] = ()
    replica_identity: str = "f"
    schema: str = "public"
    table: str = "bag"
    relation_id: int = 1
    ordinal: int = 0
    rows: int = 0


BAG = Relation((Column("v", 20), Column("t", 25)))
WIDER = Relation((*BAG.columns, Column("w", 20)))


@dataclass(frozen=True)
class Message:
    op: str
    new: Row | None = None
    old: Row | None = None


def table(messages: list[Message], first: int = 0, old_kind: str = "O") -> pa.Table:
    width = max(len(m.new or m.old or (0, 0)) for m in messages) if messages else 2
    kinds: list[Any] = [pa.int64(), pa.string(), pa.int64()]
    columns = {
        "seq": pa.array(range(first, first + len(messages)), pa.int64()),
        "op": pa.array([ord(m.op) for m in messages], pa.int8()),
        "old": pa.array([ord(old_kind) if m.old else 0 for m in messages], pa.int8()),
        "u1": pa.array([m.new is not None and m.new[1] == UNCHANGED for m in messages], pa.bool_()),
    }
    for i in range(width):
        news = [None if m.new is None or m.new[i] == UNCHANGED else m.new[i] for m in messages]
        columns[f"n{i}"] = pa.array(news, kinds[i])
        columns[f"o{i}"] = pa.array([None if m.old is None else m.old[i] for m in messages], kinds[i])
    return pa.table(columns)


def replay(lake: Counter[Row], folded: Folded) -> Counter[Row]:
    after = Counter() if folded.truncated else Counter(lake)
    for row in folded.rows.to_pylist():
        values = tuple(row[f"n{i}"] for i in range(len(folded.columns)))
        assert after[values] >= row["remove"]
        after[values] += row["add"] - row["remove"]
    return +after


ROWS = st.tuples(st.sampled_from([None, 1, 2]), st.sampled_from([None, "", "a"]))


@st.composite
def histories(draw: st.DrawFn) -> tuple[Counter[Row], list[Message], list[int], list[Counter[Row]]]:
    """A bag, its changes, where batches are cut, and the bag after each change."""
    start = Counter(draw(st.lists(ROWS, max_size=5)))
    bag, sent, states = Counter(start), [], [Counter(start)]
    for op in draw(st.lists(st.sampled_from("IIUUUDDT"), max_size=25)):
        new = draw(ROWS)
        old = draw(st.sampled_from(sorted(bag.elements(), key=repr))) if bag else None
        if op == "T":
            bag.clear()
            sent.append(Message("T"))
        elif op == "I":
            bag[new] += 1
            sent.append(Message("I", new))
        elif old is not None:
            bag[old] -= 1
            if op == "U":
                bag[new] += 1
                same = new[1] == old[1]
                sent.append(Message("U", (new[0], UNCHANGED) if same and draw(st.booleans()) else new, old))
            else:
                sent.append(Message("D", None, old))
        else:
            continue
        bag = +bag
        states.append(Counter(bag))
    cuts = sorted(draw(st.lists(st.integers(0, len(sent)), max_size=3)))
    return start, sent, [0, *cuts, len(sent)], states


@settings(max_examples=100, deadline=None)
@given(histories())
def test_a_bag_is_what_a_subscriber_would_hold(
    case: tuple[Counter[Row], list[Message], list[int], list[Counter[Row]]],
) -> None:
    lake, sent, cuts, states = case
    for start, stop in pairwise(cuts):
        (folded,) = fold([(BAG, table(sent[start:stop], start))])
        lake = replay(lake, folded)
        assert lake == states[stop]


def test_one_delete_removes_one_of_equal_rows() -> None:
    messages = [Message("I", (1, "a"))] * 3 + [Message("D", None, (1, "a"))]
    (folded,) = fold([(BAG, table(messages))])
    assert folded.rows.to_pylist() == [{"remove": 0, "add": 2, "n0": 1, "n1": "a"}]


def test_columns_that_change_in_the_batch_cut_it() -> None:
    before, after = [Message("D", None, (1, "a"))], [Message("I", (1, "a", 5))]
    first, second = fold([(BAG, table(before)), (WIDER, table(after, 1))])
    assert (first.rows["remove"].to_pylist(), second.rows["add"].to_pylist()) == ([1], [1])
    assert len(first.columns) == 2
    assert len(second.columns) == 3


def test_without_the_whole_old_row_there_is_no_telling_which() -> None:
    with pytest.raises(ApplyError, match="whole old row") as caught:
        fold([(BAG, table([Message("D", None, (1, "a"))], old_kind="K"))])
    assert "public.bag" in str(caught.value)


def test_a_row_that_goes_and_comes_back_must_have_been_there() -> None:
    there_and_back = [Message("U", (2, "a"), (1, "a")), Message("U", (1, "a"), (2, "a"))]
    (folded,) = fold([(BAG, table(there_and_back))])
    assert folded.rows.to_pylist() == [{"remove": 1, "add": 1, "n0": 1, "n1": "a"}]


def test_what_the_lake_lacks_is_counted_and_applied_or_skipped() -> None:
    messages = [
        Message("D", None, (1, "a")),
        Message("D", None, (1, "a")),
        Message("U", (2, "b"), (1, "a")),
        Message("I", (1, "a")),
        Message("D", None, (1, "a")),
    ]
    (stretch,) = segment_folds([(BAG, table(messages))])
    first = stretch.fold()
    assert stretch.lookup_rows().select(["n0", "n1"]).to_pylist() == [{"n0": 1, "n1": "a"}]
    (code,) = python_values(stretch.lookup_rows()["code"])
    assert int(first.expected.max()) == 3
    found = Conflicts(update_missing=1, delete_missing=1)
    for skip, after in ((False, {(2, "b"): 1}), (True, {})):
        folded = stretch.fold(answers({code: 1}), skip=skip)
        assert folded.counts.conflicts == found
        assert replay(Counter({(1, "a"): 1}), folded) == Counter(after)


def test_rows_are_told_apart_as_they_are_printed() -> None:
    float_bag = Relation((Column("v", 701), Column("t", 25)))
    columns = table([Message("D", None, (0, "a")), Message("D", None, (0, "a"))])
    nan = float("nan")
    for values, rows in (([0.0, -0.0], 2), ([nan, -nan], 1), ([0.0, 0.0], 1), ([None, None], 1)):
        olds = columns.set_column(columns.column_names.index("o0"), "o0", pa.array(values, pa.float64()))
        news = pa.array([None, None], pa.float64())
        (folded,) = fold([(float_bag, olds.set_column(olds.column_names.index("n0"), "n0", news))])
        assert folded.rows.num_rows == rows
