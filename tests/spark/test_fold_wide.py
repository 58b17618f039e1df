"""Batches with more of one column than 32-bit offsets address: 2 GiB of text or bytes in one Arrow array."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from slotlake.decoder.compiled import wide
from slotlake.decoder.types.representations import as_list, representation_of
from slotlake.decoder.types.table import column_type, to_text
from slotlake.spark.fold.batch import segment_folds
from slotlake.spark.fold.conflicts import Conflicts
from slotlake.spark.fold.segments import segments_with_truncates
from slotlake.spark.fold.slices import ChangeSlice
from slotlake.spark.history.changes_table import Numbered, change_rows
from slotlake.spark.history.fold import HistoryFold
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import UNCHANGED, Change, HandBatch, delete, insert, relation, update

LIMITS = [0, 40, 120, 260, 700]
TEXT = relation("texts", ["k"], k="text", v="text", b="bytea")
BYTES = relation("bytes", ["k", "n"], k="bytea", n="numeric", v="text")
BAG = relation("bag", [], "f", k="text", n="numeric", v="text")
GIB = 1 << 30


def _changes() -> dict[str, Sequence[Change]]:
    keys = [f"{i}" * (3 * i) for i in range(1, 9)]
    text = [insert(TEXT, k=k, v=k * 2, b="\\x00ff") for k in keys[:4]]
    text += [update(TEXT, k=k, v=UNCHANGED, b="\\x11") for k in keys[2:6]]
    text += [update(TEXT, {"k": k}, k=k + "'", v=UNCHANGED, b=UNCHANGED) for k in keys[4:7]]
    text += [update(TEXT, {"k": keys[7]}, k=UNCHANGED, v="seen", b=UNCHANGED)]
    bytes_ = [delete(BYTES, k=f"\\x{i:02x}ff", n="1.0") for i in range(3)]
    bytes_ += [insert(BYTES, k=f"\\x{i:02x}ff", n="NaN", v="a" * i) for i in range(9)]
    rows = [{"k": k, "n": "NaN", "v": None} for k in keys]
    bag = [
        insert(BAG, **rows[0]),
        delete(BAG, **rows[1]),
        *(update(BAG, r, **r | {"v": "x"}) for r in rows[2:]),
    ]
    return {"texts": text, "bytes": bytes_, "bag": bag}


def _outcome(changes: Sequence[Change]) -> list[Any]:
    batch = HandBatch(0x1000, 0x1100, changes)
    parts = [(relation, batch.relation_table(relation)) for relation in batch.relations]
    found: list[Any] = []
    for stretch in segment_folds(parts):
        fold = stretch.fold()
        found += [
            stretch.lookup_rows().to_pylist(),
            fold.rows.to_pylist(),
            fold.counts.conflicts == Conflicts(),
        ]
    segments = segments_with_truncates(parts)
    for history in map(HistoryFold, segments):
        versions = history.versions(None, batch.transaction_table())
        found += [history.lookup_rows().to_pylist(), versions.rows.to_pylist()]
    [schema] = {TableSchema.of(relation) for relation in batch.relations}
    rows = change_rows(schema, ChangeSlice(segments, batch.transaction_table()), {}, Numbered())
    return [*found, None if rows is None else rows.to_pylist()]


@pytest.mark.parametrize("kind", list(_changes()))
@pytest.mark.parametrize("limit", LIMITS)
def test_the_outcome_is_the_same_whatever_arrow_addresses(
    kind: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = _outcome(_changes()[kind])
    monkeypatch.setattr(wide, "_OFFSET_BYTES_MAX", limit)
    assert _outcome(_changes()[kind]) == expected


@pytest.mark.parametrize("limit", LIMITS)
def test_forms_and_texts_of_wide_arrays(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = pa.chunked_array([["{a,b}", None], ["[2:2]={c}", "{d}" + " " * 0, "{" + "e" * 90 + "}"]])
    form = representation_of(as_list(25, ","), 1009, -1)
    expected = [list(map(str, texts.to_pylist()))]
    monkeypatch.setattr(wide, "_OFFSET_BYTES_MAX", limit)
    typed, exact = form.keep(texts, None)
    found = [list(map(str, form.text(typed, exact).to_pylist()))]
    numbers = pa.chunked_array([["NaN", None], [None, "1e5"]])
    mixed = to_text(numbers, pa.chunked_array([[None, "1"], [None, None]]), column_type(25, -1))
    assert (found, mixed.to_pylist()) == (expected, ["NaN", "1", None, "1e5"])
    for array in (wide.one_array(texts), wide.one_array(texts).cast(pa.large_string())):
        assert wide.taken(array, pa.array([4, 4, None, 0])).to_pylist() == [texts[4].as_py()] * 2 + [
            None,
            "{a,b}",
        ]


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="12 GB of memory")
def test_more_than_a_gigabyte_of_one_key() -> None:
    """1.2 GiB of new keys, and a few old ones; then as much again that is asked for twice."""
    keys = [f"{i:08}" + "k" * (1 << 20) for i in range(1230)]
    changes = [insert(TEXT, k=k, v="1", b=None) for k in keys]
    batch = HandBatch(0x1000, 0x1100, [*changes, update(TEXT, {"k": "old"}, k="new", v=UNCHANGED, b=None)])
    parts = [(relation, batch.relation_table(relation)) for relation in batch.relations]
    [stretch] = segment_folds(parts)
    rows = stretch.fold().rows
    assert rows.num_rows == len(keys) + 2
    assert sum(len(key.as_py() or "") for key in rows["n0"]) == len(keys) * len(keys[0]) + 6
    doubled = wide.taken(wide.one_array(rows["n0"]), pa.array([*range(rows.num_rows)] * 2))
    assert doubled.nbytes > 2 * GIB
    assert doubled[rows.num_rows] == doubled[0]
