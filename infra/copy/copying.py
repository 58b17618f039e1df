"""One copy of tables, from an exported snapshot to files that a lake's table can have: ranges, registration.

All that reads whole tables goes through here.  A `Place` says where the files go, an `Attempt` what stays
when the copy is cut off, and whether it is finished now.  Ranges of all tables are read in parallel, in the
tables' order; a table is registered, out of sight, when its last range is there.  Ranges of an earlier
attempt that are recorded and whole stay, and are brought forward to the snapshot at hand
(`infra.copy.forward`).
Invariant: a table that is registered is exactly as the snapshot shows it.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pyarrow as pa

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.copy.files import CopiedFile
from slotlake.decoder.copy.parts import Part, plan_parts, whole_part
from slotlake.decoder.copy.table import CopyCrew, CopyJob
from slotlake.decoder.errors import ApplyError, SlotlakeError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.copy.described import Described, Looks
from slotlake.infra.copy.forward import changed_keys, fingerprint, key_condition, publication_state
from slotlake.infra.copy.planner import SharedAttempt, shared_attempt
from slotlake.infra.copy.record import CopyRecord, Recorded, TableWork
from slotlake.infra.copy.states import CopyStates, TableProgress
from slotlake.infra.reports import TableCopy
from slotlake.infra.selection.aside import is_of_one_table, leave_out
from slotlake.infra.selection.types import refuse_lossy_copy
from slotlake.spark.exchange import make_directory

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.publish.place import CopyTarget, Names, RetainedFiles
    from slotlake.spark.tables.schema import TableSchema

_KEYS_PER_QUERY = 100_000


class Place(Protocol):
    """Where tables are copied to: out of sight (`spark.copy.initial`), or in place of what is there."""

    def target(self, schema: TableSchema) -> CopyTarget:
        """Return where a table's files go."""

    def register(self, schema: TableSchema, stale: pa.Table | None = None, names: Names = None) -> int:
        """Make files a table's content; return its rows.

        Args:
            stale: keys whose rows are left out; None: there are none.
        """


@dataclass(frozen=True)
class Attempt:
    """One of the attempts at a copy, each under a snapshot of its own.

    Attributes:
        record: what this and earlier attempts have on disk.
        first: LSN of the slot; earlier attempts' snapshots are there or later.
        may_begin: tables of which there is nothing yet get ranges, too.
        finishes: tables that are whole are registered.
        stopped: OIDs of tables of which nothing could be continued.
        machines: which have copied ranges, if several may → how many.
    """

    record: CopyRecord
    first: int
    may_begin: bool = True
    finishes: bool = True
    stopped: set[int] = field(default_factory=set)
    machines: dict[str, int] = field(default_factory=dict)

    def recorded_files(self, schemas: Mapping[SourceTable, TableSchema], namespace: str) -> RetainedFiles:
        """Return lake table → names of the files that an earlier attempt recorded."""
        recorded = self.record.tables
        return {
            schema.lake_name(namespace): recorded[table.relation_id].names
            for table, schema in schemas.items()
            if table.relation_id in recorded
        }

    def changed(
        self, pipeline: OpenPipeline, lsn: int, rows: Mapping[SourceTable, int], progress: Progressing
    ) -> Mapping[SourceTable, pa.Table | None]:
        """Read the keys whose rows must be read again to bring copied ranges to a later snapshot.

        Args:
            lsn: the LSN of the snapshot at hand.
            rows: tables with ranges of an earlier attempt → about how many rows these have.
            progress: called with the bytes that are received.

        Returns:
            Table → its keys (`changed_keys`), or None if it must be copied again. Tables that need no key
            are left out.
        """
        if lsn <= self.first:
            return {}
        return changed_keys(pipeline, (self.first, lsn), rows, progress)

    def begins(self, job: CopyJob) -> bool:
        """Return whether there is time for this part."""
        return True


