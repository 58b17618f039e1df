"""Arrays of text and bytes of any size: they get 64-bit offsets if 32 bits cannot address all bytes (2 GiB).

Arrow does not join arrays with different offsets, and fails if a result is larger than its type can address.
So all code that joins arrays of values, or takes values by index, uses these functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc

_OFFSET_BYTES_MAX = 2**31 - 1
_UNEVEN = 8
_WIDER = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
_NARROWER = {wide: narrow for narrow, wide in _WIDER.items()}


def joined(arrays: Sequence[pa.Array]) -> pa.Array:
    """The arrays joined; at least one, and all of one type except for the width of their offsets."""
    arrays = alike(*arrays)
    return arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)


def one_array(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    """A column as one array."""
    if isinstance(column, pa.Array):
        return column
    return joined(column.chunks) if column.num_chunks else pa.array([], column.type)


def taken(array: pa.Array, indices: pa.Array) -> pa.Array:
    """The values at these places; a place may come several times."""
    if array.type in _WIDER and len(array):
        times = -(-len(indices) // len(array)) + 1
        # An estimate is enough for small arrays; for large ones the size of the result is computed.
        if array.nbytes * times * _UNEVEN > _OFFSET_BYTES_MAX:
            size = pc.sum(pc.binary_length(array).cast(pa.int64()).take(indices)).as_py()
            array = _widened(array) if (size or 0) > _OFFSET_BYTES_MAX else array
    return array.take(indices)


def alike(*arrays: pa.Array) -> list[pa.Array]:
    """The same arrays, all with 64-bit offsets if one of them has them, or if all together need them."""
    if any(array.type in _NARROWER for array in arrays) or (
        sum(array.nbytes for array in arrays) > _OFFSET_BYTES_MAX
    ):
        return [_widened(array) for array in arrays]
    return list(arrays)


def narrow_pieces(array: pa.Array) -> Iterator[pa.Array]:
    """The same values in pieces with 32-bit offsets; at least one piece.

    No value is too large for such a piece: PostgreSQL's values have at most 1 GiB.
    """
    narrow = _NARROWER.get(array.type)
    if narrow is None:
        yield array
    elif array.nbytes <= _OFFSET_BYTES_MAX or len(array) <= 1:
        yield array.cast(narrow)
    else:
        half = len(array) // 2
        yield from narrow_pieces(array.slice(0, half))
        yield from narrow_pieces(array.slice(half))


def _widened(array: pa.Array) -> pa.Array:
    wider = _WIDER.get(array.type)
    return array if wider is None else array.cast(wider)
