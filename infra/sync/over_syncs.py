"""Copy tables over several syncs, a bounded time in each, while all others go on.

What is copied is recorded (`infra.copy.joining_record`), under a snapshot of each pull, and nothing is locked
between them: the slot goes on being confirmed, so the keys that each pulled batch changes in such a table are
noted before the batch is removed.  When all ranges are there, the lake is brought to a settled snapshot, the
rows with a noted key are read again there, and the table is published at its LSN (docs/adr/0025).

There are two kinds of snapshots.  A table begins, and ends, under one at a position of the lake, and begins
only when nobody is open who may have written to it before it was published (`infra.sync.settling`): so
whatever commits behind it is in the stream.  Between, any snapshot will do that shows all that the first one
did.

`CopyKind` says what differs between tables that join (`infra.sync.joining_tables`) and those that the lake
has and that are copied again (`infra.sync.recopying`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
from psycopg import sql

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.copy.table import CopyJob
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.copy.copying import Attempt
from slotlake.infra.copy.joining_record import CopyStart, JoiningRecord, JoiningTable, KeyedBy
from slotlake.infra.copy.tables import Copied
from slotlake.infra.selection.aside import Errors
from slotlake.infra.source.history import server_origin
from slotlake.infra.state.notes import Note
from slotlake.infra.sync.settling import open_writers_by_table, settled_snapshot
from slotlake.spark.names import lake_table, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.names import LakeName
    from slotlake.spark.publish.place import RetainedFiles
    from slotlake.spark.tables.schema import TableSchema

WAIT_SECONDS = 10.0
_VISIBLE_WAIT_SECONDS = 2.0


class TimeBudget:
    """The time in which one pull begins to copy ranges, or tables; at least one always is begun."""

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
class CopyKind:
    """How tables of one kind are copied over several syncs.

    Attributes:
        folder: of their record, in the pipeline's state folder.
        settling: the note of the transactions that they wait for.
        waits: words for people: who wrote to a table before this is waited for.
        copy: copies tables under a snapshot, and publishes those that are whole; as `copy_all`, which leaves
            out what changes meanwhile.
        clear: removes what is copied of tables.
    """

    folder: str
    settling: Note
    waits: str
    copy: Callable[[OpenPipeline, Sequence[SourceTable], ExportedSnapshot, Progressing, Attempt], Copied]
    clear: Callable[[OpenPipeline, Sequence[LakeName]], None]

    def record(self, pipeline: OpenPipeline) -> JoiningRecord:
        """The record of what is on disk of these tables."""
        return JoiningRecord(pipeline.file.state_dir / self.folder)


@dataclass(frozen=True)
class _Round(Attempt):
    """What one pull copies under one snapshot."""

    record: JoiningRecord
    time: TimeBudget = field(default_factory=lambda: TimeBudget(0.0))

    def recorded_files(self, schemas: Mapping[SourceTable, TableSchema], namespace: str) -> RetainedFiles:
        """As the base's, also of joining tables that this round leaves alone."""
        names = {oid: _lake_name(table.since, namespace) for oid, table in self.record.joining.items()}
        return {names[oid]: table.names for oid, table in self.record.tables.items()}

    def changed(
        self, pipeline: OpenPipeline, lsn: int, rows: Mapping[SourceTable, int], progress: Progressing
    ) -> Mapping[SourceTable, pa.Table | None]:
        """The keys that were noted: the slot does not have these changes any more."""
        return {table: self.record.changed(table.relation_id) for table in rows}

    def begins(self, job: CopyJob) -> bool:
        finishing = job.condition is not None or job.table.relation_id in self.record.unrecorded
        return finishing or self.time.begins()


def copy_some(
    pipeline: OpenPipeline,
    kind: CopyKind,
    ranged: Sequence[SourceTable],
    at_once: Sequence[SourceTable],
    progress: Progressing,
) -> list[str]:
    """Copy what there is time for of these tables.

    Args:
        pipeline: a pipeline whose lake has its tables.
        ranged: tables that are copied range by range.
        at_once: tables that are copied in one go.

    Returns:
        The tables that are whole, and published, as PostgreSQL writes them.
    """
    budget = TimeBudget(pipeline.file.source.copy_seconds_per_sync)
    ready, going_on = _split_by_stage(pipeline, kind, ranged)
    added = _at_lake_position(pipeline, kind, (ready, at_once), budget, progress) if ready or at_once else []
    if going_on and not budget.over:
        _between_positions(pipeline, kind, going_on, budget, progress)
        ready, going_on = _split_by_stage(pipeline, kind, going_on)
        added += _at_lake_position(pipeline, kind, (ready, []), budget, progress) if ready else []
    for table, ranges in progress_by_table(pipeline, kind).items():
        progress(f"copy {table}: {ranges} are copied, the next sync continues", 0)
    return added


