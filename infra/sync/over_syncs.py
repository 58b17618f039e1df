"""Copy tables over several syncs, a bounded time in each, while all others go on.

What is copied is recorded (`infra.copy.joining_record`), under a snapshot of each pull, and nothing is locked
between them: the slot goes on being confirmed, so the keys that each pulled batch changes in such a table are
noted before the batch is removed.  When all ranges are there, the lake is brought to a settled snapshot, the
rows with a noted key are read again there, and the table is published at its LSN (docs/adr/0025).

There are two kinds of snapshots.  A table begins, and ends, under one at a position of the lake, and begins
only when nobody is open who may have written to it before it was published (`infra.sync.settling`): so
whatever commits behind it is in the stream.  Between, any snapshot will do that shows all that the first one
did.

`OverSyncs` has two kinds of tables: those that join (`infra.sync.joining_tables`), and those that the lake
has and that are copied again (`infra.sync.recopying`).
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

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
    from slotlake.decoder.server.source import SourceSettings
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


class OverSyncs(ABC):
    """Tables of one kind that an open pipeline copies over several syncs.

    Attributes:
        folder: of their record, in the pipeline's state folder.
        settling: the note of the transactions that they wait for.
        waits: words for people: who wrote to a table before this is waited for.
    """

    folder: ClassVar[str]
    settling: ClassVar[Note]
    waits: ClassVar[str]

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    @abstractmethod
    def _copy(
        self,
        tables: Sequence[SourceTable],
        snapshot: ExportedSnapshot,
        progress: Progressing,
        attempt: Attempt,
    ) -> Copied:
        """Copy tables under a snapshot, and publish those that are whole; what changes is left out."""

    @abstractmethod
    def _clear(self, names: Sequence[LakeName]) -> None:
        """Remove what is copied of tables."""

    @property
    def record(self) -> JoiningRecord:
        """The record of what is on disk of these tables."""
        return JoiningRecord(self._file.state_dir / self.folder)

    def copy_some(
        self, ranged: Sequence[SourceTable], at_once: Sequence[SourceTable], progress: Progressing
    ) -> list[str]:
        """Copy what there is time for of these tables.

        Args:
            ranged: tables that are copied range by range.
            at_once: tables that are copied in one go.

        Returns:
            The tables that are whole, and published, as PostgreSQL writes them.
        """
        budget, added = TimeBudget(self._file.source.copy_seconds_per_sync), list[str]()
        ready, going_on = self._split_by_stage(ranged)
        if ready or at_once:
            added = self._at_lake_position(ready, at_once, budget, progress)
        if going_on and not budget.over:
            self._between_positions(going_on, budget, progress)
            ready, _ = self._split_by_stage(going_on)
            added += self._at_lake_position(ready, [], budget, progress) if ready else []
        for table, ranges in self.progress_by_table().items():
            progress(f"copy {table}: {ranges} are copied, the next sync continues", 0)
        return added

    def progress_by_table(self) -> dict[str, str]:
        """Of tables that are half copied: table, as PostgreSQL writes it → how many ranges are there."""
        record = self.record
        progress = {
            name: f"0 ranges (open transactions wrote to it before {self.waits}: {who})"
            for name, who in open_writers_by_table(self._file.state_dir, self.settling).items()
        }
        for relation_id, table in record.joining.items():
            if relation_id in record.tables:
                recorded = record.tables[relation_id]
                name = postgres_name(table.since.schema, table.since.table)
                progress[name] = f"{len(recorded.files):,} of {len(recorded.parts):,} ranges"
        return progress

    def give_up(self) -> list[str]:
        """Remove what all half copied tables of this kind have left; return their names."""
        return self._give_up()

    def _give_up(self, relation_ids: Collection[int] | None = None) -> list[str]:
        """Remove what half copied tables have left.

        Args:
            relation_ids: OIDs of the tables; None for all of this kind.

        Returns:
            The tables, as PostgreSQL writes them.
        """
        record = self.record
        chosen = {
            oid: table for oid, table in record.joining.items() if relation_ids is None or oid in relation_ids
        }
        if not chosen:
            return []
        namespace = self._lake.namespace
        self._clear([_lake_name(table.since, namespace) for table in chosen.values()])
        for relation_id in chosen:
            record.forget_table(relation_id)
        return [postgres_name(table.since.schema, table.since.table) for table in chosen.values()]

    def _give_up_others(self, current_names: Mapping[int, tuple[str, str]], progress: Progressing) -> None:
        """Give up copies that cannot be continued.

        Their table is not to be copied any more, or changes of it were not noted.

        Args:
            current_names: OIDs of the tables that are still to be copied → schema and name.
            progress: called with a line for each copy that is given up.
        """
        joining = self.record.joining
        if not joining:
            return
        position, server = self._pipeline.position(), _server(self._source)
        reasons = {
            relation_id: reason
            for relation_id, table in joining.items()
            if (reason := _obstacle(table, current_names.get(relation_id), position, server))
        }
        for relation_id, reason in reasons.items():
            since = joining[relation_id].since
            progress(f"copy {postgres_name(since.schema, since.table)}: given up, {reason}", 0)
        self._give_up(reasons)

    def _split_by_stage(self, tables: Sequence[SourceTable]) -> tuple[list[SourceTable], list[SourceTable]]:
        """Split tables into those that begin or can end, and those of which ranges are missing."""
        complete, recorded = self.record.complete, self.record.tables
        going_on = [
            t for t in tables if t.relation_id not in complete and _started(recorded.get(t.relation_id))
        ]
        return [table for table in tables if table not in going_on], going_on

    def _at_lake_position(
        self,
        ready: Sequence[SourceTable],
        at_once: Sequence[SourceTable],
        budget: TimeBudget,
        progress: Progressing,
    ) -> list[str]:
        """Begin tables, and publish those that are whole, under a settled snapshot.

        Args:
            ready: those that begin or can end.
            at_once: those that are copied in one go.
        """
        pipeline, record = self._pipeline, self.record
        with settled_snapshot(pipeline, [*ready, *at_once], WAIT_SECONDS, progress, self.settling) as start:
            if start is None or not start[1]:
                return []
            snapshot, settled = start
            record.unrecorded = {table.relation_id for table in at_once}
            visible, server = _visible(pipeline.source.dsn, snapshot), _server(pipeline.source)
            record.beginning = {t.relation_id: _since(t, snapshot.lsn, visible, server) for t in ready}
            copied = self._copy(settled, snapshot, progress, _Round(record, snapshot.lsn, time=budget))
        added = [each.table for each in copied.copies]
        reach("join.published")
        for table in ready:
            if postgres_name(table.schema, table.table) in added:
                record.forget_table(table.relation_id)
        self._begin_again(copied.errors, progress)
        return added

    def _begin_again(self, errors: Errors, progress: Progressing) -> None:
        """Forget what is copied of tables that changed under their copy: the next run begins them again.

        Raises:
            SlotlakeError: a table cannot be copied for another reason.
        """
        self._give_up({table.relation_id for table in errors})
        for error in errors.values():
            if not isinstance(error, ChangedMeanwhileError):
                raise error
            progress(f"{error.where}: {error.what}; the next run begins it again", 0)

    def _between_positions(
        self, tables: Sequence[SourceTable], budget: TimeBudget, progress: Progressing
    ) -> None:
        """Copy ranges under a snapshot that waits for nobody."""
        record = self.record
        joining = record.joining
        first = [joining[table.relation_id].since.visible for table in tables]
        attempt = _Round(record, 0, may_begin=False, finishes=False, time=budget)
        with _snapshot(self._pipeline, first) as snapshot:
            if snapshot is None:
                return
            copied = self._copy(tables, snapshot, progress, attempt)
        for table in tables:
            if table.relation_id in attempt.stopped:
                progress(f"copy {table.quoted}: given up, the table or its publication was altered", 0)
        self._give_up(attempt.stopped)
        self._begin_again(copied.errors, progress)


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


def _started(recorded: object) -> bool:
    return bool(getattr(recorded, "files", None))


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


def _server(source: SourceSettings) -> tuple[str, int]:
    origin = server_origin(source)
    return origin.system_identifier, origin.timeline


def _lake_name(since: CopyStart, namespace: str) -> LakeName:
    return lake_table(namespace, since.schema, since.table)
