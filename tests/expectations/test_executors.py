"""Executors compute what slotlake computes, texts of every type, hashes, sums, and without its packages."""

from __future__ import annotations

import pickle
import random
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from pyspark import cloudpickle

from slotlake.decoder.types import oids
from slotlake.decoder.types.printing import print_float
from slotlake.decoder.types.representations import as_decimal, representation_of
from slotlake.decoder.types.table import column_type, from_text, to_text
from slotlake.expectations import hashing
from slotlake.expectations.executors import tasks, texts
from slotlake.expectations.executors.hashes import hash_texts
from slotlake.expectations.executors.side import SENT, kind_of
from slotlake.expectations.executors.texts import NUMERIC, Task, texts_of
from slotlake.expectations.source_side import BUCKETS
from slotlake.spark.tables.schema import LakeColumn
from tests.decoder.test_types import BESIDE, HELD

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(("oid", "typmod", "values"), [*HELD, *BESIDE])
def test_every_type_is_printed_as_here(oid: int, typmod: int, values: list[str]) -> None:
    kind = column_type(oid, typmod)
    typed, exact = from_text(pa.array([*values, None]), kind)
    batch = pa.RecordBatch.from_arrays(
        [typed, *([] if exact is None else [exact])], names=["a", *([] if exact is None else ["b"])]
    )
    printed_as = kind_of(LakeColumn("a", "a", oid, typmod, ""))
    assert printed_as is not None
    for part in (batch, batch.slice(1)):
        [printed] = texts_of(Task((printed_as,), (exact is not None,), 0, 8), part)
        assert printed.to_pylist() == [*values, None][-part.num_rows :]


def test_any_float_is_printed_as_here() -> None:
    """Of any bits, of the sizes where digits may lie half-way between two floats, and at the bounds."""
    numbers = np.random.default_rng(20261123)
    bounds = [1e-4, np.nextafter(1e-4, 0), 1e15, np.nextafter(1e15, 0), 1e6, np.nextafter(1e6, 0), -0.0]
    whole = numbers.integers(2**52, 2**62, 3000).astype(np.float64)
    doubles = np.concatenate(
        [np.frombuffer(numbers.bytes(16_000), "<f8"), whole, bounds, 2.0 ** np.arange(60)]
    )
    whole = numbers.integers(2**21, 2**31, 3000).astype(np.float32)
    singles = np.concatenate([np.frombuffer(numbers.bytes(8000), "<f4"), whole, np.array(bounds, np.float32)])
    for floats in (pa.array(doubles), pa.array(singles.astype(np.float32))):
        kind = column_type(701 if floats.type == pa.float64() else 700, -1)
        [printed] = texts_of(
            Task((texts.FLOAT,), (False,), 0, 8), pa.RecordBatch.from_arrays([floats], ["a"])
        )
        assert printed.to_pylist() == to_text(floats, None, kind).to_pylist()
    # Seen in the numbers above, too: what is half-way is not taken for the shortest.
    midpoint = pa.array([9007199254740992.0 * 10 + 16])
    assert texts._float(midpoint).to_pylist() == print_float(midpoint).to_pylist()


def _texts(count: int) -> pa.Array:
    """Short and long ones, of one byte a letter and of more; a few longer than all others; NULL."""
    draw = random.Random(7)
    short = ["".join(draw.choices("aé€x\\", k=draw.randint(0, 60))) for _ in range(count)]
    return pa.array([*short, "y" * 5000, "z" * 1201, "", None])


def test_any_text_is_hashed_as_here() -> None:
    array = _texts(2000)
    seeds = np.random.default_rng(5).integers(-(2**63), 2**63 - 1, len(array))
    seeds[0] = 0
    is_text = np.asarray(array.is_valid())
    assert (hash_texts(array, seeds) == hashing.hash_texts(array, seeds))[is_text].all()
    part = slice(3, 900)
    assert (hash_texts(array.slice(3, 897), seeds[part]) == hashing.hash_texts(array, seeds)[part]).all()
    assert texts.escaped_texts(array).to_pylist() == hashing.escaped_texts(array).to_pylist()


def _table(rows: int) -> pa.RecordBatch:
    array = _texts(rows)
    return pa.RecordBatch.from_arrays(
        [pa.array(range(len(array)), pa.int64()), array, pa.array([i % 3 == 0 for i in range(len(array))])],
        names=["id", "note", "flag"],
    )