class Filling:
    """The reading of whole tables of an open pipeline."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._file, self._source = pipeline, pipeline.file, pipeline.source

    def fill_tables(
        self,
        copy: Place,
        described: Described,
        snapshot: ExportedSnapshot,
        progress: Progressing,
        attempt: Attempt | None,
    ) -> tuple[list[TableCopy], CopyStates]:
        """Copy tables range by range, and register those that are whole.

        Args:
            copy: where the tables are copied to.
            described: the tables; learns which cannot be read, and which are unchanged when they are.
            snapshot: the snapshot under which the ranges are read.
            attempt: the record of what is copied, to go on from; None: nothing stays if this is cut off.

        Returns:
            The copies of the tables that are whole, and the states that `status` reads.

        Raises:
            SlotlakeError: something else than one table's error; or one that is to stop all.
        """
        how, complete = publication_state(self._source, snapshot.snapshot)
        works = []
        for table, schema in described.schemas.items():
            target = copy.target(schema)
            works.append(TableWork(table, schema, target, fingerprint(how, table, schema, target)))
        self._plan(works, snapshot, progress, attempt if complete else None)
        if attempt is not None:
            if not attempt.may_begin:
                attempt.stopped.update(work.table.relation_id for work in works if not work.done)
            works = [work for work in works if work.table.relation_id not in attempt.stopped]
            _record_ranges(attempt.record, works)
        states = CopyStates(self._file.state_dir, snapshot.lsn, progress)
        for work in works:
            states.expect(_progress_of(work))
        return self._copy(copy, works, snapshot, states, attempt, described), states

    def _plan(
        self,
        works: Sequence[TableWork],
        snapshot: ExportedSnapshot,
        progress: Progressing,
        attempt: Attempt | None,
    ) -> None:
        """Plan into which ranges each table is split, and which of them stay as copied earlier."""
        with source_session(self._source.dsn, "planning the copy") as connection:
            planned = plan_parts(connection, [work.table for work in works])
        recorded = {} if attempt is None else attempt.record.tables
        may_grow = attempt is None or attempt.may_begin
        for work in works:
            _resume_recorded(work, recorded.get(work.table.relation_id), planned[work.table], may_grow)
        resumed = [work for work in works if work.done]
        if attempt is not None and resumed and attempt.finishes:
            rows = {work.table: sum(file.rows for file in work.files) for work in resumed}
            changed = attempt.changed(self._pipeline, snapshot.lsn, rows, progress)
            reach("init.forwarded")
            for work in resumed:
                work.stale_keys = changed.get(work.table)
                if work.stale_keys is None and work.table in changed:
                    work.parts, work.done = planned[work.table], {}
        shared = attempt is not None and attempt.record.ranges is not None
        ending = f"-{secrets.token_hex(3)}" if shared else ""  # no other machine's files have these names
        with source_session(self._source.dsn, "planning the copy") as connection:
            for work in works:
                _clear(work)
                work.jobs = _jobs(work, connection, ending)

    def _copy(
        self,
        copy: Place,
        works: Sequence[TableWork],
        snapshot: ExportedSnapshot,
        states: CopyStates,
        attempt: Attempt | None,
        described: Described,
    ) -> list[TableCopy]:
        errors, looks = described.errors, Looks(described, [job for work in works for job in work.jobs])
        copies: list[TableCopy] = []
        finishes = attempt is None or attempt.finishes
        ranges_resumed = {work.table: len(work.done) for work in works}
        with ExitStack() as stack:
            shared = None
            if attempt is not None:
                shared = stack.enter_context(
                    shared_attempt(self._pipeline, attempt.record, snapshot, works, states)
                )
            begins = (lambda job: True) if attempt is None else attempt.begins
            begins = begins if shared is None else shared.begins

            def failed(job: CopyJob, error: BaseException) -> bool:
                if isinstance(error, SlotlakeError) and is_of_one_table(self._file, error):
                    errors.setdefault(job.table, error)
                return job.table in errors

            crew = stack.enter_context(CopyCrew(
                self._source.dsn,
                snapshot.snapshot,
                [],
                workers=self._file.copy_workers,
                done=_noting(works, states, attempt, shared, looks),
                report=states.count_rows,
                begins=lambda job: job.table not in errors and begins(job),
            ))  # fmt: skip
            crew.failed, crew.turn = failed, None if shared is None else shared.turn
            crew.add(job for work in works for job in work.jobs)
            for work in works:
                crew.wait(work.jobs, None if shared is None else shared.look)
                if shared is not None:
                    shared.complete(work, crew, errors)
                if work.is_whole and work.table not in errors and finishes:
                    try:
                        copied = self._registered(copy, work, snapshot, states, ranges_resumed[work.table])
                        copies.append(copied)
                    except ApplyError as error:
                        leave_out(self._file, errors, work.table, error)
        if attempt is not None:
            attempt.machines.update(states.machines)
        return copies

    def _registered(
        self,
        copy: Place,
        work: TableWork,
        snapshot: ExportedSnapshot,
        states: CopyStates,
        ranges_resumed: int,
    ) -> TableCopy:
        """Register a table whose ranges are all there."""
        refuse_lossy_copy(self._pipeline, work.table, snapshot, work.files)
        states.move(work.schema.source_name, "copied" if work.stale_keys is None else "catching up")
        rows = copy.register(work.schema, work.stale_keys, work.names)
        reach("init.registered")
        return TableCopy(
            work.schema.source_name,
            work.target.lake_table,
            rows,
            len(work.files),
            ranges=len(work.parts),
            ranges_kept=ranges_resumed,
        )


def _resume_recorded(work: TableWork, recorded: Recorded | None, planned: list[Part], may_grow: bool) -> None:
    """Take over ranges that are recorded, whole and still true; joined partitions are further ranges.

    Args:
        work: gets the ranges and their files.
        recorded: the table as an earlier attempt recorded it; None if it did not.
        planned: the ranges that a new copy would have.
        may_grow: add partitions that have joined; else they are left to a later attempt.
    """
    work.parts = planned
    if recorded is None or recorded.fingerprint != work.fingerprint or not recorded.files:
        return
    before, now = json.loads(recorded.partitions or "{}"), json.loads(work.schema.partitions or "{}")
    if any(now.get(leaf) != state for leaf, state in before.items()):
        return
    recorded_parts = {part.relation_id: part.relation for part in recorded.parts}
    if not recorded_parts.items() <= {part.relation_id: part.relation for part in planned}.items():
        return  # ranges are read by name, and are of what had it
    if any(str(leaf) in now and str(leaf) not in before for leaf in recorded_parts):
        return  # it was read, by chance, before it was a partition: its changes were not in the stream yet
    new_parts = [part for part in planned if part.relation_id not in recorded_parts] if may_grow else []
    if now != before and work.table.relation_id in recorded_parts:
        return
    first = len(recorded.parts)
    numbered_parts = [replace(part, number=first + i) for i, part in enumerate(new_parts)]
    work.parts = [*recorded.parts, *numbered_parts]
    delivered = work.target.delivered() if work.target.final is not None else None
    work.done = recorded.whole(work.target.directory, delivered)


def _record_ranges(record: CopyRecord, works: Sequence[TableWork]) -> None:
    recorded = record.tables
    for work in works:
        oid, partitions = work.table.relation_id, work.schema.partitions
        before = recorded.get(oid)
        if before is None or not work.done:
            record.begin(oid, work.fingerprint, partitions, work.parts)
            continue
        if record.ranges is not None:  # what is not whole is noted anew
            record.ranges.remove(before.beginning, before.files.keys() - work.done.keys())
        if len(work.parts) > len(before.parts):
            record.extend(oid, partitions, work.parts[len(before.parts) :])


def _clear(work: TableWork) -> None:
    """Remove files that are not the table's."""
    work.target.retain({file.path.name for file in work.files})


