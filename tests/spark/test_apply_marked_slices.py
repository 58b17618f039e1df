"""Marked rows (`on_delete: mark`) of a batch in slices are those of one piece, wherever the slices end."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.spark.lake import LakeSettings
from tests.spark.lake_lab import COMMIT, UNCHANGED, Change, Lab, delete, insert, relation, truncate, update
from tests.storage import lake_in

ROWS = relation("rows", ["id"], id="int4", v="text", n="numeric(10,2)")
WIDER = relation("rows", ["id"], id="int4", v="text", n="numeric(10,2)", w="int4")
FIRST = [{"id": str(i), "v": f"lake{i}", "n": f"{i}.50"} for i in range(6)]
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
FIRST_SEED = int(os.environ.get("SLOTLAKE_TEST_SEED", "0"))


@pytest.fixture
def labs(session: Any, tmp_path: Path, lake: LakeSettings) -> tuple[Lab, Lab]:
    """Two lakes with the same content: one takes a batch in one piece, one in slices of a few changes."""
    uri, warehouse = f"sqlite:///{tmp_path}/slices.db", f"file://{tmp_path}/slices"
    other = lake_in(tmp_path / "other", LakeSettings("lake", uri, warehouse, "shop"))
    labs = Lab.on(session, lake), Lab.on(session, replace(other, slice_bytes=1500 if LONG else 4000))
    for lab in labs:
        lab.init({ROWS: FIRST}, marks=True)
    return labs


def _new(key: int, v: Any, n: str = "1") -> Change:
    return insert(ROWS, id=str(key), v=v, n=n)


def _moved(old: int, new: int) -> Change:
    return update(ROWS, {"id": str(old)}, id=str(new), v=UNCHANGED, n=UNCHANGED)


ONE_TRANSACTION = [
    delete(ROWS, id="5"),
    COMMIT,
    *(update(ROWS, id=str(key), v="taken back", n="NaN") for key in (0, 1, 2)),
    _new(10, "never seen"),
    _new(5, "again"),
    _moved(3, 30),
    delete(ROWS, id="0"),  # as it was before the transaction
    delete(ROWS, id="10"),  # was not there
    delete(ROWS, id="5"),  # was marked
    _moved(30, 3),
    _new(0, "lives"),
    _new(11, "before the TRUNCATE"),
    truncate(ROWS),
    *(_new(key, "after it") for key in (1, 2, 5, 10, 11)),
    update(ROWS, id="11", v=UNCHANGED, n="12"),
    *(_new(key, "another slice") for key in range(13, 18)),
    delete(ROWS, id="1"),
    delete(ROWS, id="2"),  # as it was before the transaction
    delete(ROWS, id="5"),  # was marked
    delete(ROWS, id="10"),  # was not there
    _moved(11, 12),
    _new(4, "last"),
    COMMIT,
    *(_new(key, "next") for key in (1, 20)),
    COMMIT,
    delete(ROWS, id="20"),
]


def _marks(lab: Lab) -> Sequence[dict[str, Any]]:
    rows = lab.session.sql("SELECT * FROM lake.shop.rows ORDER BY id, _lsn").collect()
    return [row.asDict() for row in rows]


def test_one_transaction_over_slices(labs: tuple[Lab, Lab]) -> None:
    for lab in labs:
        batch = lab.sync(*ONE_TRANSACTION)
    whole, sliced = map(_marks, labs)
    assert sliced == whole
    ends = batch.transaction_table()["end_lsn"].to_pylist()
    # Key → value, marked, by which transaction.
    assert {row["id"]: (row["v"], row["_is_deleted"], ends.index(row["_lsn"])) for row in sliced} == {
        0: ("lake0", True, 1),
        1: ("next", False, 2),
        2: ("lake2", True, 1),
        3: ("lake3", True, 1),
        4: ("last", False, 1),
        5: ("lake5", True, 0),
        12: ("after it", False, 1),
        **dict.fromkeys(range(13, 18), ("another slice", False, 1)),
        20: ("next", True, 3),
    }


def _random_changes(dice: random.Random, keys: set[int], numbers: range, wider_at: int) -> Iterator[Change]:
    """What a source with these rows may send."""
    commits, truncates = dice.choice((0.0, 0.05, 0.4)), dice.random() < 0.5
    for number in numbers:
        shape = WIDER if number >= wider_at else ROWS
        more = {} if shape is ROWS else {"w": str(number)}
        if dice.random() < commits:
            yield COMMIT
        free = dice.choice(sorted(set(range(12)) - keys))
        kind = dice.choice("IIUUMMDDD" + "T" * truncates)
        at = dice.choice(sorted(keys)) if keys else free
        if kind == "T":
            keys.clear()
            yield truncate(shape)
        elif not keys or (kind == "I" and len(keys) < 9):
            keys.add(free)
            yield insert(shape, id=str(free), v=f"v{number}", n="NaN" if number % 5 == 0 else "1", **more)
        elif kind == "M":
            keys.symmetric_difference_update({at, free})
            yield update(shape, {"id": str(at)}, id=str(free), v=UNCHANGED, n=UNCHANGED, **more)
        elif kind == "D":
            keys.discard(at)
            yield delete(shape, id=str(at))
        else:
            yield update(shape, id=str(at), v=UNCHANGED, n=str(number), **more)


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("seed", range(FIRST_SEED, FIRST_SEED + 4))
def test_random_batches_in_slices(labs: tuple[Lab, Lab], seed: int) -> None:
    keys, dice = set(range(6)), random.Random(seed)
    wider_at = dice.randrange(90)
    for numbers in (range(30), range(30, 60)):
        changes = list(_random_changes(dice, keys, numbers, wider_at))
        for lab in labs:
            lab.sync(*changes)
        whole, sliced = labs
        assert _marks(sliced) == _marks(whole)
