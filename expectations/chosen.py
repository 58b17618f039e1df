"""Compare lake and source at an exact LSN in some rows only: those that satisfy a condition on either side.

A row that satisfies it on one side only counts too: what is compared is every key that some row has,
in the source or in the lake, that satisfies the condition.  So a row that left the condition in the source,
and still stands in the lake as it was before, is found, and so is one that is in the lake alone.

Memory: 16 bytes per chosen row on either side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import psycopg
import pyarrow as pa

from slotlake.decoder.catalog.condition import Condition, TextColumn, keys_condition
from slotlake.decoder.compiled.arrays import distinct, python_values
from slotlake.expectations.differences import differing_rows
from slotlake.expectations.hashing import Hashes
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.results import EXTRA, MISSING
from slotlake.expectations.shapes import Compared, LakeReadPoint
from slotlake.expectations.source_side import SourceTable

KEYS_AT_ONCE = 50_000
INSERT, UPDATE, DELETE = "insert", "update", "delete"


@dataclass(frozen=True)
class ChosenDifferences:
    """What of the chosen rows differs. Every array is of key hashes.

    Attributes:
        rows: the source's rows that satisfy the condition.
        inserted: the lake lacks them; ``deleted``: the source does; ``changed``: other values, or twice.
        keys: of all those, one row each: ``hash``, and the key's columns as PostgreSQL's text.
    """

    rows: int
    inserted: Hashes
    changed: Hashes
    deleted: Hashes
    keys: pa.Table

    def of(self, *parts: Hashes) -> pa.Table:
        """The rows of ``keys`` with these hashes."""
        hashes = np.concatenate([np.zeros(0, np.int64), *parts])
        return self.keys.filter(pa.array(np.isin(self.keys["hash"].to_numpy(), hashes)))

    def named(self, count: int) -> list[dict[str, Any]]:
        """The first so many: what would become of each key."""
        kinds = ((INSERT, self.inserted), (UPDATE, self.changed), (DELETE, self.deleted))
        changes: list[dict[str, Any]] = []
        for kind, hashes in kinds:
            part = self.of(hashes).drop_columns(["hash"]).slice(0, count - len(changes))
            changes += [{"change": kind, "key": key} for key in part.to_pylist()]
        return changes


def compare_chosen(
    connection: psycopg.Connection[Any],
    table: Compared,
    read_point: LakeReadPoint,
    condition: Condition,
    key: Sequence[TextColumn],
) -> ChosenDifferences:
    """Find the chosen rows that differ.

    Args:
        connection: a `snapshot_session` at the read point's LSN.
        key: the columns of ``table.key``, at least one.
    """
    chosen = SourceTable(
        connection, replace(table, row_filter=_combined_condition(table.row_filter, condition.text))
    )
    source_parts = [chosen.hashes(None)]
    lake_hashes, strangers = _lake_rows(
        connection, table, read_point, condition, distinct(source_parts[0][0])
    )
    source_parts += [_with_keys(connection, table, key, part).hashes(None) for part in _in_chunks(strangers)]
    source = np.concatenate([k for k, _ in source_parts]), np.concatenate([r for _, r in source_parts])
    differences = differing_rows(source, lake_hashes)
    differing = differences.keys
    unknown = np.setdiff1d(differing, strangers["hash"].to_numpy())
    names = [name for name, _ in table.key]
    keys = pa.concat_tables([_keys_with_hashes(strangers, differing), *_keys(chosen, unknown, names)])
    inserted, deleted = differences.of(MISSING).keys, differences.of(EXTRA).keys
    changed = np.setdiff1d(differing, np.concatenate([inserted, deleted]))
    return ChosenDifferences(len(source_parts[0][0]), inserted, changed, deleted, keys)


def _combined_condition(row_filter: str | None, condition: str) -> str:
    return f"({row_filter}) AND ({condition})" if row_filter else condition


def _lake_rows(
    connection: psycopg.Connection[Any],
    table: Compared,
    read_point: LakeReadPoint,
    condition: Condition,
    source_keys: Hashes,
) -> tuple[tuple[Hashes, Hashes], pa.Table]:
    """The lake's chosen rows, and the keys of those that the source has not chosen too."""
    names = [name for name, _ in table.key]
    keys, rows = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    schema = _keys_schema(names)
    strangers = [schema.empty_table()]
    for batch, key, row in LakeTable(read_point, table).hashed():
        chosen = np.isin(key, source_keys)
        others = np.flatnonzero(~chosen)
        rest = batch.take(pa.array(others))
        values = [rest.column(column.name).to_pylist() for column in condition.columns]
        satisfying = others[condition.among(connection, values)] if len(others) else others
        chosen[satisfying] = True
        texts = [batch.column(name).take(pa.array(satisfying)).cast(pa.string()) for name in names]
        strangers.append(pa.Table.from_arrays([pa.array(key[satisfying]), *texts], schema=schema))
        keys.append(key[chosen])
        rows.append(row[chosen])
    return (np.concatenate(keys), np.concatenate(rows)), _distinct(pa.concat_tables(strangers))


def _keys_schema(names: Sequence[str]) -> pa.Schema:
    columns: list[tuple[str, pa.DataType]] = [(name, pa.string()) for name in names]
    return pa.schema([("hash", pa.int64()), *columns])


def _distinct(keys: pa.Table) -> pa.Table:
    _, first = np.unique(keys["hash"].to_numpy(), return_index=True)
    return keys.take(pa.array(np.sort(first)))


def _keys_with_hashes(keys: pa.Table, hashes: Hashes) -> pa.Table:
    return keys.filter(pa.array(np.isin(keys["hash"].to_numpy(), hashes)))


def _in_chunks(keys: pa.Table) -> Iterator[pa.Table]:
    for start in range(0, keys.num_rows, KEYS_AT_ONCE):
        yield keys.slice(start, KEYS_AT_ONCE)


def _with_keys(
    connection: psycopg.Connection[Any], table: Compared, key: Sequence[TextColumn], keys: pa.Table
) -> SourceTable:
    """The source's rows that have these keys."""
    condition = keys_condition(key, [python_values(keys[column.name]) for column in key])
    return SourceTable(
        connection, replace(table, row_filter=_combined_condition(table.row_filter, condition))
    )


def _keys(chosen: SourceTable, hashes: Hashes, names: Sequence[str]) -> Iterator[pa.Table]:
    """The keys of the source's rows with these hashes."""
    schema = _keys_schema(names)
    for start in range(0, len(hashes), KEYS_AT_ONCE):
        rows = list(chosen.rows(hashes[start : start + KEYS_AT_ONCE].tolist(), names))
        columns = [[hashed for hashed, _ in rows], *zip(*(texts for _, texts in rows), strict=True)]
        columns = columns if rows else [[] for _ in schema]
        arrays = [pa.array(texts, part.type) for texts, part in zip(columns, schema, strict=True)]
        yield pa.Table.from_arrays(arrays, schema=schema)


__all__ = ["DELETE", "INSERT", "KEYS_AT_ONCE", "UPDATE", "ChosenDifferences", "compare_chosen"]
