"""Tables that join the publication later: each is copied over several syncs, the others go on meanwhile.

At each pull ranges of joining tables are copied for a bounded time (`source.copy_seconds_per_sync`); what is
short enough joins at once.  What is copied is recorded (`infra.copy.joining_record`), under a snapshot of
each pull's own, and nothing is held between them: the slot goes on being confirmed, so the keys that each
pulled batch changes in a joining table are noted before the batch is let go of.  When all ranges are there,
the lake is brought to a new slot's snapshot, the rows with a noted key are read again there, and the table is
published at its LSN (docs/adr/0025).

Two kinds of snapshots serve.  A table begins, and ends, under one at a position of the lake, and begins only
when nobody is open who may have written to it before it was published (`infra.joining.settled`): so whatever
commits behind it is in the stream.  Between, any snapshot will do that shows all that the first one did.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import sql

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.copy.parts import plan_parts
from slotlake.decoder.copy.table import CopyJob
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.copy.copying import Attempt
from slotlake.infra.copy.forward import all_kinds_published, resumable
from slotlake.infra.copy.joining_record import Joining, JoiningRecord, KeyedBy, Since
from slotlake.infra.copy.tables import copy_all
from slotlake.infra.joining.settled import awaited, look_ahead, settled_snapshot
from slotlake.infra.selection.aside import require_columns
from slotlake.infra.selection.tables import published_beside
from slotlake.infra.source.history import server_origin
from slotlake.spark.names import lake_table, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.names import LakeName
    from slotlake.spark.publish.place import Kept
    from slotlake.spark.tables.schema import TableSchema

WAIT_SECONDS = 10.0
_VISIBLE_WAIT_SECONDS = 2.0


class _Time:
    """For how long ranges are begun, over all that one pull copies; at least one always is."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until: float | None = None
        self._lock = threading.Lock()

    @property
    def over(self) -> bool:
        return self._until is not None and time.monotonic() >= self._until

    def begins(self) -> bool:
        with self._lock:
            if self._until is None:
                self._until = time.monotonic() + self._seconds
                return True
        return not self.over


@dataclass(frozen=True)
class _Round(Attempt):
    """What one pull copies under one snapshot."""

    record: JoiningRecord
    time: _Time = field(default_factory=lambda: _Time(0.0))

    def kept(self, schemas: Mapping[SourceTable, TableSchema], namespace: str) -> Kept:
        """Also of the joining tables that this round leaves alone."""
        names = {oid: _lake_name(table.since, namespace) for oid, table in self.record.joining.items()}
        return {names[oid]: table.names for oid, table in self.record.tables.items()}

    def changed(
        self, pipeline: OpenPipeline, lsn: int, rows: Mapping[SourceTable, int], progress: Progressing
    ) -> Mapping[SourceTable, pa.Table | None]:
        """The slot has let go of them: what was noted."""
        return {table: self.record.changed(table.relation_id) for table in rows}

    def begins(self, job: CopyJob) -> bool:
        finishing = job.condition is not None or job.table.relation_id in self.record.unrecorded
        return finishing or self.time.begins()


def add_new_tables(pipeline: OpenPipeline, progress: Progressing) -> list[str]:
    """Copy what there is time for of the tables that have joined the publications; those that are whole now.

    A table whose beginning is held up by transactions that are open is left to the next run.
    """
    fresh = _fresh(pipeline)
    _let_go(pipeline, fresh, progress)
    look_ahead(pipeline, fresh)
    if not fresh:
        return []
    ranged = _ranged(pipeline, fresh)
    time_left = _Time(pipeline.file.source.copy_seconds_per_sync)
    at_once = [table for table in fresh if table not in ranged]
    due, going_on = _due(pipeline, ranged)
    added = _at_slot(pipeline, due, at_once, time_left, progress) if due or at_once else []
    if going_on and not time_left.over:
        _between(pipeline, going_on, time_left, progress)
        due, going_on = _due(pipeline, going_on)
        added += _at_slot(pipeline, due, [], time_left, progress) if due else []
    _tell(pipeline, progress)
    return added


