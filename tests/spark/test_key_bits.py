"""Keys as bits: the same numbers, and Spark finds just these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotlake.spark.merge import replacement as bits
from slotlake.spark.merge.replacement import BITS, has_key, key_bits
from slotlake.spark.merge.rows import view_of_rows

_KINDS = {"smallint": pa.int16(), "int": pa.int32(), "bigint": pa.int64()}
_ENDS = {"smallint": 1 << 15, "int": 1 << 31, "bigint": 1 << 63}


def _numbers(rows: pa.Table) -> list[int]:
    """All numbers whose bit is set."""
    numbers = []
    for row in rows.to_pylist():
        for place, word in enumerate(row["bits"]):
            numbers += [(row["chunk"] << 14) + place * 64 + bit for bit in range(64) if word >> bit & 1]
    return numbers


@given(st.data())
def test_the_bits_are_the_keys(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(_KINDS)))
    least, most = -_ENDS[kind], _ENDS[kind] - 1
    near = data.draw(st.integers(least, most))
    edges = [least, -(1 << 14), -1, 0, 63, 64, (1 << 14) - 1, 1 << 14, most]
    number = st.one_of(st.sampled_from(edges), st.integers(max(least, near - 200), min(most, near + 200)))
    keys = data.draw(st.lists(number, min_size=1, max_size=40, unique=True))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bits, "KEY_BYTES", 1 << 20)
        rows = key_bits(
            pa.chunked_array([pa.array(keys[:3], _KINDS[kind]), pa.array(keys[3:], _KINDS[kind])])
        )
    assert rows is not None
    assert _numbers(rows) == sorted(keys)


def test_bits_are_taken_where_they_are_less_than_the_keys() -> None:
    """384 numbers for each key: in a table of its own Spark keeps it in 48 bytes."""

    def taken(keys: Any) -> bool:
        return key_bits(pa.chunked_array([pa.array(keys)])) is not None

    assert taken(np.arange(0, 380 * 100_000, 380))
    assert not taken(np.arange(0, 390 * 100_000, 390))
    assert taken(np.concatenate([np.arange(1000), np.arange(1000) + (1 << 60)]))  # far apart, but together
    assert not taken(np.array([5], np.int64))
    assert not taken(np.array([], np.int64))
    assert not taken(["1", "2"])
    assert not taken(pa.array([*range(1000), None], pa.int64()))


@pytest.mark.parametrize("kind", sorted(_KINDS))
def test_spark_finds_these_keys_and_no_others(
    kind: str, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bits, "KEY_BYTES", 1 << 20)
    least, most = -_ENDS[kind], _ENDS[kind] - 1
    near_zero = [0, 1, 63, 64, 65, -1, -64, -65, 16_383, 16_384, -16_384, -16_385]
    lake = [least, least + 1, *near_zero, most, most - 1]
    chosen = lake[::2]
    rows = key_bits(pa.chunked_array([pa.array(chosen, _KINDS[kind])]))
    assert rows is not None
    lake_rows = pa.table({"id": pa.array(lake, _KINDS[kind])})
    with (
        view_of_rows(session, lake_rows, f"id {kind}", tmp_path, "lake") as lake_view,
        view_of_rows(session, rows, BITS, tmp_path, "folded") as view,
    ):
        found = session.sql(
            f"SELECT t.id FROM {lake_view} t JOIN (SELECT /*+ BROADCAST */ chunk, bits FROM {view}) s "
            f"ON {' AND '.join(has_key('t.`id`'))}"
        )
        assert sorted(row[0] for row in found.collect()) == sorted(chosen)
        assert "BroadcastHashJoin" in found._jdf.queryExecution().toString()
