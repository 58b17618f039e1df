"""Where the rows of a table without a key stand, which its changes name by all their values.

Large rows are told apart by digests of their values, of which one row is in memory at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa

from slotlake.spark.direct.live import Live
from slotlake.spark.direct.positions import KeyColumn, Matches, candidates, indices_in, matches_of
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.unsuitable import UnsuitableError

LARGE_ROWS_MAX: Final = 100_000


def bag_matches(live: Live, reading: Reading, wanted: Sequence[KeyColumn], *, large: bool) -> Matches:
    """Find all live rows that are equal to some rows; -0 is not 0.

    Args:
        wanted: all columns, with the rows that are looked for, each once.
        large: of which some have a megabyte or more.

    Raises:
        UnsuitableError: much would have to be read.
        LakeError: a file cannot be read.
    """
    if not len(wanted[0].values):
        return Matches.none()
    if not large:
        return matches_of(live, reading, wanted, one_zero=False)
    files = candidates(live, wanted)
    if sum(int(live.data[each].file.record_count) for each in files) > LARGE_ROWS_MAX:
        raise UnsuitableError("many rows of a table without a key would have to be read")
    reading.ahead(files)
    known = {digest: i for i, digest in enumerate(_digests([column.values for column in wanted]))}
    kinds = {column.number: column.values.type for column in wanted}
    rows: list[tuple[int, int, int]] = []
    for number, location in enumerate(files):
        deleted = set(reading.deleted(location).tolist())
        for start, columns in reading.pieces(location, kinds):
            for at, digest in enumerate(_digests([columns[c.number] for c in wanted]), start):
                if digest in known and at not in deleted:
                    rows.append((known[digest], number, at))
    index, file, position = np.array(rows, np.int64).reshape(-1, 3).T
    return Matches(files, index, file, position)


def bag_indices(
    rows: Sequence[KeyColumn], wanted: Sequence[KeyColumn], *, large: bool
) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return for each row the index of what is looked for that it is equal to; -1 if it is none of it.

    Args:
        rows: all columns, in the order and the types of ``wanted``.
        large: as in :func:`bag_matches`.
    """
    if not large:
        return indices_in([column.values for column in rows], wanted, one_zero=False)
    known = {digest: i for i, digest in enumerate(_digests([column.values for column in wanted]))}
    return np.array([known.get(each, -1) for each in _digests([c.values for c in rows])], np.int64)


def _digests(columns: Sequence[pa.Array]) -> list[bytes]:
    """Return a digest of each row's values; NULL equals NULL.

    Args:
        columns: of the rows.
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
