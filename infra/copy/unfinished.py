"""What an `init` leaves that was cut off: its note, its slot, its record; continued, or removed.

A slot makes the server keep WAL, and the WAL from its position on is what lets copied ranges stay
(`infra.copy.forward`): so the slot stays as long as something is copied, `status` says how much WAL it keeps,
and `drop` removes it.  The note ``making.json`` is written before the slot is made; by it the next `init`
knows the slot for its own.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import ChangeLogError, LakeError, SlotError, SlotlakeError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.source import ServerIdentity, source_session
from slotlake.decoder.slots.slot import SlotState, drop_slot, inspect_slot
from slotlake.infra.config.identity import owner_of_slot
from slotlake.infra.copy import states as copy_states
from slotlake.infra.copy.copying import Attempt
from slotlake.infra.copy.forward import resumable
from slotlake.infra.copy.joining_record import FOLDERS, CopyStart, JoiningRecord
from slotlake.infra.copy.record import CopyRecord, Recorded
from slotlake.infra.state.notes import COPY, MADE, MAKING
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline

_FOLDER = "copying"


def record_of(file: PipelineFile) -> CopyRecord:
    """The record of an initial copy."""
    return CopyRecord(file.state_dir / _FOLDER, shared=file.shares_state)


def earlier_attempt(file: PipelineFile, source: SourceSettings, server: ServerIdentity) -> Attempt | None:
    """The attempt that can be continued; None if there is none.

    A slot of ours that cannot serve to continue is dropped.

    Raises:
        SlotError: there is a slot of that name that this pipeline did not make.
    """
    note, record = making_note(file.state_dir), record_of(file)
    state = _slot_state(source)
    if state is None:
        record.forget()
        return None
    require_own_slot(file, source.slot, state, server)
    if _is_resumable(source, note, state, server) and record.started:
        return Attempt(record, parse_lsn(note["lsn"]))
    drop_slot(source)
    record.forget()
    return None


def require_own_slot(file: PipelineFile, slot: str, state: SlotState, server: ServerIdentity) -> None:
    """Check that an `init` of this pipeline made the slot.

    Args:
        state: the slot that has the pipeline's name for it.

    Raises:
        SlotError: something else made it.
    """
    if not _is_own_slot(slot, making_note(file.state_dir), server):
        raise _foreign_slot_error(file, slot, state)


def note_making(state_dir: Path, slot: str, server: ServerIdentity, publications: list[str]) -> None:
    """Note that the slot is about to be made: by this note the next `init` knows the slot for its own.

    Args:
        server: the server on which the slot is made.
        publications: names of the publications that this `init` made.
    """
    _write(state_dir, {
        "slot": slot,
        "system_identifier": server.system_identifier,
        "timeline": server.timeline,
        "publications": publications,
    })  # fmt: skip


def note_position(state_dir: Path, lsn: int) -> None:
    """Note the LSN of the slot that was made."""
    _write(state_dir, {**making_note(state_dir), "lsn": format_lsn(lsn)})


def making_note(state_dir: Path) -> dict[str, Any]:
    """The note of an `init` that has not ended; empty if there is none."""
    return MAKING.of(state_dir).mapping()


class UnfinishedCopy:
    """An initial copy that has not ended."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def publications_made(self) -> list[str]:
        """The publications that `init` made, as it noted them; also an `init` that was cut off."""
        notes = [note.of(self._file.state_dir).mapping() for note in (MADE, MAKING)]
        return list(dict.fromkeys(name for note in notes for name in note.get("publications", [])))

    def note_published(self) -> None:
        """Note that the copy is published; also when the `init` that did it died right after."""
        making = MAKING.of(self._file.state_dir)
        if content := making.mapping():
            MADE.of(self._file.state_dir).write(content, durable=True)
            making.remove()
        record_of(self._file).forget()
        COPY.of(self._file.state_dir).remove()

    def give_up(self) -> list[str]:
        """Remove what a copy has left out of sight, and its record; return what was removed, a line each.

        The slot is the caller's matter.
        """
        from slotlake.spark.publish.place import clear_unfinished

        record = record_of(self._file)
        has_remains = bool(making_note(self._file.state_dir)) or record.started
        if has_remains:
            clear_unfinished(self._lake, self._pipeline.name)
        record.forget()
        for note in (MAKING, COPY):
            note.of(self._file.state_dir).remove()
        return ["removed what an unfinished initial copy had left"] if has_remains else []

    def clean_up_after(self, error: BaseException) -> None:
        """After an error, keep what the next `init` can continue, else leave nothing.

        What is copied stays if waiting or a freed disk helps, and goes if a person must change something.
        """
        lasting = isinstance(error, SlotlakeError) and not (
            error.retryable or isinstance(error, ChangeLogError | LakeError)
        )
        if record_of(self._file).started and not lasting:
            return
        with suppress(SlotlakeError):  # else the note stays: the next `init` drops the slot
            drop_slot(self._source)
            self.give_up()

    def unfinished(self) -> dict[str, Any] | None:
        """Describe, for `status`, a copy under way or cut off: an `init`, or one over several syncs.

        Keys: process (None when it has ended), lsn (where the tables will be), since (seconds since 1970),
        slot (that keeps WAL for it, if it is an `init`), tables (`copy_states.TableProgress`).
        """
        alive = self._pipeline.locks.is_at_work if self._file.shares_state else None
        note, states = making_note(self._file.state_dir), copy_states.read(self._file.state_dir, alive)
        if not note and (states is None or states["process"] is None):
            return _joining(self._file.state_dir)
        copy = states or {"process": None, "lsn": note.get("lsn"), "since": None, "tables": []}
        return {**copy, "slot": note.get("slot")}


