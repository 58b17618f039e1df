"""Keys as bits: what a batch broadcasts where its keys are integers that lie close enough.

Spark's table of keys to look up in takes about 48 bytes for each: the driver makes it, and each executor
reads it.  One bit for each number between takes less from one key in 384 on, and no hash is made of a row's
key.  Numbers are divided into chunks, and only chunks that hold a key are sent.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

BITS: Final = "chunk bigint, bits array<bigint>"
_CHUNK_BITS, _WORD_BITS = 14, 6
_WORDS: Final = 1 << (_CHUNK_BITS - _WORD_BITS)
# As much as one key takes in Spark's own table.
KEY_BYTES: Final = 48


def key_bits(keys: pa.ChunkedArray) -> pa.Table | None:
    """Return keys as bits; None if that is no less than Spark's table of them, or if they are no integers.

    Args:
        keys: one for each row.

    Returns:
        One row for each chunk of 16,384 numbers that has a key: ``chunk``, the numbers' upper bits (int64),
        and ``bits``, 256 words of 64 numbers each (list of int64), the smallest number in the lowest bit.
    """
    if keys.null_count or not pa.types.is_integer(keys.type):
        return None
    numbers = keys.to_numpy().astype(np.int64, copy=False)
    chunks, places = np.unique(numbers >> _CHUNK_BITS, return_inverse=True)
    if not len(chunks) or len(chunks) * _WORDS * 8 > len(numbers) * KEY_BYTES:
        return None
    words = np.zeros(len(chunks) * _WORDS, np.uint64)
    word = places * _WORDS + ((numbers >> _WORD_BITS) & (_WORDS - 1))
    np.bitwise_or.at(words, word, np.uint64(1) << (numbers & ((1 << _WORD_BITS) - 1)).astype(np.uint64))
    offsets = pa.array(np.arange(0, len(words) + 1, _WORDS), pa.int32())
    bits = pa.ListArray.from_arrays(offsets, pa.array(words.view(np.int64)))
    return pa.table({"chunk": pa.array(chunks), "bits": bits})


def has_key(name: str) -> tuple[str, ...]:
    """Return the conditions, in Spark SQL, that a number is one of `key_bits`, whose rows are ``s``.

    Args:
        name: the number, in SQL; of any integer type.
    """
    number = f"CAST({name} AS BIGINT)"
    word = f"get(s.bits, CAST(shiftright({number}, {_WORD_BITS}) & {_WORDS - 1} AS INT))"
    bit = f"shiftright({word}, CAST({number} & {(1 << _WORD_BITS) - 1} AS INT)) & 1"
    return f"shiftright({number}, {_CHUNK_BITS}) = s.chunk", f"({bit}) = 1"