def _here(batch: pa.RecordBatch, *, escaped: bool) -> tuple[hashing.Hashes, hashing.Hashes]:
    columns = [to_text(batch.column(i), None, column_type(oid, -1)) for i, oid in enumerate((20, 25, 16))]
    if escaped:
        columns = [hashing.escaped_texts(column) for column in columns]
    rows = hashing.chain(columns[:1], hashing.hash_columns(columns[1:]))
    return hashing.chain(columns[:1], np.full(len(rows), hashing.KEY_SEED, np.int64)), rows


_TASK = Task((texts.INT, texts.TEXT, texts.BOOL), (False, False, False), 1, BUCKETS)


@pytest.mark.parametrize("escaped", [False, True])
def test_sums_and_hashes_are_as_here(escaped: bool) -> None:
    task = Task(_TASK.kinds, _TASK.exacts, 1, BUCKETS, escaped)
    batch = _table(5000)
    keys, rows = _here(batch, escaped=escaped)
    bucket = keys & (BUCKETS - 1)
    counts, totals = hashing.sums(bucket, rows, BUCKETS)
    [sums] = tasks.sums_of(task, [batch.slice(0, 0), batch.slice(0, 100), batch.slice(100)])
    of_bucket = {
        b: (n, high * 2**32 + low) for b, n, low, high in zip(*sums.to_pydict().values(), strict=True)
    }
    assert of_bucket == {b: (int(counts[b]), totals[b]) for b in np.flatnonzero(counts).tolist()}
    wanted = np.zeros(BUCKETS, bool)
    wanted[bucket[:5]] = True
    [pairs] = tasks.hashes_of(task, wanted, [batch])
    assert pairs["k"].to_pylist() == keys[wanted[bucket]].tolist()
    assert pairs["r"].to_pylist() == rows[wanted[bucket]].tolist()
    [chosen] = tasks.rows_of(task, np.sort(keys[[4, 9]]), [batch])
    assert chosen.to_pydict() == {
        "k": keys[[4, 9]].tolist(),
        "v0": ["4", "9"],
        "v1": batch["note"].take(pa.array([4, 9])).to_pylist(),
        "v2": ["f", "t"],
    }


def test_a_table_without_a_key_is_hashed_as_here() -> None:
    batch = _table(50)
    columns = [to_text(batch.column(i), None, column_type(oid, -1)) for i, oid in enumerate((20, 25, 16))]
    rows = hashing.chain([], hashing.hash_columns(columns))
    task = Task(_TASK.kinds, _TASK.exacts, 0, BUCKETS)
    [pairs] = tasks.hashes_of(task, np.ones(BUCKETS, bool), [batch])
    assert pairs["k"].to_pylist() == pairs["r"].to_pylist() == rows.tolist()


_ELSEWHERE = """
import pickle, sys
class Refused:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in ("slotlake", "numba", "pandas"):
            raise ImportError(f"no {name} here")
sys.meta_path.insert(0, Refused())
import pyarrow as pa
function, batch = pickle.load(sys.stdin.buffer)
[sums] = function([batch])
pickle.dump(sums.to_pydict(), sys.stdout.buffer)
"""


def test_a_machine_without_slotlake_computes_them(tmp_path: Path) -> None:
    batch = _table(100)
    for module in SENT:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        sent = cloudpickle.dumps((partial(tasks.sums_of, _TASK), batch))  # type: ignore[no-untyped-call]
    finally:
        for module in SENT:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    done = subprocess.run(
        [sys.executable, "-P", "-c", _ELSEWHERE], input=sent, cwd=tmp_path, check=True, capture_output=True
    )
    [expected] = tasks.sums_of(_TASK, [batch])
    assert pickle.loads(done.stdout) == expected.to_pydict()


def test_a_decimal_of_choice_is_printed_as_here() -> None:
    """Without zeros at its end, or as the exact text says."""
    form = representation_of(as_decimal(38, 10), oids.NUMERIC, -1)
    expected = ["1.5", "1.50", "100", "0", "0.00", "-0.0000000001", "NaN", "9" * 28 + ".9", None]
    typed, exact = form.keep(pa.array(expected), None)
    assert exact is not None
    (batch,) = pa.table({"n": typed, "n__exact": exact}).to_batches()
    (printed,) = texts_of(Task((NUMERIC,), (True,), 1, 2), batch)
    assert printed.to_pylist() == expected
