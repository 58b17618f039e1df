"""Set tables aside that cannot be followed, so that all others go on.

What cannot be followed shows as an error that names its table (`SlotlakeError.table`), or in a batch as a
table of which a value could not be read (`Batch.unreadable`).  Unless the pipeline file says
``on_trouble: stop``, the table is then recorded in the lake as set aside (spark/publish/aside.py), and the
step is repeated without it: its changes are passed over in the batch at hand and in all later ones.  Its
content stays what it was at the lake's position, so the record says at which LSN it is good.

`infra.sync.resuming` copies it again.  Invariant: an error that names no table stops everything, as does one
that waiting mends, and one of a table that is set aside already.  A lock on a table, and a table that changes
under its copy, are mended by waiting too, but by waiting for that table alone.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.vanished import VanishedError
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import (
    ApplyError,
    ChangedMeanwhileError,
    LakeError,
    LockedError,
    ProtocolError,
    SlotlakeError,
    SourceError,
)
from slotlake.decoder.failpoints import reach
from slotlake.infra.config.table_names import by_name
from slotlake.infra.state.notes import STOPPED, StateFile
from slotlake.spark.names import postgres_name
from slotlake.spark.publish.lives import Event

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.publish.aside import Aside, Cause, Name

T = TypeVar("T")
Errors: TypeAlias = dict[SourceTable, SlotlakeError]
# What a pipeline can be stopped by again and again; slots and files are judged by `recover` itself.
_REPEATED_ERRORS = (SourceError, ProtocolError, ApplyError, LakeError)


def tables_aside(lake: LakeSettings) -> dict[Name, Aside]:
    """The tables that are set aside, by schema and name.

    Raises:
        LakeError: the lake cannot be reached.
    """
    from slotlake.spark.publish.aside import read

    return read(lake)


class SettingAside:
    """The tables that an open pipeline sets aside, so that all others go on."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._file, self._lake = pipeline, pipeline.file, pipeline.lake

    def reasons(self) -> dict[str, str]:
        """Return, for reports, the tables that are set aside, as PostgreSQL writes them, and why."""
        return {each.source_name: each.reason for each in tables_aside(self._lake).values()}

    def retry_without_troubled(self, step: Callable[[], T]) -> T:
        """Run a step, and repeat it without tables that cannot be followed, until it succeeds.

        Raises:
            SlotlakeError: something else than one table's error; or one that is to stop all.
        """
        while True:
            try:
                done = step()
            except SlotlakeError as error:
                if not self.set_aside(error):
                    _note_stopped(self._file, error)
                    raise
            else:
                forget_stopped(self._file)
                return done

    def set_aside(self, error: SlotlakeError) -> bool:
        """Set the table aside that an error names; return False if it names none, or is to stop all."""
        if not is_of_one_table(self._file, error) or error.table is None:
            return False
        if error.table in tables_aside(self._lake):
            return False
        cause = _cause(error)
        way_out = _CHANGED if cause == "changed" else error.way_out
        self.record_aside({error.table: (cause, error.what, error.where, way_out)})
        return True

    def set_aside_unreadable(self, batch: Batch) -> None:
        """Set the tables aside of which a batch has a value that could not be read.

        Raises:
            ProtocolError: such a table is to stop all; the batch is removed.
        """
        from slotlake.spark.read.point import ReadPoint

        if not batch.unreadable:
            return
        followed = {(table.schema, table.table) for table in ReadPoint.latest(self._lake).followed()}
        unreadable = {name: error for name, error in batch.unreadable.items() if name in followed}
        for name, (what, where) in unreadable.items():
            if stops_all(self._file, name):
                shutil.rmtree(batch.path, ignore_errors=True)
                error = ProtocolError(what, where=where).of(*name)
                error.way_out = _UNREADABLE_STOPS
                raise error
        if unreadable:
            self.record_aside(
                {n: ("value", what, where, _UNREADABLE) for n, (what, where) in unreadable.items()}
            )

    def pass_over(self, batch: Batch) -> None:
        """Write to a waiting batch's sidecar that tables which are set aside are passed over in it."""
        from slotlake.spark.publish import sidecar

        names = {(relation.schema, relation.table) for relation in batch.relations if relation.rows}
        names |= {(copy.schema.schema, copy.schema.table) for copy in sidecar.read(batch).copies}
        passed_over = names & tables_aside(self._lake).keys()
        if passed_over and batch.start_lsn == self._pipeline.position():
            sidecar.pass_over(batch, {postgres_name(*name) for name in passed_over})

    def record_aside(
        self,
        reasons: Mapping[Name, tuple[Cause, str, str, str]],
        event: Event = Event.TROUBLED,
    ) -> None:
        """Record tables as set aside at the lake's position.

        Args:
            reasons: schema and name → the cause; what is wrong, where, and the way out.
            event: what happens to them.
        """
        from slotlake.spark.publish.aside import Aside
        from slotlake.spark.publish.aside_write import write
        from slotlake.spark.read.point import ReadPoint

        position = self._pipeline.position()
        mirrors = {(table.schema, table.table) for table in ReadPoint.latest(self._lake).tables()}
        now = datetime.now(UTC).isoformat(timespec="seconds")
        entries = [
            Aside(*name, position if name in mirrors else None, now, cause, what, where, way_out)
            for name, (cause, what, where, way_out) in reasons.items()
        ]
        write(self._lake, self._pipeline.name, entries, event)
        reach("aside.written")