def _jobs(work: TableWork, connection: psycopg.Connection[Any], ending: str) -> list[CopyJob]:
    jobs = [
        CopyJob(work.table, work.target, part, f"copy-{part.number:05d}{ending}")
        for part in work.parts
        if part.number not in work.done
    ]
    if work.stale_keys is not None and work.stale_keys.num_rows:
        again = work.target.again
        make_directory(again.directory)
        for at in range(0, work.stale_keys.num_rows, _KEYS_PER_QUERY):
            condition = key_condition(connection, work.table, work.stale_keys.slice(at, _KEYS_PER_QUERY))
            jobs.append(
                CopyJob(work.table, again, whole_part(work.table), f"again-{len(jobs):05d}", condition)
            )
    return jobs


def _progress_of(work: TableWork) -> TableProgress:
    return TableProgress(
        work.schema.source_name,
        state="copying" if work.done else "init",
        rows=sum(file.rows for file in work.files),
        rows_estimated=sum(part.rows for part in work.parts),
        bytes=sum(file.received for file in work.files),
        ranges=len(work.parts),
        ranges_done=len(work.done),
        ranges_kept=len(work.done),
    )


def _noting(
    works: Sequence[TableWork],
    states: CopyStates,
    attempt: Attempt | None,
    shared: SharedAttempt | None,
    looks: Looks,
) -> Callable[[CopyJob, list[CopiedFile]], None]:
    """Return what is done with the files of a range, or of rows that are read once more."""
    by_table = {work.table: work for work in works}

    def note_done(job: CopyJob, files: list[CopiedFile]) -> None:
        work, paths = by_table[job.table], [file.path for file in files]
        if job.condition is not None:
            work.target.again.deliver(paths)
            work.reread_files += files
            looks.done(job)
            return
        if shared is not None:
            shared.note_done(job, files)
            return
        if attempt is None:
            work.target.deliver(paths)
        else:
            deliver = partial(work.target.deliver, paths)
            attempt.record.done(job.table.relation_id, job.part.number, files, deliver)
        work.done[job.part.number] = files
        states.part_done(job)
        looks.done(job)

    return note_done