def progress_by_table(pipeline: OpenPipeline, kind: CopyKind) -> dict[str, str]:
    """Return table, as PostgreSQL writes it → how many ranges are there, of tables that are half copied."""
    record = kind.record(pipeline)
    progress = {
        name: f"0 ranges (open transactions wrote to it before {kind.waits}: {who})"
        for name, who in open_writers_by_table(pipeline.file.state_dir, kind.settling).items()
    }
    for relation_id, table in record.joining.items():
        if relation_id in record.tables:
            recorded = record.tables[relation_id]
            name = postgres_name(table.since.schema, table.since.table)
            progress[name] = f"{len(recorded.files):,} of {len(recorded.parts):,} ranges"
    return progress


def give_up(pipeline: OpenPipeline, kind: CopyKind, relation_ids: Collection[int] | None = None) -> list[str]:
    """Remove what half copied tables have left.

    Args:
        relation_ids: OIDs of the tables; None for all of this kind.

    Returns:
        The tables, as PostgreSQL writes them.
    """
    record = kind.record(pipeline)
    chosen = {
        oid: table for oid, table in record.joining.items() if relation_ids is None or oid in relation_ids
    }
    if not chosen:
        return []
    kind.clear(pipeline, [_lake_name(table.since, pipeline.lake.namespace) for table in chosen.values()])
    for relation_id in chosen:
        record.forget_table(relation_id)
    return [postgres_name(table.since.schema, table.since.table) for table in chosen.values()]


def give_up_stale(
    pipeline: OpenPipeline,
    kind: CopyKind,
    current_names: Mapping[int, tuple[str, str]],
    progress: Progressing,
) -> None:
    """Give up copies that cannot be continued.

    Their table is not to be copied any more, or changes of it were not noted.

    Args:
        current_names: OIDs of the tables that are still to be copied → schema and name.
        progress: called with a line for each copy that is given up.
    """
    joining = kind.record(pipeline).joining
    if not joining:
        return
    position, server = pipeline.position(), _server(pipeline)
    reasons = {
        relation_id: reason
        for relation_id, table in joining.items()
        if (reason := _obstacle(table, current_names.get(relation_id), position, server))
    }
    for relation_id, reason in reasons.items():
        since = joining[relation_id].since
        progress(f"copy {postgres_name(since.schema, since.table)}: given up, {reason}", 0)
    give_up(pipeline, kind, reasons)


def _obstacle(
    joining: JoiningTable, current_name: tuple[str, str] | None, position: int, server: tuple[str, int]
) -> str | None:
    """Why a copy cannot be continued; None if it can."""
    since = joining.since
    if current_name != (since.schema, since.table):
        return "the lake has the table, or it is not published any more, or another table has its name"
    if since.server != server:
        return "the server is another one, or was promoted"
    if not joining.reaches(position):
        return "the lake's position was moved by something else than a sync"
    return "rows were changed that no key names" if joining.lost else None


def _split_by_stage(
    pipeline: OpenPipeline, kind: CopyKind, tables: Sequence[SourceTable]
) -> tuple[list[SourceTable], list[SourceTable]]:
    """Split tables into those that begin or can end, and those of which ranges are missing."""
    record = kind.record(pipeline)
    complete, recorded = record.complete, record.tables
    going_on = [t for t in tables if t.relation_id not in complete and _started(recorded.get(t.relation_id))]
    return [table for table in tables if table not in going_on], going_on


def _started(recorded: object) -> bool:
    return bool(getattr(recorded, "files", None))


