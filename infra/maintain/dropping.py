"""The end of a pipeline: drop its slot and end its DAGs; the lake stays unless the user says otherwise.

Invariant: each part is dropped by itself, and may be missing already. So a second run completes the first one
(which was killed, or could not reach a side), and reports what the user must do by hand.  It drops only what
this pipeline created: a slot of its name that something else created stays.  The note ``dropped.json`` in the
state folder ends the DAGs (infra/airflow/scheduling.py); `init` and `recover` remove it.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from psycopg import sql

from slotlake.decoder.errors import LakeError, SourceError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import redact, source_session
from slotlake.decoder.slots.slot import drop_slot, inspect_slot
from slotlake.infra.config.identity import owner_of_slot
from slotlake.infra.copy.unfinished import UnfinishedCopy
from slotlake.infra.notify.notified import Notified
from slotlake.infra.reports import Report
from slotlake.infra.source import ddl_trigger, standing_puller
from slotlake.infra.state.notes import DROPPED, IDENTITY, MADE, MAKING, NAMED, OWNER, VERIFIED
from slotlake.infra.state.shared_journal import forget_journal
from slotlake.infra.sync.recopying import give_up_all

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline


@dataclass(frozen=True)
class DropReport(Report):
    """What was removed (``done``), and what the user must do by hand (``left``), one line each.

    ``exit_code``: 0, or the exit code for the side that could not be reached.
    """

    pipeline: str
    done: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    exit_code: int = 0


class _Progress:
    """What was done so far, and what the user must do because a side could not be reached."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.left: list[str] = []
        self.exit_code = 0

    @contextmanager
    def or_by_hand(self, instruction: str) -> Iterator[None]:
        """If source or lake fails inside, add the instruction for the user instead."""
        try:
            yield
        except (SourceError, LakeError) as error:
            self.left.append(f"{instruction}  [{error.what}]")
            self.exit_code = self.exit_code or error.exit_code


class Dropping:
    """The end of a pipeline."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def drop(self, *, lake: bool) -> DropReport:
        """Drop the slot and the other objects that `init` created; with ``lake`` tables and change log, too.

        Raises:
            SlotBusyError: another process reads from the slot now.
        """
        if "stream" in vars(self._pipeline):
            self._pipeline.stream.end()
        work = _Progress()
        work.done += ["stopped the standing puller"] if standing_puller.stop(self._file) else []
        earlier = _drop_note(self._file.state_dir)
        if not earlier.get("source"):
            self._drop_source(work)
        DROPPED.of(self._file.state_dir).write({**earlier, "source": not work.left})
        reach("drop.source")
        if lake or earlier.get("files"):
            self._drop_lake(work)
        if not work.left:
            with work.or_by_hand(f"the journal in {self._file.state_place}"):
                forget_journal(self._file.state_dir)
                Notified(self._file.state_dir).forget()
        done = work.done or ["nothing was there to drop"]
        if "source" not in earlier:
            done.append(_what_becomes_of_dags(self._file))
        return DropReport(self._pipeline.name, done, work.left, work.exit_code)

    def _drop_source(self, work: _Progress) -> None:
        source = self._source
        at = redact(source.dsn)
        with work.or_by_hand(f"at {at}: SELECT pg_drop_replication_slot('{source.slot}')"):
            self._drop_slot(work)
        for name in _created_objects(self._file.state_dir).get("publications", []):
            statement = sql.SQL("DROP PUBLICATION IF EXISTS {}").format(sql.Identifier(name))
            with work.or_by_hand(f"at {at}: {statement.as_string(None)}"):
                with source_session(source.dsn, "dropping the publication") as connection:
                    connection.execute(statement)
                work.done.append(f"dropped the publication {name}")
        with work.or_by_hand(f"at {at}: {' '.join(ddl_trigger.REMOVE.split())}"):
            work.done += ddl_trigger.remove(self._pipeline)
        with work.or_by_hand(f"files of an unfinished copy in {self._lake.place}"):
            work.done += UnfinishedCopy(self._pipeline).give_up()
            work.done += [f"removed the unfinished copy of {table}" for table in give_up_all(self._pipeline)]
        if not work.left:
            for note in (MADE, MAKING, VERIFIED, NAMED, IDENTITY):
                note.of(self._file.state_dir).remove()

    def _drop_slot(self, work: _Progress) -> None:
        source = self._source
        with source_session(source.dsn) as connection:
            if inspect_slot(connection, source.slot) is None:
                return
        if not self._is_ours():
            owner = owner_of_slot(self._file)
            who = (
                "this pipeline did not make it"
                if owner is None
                else f"it is that of the pipeline {owner.name}"
            )
            work.left.append(
                f"the replication slot {source.slot}: {who}, so it stays; it may hold the only copy of its "
                "owner's changes, so drop it by hand only if you know that nobody needs them"
            )
            return
        if drop_slot(source):
            work.done.append(f"dropped the replication slot {source.slot}")

    def _is_ours(self) -> bool:
        """Return whether `init` noted that it made the slot; without notes, whether the lake is ours."""
        from slotlake.spark.copy.owner import is_initialised

        if _created_objects(self._file.state_dir).get("slot") == self._source.slot:
            return True
        try:
            return is_initialised(self._lake, self._pipeline.name)
        except LakeError:
            return False

    def _drop_lake(self, work: _Progress) -> None:
        from slotlake.spark.direct.rewritten import forget_clones
        from slotlake.spark.maintenance.removal import drop_tables, executors_folder, remove_files

        file = self._file

        def note(locations: list[str]) -> None:
            note_content = _drop_note(self._file.state_dir)
            note_content["files"] = sorted({*note_content.get("files", []), *locations})
            DROPPED.of(file.state_dir).write(note_content)

        instruction = (
            f"the tables of pipeline {file.name} in {self._lake.place}, namespace {file.lake.namespace}"
        )
        with work.or_by_hand(instruction):
            forget_clones(self._lake, self._pipeline.name)
            dropped = drop_tables(self._lake, self._pipeline.name, before_removal=note)
            work.done += [f"dropped the lake table {name}" for name in dropped]
            remove_files(
                [
                    *_drop_note(self._file.state_dir).get("files", []),
                    executors_folder(self._lake),
                ]
            )
            DROPPED.of(file.state_dir).write(
                {"source": _drop_note(self._file.state_dir).get("source", False)}
            )
        if not work.left:
            OWNER.of(file.state_dir).remove()  # another pipeline of this name may have its state there
        if self._pipeline.stored is not None:
            self._pipeline.stored.remove_all()
        if self._pipeline.stored is not None or file.changelog_dir.exists():
            shutil.rmtree(file.changelog_dir, ignore_errors=True)
            work.done.append("removed the change log")


def _what_becomes_of_dags(file: PipelineFile) -> str:
    if file.state_bucket is None:
        return f"its DAGs end, because of the note {file.dropped_note}; init brings them back"
    return (
        f"the tasks of its DAGs are skipped, because of the note in {file.state_place}: remove the "
        "pipeline file to end the DAGs; init brings them back"
    )


def begin_again(state_dir: Path) -> None:
    """Remove the note of a drop, so that the pipeline has DAGs again."""
    DROPPED.of(state_dir).remove()


def _created_objects(state_dir: Path) -> dict[str, Any]:
    """Return the note of `init` about the objects that it created, also of an interrupted `init`."""
    for note in (MADE, MAKING):
        if content := note.of(state_dir).mapping():
            return content
    return {}


def _drop_note(state_dir: Path) -> dict[str, Any]:
    """Return the note of an earlier `drop`: whether the source is done, and the files to remove."""
    return DROPPED.of(state_dir).mapping()