def _joining(state_dir: Path) -> dict[str, Any] | None:
    """Describe tables that are copied over several syncs, between two of them."""
    tables = []
    for folder in FOLDERS:
        record = JoiningRecord(state_dir / folder)
        joining, recorded = record.joining, record.tables
        tables += [_progress(joining[oid].since, recorded[oid]) for oid in joining.keys() & recorded.keys()]
    if not tables:
        return None
    tables.sort(key=lambda table: table["table"])
    return {"process": None, "lsn": None, "since": None, "slot": None, "tables": tables}


def _progress(since: CopyStart, recorded: Recorded) -> dict[str, Any]:
    files = [file for part in recorded.files.values() for file in part]
    return asdict(copy_states.TableProgress(
        postgres_name(since.schema, since.table),
        state="copying",
        rows=sum(file["rows"] for file in files),
        rows_estimated=sum(part.rows for part in recorded.parts),
        bytes=sum(file["bytes"] for file in files),
        ranges=len(recorded.parts),
        ranges_done=len(recorded.files),
        ranges_kept=len(recorded.files),
    ))  # fmt: skip


def _write(state_dir: Path, note: dict[str, Any]) -> None:
    MAKING.of(state_dir).write(note, durable=True)


def _slot_state(source: SourceSettings) -> SlotState | None:
    with source_session(source.dsn) as connection:
        return inspect_slot(connection, source.slot)


def _is_own_slot(slot: str, note: dict[str, Any], server: ServerIdentity) -> bool:
    expected = {"slot": slot, "system_identifier": server.system_identifier}
    return note.items() >= expected.items()


def _is_resumable(
    source: SourceSettings, note: dict[str, Any], state: SlotState, server: ServerIdentity
) -> bool:
    """Return whether the slot still has all wanted changes since it was made, on the same history."""
    if "lsn" not in note or state.lost or state.restart_lsn is None:
        return False
    moved = (state.confirmed_flush_lsn or 0) > parse_lsn(note["lsn"])
    same = note.get("timeline") == server.timeline and state.two_phase == source.two_phase
    return same and not moved and resumable(source)


def _foreign_slot_error(file: PipelineFile, slot: str, state: SlotState) -> SlotError:
    owner = owner_of_slot(file)
    if owner is not None:
        return SlotError(
            f"the replication slot {slot!r} is that of another pipeline, {owner.name!r}",
            where=f"by the note in {owner}",
            way_out="if you changed `name` in the file, put it back; a second pipeline needs another "
            "source.slot. Do not drop the slot: it may hold the only copy of changes",
        )
    wal = "" if state.retained_bytes is None else f"; it keeps {state.retained_bytes:,} bytes of WAL"
    return SlotError(
        f"the replication slot {slot!r} exists already; no note here says that this pipeline made it",
        where=f"plugin {state.plugin}, database {state.database}{wal}",
        way_out="if the pipeline file, its `name` or `state.path` was moved or changed, put that back; else "
        "name another slot in source.slot. It may hold the only copy of its owner's changes: drop it only if "
        "you know whose it was",
    )
