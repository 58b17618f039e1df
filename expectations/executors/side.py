"""The lake's half of a reconciliation by Spark's executors: they hash a table's rows where these are read.

Bucket sums come back, or the hashes of rows in some buckets, or rows with some key hashes; nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import pyarrow as pa

from slotlake.decoder.errors import LakeError
from slotlake.decoder.types import shortest
from slotlake.expectations.executors import hashes, tasks, texts
from slotlake.expectations.executors.hashes import Hashes
from slotlake.expectations.executors.texts import Task
from slotlake.expectations.shapes import Compared
from slotlake.expectations.source_side import BUCKETS, Sums

if TYPE_CHECKING:
    from slotlake.spark.tables.schema import LakeColumn

SENT = (shortest, hashes, texts, tasks)
# So many key hashes are sent to each task; with more of them a table is mostly read anyway.
KEYS_MAX = 1_000_000
_SUMS = "bucket bigint, rows bigint, low bigint, high bigint"
_KINDS = {
    pa.bool_(): texts.BOOL,
    pa.int32(): texts.INT,
    pa.int64(): texts.INT,
    pa.float32(): texts.FLOAT,
    pa.float64(): texts.FLOAT,
    pa.date32(): texts.DATE,
    pa.timestamp("us"): texts.TIMESTAMP,
    pa.timestamp("us", "UTC"): texts.TIMESTAMPTZ,
    pa.binary(): texts.BYTEA,
    pa.string(): texts.TEXT,
}


class MappedRows(Protocol):
    """A table's rows, as executors read them (`spark.read.executors.ExecutorRows`)."""

    @property
    def columns(self) -> Sequence[tuple[LakeColumn, bool]]: ...

    def mapped(
        self,
        function: Callable[..., Any],
        schema: str,
        sent: Sequence[Any],
        finish: Callable[[Any], Any] = ...,
    ) -> pa.Table:
        """Return what a function makes of all rows."""


@runtime_checkable
class ByExecutors(Protocol):
    """A read point whose large tables executors can read (`spark.read.executors.ClusterReadPoint`)."""

    def executor_rows(
        self, table: str, columns: Sequence[str], *, history: bool = False
    ) -> MappedRows | None:
        """A table's rows; None for one that is read here.

        Args:
            history: the open versions of its history.
        """

    def give_up(self, error: LakeError) -> None:
        """Read all rows here from now on."""

    def note(self, line: str) -> None:
        """Write a line to the log, once."""


@dataclass(frozen=True)
class ExecutorSide:
    """One table; as `lake_side.LakeTable`."""

    rows: MappedRows
    table: Compared
    task: Task

    @classmethod
    def of(cls, rows: MappedRows, table: Compared, note: Callable[[str], None]) -> ExecutorSide | None:
        """Return the side of a table; None, and a note, for one with values that need slotlake to be printed.

        Args:
            rows: the columns of ``table.column_names``.
        """
        kinds = [kind_of(column) for column, _ in rows.columns]
        if unprinted := [
            column.name for (column, _), kind in zip(rows.columns, kinds, strict=True) if not kind
        ]:
            note(
                f"{table.name}: slotlake itself reads its rows, not Spark's executors, because these "
                f"columns are lists or structs: {', '.join(unprinted)}"
            )
            return None
        exacts = tuple(exact for _, exact in rows.columns)
        task = Task(tuple(map(str, kinds)), exacts, len(table.key), BUCKETS, table.escaped)
        return cls(rows, table, task)

    def sums(self) -> Sums:
        """As `SourceTable.sums`."""
        sums = self.rows.mapped(
            partial(tasks.sums_of, self.task),
            _SUMS,
            SENT,
            lambda frame: frame.groupBy("bucket").sum("rows", "low", "high"),
        )
        columns = [column.to_pylist() for column in sums.columns]
        return {bucket: (rows, high * 2**32 + low) for bucket, rows, low, high in zip(*columns, strict=True)}

    def hashes(self, buckets: Sequence[int]) -> tuple[Hashes, Hashes]:
        """As `SourceTable.hashes`."""
        in_buckets = np.zeros(BUCKETS, bool)
        in_buckets[list(buckets)] = True
        pairs = self.rows.mapped(partial(tasks.hashes_of, self.task, in_buckets), "k bigint, r bigint", SENT)
        return pairs["k"].to_numpy(), pairs["r"].to_numpy()

    def chosen(self, keys: Hashes) -> Iterator[tuple[pa.RecordBatch, Hashes]]:
        """Yield the rows that have one of these key hashes, each with that.

        Args:
            keys: the key hashes, ascending, at least one.
        """
        names = self.table.column_names
        schema = ", ".join(["k bigint", *(f"v{i} string" for i in range(len(names)))])
        rows = self.rows.mapped(partial(tasks.rows_of, self.task, keys), schema, SENT)
        return (
            (pa.RecordBatch.from_arrays(batch.columns[1:], names=names), batch.column(0).to_numpy())
            for batch in rows.to_batches()
        )


def kind_of(column: LakeColumn) -> str | None:
    """Return how executors print a column's values; None: they cannot."""
    kind = column.representation.arrow
    if not column.representation.typed and pa.types.is_decimal128(kind):
        return texts.NUMERIC
    return texts.DECIMAL if pa.types.is_decimal128(kind) else _KINDS.get(kind)
