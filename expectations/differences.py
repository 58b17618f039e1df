"""Which rows a lake table and its source do not have in common, and what these rows are.

The search is that of a reconciliation (hashes by bucket, then by row), in memory that does not grow with the
table: all buckets of a large one differ as soon as some ten thousand of its rows do, so as many are looked at
at a time as fit.  What differs is then fetched, from the source as text of PostgreSQL's output functions,
from the lake as the text that these would give.  Invariant: nothing is fetched of rows that are the same on
both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import psycopg

from slotlake.expectations.hashing import Hashes
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.results import DIFFERENT, DUPLICATED, EXTRA, MISSING, Difference
from slotlake.expectations.shapes import Compared, LakeReadPoint, LakeTableShape, SourceTableShape
from slotlake.expectations.source_side import RowDetail, SourceTable, Sums, hashes_escaped

Row = tuple[str | None, ...]
KINDS = (MISSING, EXTRA, DIFFERENT, DUPLICATED)
# Rows of both sides. Their arrays take some 60 bytes each at the peak, the process some 100.
ROWS_AT_ONCE = 8 << 20


class Hashed(Protocol):
    """One side of a comparison."""

    def hashes(self, buckets: Sequence[int]) -> tuple[Hashes, Hashes]:
        """Return the key's and the row's hash of each row in some buckets."""


@dataclass(frozen=True)
class Differing:
    """Keys that differ; without a key, each distinct row is one.

    Attributes:
        keys: the hash of each.
        kinds: what is wrong with it, a position in `KINDS`.
        rows: how many rows are missing or too many; 1 for other values.
    """

    keys: Hashes
    kinds: npt.NDArray[np.int8]
    rows: Hashes

    @classmethod
    def joined(cls, parts: Sequence[Differing]) -> Differing:
        """All of these together."""
        parts = [cls(np.zeros(0, np.int64), np.zeros(0, np.int8), np.zeros(0, np.int64)), *parts]
        return cls(*(np.concatenate([getattr(part, name) for part in parts]) for name in _COLUMNS))

    def __len__(self) -> int:
        return len(self.keys)

    def of(self, *kinds: str) -> Differing:
        """Those of some kinds."""
        return self._taken(np.isin(self.kinds, [KINDS.index(kind) for kind in kinds]))

    def first(self, count: int) -> Differing:
        """The first so many."""
        return self._taken(slice(count))

    def counts(self) -> dict[str, int]:
        """Rows of each kind that there is."""
        rows = {kind: int(self.of(kind).rows.sum()) for kind in KINDS}
        return {kind: count for kind, count in rows.items() if count}

    def __iter__(self) -> Iterator[tuple[str, int, int]]:
        """Kind, key hash and rows of each."""
        kinds = [KINDS[kind] for kind in self.kinds.tolist()]
        return iter(zip(kinds, self.keys.tolist(), self.rows.tolist(), strict=True))

    def _taken(self, which: npt.NDArray[np.bool_] | slice) -> Differing:
        return Differing(self.keys[which], self.kinds[which], self.rows[which])


_COLUMNS = ("keys", "kinds", "rows")


def differing_buckets(expected: Sums, actual: Sums) -> list[int]:
    """Return the buckets that do not hold the same."""
    return sorted(b for b in expected.keys() | actual.keys() if expected.get(b) != actual.get(b))


def differing_parts(source: Hashed, lake: Hashed, expected: Sums, actual: Sums) -> Iterator[Differing]:
    """Look closer at the buckets that differ, some at a time."""
    for buckets in _in_groups(expected, actual):
        yield differing_rows(source.hashes(buckets), lake.hashes(buckets))


def _in_groups(expected: Sums, actual: Sums) -> Iterator[list[int]]:
    group, rows = list[int](), 0
    for bucket in differing_buckets(expected, actual):
        more = sum(side[bucket][0] for side in (expected, actual) if bucket in side)
        if group and rows + more > ROWS_AT_ONCE:
            yield group
            group, rows = [], 0
        group.append(bucket)
        rows += more
    if group:
        yield group


def described(
    table: Compared, what: tuple[str, int], source_row: RowDetail | None, lake_row: RowDetail | None
) -> Difference:
    """Return a row that differs, with its key and the columns that differ.

    Args:
        what: the kind of the difference, and how many rows it stands for.
        source_row: the source's row; None if there is none.
        lake_row: the lake's row; None if there is none.
    """
    kind, rows = what
    row = source_row or lake_row
    columns: tuple[str, ...] = ()
    if kind == DIFFERENT and source_row is not None and lake_row is not None:
        sides = zip(table.values, source_row.hashes, lake_row.hashes, strict=True)
        columns = tuple(name for (name, _), source, lake in sides if source != lake)
    return Difference(kind, row.name if row else {}, columns, rows)


def differing_rows(source: tuple[Hashes, Hashes], lake: tuple[Hashes, Hashes]) -> Differing:
    """Return the keys that are not the same on both sides, in the order of their hashes.

    Args:
        source: key and row hash of each row; without a key both are the same.
    """
    (keys_a, counts_a, sums_a), (keys_b, counts_b, sums_b) = _per_key(*source), _per_key(*lake)
    keys = np.union1d(keys_a, keys_b)
    in_a, in_b = _spread(keys, keys_a, counts_a), _spread(keys, keys_b, counts_b)
    same = (in_a == in_b) & (_spread(keys, keys_a, sums_a) == _spread(keys, keys_b, sums_b))
    keys, in_a, in_b = keys[~same], in_a[~same], in_b[~same]
    cases = [in_b < in_a, in_a == 0, in_b > in_a]
    kinds = np.select(
        cases, [KINDS.index(kind) for kind in (MISSING, EXTRA, DUPLICATED)], KINDS.index(DIFFERENT)
    )
    return Differing(keys, kinds.astype(np.int8), np.maximum(np.abs(in_a - in_b), 1))


def _per_key(keys: Hashes, rows: Hashes) -> tuple[Hashes, Hashes, Hashes]:
    """Distinct keys, their rows, and the sum (modulo 2^64) of the rows' hashes."""
    order = np.argsort(keys, kind="stable")
    keys, rows = keys[order], rows[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else order
    counts = np.diff(np.append(starts, len(keys)))
    return keys[starts], counts.astype(np.int64), np.add.reduceat(rows, starts) if len(keys) else rows


def _spread(keys: Hashes, own: Hashes, values: Hashes) -> Hashes:
    """``values`` of ``own`` keys laid out over all ``keys``; 0 where it has none."""
    laid = np.zeros(len(keys), np.int64)
    laid[np.searchsorted(keys, own)] = values
    return laid


@dataclass(frozen=True)
class TableDifferences:
    """One table compared.

    Attributes:
        differences: the keys, or of a table without one the rows, that differ.
    """

    table: Compared
    source_rows: int
    lake_rows: int
    differences: Differing = field(repr=False)

    def rows(self, *kinds: str) -> int:
        """How many rows differ, of all kinds or of these."""
        return int((self.differences.of(*kinds) if kinds else self.differences).rows.sum())

    @property
    def counts(self) -> dict[str, int]:
        """Rows per kind, of those that there are."""
        return self.differences.counts()


def compare_table(
    connection: psycopg.Connection[Any],
    read_point: LakeReadPoint,
    name: str,
    source: SourceTableShape,
    lake: LakeTableShape,
) -> TableDifferences:
    """Compare a table as the connection's snapshot shows it with the lake's.

    Args:
        connection: of :func:`expectations.source_side.snapshot_session`.

    Raises:
        SourceError: the server may not be read in full.
        LakeError: the lake cannot be read.
    """
    table = Compared.of(name, source, lake, escaped=hashes_escaped(connection))
    source_table, lake_table = SourceTable(connection, table), LakeTable(read_point, table)
    expected, actual = source_table.sums(), lake_table.sums()
    differences = Differing.joined([*differing_parts(source_table, lake_table, expected, actual)])
    in_source, in_lake = (sum(count for count, _ in side.values()) for side in (expected, actual))
    return TableDifferences(table, in_source, in_lake, differences)


def source_rows(
    connection: psycopg.Connection[Any], table: Compared, keys: Sequence[int], columns: Sequence[str]
) -> Iterator[tuple[int, Row]]:
    """Yield (key hash, values of these columns) of the source's rows with these key hashes.

    Args:
        connection: of :func:`expectations.source_side.snapshot_session`.
    """
    return SourceTable(connection, table).rows(keys, columns) if keys else iter(())


def lake_rows(
    read_point: LakeReadPoint, table: Compared, keys: Sequence[int], columns: Sequence[str]
) -> Mapping[int, Row]:
    """Return key hash → values of these columns; of rows with the same key, one."""
    values_by_key: dict[int, Row] = {}
    for batch, hashes in LakeTable(read_point, table).chosen(keys):
        picked = [batch.column(name).to_pylist() for name in columns]
        values_by_key.update(zip(hashes.tolist(), zip(*picked, strict=True), strict=True))
    return values_by_key
