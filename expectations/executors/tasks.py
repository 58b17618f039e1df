"""What Spark's executors do with a table's rows: they hash them, and return sums, hashes, or rows by hash.

The functions of this package but those of `reader` and `side` are sent to the executors as they are.  There
they find Python, numpy and pyarrow, which Spark's own functions in Python need, and nothing else: no numba,
no package of slotlake.  So `texts` and `hashes` are `decoder.types.printing` and `expectations.hashing` once
more, over whole arrays in place of compiled loops.

Invariant: `texts.texts_of` gives the same texts as `Representation.text`, `hashes.hash_texts` the same hashes
as `hashing.hash_texts`.  Tests hold them equal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from slotlake.expectations.executors.hashes import Hashes, hash_texts
from slotlake.expectations.executors.texts import Task, escaped_texts, texts_of

Batches = Iterable[pa.RecordBatch]

_KEY_SEED = 0x736C6F746C616B65  # as in `expectations.hashing`
# A sum of so many halves of 32 bits is exact as a float, in which `bincount` adds.
_ROWS_AT_ONCE = 1 << 20
_LOW = 0xFFFFFFFF


def sums_of(task: Task, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield (bucket, rows, low, high): rows of each bucket, and the sums of both halves of their hashes."""
    totals = np.zeros((3, task.buckets), np.int64)
    for _, keys, rows in _hashed(task, batches):
        for start in range(0, len(keys), _ROWS_AT_ONCE):
            part = slice(start, start + _ROWS_AT_ONCE)
            bucket, hashes = keys[part] & (task.buckets - 1), rows[part]
            totals[0] += np.bincount(bucket, minlength=task.buckets)
            for place, half in ((1, hashes & _LOW), (2, hashes >> 32)):
                totals[place] += np.bincount(bucket, half, task.buckets).astype(np.int64)
    filled = np.flatnonzero(totals[0])
    arrays = [pa.array(filled), *(pa.array(each[filled]) for each in totals)]
    yield pa.RecordBatch.from_arrays(arrays, names=["bucket", "rows", "low", "high"])


def hashes_of(task: Task, buckets: npt.NDArray[np.bool_], batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield (k, r): the key's and the row's hash of each row in some buckets.

    Args:
        buckets: of each bucket, whether it is one of them.
    """
    for _, keys, rows in _hashed(task, batches):
        chosen = buckets[keys & (task.buckets - 1)]
        if chosen.any():
            arrays = [pa.array(keys[chosen]), pa.array(rows[chosen])]
            yield pa.RecordBatch.from_arrays(arrays, names=["k", "r"])


def rows_of(task: Task, wanted: Hashes, batches: Batches) -> Iterator[pa.RecordBatch]:
    """Yield (k, v0, v1, …): the key's hash and the texts of each row that has one of these key hashes."""
    for texts, keys, _ in _hashed(task, batches):
        places = np.minimum(np.searchsorted(wanted, keys), len(wanted) - 1)
        chosen = pa.array(np.flatnonzero(wanted[places] == keys))
        if len(chosen):
            arrays: list[pa.Array] = [pa.array(keys).take(chosen)]
            arrays += [each.take(chosen).cast(pa.string()) for each in texts]
            names = ["k", *(f"v{i}" for i in range(len(texts)))]
            yield pa.RecordBatch.from_arrays(arrays, names=names)


def _hashed(task: Task, batches: Batches) -> Iterator[tuple[list[pa.Array], Hashes, Hashes]]:
    """The texts of the columns, and the key's and the row's hash of each row."""
    for batch in batches:
        if not batch.num_rows:
            continue
        texts = texts_of(task, batch)
        hashable = [escaped_texts(each) for each in texts] if task.escaped else texts
        key, values = hashable[: task.keys], hashable[task.keys :]
        combined = np.zeros(batch.num_rows, np.int64)
        for number, column in enumerate(values):
            combined ^= _column_hashes(column, number)
        rows = _chain(key, combined)
        yield texts, _chain(key, np.full(batch.num_rows, _KEY_SEED, np.int64)) if key else rows, rows


def _column_hashes(column: pa.Array, number: int) -> Hashes:
    hashes = hash_texts(column, np.full(len(column), number, np.int64))
    if column.null_count:
        hashes[np.asarray(column.is_null())] = (number + 1) * 0x5851F42D4C957F2D % 2**63
    return hashes


def _chain(key: Sequence[pa.Array], seeds: Hashes) -> Hashes:
    for column in key or [pa.repeat(pa.scalar("", pa.string()), len(seeds))]:
        seeds = hash_texts(column, seeds)
    return seeds
