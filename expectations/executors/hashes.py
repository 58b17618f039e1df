"""PostgreSQL's `hashtextextended` over whole arrays of texts; see `tasks` for where this runs."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Hashes = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint32]

_BLOCK_BYTES = 12
# Rows that still have a block of text to hash: below so many, Python's integers are as fast as arrays.
_FEW_ROWS = 12
_LOW = 0xFFFFFFFF


def hash_texts(texts: pa.Array, seeds: Hashes) -> Hashes:
    """Return ``hashtextextended(text, seed)`` of each row (hashfn.c, hash_bytes_extended).

    Args:
        texts: the texts; of a null anything comes out.
        seeds: of each row.
    """
    starts, data = starts_of(texts)
    lengths = np.diff(starts)
    starts = starts[:-1]
    # Each place of the data as the start of a word of four bytes, and room for the last three words.
    padded = np.concatenate([data, np.zeros(_BLOCK_BYTES + 4, np.uint8)])
    words = np.ndarray(len(padded) - 3, "<u4", padded, strides=(1,))
    state = _seeded(lengths, seeds.view(np.uint64))
    blocks = lengths // _BLOCK_BYTES
    _hash_blocks(state, words, starts, blocks)
    left, at = lengths - blocks * _BLOCK_BYTES, starts + blocks * _BLOCK_BYTES
    a, b, c = state
    a += words[at] & _MASKS[np.minimum(left, 4)]
    b += words[at + 4] & _MASKS[np.clip(left - 4, 0, 4)]
    c += (words[at + 8] & _MASKS[np.clip(left - 8, 0, 3)]) << np.uint32(8)  # its lowest byte is the length's
    b, c = _finished(a, b, c)
    return ((b.astype(np.uint64) << np.uint64(32)) | c).view(np.int64)


_MASKS = np.array([0, 0xFF, 0xFFFF, 0xFFFFFF, 0xFFFFFFFF], np.uint32)


def _seeded(lengths: npt.NDArray[np.int64], seeds: npt.NDArray[np.uint64]) -> _Words:
    state = np.empty((3, len(lengths)), np.uint32)
    state[:] = (lengths + (0x9E3779B9 + 3923095)).astype(np.uint64).astype(np.uint32)
    seeded = seeds != 0
    if seeded.any():
        a, b, c = state
        high, low = (seeds >> np.uint64(32)).astype(np.uint32), seeds.astype(np.uint32)
        mixed = np.stack(_mixed(a + high, b + low, c))
        state = mixed if seeded.all() else np.where(seeded, mixed, state)
    return state


def _hash_blocks(state: _Words, words: _Words, starts: Hashes, blocks: Hashes) -> None:
    """Mix in the whole blocks of 12 bytes: the first ones of all rows, then the second ones."""
    done, rows = 0, np.flatnonzero(blocks)
    while len(rows) > _FEW_ROWS:
        a, b, c = state[:, rows]
        at = starts[rows] + _BLOCK_BYTES * done
        state[:, rows] = _mixed(a + words[at], b + words[at + 4], c + words[at + 8])
        done += 1
        rows = rows[blocks[rows] > done]
    for row in rows.tolist():
        first, end = (
            int(starts[row]) + _BLOCK_BYTES * done,
            int(starts[row]) + _BLOCK_BYTES * int(blocks[row]),
        )
        values = words[first:end:4].tolist()
        a, b, c = state[:, row].tolist()
        for i in range(0, len(values), 3):
            a, b, c = _mixed_one(a + values[i], b + values[i + 1], c + values[i + 2])
        state[:, row] = a, b, c


def _rotated(value: _Words, bits: int) -> _Words:
    return (value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


def _mixed(a: _Words, b: _Words, c: _Words) -> tuple[_Words, _Words, _Words]:
    a = (a - c) ^ _rotated(c, 4)
    c = c + b
    b = (b - a) ^ _rotated(a, 6)
    a = a + c
    c = (c - b) ^ _rotated(b, 8)
    b = b + a
    a = (a - c) ^ _rotated(c, 16)
    c = c + b
    b = (b - a) ^ _rotated(a, 19)
    a = a + c
    c = (c - b) ^ _rotated(b, 4)
    return a, b + a, c


def _finished(a: _Words, b: _Words, c: _Words) -> tuple[_Words, _Words]:
    c = (c ^ b) - _rotated(b, 14)
    a = (a ^ c) - _rotated(c, 11)
    b = (b ^ a) - _rotated(a, 25)
    c = (c ^ b) - _rotated(b, 16)
    a = (a ^ c) - _rotated(c, 4)
    b = (b ^ a) - _rotated(a, 14)
    return b, (c ^ b) - _rotated(b, 24)


def _rotated_one(value: int, bits: int) -> int:
    return ((value << bits) | (value >> (32 - bits))) & _LOW


def _mixed_one(a: int, b: int, c: int) -> tuple[int, int, int]:
    a, b, c = a & _LOW, b & _LOW, c & _LOW
    a = ((a - c) & _LOW) ^ _rotated_one(c, 4)
    c = (c + b) & _LOW
    b = ((b - a) & _LOW) ^ _rotated_one(a, 6)
    a = (a + c) & _LOW
    c = ((c - b) & _LOW) ^ _rotated_one(b, 8)
    b = (b + a) & _LOW
    a = ((a - c) & _LOW) ^ _rotated_one(c, 16)
    c = (c + b) & _LOW
    b = ((b - a) & _LOW) ^ _rotated_one(a, 19)
    a = (a + c) & _LOW
    c = ((c - b) & _LOW) ^ _rotated_one(b, 4)
    return a, (b + a) & _LOW, c


def starts_of(values: pa.Array) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Return where each value starts, and the last one ends, and the bytes of all.

    Args:
        values: strings or binary values.
    """
    _, offsets, data = values.buffers()
    is_large = pa.types.is_large_string(values.type) or pa.types.is_large_binary(values.type)
    if offsets is None or not len(values):
        return np.zeros(len(values) + 1, np.int64), np.zeros(0, np.uint8)
    kind: npt.DTypeLike = np.int64 if is_large else np.int32
    starts = np.frombuffer(cast("Any", offsets), kind)
    starts = starts[values.offset : values.offset + len(values) + 1].astype(np.int64)
    bytes_ = (
        np.frombuffer(cast("Any", data), np.uint8)
        if data is not None and data.size
        else np.zeros(0, np.uint8)
    )
    return starts - starts[0], bytes_[starts[0] : starts[-1]]
