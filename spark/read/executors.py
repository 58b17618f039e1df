"""Hands the rows of a table at a read point to functions that run on Spark's executors.

The functions are sent as they are, not by the names of their modules: slotlake is not there.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import DataFrame, SparkSession

from slotlake.decoder.errors import LakeError
from slotlake.spark.history.columns import HOLDS, derived_column
from slotlake.spark.names import LakeName, quote
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import pinned_session
from slotlake.spark.session import bounded
from slotlake.spark.session_errors import SPARK_ERRORS, reason
from slotlake.spark.tables import soft_deletes
from slotlake.spark.tables.metadata import summary

if TYPE_CHECKING:
    from slotlake.spark.tables.schema import LakeColumn

Batches = Iterable[pa.RecordBatch]
# Smaller tables are read here before Spark has begun (docs/benchmarks.md).
ROWS_MIN: Final = 1_000_000
_PROBE_SECONDS_MAX: Final = 120.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ExecutorRows:
    """The live rows of one table, or the open versions of its history, as executors read them.

    Attributes:
        session: a session whose executors may be on other machines.
        read_point: the lake.
        name: the table that is read.
        columns: the columns, and whether each is followed by its companion with exact texts.
        condition: in Spark SQL, which of the rows are read; "" for all.
    """

    session: SparkSession
    read_point: ReadPoint
    name: LakeName
    columns: tuple[tuple[LakeColumn, bool], ...]
    condition: str

    @property
    def count(self) -> int:
        """The rows in the table's files, those that were deleted since included."""
        return int(summary(self.read_point.pinned[self.name].snapshot).get("total-records", 0))

    def mapped(
        self,
        function: Callable[[Batches], Iterator[pa.RecordBatch]],
        schema: str,
        sent: Sequence[ModuleType],
        finish: Callable[[DataFrame], DataFrame] = lambda frame: frame,
    ) -> pa.Table:
        """Return what a function makes of all rows.

        Args:
            function: gets the batches of a part of the table, with the columns in their order, each perhaps
                followed by its companion.

        Raises:
            LakeError: Spark, or the function, failed.
        """
        pinned = self.read_point.pinned[self.name]
        names = {(self.name.namespace, self.name.table): pinned}
        try:
            with (
                pinned_session(self.session, self.read_point, names) as own,
                bounded(own),
                _sent(sent),
            ):
                own.conf.set("spark.sql.caseSensitive", "true")
                frame = own.table(self.name.sql(self.read_point.lake.catalog))
                frame = frame.where(self.condition) if self.condition else frame
                return finish(self._selected(frame).mapInArrow(function, schema)).toArrow()
        except SPARK_ERRORS as error:
            raise LakeError(
                f"Spark's executors cannot run Python functions of slotlake: {reason(error)}",
                where=str(self.name),
                way_out="give each of the cluster's machines this version of Python "
                f"({sys.version_info.major}.{sys.version_info.minor}) with pyarrow and numpy; docs/spark.md",
            ) from error

    def _selected(self, frame: DataFrame) -> DataFrame:
        names = [
            name
            for column, exact in self.columns
            for name in (column.lake_name, *([column.exact_name] if exact else []))
        ]
        return frame.selectExpr(*(f"{quote(name)} AS c{i}" for i, name in enumerate(names)))


class ClusterReadPoint(ReadPoint):
    """A read point whose large tables Spark's executors can read, on their machines.

    If that fails once, it is not tried again: slotlake reads the rows itself.

    Args:
        point: the read point.
        session: a session with executors on other machines.
        rows_min: tables with fewer rows are not read by executors; None: ROWS_MIN.
    """

    def __init__(self, point: ReadPoint, session: SparkSession, *, rows_min: int | None = None) -> None:
        super().__init__(point.lake, point.position, point.pinned, point.listing)
        self._session, self._rows_min = session, ROWS_MIN if rows_min is None else rows_min
        self._noted: set[str] = set()
        self.given_up = False

    def executor_rows(
        self, table: str, columns: Sequence[str], *, history: bool = False
    ) -> ExecutorRows | None:
        """The rows that `text_batches` gives, or `open_versions`; None for a table that is read here.

        Args:
            history: the open versions of its history.

        Raises:
            KeyError: no such table, or column.
        """
        name = self.derived_tables(table).get("history") if history else self.find(table)
        if self.given_up or name is None or not columns:
            return None
        schema = self.schema(table)
        by_name = {column.name: derived_column(column) if history else column for column in schema.live}
        marked = soft_deletes.LIVE if schema.soft_deletes else ""
        ids = self.pinned[name].field_ids
        chosen = tuple(
            (column, column.exact and column.exact_name in ids)
            for column in (by_name[source_name] for source_name in columns)
        )
        rows = ExecutorRows(self._session, self, name, chosen, HOLDS if history else marked)
        return rows if rows.count >= self._rows_min else None

    def give_up(self, error: LakeError) -> None:
        """Read all rows here from now on."""
        self.given_up = True
        self.note(
            f"rows of large tables are read by slotlake itself, not by Spark's executors: {error.what} "
            f"({error.where}). The result is the same, and it takes longer. To let executors do it: "
            f"{error.way_out}"
        )

    def note(self, line: str) -> None:
        """Write a line to the log, once."""
        if line not in self._noted:
            self._noted.add(line)
            _log.warning("warning: %s", line)


def python_trouble(session: SparkSession) -> str:
    """Return why executors cannot run functions in Python with numpy; "" if they can."""

    def same(batches: Batches) -> Iterator[pa.RecordBatch]:
        import numpy  # noqa: F401, ICN001 - whether it is there

        yield from batches

    try:
        with bounded(session, _PROBE_SECONDS_MAX):
            session.range(1).mapInArrow(same, "id bigint").toArrow()
    except SPARK_ERRORS as error:
        return reason(error)
    return ""


@contextmanager
def _sent(modules: Sequence[ModuleType]) -> Iterator[None]:
    """Within the block functions of these modules are pickled with their code."""
    for module in modules:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        for module in modules:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