def how_far(pipeline: OpenPipeline) -> dict[str, str]:
    """The tables that are half copied, as PostgreSQL writes them, and how many ranges are there."""
    record = JoiningRecord.of(pipeline)
    told = {
        name: f"0 ranges (open transactions wrote to it before it was published: {who})"
        for name, who in awaited(pipeline).items()
    }
    for relation_id, table in record.joining.items():
        if relation_id in record.tables:
            recorded = record.tables[relation_id]
            name = postgres_name(table.since.schema, table.since.table)
            told[name] = f"{len(recorded.files):,} of {len(recorded.parts):,} ranges"
    return told


def give_up(pipeline: OpenPipeline, relation_ids: Collection[int] | None = None) -> list[str]:
    """Remove what half copied tables have left, of all or of these; the tables."""
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.publish.place import clear_leftovers

    record = JoiningRecord.of(pipeline)
    chosen = {
        oid: table for oid, table in record.joining.items() if relation_ids is None or oid in relation_ids
    }
    if not chosen:
        return []
    with open_catalog(pipeline.lake) as catalog:
        names = [_lake_name(table.since, pipeline.lake.namespace) for table in chosen.values()]
        clear_leftovers(catalog, pipeline.name, names)
    for relation_id in chosen:
        record.leave(relation_id)
    return [postgres_name(table.since.schema, table.since.table) for table in chosen.values()]


def _fresh(pipeline: OpenPipeline) -> list[SourceTable]:
    """Published tables that the lake does not have and is to have."""
    from slotlake.spark.read.point import Cut

    if pipeline.file.new_tables == "ignore":
        return []
    cut = Cut.latest(pipeline.lake)
    known = {(table.schema, table.table) for table in cut.tables()}
    fresh = published_beside(pipeline, known | cut.aside.keys())
    require_columns(fresh)
    return fresh


def _ranged(pipeline: OpenPipeline, fresh: Sequence[SourceTable]) -> list[SourceTable]:
    """Those whose copy can be brought forward, the smallest first."""
    if not resumable(pipeline):
        return []
    keyed = [table for table in fresh if table.key]
    if not keyed:
        return []
    with source_session(pipeline.source.dsn, "planning the copy") as connection:
        if not all_kinds_published(connection, pipeline.source.publications):
            return []
        planned = plan_parts(connection, keyed)
        return sorted(keyed, key=lambda table: sum(part.bytes for part in planned[table]))


def _let_go(pipeline: OpenPipeline, fresh: Sequence[SourceTable], progress: Progressing) -> None:
    """Give up what cannot be gone on with: it joins no more, or changes of it were not noted."""
    joining = JoiningRecord.of(pipeline).joining
    if not joining:
        return
    tables = {table.relation_id: table for table in fresh}
    position, server = pipeline.position(), _server(pipeline)
    over = {
        relation_id: why
        for relation_id, table in joining.items()
        if (why := _hindrance(table, tables.get(relation_id), position, server))
    }
    for relation_id, why in over.items():
        since = joining[relation_id].since
        progress(f"copy {postgres_name(since.schema, since.table)}: given up, {why}", 0)
    give_up(pipeline, over)


def _hindrance(
    joining: Joining, table: SourceTable | None, position: int, server: tuple[str, int]
) -> str | None:
    """Why a copy cannot be gone on with."""
    since = joining.since
    if table is None or (since.schema, since.table) != (table.schema, table.table):
        return "the table is here, joins no more, or is another one by now"
    if since.server != server:
        return "the server is another one, or was promoted"
    if not joining.reaches(position):
        return "the lake was moved by something else than a sync"
    return "rows were changed that no key names" if joining.lost else None


def _due(
    pipeline: OpenPipeline, tables: Sequence[SourceTable]
) -> tuple[list[SourceTable], list[SourceTable]]:
    """Those that begin or can end, and those of which ranges are left."""
    record = JoiningRecord.of(pipeline)
    complete, recorded = record.complete, record.tables
    going_on = [t for t in tables if t.relation_id not in complete and _started(recorded.get(t.relation_id))]
    return [table for table in tables if table not in going_on], going_on


def _started(recorded: object) -> bool:
    return bool(getattr(recorded, "files", None))


