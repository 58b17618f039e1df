"""Questions to the lake at one read point, answered by DuckDB or by Spark.

DuckDB starts at once, so it answers unless it cannot read the lake's files; then Spark does, and one line
says why.  Which of the two answers never depends on the statement: one that DuckDB refuses is an error that
names ``--engine spark``, and not a wait of some seconds for an answer by other rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from slotlake.decoder.errors import LakeError, PipelineFileError
from slotlake.decoder.lsn import format_lsn
from slotlake.infra.config.private_files import privately
from slotlake.infra.opened.engine import spark_errors_as_ours
from slotlake.infra.opened.open_pipeline import OpenPipeline
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.result import QueryResult as Result
from slotlake.spark.read.table_names import ReadableTable, readable_tables

Engine = Literal["auto", "duckdb", "spark"]
ENGINES: tuple[Engine, ...] = ("auto", "duckdb", "spark")


@dataclass(frozen=True)
class QueryResult:
    """Rows of a query as PostgreSQL text, and the LSN all tables stood at.

    Attributes:
        lsn: of the point.
        columns: their names.
        rows: None is NULL; arrays, maps and structs are JSON.
        set_aside: tables of the lake that stood earlier, because they are not followed, and why.
        numeric: indexes of the columns that hold numbers.
    """

    lsn: str
    columns: Sequence[str]
    rows: Sequence[tuple[str | None, ...]]
    set_aside: Mapping[str, str]
    numeric: frozenset[int] = frozenset()


class PinnedQueries:
    """Questions that all see the lake at the same point, until another one is pinned.

    Args:
        pipeline: the open pipeline; it starts Spark if that is to answer.
        at: an LSN, a moment, or None for the newest point.
        engine: which engine answers.
        report_line: called with a line for the person who waits.

    Raises:
        PipelineFileError: there is no such engine.
        LakeError: the lake has no such point.
    """

    def __init__(
        self,
        pipeline: OpenPipeline,
        at: int | datetime | None = None,
        engine: str = "auto",
        report_line: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._pipeline, self._report_line = pipeline, report_line
        self._engine = _engine(engine)
        self.pin(at)

    def pin(self, at: int | datetime | None) -> None:
        """Ask at another point from now on: the newest kept one at or before an LSN or a moment.

        Raises:
            LakeError: it is in the future, or older than what the lake keeps.
        """
        self._read_point = ReadPoint.of(self._pipeline.lake, at)

    @property
    def lsn(self) -> str:
        """Where all tables stand."""
        return format_lsn(self._read_point.position)

    def ask(self, sql: str) -> QueryResult:
        """Run one SELECT.

        Raises:
            LakeError: it is wrong, or no query of this lake's tables; or the engine cannot run it.
        """
        with privately(self._pipeline.file):
            result = self._by_duckdb(sql) if self._chosen() == "duckdb" else self._by_spark(sql)
        aside = {
            each.source_name: each.reason
            for each in self._read_point.aside_now().values()
            if each.lsn is not None and each.lsn < self._read_point.position
        }
        return QueryResult(self.lsn, result.columns, result.rows, aside, result.numeric)

    def tables(self) -> list[ReadableTable]:
        """The tables that can be asked for, by name."""
        return readable_tables(self._read_point)

    def table(self, name: str) -> ReadableTable:
        """Return one of them.

        Args:
            name: as in a query, or as PostgreSQL writes it.

        Raises:
            LakeError: there is no such table at the point.
        """
        wanted = name.replace('"', "").lower()
        for table in self.tables():
            full = str(table.pinned.name)
            if wanted in {table.name.lower(), full.lower(), table.source.replace('"', "").lower()}:
                return table
        raise LakeError(
            f"this lake has no table {name}", where=f"at {self.lsn}", way_out=r"\d lists the tables"
        )

    def _chosen(self) -> Engine:
        if self._engine == "auto":
            from slotlake.spark.read.duck.database import unreadable_reason

            reason = unreadable_reason(self._read_point)
            if reason is not None:
                self._report_line(f"Spark answers, which takes some seconds to start: {reason}")
            self._engine = "duckdb" if reason is None else "spark"
        return self._engine

    def _by_duckdb(self, sql: str) -> Result:
        from slotlake.spark.read.duck.answer import query

        return query(self._read_point, sql)

    def _by_spark(self, sql: str) -> Result:
        from slotlake.spark.read.query import query_at

        if self._pipeline.lake.borrows_keys:
            raise LakeError(
                "Spark cannot answer where the REST catalog lends the keys: it lends none for pinned tables",
                where=self._pipeline.lake.place,
                way_out="use --engine duckdb, or give keys in lake.storage",
            )
        with spark_errors_as_ours():
            return query_at(self._pipeline.session, self._read_point, sql, java=_java)


def parsed_at(given: str | datetime | None, where: str = "--at") -> int | datetime | None:
    """What a person says of a point: an LSN, a time, or ``latest``.

    Args:
        where: the option, for errors.

    Raises:
        PipelineFileError: it is none of these.
    """
    from slotlake.spark.publish.points import parse_at

    if isinstance(given, datetime):
        return given.replace(tzinfo=UTC) if given.tzinfo is None else given
    try:
        return None if given is None else parse_at(given)
    except ValueError as error:
        raise PipelineFileError(
            str(error), where=where, way_out="give an LSN as status prints it, a time, or latest"
        ) from None


def _engine(name: str) -> Engine:
    if name not in ENGINES:
        raise PipelineFileError(
            f"there is no engine {name!r}", where="--engine", way_out=f"one of {', '.join(ENGINES)}"
        )
    return name


def _java() -> str:
    from slotlake.infra.local.java import find_java

    return find_java().program
