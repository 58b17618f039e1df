"""Bounds of a batch's keys: wide enough for all, and those of the batch before where that is possible."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotlake.spark.direct.choice import NEVER, SWITCH
from slotlake.spark.merge import replacement
from slotlake.spark.merge.bounds import Markers, value_range
from tests.spark.lake_lab import Lab, relation, update

ITEMS = relation("items", ["id"], id="int8", v="text")
_KINDS = {16: pa.int16(), 32: pa.int32(), 64: pa.int64()}


def _bounds(values: list[int], kind: pa.DataType) -> tuple[int, int]:
    markers = Markers()
    conditions = value_range(markers, pa.table({"n0": pa.array(values, kind)}), "n0", "xn0", "t.id")
    low, high = (int(text) for text in markers.of(" ".join(conditions) + " ").values())
    return low, high


@given(st.sampled_from(sorted(_KINDS)), st.data())
def test_all_keys_lie_between_the_bounds_and_little_else(bits: int, data: st.DataObject) -> None:
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    values = data.draw(st.lists(st.integers(least, most), min_size=1, max_size=4))
    low, high = _bounds(values, _KINDS[bits])
    assert least <= low <= min(values)
    assert max(values) <= high <= most
    width = max(values) - min(values)
    assert min(values) - low <= width // 16
    assert high - max(values) <= width // 16


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ([17, 29_999_999], [3, 29_999_950], (0, 30_408_703)),
        ([-17, 29_999_999], [-3, 29_999_950], (-1_048_576, 30_408_703)),
        ([5_000_017, 5_900_000], [5_000_300, 5_899_000], (4_980_736, 5_931_007)),
    ],
)
def test_batches_over_the_same_keys_have_the_same_bounds(
    one: list[int], other: list[int], both: tuple[int, int]
) -> None:
    assert _bounds(one, pa.int64()) == _bounds(other, pa.int64()) == both


def test_bounds_of_few_keys_are_exact() -> None:
    assert _bounds([7], pa.int32()) == (7, 7)
    assert _bounds([7, 22], pa.int32()) == (7, 22)


@pytest.mark.parametrize(("statements", "as_bits"), [(1, False), (2, False), (2, True)])
def test_the_next_batch_is_the_same_java(
    statements: int, as_bits: bool, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark writes integers into the Java that it makes; each executor would compile that of each batch."""
    monkeypatch.setenv(SWITCH, NEVER)
    monkeypatch.setattr(replacement, "_ROWS_MIN", 0 if statements == 2 else 1 << 40)
    monkeypatch.setattr(replacement, "_BATCH_ROWS_MIN", 1)
    monkeypatch.setattr(replacement, "KEY_BYTES", 1 << 20 if as_bits else 0)
    lab.init({ITEMS: [{"id": str(number), "v": "x"} for number in range(1000)]})

    def compiled() -> int:
        metrics = lab.session._jvm.org.apache.spark.metrics.source.CodegenMetrics
        return int(metrics.METRIC_COMPILATION_TIME().getCount())

    counts = []
    for first in range(7):
        ids = [str(first), "500", str(999 - first)]
        lab.sync(*(update(ITEMS, id=number, v=f"{first}") for number in ids))
        counts.append(compiled())
    assert counts[-1] - counts[0] <= 2  # with bounds of its own each batch has four
    made = lab.session.sql("SELECT operation FROM lake.shop.items.snapshots").collect()
    assert len(made) == 1 + 7 * statements
