"""Compare the rows with given keys at an exact LSN: what a verification of changed rows does.

A key counts by its text: a row of the source whose key PostgreSQL only calls equal (citext, numeric) is
another one.  The source is asked for some thousand keys at a time, by the key's index; the lake's key columns
are read, and the other columns of the files that may have some of the keys.

Memory: 16 bytes per key on either side, and the keys' texts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import pyarrow as pa

from slotlake.decoder.catalog.condition import TextColumn, keys_condition, text_columns
from slotlake.decoder.compiled.arrays import elements, python_values
from slotlake.expectations.differences import Differing, described, differing_rows
from slotlake.expectations.hashing import KEY_SEED, Hashes, chain, escaped_texts
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.results import HISTORY, MARKED, Difference, TableResult, rewritten
from slotlake.expectations.scopes.slices import WHOLE_NUMBERS
from slotlake.expectations.sessions.pool import Sessions
from slotlake.expectations.shapes import Compared, OtherRows
from slotlake.expectations.source_side import RowDetail
from slotlake.spark.read.chosen_rows import Mask, Range, chosen_text_batches, filtered

KEYS_AT_ONCE = 2_000
_NOTHING = np.zeros(0, np.int64)


@dataclass(frozen=True)
class KeyRows:
    """The rows of a table that have one of some keys.

    Attributes:
        table: the table, with a key.
        keys: distinct keys, a column of texts per column of the key.
    """

    table: Compared
    keys: pa.Table

    @property
    def key(self) -> Sequence[str]:
        """The key's columns."""
        return [name for name, _ in self.table.key]

    @cached_property
    def hashes(self) -> Hashes:
        """The hash of each key, in the order of ``keys``."""
        return self._hashes([self.keys[name].combine_chunks() for name in self.key])

    @cached_property
    def _sorted(self) -> Hashes:
        return np.sort(self.hashes)

    @cached_property
    def range(self) -> Range | None:
        """From the first to the last key, if they are whole numbers."""
        oid = self.table.key[0][1]
        if oid not in WHOLE_NUMBERS or not self.keys.num_rows:
            return None
        numbers = elements(
            self.keys[self.key[0]].combine_chunks().cast(pa.int64()).buffers()[1],
            np.int64,
            self.keys.num_rows,
        )
        return Range(int(numbers.min()), int(numbers.max()) + 1)

    def mask(self, key: Sequence[pa.Array[Any]]) -> Mask:
        """Which rows have one of the keys."""
        return np.isin(self._hashes(key), self._sorted)

    def of(self, hashes: Sequence[int]) -> KeyRows:
        """Only those keys that have these hashes."""
        places = np.flatnonzero(np.isin(self.hashes, np.array(hashes, np.int64)))
        return replace(self, keys=self.keys.take(pa.array(places)))

    def pieces(self, key: Sequence[TextColumn]) -> Iterator[Compared]:
        """The table with conditions that choose some of the keys at a time."""
        for start in range(0, self.keys.num_rows, KEYS_AT_ONCE):
            some = self.keys.slice(start, KEYS_AT_ONCE)
            condition = keys_condition(key, [python_values(some[column.name]) for column in key])
            own = self.table.row_filter
            yield replace(self.table, row_filter=f"({own}) AND ({condition})" if own else condition)

    def _hashes(self, key: Sequence[pa.Array[Any]]) -> Hashes:
        texts = [escaped_texts(column) if self.table.escaped else column for column in key]
        return chain(texts, np.full(len(key[0]), KEY_SEED, np.int64))


def compare_keys(
    server: Sessions, chosen: KeyRows, point: Any, others: OtherRows, differences_max: int
) -> TableResult:
    """Compare the rows that have one of some keys.

    Args:
        server: the source at the read point's LSN.
        point: the lake, a `spark.read.point.ReadPoint`.
        others: what else the lake has of the table.
        differences_max: so many differing rows are listed; the totals are exact.

    Raises:
        VanishedError: the source's table is gone.
        LockedError: it is locked.
        LakeError: the lake cannot be read.
    """
    source, worked = _Source(server, chosen), server.pace.worked
    lake = LakeTable(point, chosen.table, partial(chosen_text_batches, point, chosen))
    with ThreadPoolExecutor(1) as thread:  # the lake is read while the source answers, or rests
        of_lake = thread.submit(lambda: _pairs(lake))
        of_source = source.pairs(chosen)
        lake_pairs = of_lake.result()
    differing = differing_rows(of_source, lake_pairs)
    listed = differing.first(differences_max)
    result = TableResult(
        chosen.table.name,
        len(of_source[0]),
        len(lake_pairs[0]),
        differing.counts(),
        tuple(_described(source, lake, listed)),
        source_seconds=round(server.pace.worked - worked, 3),
    )
    result = _with_others(result, chosen, others, of_source, lake_pairs[0])
    differs = not result.equal and server.was_rewritten(chosen.table)
    return rewritten(result.table) if differs else result


@dataclass
class _Source:
    server: Sessions
    chosen: KeyRows

    @cached_property
    def key(self) -> list[TextColumn]:
        table = self.chosen.table
        return list(text_columns(self.server.first, table.relation_id, self.chosen.key).values())

    def pairs(self, chosen: KeyRows) -> tuple[Hashes, Hashes]:
        """Key and row hash of the rows that have one of the keys."""
        read = self.server.each(chosen.pieces(self.key), lambda source: source.hashes(None))
        parts = [(_NOTHING, _NOTHING), *read]
        keys, rows = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        own = np.isin(keys, chosen.hashes)
        return keys[own], rows[own]

    def details(self, hashes: Sequence[int]) -> dict[int, RowDetail]:
        """The rows with these key hashes."""
        details: dict[int, RowDetail] = {}
        pieces = self.chosen.of(hashes).pieces(self.key)
        for some in self.server.each(pieces, lambda source: source.details(hashes)):
            details |= some
        return details


def _pairs(lake: LakeTable) -> tuple[Hashes, Hashes]:
    parts = [(_NOTHING, _NOTHING), *((keys, rows) for _, keys, rows in lake.hashed())]
    return np.concatenate([keys for keys, _ in parts]), np.concatenate([rows for _, rows in parts])


def _described(source: _Source, lake: LakeTable, listed: Differing) -> Iterator[Difference]:
    keys = listed.keys.tolist()
    if not keys:
        return
    at_source, in_lake = source.details(keys), lake.details(keys)
    for kind, key, rows in listed:
        yield described(lake.table, (kind, rows), at_source.get(key), in_lake.get(key))


def _with_others(
    result: TableResult,
    chosen: KeyRows,
    others: OtherRows,
    source: tuple[Hashes, Hashes],
    live: Hashes,
) -> TableResult:
    """Add differences of the open versions of a history, and of rows that are marked as deleted."""
    table = chosen.table
    counts = {HISTORY: 0, MARKED: 0}
    versions = filtered(others.history(table.name, table.column_names), chosen)
    if versions is not None:
        open_versions = _pairs(LakeTable(_NO_POINT, table, lambda *_: versions))
        counts[HISTORY] = int(differing_rows(source, open_versions).rows.sum())
    marked = filtered(others.marked(table.name, table.column_names), chosen)
    if marked is not None:
        counts[MARKED] = int(np.isin(_pairs(LakeTable(_NO_POINT, table, lambda *_: marked))[0], live).sum())
    added = {kind: rows for kind, rows in counts.items() if rows}
    return replace(
        result,
        totals={**result.totals, **added},
        differences=(*result.differences, *(Difference(kind, rows=rows) for kind, rows in added.items())),
    )


_NO_POINT: Any = None  # rows are given
