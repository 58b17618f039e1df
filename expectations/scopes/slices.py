"""A slice of a table that both sides can choose: a range of whole numbers, or a part by the hash of the key.

A range can be read by the key's index.  By the hash, the source reads the table and hashes each key, but only
the rows of the slice are compared.  Invariant: the slices of a table (`sliced`) have each row once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from slotlake.decoder.compiled.arrays import elements
from slotlake.expectations.hashing import KEY_SEED, chain, chain_sql, escaped_texts
from slotlake.expectations.shapes import Compared
from slotlake.spark.read.chosen_rows import Mask, Range

WHOLE_NUMBERS = {20, 21, 23}  # int8, int2, int4
_STATISTICS = """
SELECT histogram_bounds::pg_catalog.text FROM pg_catalog.pg_stats
WHERE schemaname = %s AND tablename = %s AND attname = %s AND histogram_bounds IS NOT NULL
ORDER BY inherited DESC LIMIT 1
"""


@dataclass(frozen=True)
class Slice:
    """Some rows of a table; with neither ends nor buckets, all.

    Attributes:
        low: the least value of the key's first column; None: without that end.
        high: the first value after it; None: likewise.
        bucket: which part of the keys, by their hash.
        buckets: in how many parts the keys are, a power of two.
    """

    low: int | None = None
    high: int | None = None
    bucket: int = 0
    buckets: int = 1

    @classmethod
    def of(cls, note: Mapping[str, Any]) -> Slice:
        """Read what `noted` has written."""
        return cls(note.get("low"), note.get("high"), note.get("bucket", 0), note.get("buckets", 1))

    @property
    def noted(self) -> dict[str, Any]:
        """As values of JSON."""
        if self.buckets > 1:
            return {"bucket": self.bucket, "buckets": self.buckets}
        return {"low": self.low, "high": self.high}

    @property
    def is_all(self) -> bool:
        """Return whether it has all rows."""
        return self.low is None and self.high is None and self.buckets == 1

    def overlaps(self, other: Slice) -> bool:
        """Return whether a row can be in both."""
        if self.buckets > 1 or other.buckets > 1:
            few = min(self.buckets, other.buckets)
            return self.bucket % few == other.bucket % few
        after = self.low is not None and other.high is not None and other.high <= self.low
        before = self.high is not None and other.low is not None and self.high <= other.low
        return not (after or before)


@dataclass(frozen=True)
class SliceRows:
    """The rows of a slice of one table, on either side."""

    table: Compared
    slice: Slice

    @property
    def key(self) -> Sequence[str]:
        """The columns whose texts decide."""
        names = [name for name, _ in self.table.key]
        return names if self.slice.buckets > 1 else names[:1]

    @property
    def range(self) -> Range | None:
        """Within what the first of them is."""
        return None if self.slice.buckets > 1 else Range(self.slice.low, self.slice.high)

    def mask(self, key: Sequence[pa.Array[Any]]) -> Mask:
        """Which rows are in the slice."""
        if self.slice.buckets > 1:
            texts = [escaped_texts(column) if self.table.escaped else column for column in key]
            hashes = chain(texts, np.full(len(key[0]), KEY_SEED, np.int64))
            parts: Mask = hashes & (self.slice.buckets - 1) == self.slice.bucket
            return parts
        numbers = elements(key[0].cast(pa.int64()).buffers()[1], np.int64, len(key[0]))
        inside: Mask = np.ones(len(numbers), np.bool_)
        if self.slice.low is not None:
            inside &= numbers >= self.slice.low
        if self.slice.high is not None:
            inside &= numbers < self.slice.high
        return inside

    @property
    def at_source(self) -> Compared:
        """The table with a condition that chooses the slice's rows."""
        own, condition = self.table.row_filter, self._condition()
        return replace(self.table, row_filter=f"({own}) AND ({condition})" if own else condition)

    def _condition(self) -> str:
        quoted = [('"' + name.replace('"', '""') + '"', oid) for name, oid in self.table.key]
        if self.slice.buckets > 1:
            hashed = chain_sql(quoted, str(KEY_SEED), escaped=self.table.escaped)
            return f"({hashed}) & {self.slice.buckets - 1} = {self.slice.bucket}"
        name = quoted[0][0]
        ends = [f"{name} >= {self.slice.low}"] if self.slice.low is not None else []
        ends += [f"{name} < {self.slice.high}"] if self.slice.high is not None else []
        return " AND ".join(ends)


def sliced(
    connection: psycopg.Connection[Any], names: tuple[str, str], key: Sequence[tuple[str, int]], count: int
) -> list[Slice]:
    """Cut a table into slices of about the same size.

    Args:
        key: names and type OIDs of the key's columns; without one there is one slice.
    """
    if not key or count < 2:
        return [Slice()]
    if key[0][1] not in WHOLE_NUMBERS:
        buckets = 1 << (count - 1).bit_length()
        return [Slice(bucket=bucket, buckets=buckets) for bucket in range(buckets)]
    limits = _limits(_bounds(connection, names, key[0][0]), count)
    return [Slice(low, high) for low, high in pairwise([None, *limits, None])]


def _bounds(connection: psycopg.Connection[Any], names: tuple[str, str], column: str) -> list[int]:
    """Values of a column between which there are about as many rows each; the first and the last at least."""
    row = connection.execute(_STATISTICS.encode(), (*names, column)).fetchone()
    if row is not None:
        return [int(value) for value in row[0].strip("{}").split(",")]
    quoted = psycopg.sql.Identifier(column)
    statement = psycopg.sql.SQL("SELECT min({0})::int8, max({0})::int8 FROM {1}")
    ends = connection.execute(statement.format(quoted, psycopg.sql.Identifier(*names))).fetchone()
    return [] if ends is None or ends[0] is None else [int(ends[0]), int(ends[1])]


def _limits(bounds: Sequence[int], count: int) -> list[int]:
    if len(bounds) < 2:
        return []
    limits = []
    for number in range(1, count):  # whole numbers: those of int8 do not fit into floats
        at, rest = divmod(number * (len(bounds) - 1), count)
        above = bounds[at + 1] if at + 1 < len(bounds) else bounds[at]
        limits.append(bounds[at] + (above - bounds[at]) * rest // count)
    return sorted(set(limits) - {bounds[0]})
