"""A machine that helps an `init` of another machine: it copies ranges, and nothing else.

It takes no lock of the pipeline and starts no Spark.  It reads the plan, sees for itself what the tables
are, under the plan's snapshot, and copies ranges only of tables that it sees as the record describes them.
What it cannot copy it leaves to `init`, which says what is wrong.  It may come late, be killed, and come
again.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from slotlake.decoder.copy.files import CopiedFile
from slotlake.decoder.copy.reading import SnapshotGoneError, is_open
from slotlake.decoder.copy.table import CopyCrew, CopyJob
from slotlake.decoder.errors import LakeError, PipelineFileError, SlotlakeError, SourceError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.config.private_files import privately
from slotlake.infra.copy.claims import FORMAT, CopyPlan, RangeClaims, read_plan
from slotlake.infra.copy.described import Described
from slotlake.infra.copy.forward import fingerprint, publication_state
from slotlake.infra.copy.planner import claims_of
from slotlake.infra.copy.ranges import DoneRanges
from slotlake.infra.copy.record import CopyRecord, TableWork, range_note
from slotlake.infra.copy.tables import published_tables
from slotlake.infra.copy.unfinished import record_of
from slotlake.infra.opened.own_state import identity
from slotlake.infra.progress import CopyStep, Progressing
from slotlake.infra.reports import CopyWorkerReport
from slotlake.spark.exchange import make_directory, remove_directory

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings

_PAUSE_SECONDS = 2.0
_FOLDER = "copy-worker"


class NoCopyError(LakeError):
    """No initial copy of the pipeline is under way."""

    retryable = True


def help_copy(pipeline: OpenPipeline, progress: Progressing, wait_seconds: float) -> CopyWorkerReport:
    """Copy ranges of the initial copy that another machine runs, until all of them are done.

    Args:
        pipeline: the pipeline; its lock is the other machine's.
        progress: called with a `CopyStep` and the rows of this machine.
        wait_seconds: how long to wait for an `init`, also for the next one after one that was killed.

    Raises:
        PipelineFileError: machines do not share this pipeline's state, or another pipeline has it.
        NoCopyError: no `init` was at work for so long.
        SlotlakeError: something is wrong with this machine, or with what all machines need.
    """
    from slotlake.spark.copy.owner import is_initialised

    _require_shared(pipeline.file)
    work = _Helping(pipeline, progress)
    ended: set[str] = set()
    deadline = time.monotonic() + wait_seconds
    progress("waiting for a copy to help with", 0)
    while True:
        plan = read_plan(pipeline.file.state_dir)
        if plan is not None and plan.attempt not in ended:
            if work.help_attempt(plan):
                return work.report()
            ended.add(plan.attempt)
            deadline = time.monotonic() + wait_seconds
        elif is_initialised(pipeline.lake, pipeline.name):
            return work.report(already=not work.ranges)
        elif time.monotonic() >= deadline:
            raise _no_copy(pipeline.file, pipeline.name, work)
        else:
            time.sleep(min(_PAUSE_SECONDS, max(0.0, deadline - time.monotonic())))


def _require_shared(file: PipelineFile) -> None:
    if not file.shares_state:
        raise PipelineFileError(
            "the state of this pipeline is in a folder of one machine, so no other machine can help its copy",
            where=f"{file.path}, state.path",
            way_out="name a place in an object store in changelog.path and state.path (docs/workers.md)",
        )


def _no_copy(file: PipelineFile, name: str, work: _Helping) -> NoCopyError:
    done = f"; {sum(work.ranges.values()):,} ranges were copied here before, and stay" if work.ranges else ""
    return NoCopyError(
        f"no initial copy of pipeline {name!r} is under way{done}",
        where=f"state.path: {file.state_place}",
        way_out=f"start it on another machine: slotlake init {file.path.name}; or wait longer "
        "(--wait SECONDS)",
    )


class _Helping:
    """What this machine does, over all attempts that it helps."""

    def __init__(self, pipeline: OpenPipeline, progress: Progressing) -> None:
        self._pipeline, self._progress = pipeline, progress
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._rows: dict[str, tuple[int, int, float]] = {}  # table → rows, bytes, when it began
        self.ranges: dict[str, int] = {}
        self.left_out: dict[str, str] = {}
        self.rows = self.bytes = 0

    def report(self, *, already: bool = False) -> CopyWorkerReport:
        """Say what was done."""
        return CopyWorkerReport(
            self._pipeline.name,
            socket.gethostname(),
            already=already,
            ranges=sum(self.ranges.values()),
            rows=self.rows,
            bytes=self.bytes,
            seconds=time.monotonic() - self._started,
            tables=dict(self.ranges),
            left_out=dict(self.left_out),
        )

    def help_attempt(self, plan: CopyPlan) -> bool:
        """Copy ranges of one attempt; return whether all of them are done, here or elsewhere."""
        pipeline = self._pipeline
        self._require_same(plan)
        self._progress(f"helping the copy of {plan.machine}", 0)
        record = record_of(pipeline.file)
        assert record.ranges is not None
        self.left_out.clear()
        with (
            privately(pipeline.file),
            own_folder(pipeline.file.state_dir / _FOLDER) as folder,
            claims_of(pipeline.file, pipeline.source.dsn, record.ranges) as claims,
        ):
            try:
                works = self._works(plan, record, replace(pipeline.lake, exchange=folder), claims)
            except SourceError:
                if is_open(pipeline.source.dsn, plan.snapshot):
                    raise
                return False
            return _Attempt(self, pipeline, plan, claims, record.ranges, works).run()

    def count(self, job: CopyJob, rows: int, received: int) -> None:
        """Count rows that have come, and report them."""
        name = job.table.quoted
        with self._lock:
            before = self._rows.get(name, (0, 0, time.monotonic()))
            total = self._rows[name] = (before[0] + rows, before[1] + received, before[2])
            seconds = time.monotonic() - total[2]
            self._progress(CopyStep.of(name, "copying", total[1], total[0], seconds), total[0])

    def count_range(self, job: CopyJob, files: list[CopiedFile]) -> None:
        """Count a range that this machine has done."""
        name = job.table.quoted
        with self._lock:
            self.ranges[name] = self.ranges.get(name, 0) + 1
            self.rows += sum(file.rows for file in files)
            self.bytes += sum(file.received for file in files)

    def leave_out(self, name: str, why: str) -> None:
        """Leave a table to the machine that runs `init`."""
        with self._lock:
            self.left_out[name] = why
        self._progress(f"left to init: {name}: {why}", 0)

    def _require_same(self, plan: CopyPlan) -> None:
        file, own = self._pipeline.file, identity(self._pipeline.file)
        where = f"{plan.machine}, and this machine"
        if plan.format != FORMAT:
            raise LakeError(
                "the copy is made by another version of slotlake: its machines write format "
                f"{plan.format}, and this one format {FORMAT}",
                where=where,
                way_out="install the same version on all machines",
            )
        if plan.identity != own:
            raise PipelineFileError(
                f"state.path has the copy of another pipeline of the name {file.name!r}",
                where=f"{plan.identity} there, {own} here",
                way_out="give all machines the same pipeline file, and each pipeline its own name",
            )

    def _works(
        self, plan: CopyPlan, record: CopyRecord, lake: LakeSettings, claims: RangeClaims
    ) -> list[TableWork]:
        """The tables of the attempt that this machine sees as the one that runs `init` does."""
        from slotlake.spark.catalog.base import load
        from slotlake.spark.catalog.open import open_catalog
        from slotlake.spark.names import copying
        from slotlake.spark.publish.place import copy_target

        pipeline = self._pipeline
        if pipeline.state is not None:
            pipeline.state.refresh()
        recorded = record.planned
        tables = [table for table in published_tables(pipeline) if table.relation_id in recorded]
        snapshot = ExportedSnapshot(claims.connection, "", plan.lsn, plan.snapshot)
        described = Described.at(pipeline, snapshot, tables)
        schemas = described.schemas
        for table, error in described.errors.items():
            self.leave_out(table.quoted, error.what)
        publications, _ = publication_state(pipeline.source, plan.snapshot)
        names = {table: schema.lake_name(lake.namespace) for table, schema in schemas.items()}
        works = []
        with open_catalog(lake) as catalog:
            pointers = catalog.pointers_of([copying(name) for name in names.values()])
            for table, schema in schemas.items():
                hidden = copying(names[table])
                if hidden not in pointers:
                    continue
                target = copy_target(lake, names[table], load(pointers, hidden).metadata, schema)
                own = fingerprint(publications, table, schema, target)
                entry = recorded[table.relation_id]
                if own != entry.fingerprint:
                    self.leave_out(table.quoted, "it is not as init has seen it")
                else:
                    works.append(TableWork(table, schema, target, own, list(entry.parts)))
        return works


class _Attempt:
    """One attempt, of which this machine copies ranges."""

    def __init__(
        self,
        helping: _Helping,
        pipeline: OpenPipeline,
        plan: CopyPlan,
        claims: RangeClaims,
        ranges: DoneRanges,
        works: list[TableWork],
    ) -> None:
        self._helping, self._pipeline, self._plan = helping, pipeline, plan
        self._claims, self._ranges = claims, ranges
        recorded = record_of(pipeline.file).planned
        self._beginnings = {
            work.table.relation_id: recorded[work.table.relation_id].beginning for work in works
        }
        ending = f"{os.getpid():x}-{time.time_ns() & 0xFFFFFF:06x}"
        self._targets = {work.table.relation_id: work.target for work in works}
        self._jobs = [
            CopyJob(work.table, work.target, part, f"copy-{part.number:05d}-{ending}")
            for work in works
            for part in work.parts
        ]
        self._ended = threading.Event()

    def run(self) -> bool:
        """Copy until nothing is left; return whether all ranges are done."""
        while left := self._left():
            done_before = sum(self._helping.ranges.values())
            with CopyCrew(
                self._pipeline.source.dsn,
                self._plan.snapshot,
                [],
                workers=self._pipeline.file.copy_workers,
                done=self._note_done,
                report=self._helping.count,
                begins=self._begins,
            ) as crew:
                crew.failed, crew.turn = self._failed, self._claims.turn
                crew.add(left)
                crew.wait(left)
            for table in {job.table for job in left if job.table.relation_id in crew.dropped_tables}:
                self._helping.leave_out(table.quoted, "it was dropped")
            self._claims.release_all()
            if self._ended.is_set() or not self._is_current():
                return False
            if sum(self._helping.ranges.values()) == done_before:
                if not is_open(self._pipeline.source.dsn, self._plan.snapshot):
                    return False
                time.sleep(_PAUSE_SECONDS)
        return True

    def _left(self) -> list[CopyJob]:
        """The ranges that nobody has done, of tables that this machine can copy."""
        done = self._ranges.look()
        return [
            job
            for job in self._jobs
            if job.part.number not in done.get(self._beginnings[job.table.relation_id], ())
            and job.table.quoted not in self._helping.left_out
        ]

    def _is_current(self) -> bool:
        return self._plan.is_current(self._pipeline.file.state_dir)

    def _begins(self, job: CopyJob) -> bool:
        if self._ended.is_set() or job.table.quoted in self._helping.left_out:
            return False
        return self._claims.take(self._beginnings[job.table.relation_id], job.part.number)

    def _note_done(self, job: CopyJob, files: list[CopiedFile]) -> None:
        """Bring the files where they are to be, and note the range; if nobody wants them, remove them."""
        beginning, number = self._beginnings[job.table.relation_id], job.part.number
        note = range_note(job.table.relation_id, number, files)
        paths = [file.path for file in files]
        target = self._targets[job.table.relation_id]
        target.deliver(paths)
        reach("copy_worker.delivered")
        if not self._is_current():
            self._ended.set()
        if not self._ended.is_set() and self._ranges.add(beginning, number, note):
            self._helping.count_range(job, files)
        else:
            target.discard(paths)
        self._claims.release(beginning, number)

    def _failed(self, job: CopyJob, error: BaseException) -> bool:
        """Go on with other tables if this one cannot be copied; and end where the attempt has ended."""
        if isinstance(error, SnapshotGoneError) or not self._is_current():
            self._ended.set()
            return True
        if isinstance(error, SlotlakeError) and error.table is not None and not error.retryable:
            self._helping.leave_out(job.table.quoted, error.what)
            self._claims.release(self._beginnings[job.table.relation_id], job.part.number)
            return True
        return False


@contextmanager
def own_folder(folder: Path) -> Iterator[Path]:
    """Have a folder that no other process uses; what a killed one has left in it is removed.

    Args:
        folder: of all such folders of a pipeline.
    """
    for number in itertools.count():
        place = make_directory(folder / str(number))
        handle = os.open(place / "lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            remove_directory(place / "files")
            yield make_directory(place / "files")
            remove_directory(place / "files")
            return
        finally:
            os.close(handle)
