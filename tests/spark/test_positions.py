"""Rows are found by a table of integers as by comparing; of equal rows the first are taken."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from slotlake.decoder.compiled.arrays import distinct, nulls
from slotlake.spark.direct import positions
from slotlake.spark.direct.positions import KeyColumn, Matches, indices_in

pytestmark = pytest.mark.fast
ENDS = {pa.int32(): (-(1 << 31), (1 << 31) - 1), pa.int64(): (-(1 << 63), (1 << 63) - 1)}


@pytest.mark.parametrize("kind", ENDS)
def test_integers_are_found_in_a_table_as_by_comparing(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lowest, highest = ENDS[kind]
    for base in (lowest, highest - 50_000, 0, -20_000):
        chance = random.Random(base)
        sought = list({base + chance.randrange(50_000) for _ in range(4_000)})
        few = [None, lowest, highest, 0, base, base - 1 if base > lowest else None, base + 50_000]
        drawn = [chance.choice([*few, *sought[:9]]) for _ in range(5_000)]
        rows = pa.array(drawn, kind)
        key = [KeyColumn(1, pa.array(sought, kind), null_is_a_value=False)]
        with monkeypatch.context() as patch:
            expected: dict[object, int] = {number: index for index, number in enumerate(sought)}
            found = [indices_in([some], key).tolist() for some in (rows, nulls(3, kind), rows[:0])]
            assert found == [[expected.get(row, -1) for row in drawn], [-1] * 3, []]
            patch.setattr(positions, "_TABLE_MIN", 0)
            patch.setattr(positions, "_TABLE_SHARE", 0)
            assert indices_in([rows], key).tolist() == found[0]


def test_the_first_of_equal_rows_are_taken() -> None:
    found = Matches(["a", "b"], *np.array([[2, 0, 2, 2, 1], [0, 0, 0, 1, 1], [5, 6, 7, 8, 9]], np.int64))
    taken = found.first(np.array([2, 1, -1]), np.array([2, 1, 3]))
    assert {name: rows.tolist() for name, rows in taken.items()} == {"a": [5, 7], "b": [9]}


@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_distinct_integers_are_numpys(count: int) -> None:
    values = np.random.default_rng(count).integers(-(1 << 63), (1 << 63) - 1, count)
    for each in (values, values % 7, np.repeat(values, 2)):
        assert distinct(each).tolist() == np.unique(each).tolist()
