"""Reads the lake at one cut: every table at the same LSN of the source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark.lake import LakeSettings
from spark.tables import TableSchema


@dataclass(frozen=True)
class QueryResult:
    """Rows as PostgreSQL text, None for NULL."""

    columns: list[str]
    rows: list[tuple[str | None, ...]]
    position: int


class Cut:
    """All tables of a namespace, pinned. Its catalog pointers were read in one query.

    Attributes:
        position: the source LSN that all tables stand at.
    """

    position: int

    @classmethod
    def latest(cls, lake: LakeSettings) -> Cut:
        """The newest consistency point."""
        raise NotImplementedError

    @classmethod
    def at(cls, lake: LakeSettings, lsn: int) -> Cut:
        """The newest consistency point at or before ``lsn``.

        Raises:
            LakeError: the lake has not reached it, or holds nothing that old.
        """
        raise NotImplementedError

    def tables(self) -> list[TableSchema]:
        """The tables in this cut, by source name."""
        raise NotImplementedError

    def schema(self, table: str) -> TableSchema:
        """Of a table as PostgreSQL writes its name (``public.orders``, ``"Odd Name"``).

        Raises:
            KeyError: the cut has no such table.
        """
        raise NotImplementedError

    def snapshot_id(self, table: str) -> int:
        """The snapshot that the table is pinned at."""
        raise NotImplementedError

    def count(self, table: str) -> int:
        """Rows of a table, from the metadata."""
        raise NotImplementedError

    def rows(self, table: str, columns: Sequence[str] | None = None) -> Iterator[tuple[str | None, ...]]:
        """Rows as canonical PostgreSQL text, in no particular order; memory is bounded.

        Raises:
            KeyError: no such table, or column.
        """
        raise NotImplementedError

    def text_batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """As :meth:`rows`, in Arrow string columns named by the source's columns."""
        raise NotImplementedError

    def arrow_batches(self, table: str, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        """Typed columns by source name, each inexact one followed by its ``<name>__exact`` text."""
        raise NotImplementedError

    def commits(self) -> list[dict[str, Any]]:
        """The consistency points up to this one, oldest first, as rows of `commits`."""
        raise NotImplementedError


def query(session: SparkSession, lake: LakeSettings, sql: str, at: int | None = None) -> QueryResult:
    """Run an analyst's SELECT with every table pinned to one cut."""
    raise NotImplementedError