def _at_slot(
    pipeline: OpenPipeline,
    due: Sequence[SourceTable],
    at_once: Sequence[SourceTable],
    time_left: _Time,
    progress: Progressing,
) -> list[str]:
    """Begin tables, and publish those that are whole, at a temporary slot's snapshot."""
    record = JoiningRecord.of(pipeline)
    try:
        with settled_snapshot(pipeline, [*due, *at_once], WAIT_SECONDS, progress) as begun:
            if begun is None:
                return []
            snapshot, tables = begun
            record.unrecorded = {table.relation_id for table in at_once}
            visible, server = _visible(pipeline, snapshot), _server(pipeline)
            record.beginning = {t.relation_id: _since(t, snapshot.lsn, visible, server) for t in due}
            attempt = _Round(record, snapshot.lsn, time=time_left)
            copies = copy_all(pipeline, tables, snapshot, progress, attempt) if tables else []
    except ChangedMeanwhileError as error:
        progress(f"{error.where}: {error.what}; the next run begins it again", 0)
        return []
    added = [each.table for each in copies]
    reach("join.published")
    for table in due:
        if postgres_name(table.schema, table.table) in added:
            record.leave(table.relation_id)
    return added


def _between(
    pipeline: OpenPipeline, tables: Sequence[SourceTable], time_left: _Time, progress: Progressing
) -> None:
    """Copy ranges under a snapshot that waits for nobody."""
    record = JoiningRecord.of(pipeline)
    joining = record.joining
    first = [joining[table.relation_id].since.visible for table in tables]
    attempt = _Round(record, 0, only_goes_on=True, time=time_left)
    try:
        with _snapshot(pipeline, first) as snapshot:
            if snapshot is None:
                return
            copy_all(pipeline, tables, snapshot, progress, attempt)
    except ChangedMeanwhileError as error:
        progress(f"{error.where}: {error.what}; the next run begins it again", 0)
        return
    for table in tables:
        if table.relation_id in attempt.stopped:
            progress(f"copy {table.quoted}: given up, the table or its publication was altered", 0)
    give_up(pipeline, attempt.stopped)


@contextmanager
def _snapshot(pipeline: OpenPipeline, first: Collection[str]) -> Iterator[ExportedSnapshot | None]:
    """A snapshot of now; None if it cannot be had that it shows all that ``first`` did.

    What is committed is decoded before others see it: while it waits for a standby, say.
    """
    dsn = pipeline.source.dsn
    until = time.monotonic() + _VISIBLE_WAIT_SECONDS
    with source_session(dsn, "exporting a snapshot") as connection:
        while True:
            connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            row = connection.execute("SELECT pg_current_snapshot()::text, pg_export_snapshot()").fetchone()
            assert row is not None
            if all(shows_all(row[0], earlier) for earlier in first):
                yield ExportedSnapshot(connection, "", pipeline.position(), row[1])
                return
            connection.execute("ROLLBACK")
            if time.monotonic() >= until:
                yield None
                return
            time.sleep(0.1)


def shows_all(snapshot: str, earlier: str) -> bool:
    """Does a snapshot show every transaction that an earlier one does? Both as `pg_snapshot` prints them."""
    _, xmax, running = _parsed(snapshot)
    _, earlier_xmax, earlier_running = _parsed(earlier)
    return xmax >= earlier_xmax and all(xid >= earlier_xmax or xid in earlier_running for xid in running)


def _parsed(snapshot: str) -> tuple[int, int, set[int]]:
    xmin, xmax, running = snapshot.split(":")
    return int(xmin), int(xmax), {int(xid) for xid in running.split(",") if xid}


def _visible(pipeline: OpenPipeline, snapshot: ExportedSnapshot) -> str:
    dsn = pipeline.source.dsn
    with source_session(dsn, "taking up the snapshot") as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.snapshot)))
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        return str(row[0])


def _since(table: SourceTable, position: int, visible: str, server: tuple[str, int]) -> Since:
    columns = {column.name: column for column in table.columns}
    key = tuple(KeyedBy(name, columns[name].type_oid, columns[name].typmod) for name in table.key)
    return Since(table.schema, table.table, table.relation_id, position, visible, server, key)


def _server(pipeline: OpenPipeline) -> tuple[str, int]:
    origin = server_origin(pipeline)
    return origin.system_identifier, origin.timeline


def _lake_name(since: Since, namespace: str) -> LakeName:
    return lake_table(namespace, since.schema, since.table)


def _tell(pipeline: OpenPipeline, progress: Progressing) -> None:
    for table, ranges in how_far(pipeline).items():
        progress(f"copy {table}: {ranges} are here, the next sync goes on with it", 0)
