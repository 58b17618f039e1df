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
from slotlake.expectations.shapes import Compared, LakeCut, LakeTableShape, SourceTableShape
from slotlake.expectations.source_side import SourceTable, hashes_escaped

Row = tuple[str | None, ...]


@dataclass(frozen=True)
class Differing:
    """One table compared.

    Attributes:
        found: (kind, key hash, rows) of each key, or of each row of a table without one, that differs.
    """

    table: Compared
    source_rows: int
    lake_rows: int
    found: Sequence[tuple[str, int, int]] = field(default=(), repr=False)

    def rows(self, *kinds: str) -> int:
        """How many rows differ, of all kinds or of these."""
        return sum(rows for kind, _, rows in self.found if not kinds or kind in kinds)

    @property
    def counts(self) -> dict[str, int]:
        """Rows per kind, of those that there are."""
        kinds = (MISSING, EXTRA, DIFFERENT, DUPLICATED)
        return {kind: self.rows(kind) for kind in kinds if self.rows(kind)}


def differing(
    connection: psycopg.Connection[Any],
    cut: LakeCut,
    name: str,
    source: SourceTableShape,
    lake: LakeTableShape,
) -> Differing:
    """Compare a table as the connection's snapshot shows it with the lake's.

    Args:
        connection: of :func:`expectations.source_side.snapshot_session`.
        name: as PostgreSQL writes it.

    Raises:
        SourceError: the server may not be read in full.
        LakeError: the lake cannot be read.
    """
    table = Compared.of(name, source, lake, escaped=hashes_escaped(connection))
    theirs, ours = SourceTable(connection, table), LakeTable(cut, table)
    expected, actual = theirs.sums(), ours.sums()
    buckets = sorted(b for b in expected.keys() | actual.keys() if expected.get(b) != actual.get(b))
    found = differing_rows(theirs.hashes(buckets), ours.hashes(buckets)) if buckets else []
    in_source, in_lake = (sum(count for count, _ in side.values()) for side in (expected, actual))
    return Differing(table, in_source, in_lake, found)


def source_rows(
    connection: psycopg.Connection[Any], table: Compared, keys: Sequence[int], columns: Sequence[str]
) -> Iterator[tuple[int, Row]]:
    """(key hash, values of these columns) of the source's rows with these key hashes."""
    return SourceTable(connection, table).rows(keys, columns) if keys else iter(())


def lake_rows(
    cut: LakeCut, table: Compared, keys: Sequence[int], columns: Sequence[str]
) -> Mapping[int, Row]:
    """Key hash → values of these columns; of rows with the same key, one."""
    wanted = np.array(sorted(keys), np.int64)
    found: dict[int, Row] = {}
    for batch, hashes in LakeTable(cut, table).keyed() if keys else ():
        here = np.flatnonzero(np.isin(hashes, wanted))
        picked = [batch.column(name).take(pa.array(here)).to_pylist() for name in columns]
        found.update(zip(hashes[here].tolist(), zip(*picked, strict=True), strict=True))
    return found
