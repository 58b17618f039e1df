"""What a recovery has to bring to each table: nothing, the rows that differ, or all of it.

Each table is compared by hash buckets, the source as one snapshot shows it with the lake as it is.  Rows
come as changes of one transaction, so that derived tables (a history, a change log) see them as changes; a
whole copy replaces a table's content in place.  Invariant: a table is copied whole only if most of it
differs, or if its rows cannot be distinguished or compared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publication_tables import LEAVES, LOCKED
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.vanished import VanishedError
from slotlake.decoder.changelog.difference import RowChange
from slotlake.decoder.errors import ChangedMeanwhileError, SlotlakeError, UnreadableRowsError
from slotlake.decoder.server.source import explain, source_session
from slotlake.expectations.differences import TableDifferences, compare_table, lake_rows, source_rows
from slotlake.expectations.results import DIFFERENT, DUPLICATED, EXTRA, MISSING
from slotlake.expectations.shapes import Compared
from slotlake.expectations.source_side import reading
from slotlake.infra.reports import Report
from slotlake.infra.selection.tables import SelectedTable
from slotlake.spark.names import LakeName, postgres_name
from slotlake.spark.row_filter.selection import Selection
from slotlake.spark.tables.schema import TableSchema

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing
    from slotlake.spark.read.point import ReadPoint

NOTHING, ROWS, WHOLE, NEW, LEFT = "nothing", "rows", "whole", "new", "left"
# How the line of a plan starts that counts the tables of which nothing has to be written.
EQUAL = "nothing is written to tables that are equal: "
_SPARED = "it cannot be read, and will be set aside: "
_WHOLE_SHARE = 0.5
_ALWAYS_BY_ROWS = 1000
_BY_ROWS_MAX = 500_000


@dataclass(frozen=True)
class TableRepair(Report):
    """What a recovery brings to one table.

    Attributes:
        table: as PostgreSQL writes it.
        how: "nothing", "rows" (those that differ), "whole" (copied again in place), "new" (the lake lacks
            it), or "left" (it is not published any more: it stays as it is).
        rows: how many are written.
        bytes: about what these take at the source.
        differences: kind of difference → rows, if it was compared.
        why: the reason, if it is not by rows.
    """

    table: str
    how: str
    rows: int = 0
    bytes: int = 0
    differences: dict[str, int] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Comparison:
    """One table compared.

    Attributes:
        source: the source table; None if it is not published any more.
        mirror: the table as the lake has it; None if the lake lacks it.
        repair: what the table needs.
        difference: the rows that differ; None if it was not compared.
    """

    source: SourceTable | None
    mirror: TableSchema | None
    repair: TableRepair
    difference: TableDifferences | None = None

    def changes(self, connection: psycopg.Connection[Any], point: ReadPoint) -> Iterator[RowChange]:
        """Yield the rows that differ, as changes that make the lake equal to the source."""
        assert self.source is not None
        assert self.difference is not None
        takes = _taken_operations(self.source)
        names = [column.name for column in self.source.columns]
        by_kind: dict[str, dict[int, int]] = {}
        for kind, key, rows in self.difference.differences:
            by_kind.setdefault(kind, {})[key] = rows
        if not self.difference.table.key:
            yield from self._changes_without_key(connection, point, by_kind, names)
            return
        going = by_kind.get(EXTRA, {}) if "delete" in takes else {}
        changed = by_kind.get(DIFFERENT, {}) if "update" in takes else {}
        coming = by_kind.get(MISSING, {}) if "insert" in takes else {}
        old = lake_rows(point, self.difference.table, [*going, *changed], names)
        yield from (RowChange(old[key], None) for key in going)
        with _of_its_rows(connection, self.source):
            for key, row in source_rows(connection, self.difference.table, [*changed, *coming], names):
                yield RowChange(old.get(key), row)

    def _changes_without_key(
        self,
        connection: psycopg.Connection[Any],
        point: ReadPoint,
        by_kind: dict[str, dict[int, int]],
        names: Sequence[str],
    ) -> Iterator[RowChange]:
        assert self.source is not None
        assert self.difference is not None
        going = by_kind.get(EXTRA, {}) | by_kind.get(DUPLICATED, {})
        old = lake_rows(point, self.difference.table, list(going), names)
        for key, rows in going.items():
            yield from [RowChange(old[key], None)] * rows
        coming = dict(by_kind.get(MISSING, {}))
        with _of_its_rows(connection, self.source):
            for key, row in source_rows(connection, self.difference.table, list(coming), names):
                yield from [RowChange(None, row)] * coming.pop(key, 0)


@contextmanager
def _of_its_rows(connection: psycopg.Connection[Any], table: SourceTable) -> Iterator[None]:
    """A row at which the server fails, or a value that it cannot translate, is the trouble of its table."""
    try:
        yield
    except psycopg.Error as error:
        explained = explain(error, connection.info.dsn, f"comparing {table.quoted}", rows=True)
        if not isinstance(error, psycopg.DataError) and not isinstance(explained, UnreadableRowsError):
            raise
        raise explained.of(table.schema, table.table) from None


def compare(
    connection: psycopg.Connection[Any],
    point: ReadPoint,
    tables: Sequence[SourceTable],
    unreadable: Collection[LakeName],
    progress: Progressing,
    spared: Callable[[SlotlakeError], bool] = lambda error: False,
) -> list[Comparison]:
    """Compare all tables as the connection's snapshot shows them with the lake.

    Args:
        connection: of :func:`expectations.source_side.snapshot_session`, or :func:`session_now`.
        point: the read point at which the lake is read.
        unreadable: lake tables that cannot be compared, because part of them was lost.
        progress: called with the number of tables that are compared.
        spared: says of a table's trouble whether the table is then left, and the others are compared.

    Raises:
        UnreadableRowsError: the server fails at a row of a table that is not spared; the error names it.
    """
    mirrors = {(table.schema, table.table): table for table in point.followed()}
    known_sizes = sizes(connection, [table.relation_id for table in tables])
    comparisons = []
    for done, table in enumerate(tables):
        progress("compare", done, len(tables))
        size, mirror = (
            known_sizes.get(table.relation_id, (0, 0)),
            mirrors.pop((table.schema, table.table), None),
        )
        try:
            comparisons.append(_compared(connection, point, table, mirror, unreadable, size))
        except UnreadableRowsError as error:
            if not spared(error):
                raise
            repair = TableRepair(postgres_name(table.schema, table.table), LEFT, why=_SPARED + error.what)
            comparisons.append(Comparison(None, mirror, repair))
    progress("compare", len(tables), len(tables))
    reason = "it is not published any more: it stays as it is"
    unpublished = [(t, TableRepair(t.source_name, LEFT, why=reason)) for t in mirrors.values()]
    return [*comparisons, *(Comparison(None, table, repair) for table, repair in unpublished)]


def _compared(
    connection: psycopg.Connection[Any],
    point: ReadPoint,
    table: SourceTable,
    mirror: TableSchema | None,
    unreadable: Collection[LakeName],
    size: tuple[int, int],
) -> Comparison:
    """Compare one table.

    Args:
        size: its rows, as the planner estimates them, and its bytes.
    """
    name = postgres_name(table.schema, table.table)
    if mirror is None:
        return Comparison(table, None, TableRepair(name, NEW, *size, why="the lake lacks it"))
    reason = _incomparable_reason(
        table, mirror, is_unreadable=mirror.lake_name(point.lake.namespace) in unreadable
    )
    if reason:
        return Comparison(table, mirror, TableRepair(name, WHOLE, *size, why=reason))
    try:
        with reading(connection, Compared.of(name, table, mirror)), _of_its_rows(connection, table):
            difference = compare_table(connection, point, name, table, mirror)
    except VanishedError:
        return Comparison(None, mirror, TableRepair(name, LEFT, why="it was dropped: it stays as it is"))
    except ChangedMeanwhileError:
        return Comparison(table, mirror, TableRepair(name, WHOLE, *size, why="it was altered meanwhile"))
    return Comparison(table, mirror, _repair(name, table, difference, size[1]), difference)


def _incomparable_reason(table: SourceTable, mirror: TableSchema, *, is_unreadable: bool) -> str:
    """Why a table cannot be compared by rows; "" if it can."""
    if is_unreadable:
        return "what the lake has of it cannot be read whole"
    if _column_signatures(mirror.live) != _column_signatures(table.columns):
        return "its columns or its key changed"
    return "its columns or its key changed" if tuple(mirror.key) != tuple(table.key) else ""


def _repair(name: str, table: SourceTable, difference: TableDifferences, table_bytes: int) -> TableRepair:
    """What a table needs that was compared."""
    if not len(difference.differences):
        return TableRepair(name, NOTHING)
    reason = _whole_copy_reason(table, difference)
    if reason:
        return TableRepair(name, WHOLE, difference.source_rows, table_bytes, difference.counts, reason)
    rows = difference.rows()
    rows_bytes = min(table_bytes * rows // max(difference.source_rows, 1), table_bytes)
    return TableRepair(name, ROWS, rows, rows_bytes, difference.counts)


def _column_signatures(columns: Sequence[Any]) -> list[tuple[str, int, int]]:
    return [(column.name, column.type_oid, column.typmod) for column in columns]


def _whole_copy_reason(table: SourceTable, difference: TableDifferences) -> str:
    """Why a table is not mended by rows; "" if it is."""
    if _taken_operations(table) != frozenset(("insert", "update", "delete")):
        return ""  # the lake keeps rows that the source has no more: a copy would lose them
    identity = table.replica_identity
    if not table.key and identity != "f":
        return "it has no key, and its replica identity does not name rows"
    if table.key and identity == "n":
        return "its replica identity names no rows"
    if table.key and difference.rows(DUPLICATED):
        return "the lake has rows of it twice"
    rows = difference.rows()
    if rows > _BY_ROWS_MAX or rows > max(
        _ALWAYS_BY_ROWS, _WHOLE_SHARE * max(difference.source_rows, difference.lake_rows)
    ):
        return "most of it differs"
    return ""


def _taken_operations(table: SourceTable) -> frozenset[str]:
    """The operations on rows that the lake takes of a table."""
    chosen = Selection.from_json(table.selection) if isinstance(table, SelectedTable) else Selection()
    return frozenset(each for each in ("insert", "update", "delete") if chosen.takes(each))


_SIZES = f"""WITH RECURSIVE {LOCKED}, root AS (
    SELECT oid, relkind FROM pg_class WHERE oid = ANY (%s)
), {LEAVES}
SELECT leaf.root, greatest(sum(c.reltuples), 0)::bigint,
       coalesce(sum(CASE WHEN c.oid IN (SELECT relation FROM locked)
                         THEN c.relpages * current_setting('block_size')::bigint
                         ELSE pg_relation_size(c.oid) END), 0)::bigint
FROM leaf JOIN pg_class c ON c.oid = leaf.relid GROUP BY leaf.root
"""


def sizes(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, tuple[int, int]]:
    """Rows, as the planner estimates them, and bytes, of each table, by OID."""
    rows = connection.execute(_SIZES.encode(), (list(oids),)).fetchall()
    return {int(oid): (int(count), int(size)) for oid, count, size in rows}


@contextmanager
def session_now(dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Open a session that sees the source as it is at its beginning, for a plan."""
    with (
        source_session(dsn, "comparing the tables") as connection,
        connection.transaction(),
    ):
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(sql.SQL("SET LOCAL row_security = off"))
        yield connection
