"""The side of `init` in a copy that several machines make: it writes the plan, and waits for their ranges.

All machines claim ranges, in the tables' order, and note those that they have done.  This one also registers
the tables and publishes them, as it does alone.  A range whose machine has gone is free again, and is copied
here when its table is waited for, if no other machine was quicker.

Invariant: a table gets the files that the notes of its ranges name, and no others, whatever killed or slow
machines have left or still bring.
"""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from slotlake.decoder.copy.files import CopiedFile
from slotlake.decoder.copy.table import CopyCrew, CopyJob, Turn
from slotlake.decoder.errors import LakeError, SlotlakeError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.copy.claims import FORMAT, CopyPlan, RangeClaims, remove_plan
from slotlake.infra.copy.ranges import DoneRanges
from slotlake.infra.copy.record import CopyRecord, TableWork, range_note, recorded_file
from slotlake.infra.copy.states import CopyStates
from slotlake.infra.opened.lock_holder import description, text_of
from slotlake.infra.opened.own_state import identity
from slotlake.infra.selection.aside import Errors

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline

_PAUSE_SECONDS = 1.0
_PAUSES_PER_LOOK = 10  # a look at many thousand ranges takes a while


class FilesGoneError(LakeError):
    """Files of ranges that were done are not there any more."""

    retryable = True


@contextmanager
def shared_attempt(
    pipeline: OpenPipeline,
    record: CopyRecord,
    snapshot: ExportedSnapshot,
    works: Sequence[TableWork],
    states: CopyStates,
) -> Iterator[SharedAttempt | None]:
    """Let other machines help while the context lasts; gives None if one machine makes the copy.

    Args:
        pipeline: the pipeline, whose lock this process has.
        record: with the ranges of these tables.
        states: what `status` reads.
    """
    if record.ranges is None:
        yield None
        return
    folder = pipeline.file.state_dir
    plan = CopyPlan(
        secrets.token_hex(8),
        FORMAT,
        identity(pipeline.file),
        snapshot.snapshot,
        snapshot.lsn,
        text_of(description("init")),
    )
    with claims_of(pipeline.file, pipeline.source.dsn, record.ranges) as claims:
        plan.write(folder)
        try:
            yield SharedAttempt(pipeline, record, claims, works, states)
        finally:
            with suppress(SlotlakeError):
                remove_plan(folder)


def claims_of(file: PipelineFile, dsn: str, ranges: DoneRanges) -> RangeClaims:
    """Return this process's claims, which no other pipeline's are taken for.

    Args:
        ranges: the ranges that are done.
    """
    key = f"copy {file.name} {file.source.slot} {file.lake.namespace}"
    return RangeClaims(dsn, key, ranges, file.source.copy_connections)


class SharedAttempt:
    """What `init` knows of the other machines' ranges.

    Args:
        pipeline: the pipeline.
        record: with the ranges of these tables.
        claims: of this process.
        works: the tables.
        states: what `status` reads.
    """

    def __init__(
        self,
        pipeline: OpenPipeline,
        record: CopyRecord,
        claims: RangeClaims,
        works: Sequence[TableWork],
        states: CopyStates,
    ) -> None:
        assert record.ranges is not None
        self._pipeline, self._claims, self._states = pipeline, claims, states
        self._ranges: DoneRanges = record.ranges
        planned, oids = record.planned, [work.table.relation_id for work in works]
        self._beginnings = {oid: planned[oid].beginning for oid in oids}
        self._works = {self._beginnings[work.table.relation_id]: work for work in works}
        self._machine = socket.gethostname()
        self._next_look = 0.0

    @property
    def turn(self) -> Turn | None:
        """What waits until one more connection to the source may read; None if there is no limit."""
        return self._claims.turn

    def begins(self, job: CopyJob) -> bool:
        """Claim a range; false if another machine has it or has done it."""
        if job.condition is not None:  # rows that are read once more are no range
            return True
        return self._claims.take(self._beginnings[job.table.relation_id], job.part.number)

    def note_done(self, job: CopyJob, files: list[CopiedFile]) -> None:
        """Note a range that was copied here, unless another machine was first."""
        beginning, number = self._beginnings[job.table.relation_id], job.part.number
        work = self._works[beginning]
        note = range_note(job.table.relation_id, number, files)
        paths = [file.path for file in files]
        work.target.deliver(paths)
        if self._ranges.add(beginning, number, note):
            work.done[number] = files
            self._states.part_done(job, self._machine)
        else:
            work.target.discard(paths)
            self._states.count_rows(job, -sum(f.rows for f in files), -sum(f.received for f in files))
        self._claims.release(beginning, number)

    def look(self) -> None:
        """See which ranges other machines have done, if it is time to.

        Raises:
            LockLostError: this process has lost the pipeline's lock.
            LakeError: the object store does not answer, or refuses.
        """
        started = time.monotonic()
        if started < self._next_look:
            return
        self._pipeline.locks.require()
        for beginning, numbers in self._ranges.look().items():
            if beginning in self._works:
                self._take_over(self._works[beginning], beginning, numbers)
        now = time.monotonic()
        self._next_look = now + max(_PAUSE_SECONDS, _PAUSES_PER_LOOK * (now - started))

    def complete(self, work: TableWork, crew: CopyCrew, errors: Errors) -> None:
        """Wait until all ranges of a table are done, and copy those whose machine has gone.

        Args:
            work: the table; what this machine has claimed of it is done.
            errors: tables that are left out.

        Raises:
            FilesGoneError: files of its ranges are not there any more; these ranges will be copied again.
            SlotlakeError: as `CopyCrew.wait` and `look`.
        """
        while (
            not work.is_whole
            and work.table not in errors
            and work.table.relation_id not in crew.dropped_tables
        ):
            self.look()
            left = [job for job in work.jobs if job.condition is None and job.part.number not in work.done]
            again = [job for job in left if self.begins(job)]
            crew.add(again)
            crew.wait(again, self.look)
            if left and not again:
                time.sleep(_PAUSE_SECONDS)
        if work.is_whole:
            self._settle(work)

    def _settle(self, work: TableWork) -> None:
        """See that all files of a table are there, and remove those that no range names."""
        present = work.target.delivered()
        gone = {
            number
            for number, files in work.done.items()
            if any(present.get(file.path.name) != file.bytes for file in files)
        }
        if gone:
            self._ranges.remove(self._beginnings[work.table.relation_id], gone)
            raise FilesGoneError(
                f"the files of {len(gone):,} ranges of {work.schema.source_name} are not there any more",
                where=work.target.lake_table,
                way_out="run the same command again: it copies these ranges again",
            )
        reach("init.settled")
        work.target.retain(work.names)

    def _take_over(self, work: TableWork, beginning: str, numbers: set[int]) -> None:
        jobs = {job.part.number: job for job in work.jobs if job.condition is None}
        others = {
            number
            for number in numbers & jobs.keys() - work.done.keys()
            if not self._claims.has(beginning, number)  # else it is noted by this process now
        }
        for number, entry in self._ranges.entries(beginning, others).items():
            files = [recorded_file(work.target.directory, file) for file in entry["files"]]
            work.done[number] = files
            rows, received = sum(file.rows for file in files), sum(file.received for file in files)
            self._states.count_rows(jobs[number], rows, received)
            self._states.part_done(jobs[number], str(entry["machine"]))
