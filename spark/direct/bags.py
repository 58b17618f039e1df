"""Where the large rows of a table without a key stand, which its changes name by all their values.

Rows are told apart by digests of their values, of which one row is in memory at a time.  That is slow for
many rows, which Spark compares, and the way for few of many megabytes, which Spark has no memory for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from slotlake.spark.direct.live import Live
from slotlake.spark.direct.positions import KeyColumn, candidates
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.unsuitable import UnsuitableError

ROWS_MAX: Final = 100_000
Place = tuple[str, int]


def bag_places(live: Live, reading: Reading, wanted: Sequence[KeyColumn]) -> list[list[Place]]:
    """Find all live rows that are equal to some rows.

    Args:
        wanted: all columns, with the rows that are looked for, each once.

    Returns:
        For each of them data files and positions, in their order.

    Raises:
        UnsuitableError: many rows would have to be read.
        LakeError: a file cannot be read.
    """
    files = candidates(live, wanted)
    if sum(int(live.data[each].file.record_count) for each in files) > ROWS_MAX:
        raise UnsuitableError("many rows of a table without a key would have to be read")
    reading.ahead(files)
    places: dict[bytes, list[Place]] = {each: [] for each in digests([c.values for c in wanted])}
    kinds = {column.number: column.values.type for column in wanted}
    for location in files:
        deleted = set(reading.deleted(location).tolist())
        for start, columns in reading.pieces(location, kinds):
            for at, digest in enumerate(digests([columns[c.number] for c in wanted]), start):
                if digest in places and at not in deleted:
                    places[digest].append((location, at))
    return list(places.values())


def digests(columns: Sequence[pa.Array]) -> list[bytes]:
    """Return a digest of each row's values; NULL equals NULL.

    Args:
        columns: of the rows, none of them of floats, of which equal ones may differ.
    """
    return [_digest([column[row] for column in columns]) for row in range(len(columns[0]))]


def _digest(values: Sequence[Any]) -> bytes:
    total = hashlib.blake2b(digest_size=32)
    for value in values:
        content = _content(value) if value.is_valid else b""
        total.update((len(content) if value.is_valid else -1).to_bytes(8, "big", signed=True))
        total.update(content)
    return total.digest()


def _content(value: Any) -> Any:
    """The bytes of a value; of one of text or bytes without a copy."""
    if hasattr(value, "as_buffer"):
        return value.as_buffer()
    return repr(value.value if hasattr(value, "value") else value.as_py()).encode()
