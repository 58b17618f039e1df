"""Which rows a lake table and its source do not have in common, and what these rows are.

The search is that of a reconciliation (hashes by bucket, then by row); what it found is then fetched, from
the source as text of PostgreSQL's output functions, from the lake as the text that these would
give.  Invariant: nothing is fetched of rows that are the same on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.reconcile import differing_rows
from slotlake.expectations.results import DIFFERENT, DUPLICATED, EXTRA, MISSING
from slotlake.expectations.shapes import Compared, LakeReadPoint, LakeTableShape, SourceTableShape
from slotlake.expectations.source_side import SourceTable, hashes_escaped

Row = tuple[str | None, ...]


@dataclass(frozen=True)
class TableDifferences:
    """One table compared.

    Attributes:
        differences: (kind, key hash, rows) of each key, or of each row of a table without one, that differs.
    """

    table: Compared
    source_rows: int
    lake_rows: int
    differences: Sequence[tuple[str, int, int]] = field(default=(), repr=False)

    def rows(self, *kinds: str) -> int:
        """How many rows differ, of all kinds or of these."""
        return sum(rows for kind, _, rows in self.differences if not kinds or kind in kinds)

    @property
    def counts(self) -> dict[str, int]:
        """Rows per kind, of those that there are."""
        kinds = (MISSING, EXTRA, DIFFERENT, DUPLICATED)
        return {kind: self.rows(kind) for kind in kinds if self.rows(kind)}


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
        name: as PostgreSQL writes it.

    Raises:
        SourceError: the server may not be read in full.
        LakeError: the lake cannot be read.
    """
    table = Compared.of(name, source, lake, escaped=hashes_escaped(connection))
    source_table, lake_table = SourceTable(connection, table), LakeTable(read_point, table)
    expected, actual = source_table.sums(), lake_table.sums()
    buckets = sorted(b for b in expected.keys() | actual.keys() if expected.get(b) != actual.get(b))
    differences = differing_rows(source_table.hashes(buckets), lake_table.hashes(buckets)) if buckets else []
    in_source, in_lake = (sum(count for count, _ in side.values()) for side in (expected, actual))
    return TableDifferences(table, in_source, in_lake, differences)


def source_rows(
    connection: psycopg.Connection[Any], table: Compared, keys: Sequence[int], columns: Sequence[str]
) -> Iterator[tuple[int, Row]]:
    """Yield (key hash, values of these columns) of the source's rows with these key hashes.

    Args:
        connection: of :func:`expectations.source_side.snapshot_session`.
        table: the table.
        keys: the key hashes.
        columns: source names of the columns.
    """
    return SourceTable(connection, table).rows(keys, columns) if keys else iter(())


def lake_rows(
    read_point: LakeReadPoint, table: Compared, keys: Sequence[int], columns: Sequence[str]
) -> Mapping[int, Row]:
    """Return key hash → values of these columns; of rows with the same key, one.

    Args:
        read_point: the lake.
        table: the table.
        keys: the key hashes.
        columns: source names of the columns.
    """
    sorted_keys = np.array(sorted(keys), np.int64)
    values_by_key: dict[int, Row] = {}
    for batch, hashes in LakeTable(read_point, table).keyed() if keys else ():
        positions = np.flatnonzero(np.isin(hashes, sorted_keys))
        picked = [batch.column(name).take(pa.array(positions)).to_pylist() for name in columns]
        values_by_key.update(zip(hashes[positions].tolist(), zip(*picked, strict=True), strict=True))
    return values_by_key