def _at_lake_position(
    pipeline: OpenPipeline,
    kind: CopyKind,
    tables: tuple[Sequence[SourceTable], Sequence[SourceTable]],
    budget: TimeBudget,
    progress: Progressing,
) -> list[str]:
    """Begin tables, and publish those that are whole, under a settled snapshot.

    Args:
        tables: those that begin or can end; and those that are copied in one go.
    """
    record, (ready, at_once) = kind.record(pipeline), tables
    with settled_snapshot(pipeline, [*ready, *at_once], WAIT_SECONDS, progress, kind.settling) as start:
        if start is None or not start[1]:
            return []
        snapshot, settled = start
        record.unrecorded = {table.relation_id for table in at_once}
        visible, server = _visible(pipeline.source.dsn, snapshot), _server(pipeline)
        record.beginning = {t.relation_id: _since(t, snapshot.lsn, visible, server) for t in ready}
        attempt = _Round(record, snapshot.lsn, time=budget)
        copied = kind.copy(pipeline, settled, snapshot, progress, attempt)
    added = [each.table for each in copied.copies]
    reach("join.published")
    for table in ready:
        if postgres_name(table.schema, table.table) in added:
            record.forget_table(table.relation_id)
    _begin_again(pipeline, kind, copied.errors, progress)
    return added


def _begin_again(pipeline: OpenPipeline, kind: CopyKind, errors: Errors, progress: Progressing) -> None:
    """Forget what is copied of tables that changed under their copy: the next run begins them again.

    Raises:
        SlotlakeError: a table cannot be copied for another reason.
    """
    give_up(pipeline, kind, {table.relation_id for table in errors})
    for error in errors.values():
        if not isinstance(error, ChangedMeanwhileError):
            raise error
        progress(f"{error.where}: {error.what}; the next run begins it again", 0)


def _between_positions(
    pipeline: OpenPipeline,
    kind: CopyKind,
    tables: Sequence[SourceTable],
    budget: TimeBudget,
    progress: Progressing,
) -> None:
    """Copy ranges under a snapshot that waits for nobody."""
    record = kind.record(pipeline)
    joining = record.joining
    first = [joining[table.relation_id].since.visible for table in tables]
    attempt = _Round(record, 0, may_begin=False, finishes=False, time=budget)
    with _snapshot(pipeline, first) as snapshot:
        if snapshot is None:
            return
        copied = kind.copy(pipeline, tables, snapshot, progress, attempt)
    for table in tables:
        if table.relation_id in attempt.stopped:
            progress(f"copy {table.quoted}: given up, the table or its publication was altered", 0)
    give_up(pipeline, kind, attempt.stopped)
    _begin_again(pipeline, kind, copied.errors, progress)


@contextmanager
def _snapshot(pipeline: OpenPipeline, first: Collection[str]) -> Iterator[ExportedSnapshot | None]:
    """Export a snapshot of now; yield None if it does not show, in time, all that those ``first`` did.

    What is committed is decoded before others see it, for example while its commit waits for a standby.
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
    """Return whether a snapshot shows every transaction that an earlier one does (`pg_snapshot` texts)."""
    _, xmax, running = _parsed(snapshot)
    _, earlier_xmax, earlier_running = _parsed(earlier)
    return xmax >= earlier_xmax and all(xid >= earlier_xmax or xid in earlier_running for xid in running)


def _parsed(snapshot: str) -> tuple[int, int, set[int]]:
    xmin, xmax, running = snapshot.split(":")
    return int(xmin), int(xmax), {int(xid) for xid in running.split(",") if xid}


def _visible(dsn: str, snapshot: ExportedSnapshot) -> str:
    with source_session(dsn, "taking up the snapshot") as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.snapshot)))
        row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
        assert row is not None
        return str(row[0])


def _since(table: SourceTable, position: int, visible: str, server: tuple[str, int]) -> CopyStart:
    columns = {column.name: column for column in table.columns}
    key = tuple(KeyedBy(name, columns[name].type_oid, columns[name].typmod) for name in table.key)
    return CopyStart(table.schema, table.table, table.relation_id, position, visible, server, key)


def _server(pipeline: OpenPipeline) -> tuple[str, int]:
    origin = server_origin(pipeline.source)
    return origin.system_identifier, origin.timeline


def _lake_name(since: CopyStart, namespace: str) -> LakeName:
    return lake_table(namespace, since.schema, since.table)