def stopped_by(file: PipelineFile) -> str | None:
    """The error that stopped the last run here and will stop the next one; None if that is not known."""
    text = _stopped_note(file).mapping().get("told")
    return None if text is None else str(text)


def _stopped_note(file: PipelineFile) -> StateFile:
    return STOPPED.of(file.state_dir)


def forget_stopped(file: PipelineFile) -> None:
    """Forget the error that stopped the last run: it need not stop the next one."""
    _stopped_note(file).remove()


def _note_stopped(file: PipelineFile, error: SlotlakeError) -> None:
    """Note the error for `recover` to report; if the note cannot be written, only that is lost."""
    if error.retryable or not isinstance(error, _REPEATED_ERRORS):
        return
    place = f"table {postgres_name(*error.table)}" if error.table else error.where or "no place"
    text = f"{place}: {error.what}: {error.way_out}"
    with suppress(OSError):
        _stopped_note(file).write({"told": text})


@contextmanager
def setting_aside(pipeline: OpenPipeline) -> Iterator[None]:
    """Go on after an error that is one table's alone, which is set aside."""
    try:
        yield
    except SlotlakeError as error:
        if not SettingAside(pipeline).set_aside(error):
            raise


def is_of_one_table(file: PipelineFile, error: SlotlakeError) -> bool:
    """Return whether an error is one table's alone, and not to stop all."""
    its_own = isinstance(error, LockedError | ChangedMeanwhileError)  # others need not wait for that
    waiting_helps = error.retryable and (not its_own or isinstance(error, VanishedError))
    return error.table is not None and not waiting_helps and not stops_all(file, error.table)


def leave_out(file: PipelineFile, errors: Errors, table: SourceTable, error: SlotlakeError) -> None:
    """Note that a table is left out of a copy of several, for an error that is its own.

    Args:
        error: why it cannot be copied now.

    Raises:
        SlotlakeError: the error is not one table's alone, or is to stop all.
    """
    if not is_of_one_table(file, error):
        raise error
    errors.setdefault(table, error)


def stops_all(file: PipelineFile, table: Name) -> bool:
    """Return whether the pipeline file wants this table's errors to stop all."""
    own = by_name({name: section.on_trouble for name, section in file.tables.items()})
    return (own.get(table) or file.on_trouble) == "stop"


def with_resume(way_out: str) -> str:
    """The way out of a table's error, with the command that has it followed again."""
    return way_out if "slotlake resume" in way_out else f"{way_out or 'mend it'}; then slotlake resume"


_CHANGED = "nothing needs to be done: the next sync copies it, as `slotlake resume` does at once"
_UNREADABLE = (
    "correct the value at the source: the table is then copied again, at once by `slotlake resume`, else by "
    "a later sync, which tries it less and less often"
)
_UNREADABLE_STOPS = (
    "on_trouble: set_aside for this table lets the others go on, and copies it again once the value is "
    "corrected at the source; nothing of this batch was kept, and nothing was confirmed to the server"
)


def require_columns(tables: Sequence[SourceTable]) -> None:
    """Check that each table has a column: a lake table must have one.

    Raises:
        SourceError: a table has none; the error names it.
    """
    for table in tables:
        if not table.columns:
            raise SourceError(
                "the table has no published column, and a lake table must have one",
                where=f"table {table.quoted}",
                way_out="add a column to it (the next sync copies it then), or drop it from the publication",
            ).of(table.schema, table.table)


def _cause(error: SlotlakeError) -> Cause:
    if isinstance(error, ApplyError):
        return "on_conflict" if error.choice == "on_conflict" else "on_lossy" if error.choice else "change"
    if isinstance(error, ProtocolError):
        return "value"
    if isinstance(error, ChangedMeanwhileError):
        return "changed"
    return "source" if isinstance(error, SourceError) else "copy"
