"""What rows were before a transaction whose changes go over several slices (`on_delete: mark`).

Invariant: after each slice the branch is as if the transaction had ended there.  So a row that an earlier
slice of it wrote, and that this slice deletes, is marked as it was before the transaction; if it was not
there then, it leaves.  What was before is a snapshot of the branch: a slice has whole transactions, or
changes of a single one (`spark.fold.slices.by_transactions`), so there is one that ends just before.  The
rows that earlier slices wrote are those with the transaction's LSN.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from slotlake.spark.catalog.base import Loaded, load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.fold.slices import ChangeSlice
from slotlake.spark.merge.run import Work, run_steps
from slotlake.spark.merge.sql import Target, key_range, same_key
from slotlake.spark.names import quote
from slotlake.spark.publish.derived_tables import column_types, empty_insert, timestamp
from slotlake.spark.tables import soft_deletes
from slotlake.spark.tables.metadata import STAGE, head


@dataclass(frozen=True)
class TransactionPart:
    """Changes of one transaction, which may have begun in an earlier slice.

    Attributes:
        transaction: its number in the batch.
        key: the columns by which the changes name their rows.
        lsn: the end of its commit; ``time``: when that was.
        before: the snapshot that has the table as it was before.
        fields: the table's fields, without those of the marks.
        continued: slices before this one have changes of it too.
    """

    transaction: int
    key: frozenset[str]
    lsn: int
    time: Any
    before: int
    fields: Sequence[str]
    continued: bool = False

    @property
    def wrote(self) -> str:
        """The condition, in Spark SQL, of the live rows that earlier slices of the transaction wrote."""
        return f"{soft_deletes.LIVE} AND {quote(soft_deletes.LSN)} = {self.lsn}L"


def part_of(
    work: Work, changes: ChangeSlice, key: Collection[str], before: TransactionPart | None
) -> TransactionPart | None:
    """Return what a slice is of its only transaction; None if it has several.

    Args:
        key: the columns by which its changes name their rows.

    Raises:
        LakeError: Spark failed.
    """
    if changes.transactions.num_rows != 1:
        return None
    number, key = changes.first_transaction, frozenset(key)
    if before is not None and (before.transaction, before.key) == (number, key):
        return replace(before, continued=True)
    lsn, time = (changes.transactions[name][0].as_py() for name in ("end_lsn", "commit_time"))
    table = _with_a_snapshot(work)
    snapshot: Any = head(table.metadata, STAGE)
    fields = [name for name in column_types(table.metadata) if name not in soft_deletes.OWN]
    return TransactionPart(number, key, lsn, time, snapshot["snapshot-id"], fields)


def restore_deleted(part: TransactionPart, target: Target, closed: pa.Table, view: str) -> str:
    """Return the SQL that adds, marked, what the slice's deleted rows were before the transaction.

    Args:
        closed: the rows of the fold that end a live row.
    """
    which = ["s.close", *same_key(target, "b"), *key_range(target, closed, "b")]
    return f"{_restore(part, target)} JOIN {quote(view)} AS s ON {' AND '.join(which)}"


def restore_all(part: TransactionPart, target: Target) -> list[str]:
    """Return the SQL that makes all rows that the transaction wrote what they were before, marked."""
    return [_restore(part, target), f"DELETE FROM {target.branch} WHERE {part.wrote}"]


def _restore(part: TransactionPart, target: Target) -> str:
    deleted, lsn, time = (f"b.{quote(name)}" for name in soft_deletes.OWN)
    own = soft_deletes.values(
        "true",
        f"CASE WHEN {deleted} THEN {lsn} ELSE {part.lsn}L END",
        f"CASE WHEN {deleted} THEN {time} ELSE {timestamp(part.time)} END",
    )
    names = ", ".join([*map(quote, part.fields), *own])
    values = ", ".join([*(f"b.{quote(name)}" for name in part.fields), *own.values()])
    key = [name for i, _ in target.keys for _, _, name in target.pair(i, "n")]
    same = " AND ".join(f"b.{name} <=> l.{name}" for name in key)
    written = f"(SELECT {', '.join(key)} FROM {target.branch} WHERE {part.wrote})"
    before = f"{target.name.sql(target.catalog)}.snapshot_id_{part.before}"
    return (
        f"INSERT INTO {target.branch} ({names}) SELECT {values} FROM {before} AS b "
        f"JOIN {written} AS l ON {same}"
    )


def _with_a_snapshot(work: Work) -> Loaded:
    """The table, whose branch ends with a snapshot that has all its columns: readers of one see its own."""
    table = _loaded(work)
    newest: Any = head(table.metadata, STAGE) or {}
    if newest.get("schema-id") == table.metadata["current-schema-id"]:
        return table
    run_steps(work, [empty_insert(work.table.name, work.lake.catalog)])
    return _loaded(work)


def _loaded(work: Work) -> Loaded:
    with open_catalog(work.lake) as catalog:
        return load_one(catalog, work.table.name)
