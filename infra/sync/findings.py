"""Judge what is wrong with a pipeline, in one place: for `recover`, for `status`, and before every pull.

Each judgement asks both sides and the change log; nothing is remembered.  A *finding* has a kind, words for
people, and a repair: *mend* (move the branch main of tables back to where slotlake left it), *renew* (a new
slot, and the difference between lake and source), *copy* (copy some tables again, in place), *pull* (pull a
batch once more from the slot).  Invariant: judging changes nothing; what waiting, or the next sync, sets
right is not a finding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import psycopg

from slotlake.decoder.catalog.publications import missing_publications
from slotlake.decoder.changelog.batches import batch_starting_at
from slotlake.decoder.errors import ChangeLogError, LakeError, SlotBusyError, SlotError, SlotlakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.position import page_floor
from slotlake.decoder.server.source import redact, source_session
from slotlake.decoder.server.timeline import AnotherClusterError, HistoryError, require_history
from slotlake.decoder.slots.slot import check_slot, inspect_slot
from slotlake.decoder.stream.overlap import contradiction
from slotlake.infra.reports import Report
from slotlake.infra.selection.absent import set_absent_aside, without_recorded
from slotlake.infra.selection.derived_gone import note_dropped
from slotlake.infra.source import standing_puller
from slotlake.infra.source.fingerprints import CatalogFingerprint, fingerprints_at
from slotlake.infra.source.own_slot import require_own_slot_name
from slotlake.infra.state.notes import RECOVERING, StateFile
from slotlake.infra.state.process_lock import is_process_alive, release_process_lock, take_process_lock

if TYPE_CHECKING:
    from pathlib import Path

    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.maintenance.integrity import Damage
    from slotlake.spark.names import LakeName

Repair = Literal["mend", "renew", "copy", "pull"]
_TABLES_ASKED_FIRST = 10
_UNFINISHED = "a recovery was begun, and ended before it was done"
WAY_OUT = "run `slotlake recover`: it shows what it will do, and with --yes does it"


@dataclass(frozen=True)
class Finding(Report):
    """Something that is wrong.

    Attributes:
        kind: for machines.
        what: for people.
        repair: how `recover` sets it right.
        tables: the lake tables concerned; empty if all are.
    """

    kind: str
    what: str
    repair: Repair
    tables: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Diagnosis:
    """All that is wrong with a pipeline.

    Attributes:
        position: the lake's position, once its tables are mended.
        findings: what is wrong, in the order in which it was looked for.
        damages: what is wrong with the lake's tables.
    """

    position: int
    findings: list[Finding]
    damages: list[Damage]

    def needs(self, repair: Repair) -> bool:
        """Return whether a finding has this repair."""
        return any(each.repair == repair for each in self.findings)


class Judgement:
    """What is wrong with source, slot, lake and change log."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def judge(self, *, files: bool = False) -> Diagnosis:
        """Look at lake, source, slot and change log.

        Args:
            files: look at every data file of the lake, too.

        Raises:
            LakeError: the lake cannot be asked, or must be set right by hand first.
            SourceError: the source cannot be asked.
            SlotBusyError: another process reads the slot; waiting helps.
        """
        from slotlake.spark.maintenance.integrity import find_damage

        require_own_slot_name(self._file, self._source)
        damages = without_recorded(self._lake, find_damage(self._lake, self._pipeline.name, files=files))
        moved = next((each.position for each in damages if each.position is not None), None)
        position = self._pipeline.position() if moved is None else moved
        findings = [_lake_finding(each) for each in damages]
        findings += self._source_findings(position) or _recovery_findings(self._file, self._lake)
        if not any(each.repair == "renew" for each in findings):
            findings += _pending_findings(self._file, position)
        return Diagnosis(position, findings, damages)

    def require_whole(self, *, at_snapshot: bool = False, only: Collection[LakeName] | None = None) -> None:
        """Check that the lake is as slotlake left it, before anything is built on it.

        Rows that somebody wrote into a mirror are let through: the conflicts of later changes with them are
        counted, and handled by choice (`on_conflict`); `status` reports them until a batch lies on top of
        them, and `verify` finds them.

        Args:
            at_snapshot: for a verification, or for a backfill, which replaces such rows: let those in derived
                tables through, too.
            only: look at these tables only; None: at all.

        Raises:
            LakeError: the lake is not as slotlake left it; nothing was changed.
        """
        from slotlake.spark.maintenance.integrity import MISSING, WRITTEN, find_damage

        damages = find_damage(self._lake, self._pipeline.name, as_written=not at_snapshot, only=only)
        set_absent_aside(self._pipeline, damages)
        for damage in damages:
            if damage.kind == MISSING:
                if damage.is_derived:  # the next sync begins it again
                    note_dropped(self._file, self._lake.namespace, [damage.table])
                continue
            if damage.kind == WRITTEN and damage.position is None and (at_snapshot or not damage.is_derived):
                continue
            raise LakeError(damage.what, where=f"table {damage.table}, {self._lake.place}", way_out=WAY_OUT)

    def require_same_content(self, position: int) -> None:
        """Check that the server has what it had when the lake was fed from it.

        Raises:
            HistoryError: it was restored to an earlier state, or a recovery from that was not ended.
        """
        for finding in _recovery_findings(self._file, self._lake) or self._restored_findings(position):
            raise HistoryError(finding.what, where=redact(self._source.dsn), way_out=WAY_OUT)

    def is_upgraded(self, position: int) -> bool:
        """Return whether pg_upgrade has made the server of the lake's, and the next sync goes on with it.

        Raises:
            HistoryError: the server does not continue the lake's history, or that is not proven.
        """
        from slotlake.infra.source.history import lake_origin, upgraded_slot

        try:
            require_history(self._source.dsn, lake_origin(self._lake), position)
        except AnotherClusterError as error:
            upgraded_slot(self._pipeline, position, error)
            return True
        return False

    def _source_findings(self, position: int) -> list[Finding]:
        try:
            if self.is_upgraded(position):
                return []
        except HistoryError as error:
            return [Finding("history", error.what, "renew")]
        findings = _publication_findings(self._lake, self._source) or [*self._slot_findings(position)]
        return findings or [*self._restored_findings(position)]

    def _slot_findings(self, position: int) -> Iterator[Finding]:
        source = self._source
        ours = standing_puller.process_id(self._file) is not None or (
            "stream" in vars(self._pipeline) and self._pipeline.stream.connected
        )
        with source_session(source.dsn, "looking at the slot") as connection:
            try:
                check_slot(connection, source, position=position, wait_seconds=0.0 if ours else None)
            except SlotBusyError:
                if not ours:
                    raise
            except SlotError as error:
                if not _is_lost(connection, self._source, position):
                    raise
                yield Finding("slot", error.what, "renew")

    def _restored_findings(self, position: int, *, peek: bool = True) -> list[Finding]:
        """Find that the same cluster on the same timeline is not what it was: its disks were restored.

        Args:
            peek: also look into the slot, which keeps other readers away for that moment.
        """
        from slotlake.decoder.server.source import identify

        server = identify(self._source.dsn)
        if server.position < page_floor(position):
            what = (
                f"the server's WAL ends at {format_lsn(server.position)}, before the lake's position "
                f"{format_lsn(position)}: it was restored to an earlier state"
            )
            return [Finding("restored", what, "renew")]
        difference = self._contradiction(position) if peek else None
        if difference is None:
            return []
        what = f"{difference}: it was restored to an earlier state, and went on from there"
        return [Finding("restored", what, "renew")]

    def _contradiction(self, position: int) -> str | None:
        """Say what the slot has otherwise than the change log before the lake's position; None: nothing."""
        source = self._source
        with source_session(source.dsn, "comparing what the slot still has") as connection:
            state = inspect_slot(connection, source.slot)
            if state is None or state.lost:
                return None
            source_with_messages = replace(source, messages=self._pipeline.pulling.source.messages)
            try:
                return contradiction(
                    connection, source_with_messages, state, self._file.changelog_dir, position
                )
            except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject, ChangeLogError):
                return None  # someone reads it now, or the archive cannot be read: nothing to compare

    def quick_findings(self, *, files: bool = False) -> list[Finding]:
        """Judge as :meth:`judge`, without slot and change log, for who only looks while runs are at work.

        Waits for nobody; what cannot be asked now is left out.

        Args:
            files: also see that the files of all tables are there.
        """
        from slotlake.spark.maintenance.integrity import find_damage

        findings: list[Finding] = []
        try:
            damages = without_recorded(self._lake, find_damage(self._lake, self._pipeline.name, files=files))
            findings += [_lake_finding(damage) for damage in damages]
            position = self._pipeline.position()
            if not self.is_upgraded(position):
                restored = self._restored_findings(position, peek=False)
                findings += _publication_findings(self._lake, self._source) or restored
            findings += _recovery_findings_for_status(self._file, self._lake)
        except HistoryError as error:
            findings.append(Finding("history", error.what, "renew"))
        except SlotlakeError:
            return findings
        return findings


def recovery_note(file: PipelineFile) -> StateFile:
    """The note of the batch that a recovery under way is to end with."""
    return RECOVERING.of(file.state_dir)


def note_recovery_begun(file: PipelineFile, batch: str | None) -> None:
    """Note that this process has begun a recovery.

    Args:
        batch: the batch whose publication ends the recovery; None if that is not known yet.
    """
    recovery_note(file).write({"batch": batch})
    take_process_lock(_lock_path(file))


def note_recovery_ended(file: PipelineFile) -> None:
    """Note that this process has ended or given up its recovery, though it may live on."""
    release_process_lock(_lock_path(file))


def _lock_path(file: PipelineFile) -> Path:
    return recovery_note(file).path.with_suffix(".lock")


def _unfinished_note(file: PipelineFile, lake: LakeSettings) -> dict[str, str | None] | None:
    """The note of a recovery that was not published; None if there is none."""
    from slotlake.spark.maintenance.integrity import newest_batch

    note = recovery_note(file).mapping()
    if "batch" not in note:
        return None
    last_batch = note["batch"]
    return None if last_batch is not None and newest_batch(lake) == last_batch else note


def _recovery_findings(file: PipelineFile, lake: LakeSettings) -> list[Finding]:
    """A recovery that ended before it was published: its slot is new, and the lake is not."""
    if _unfinished_note(file, lake) is None:
        recovery_note(file).remove()  # it was done: the note alone was left
        return []
    return [Finding("unfinished", _UNFINISHED, "renew")]


def _recovery_findings_for_status(file: PipelineFile, lake: LakeSettings) -> list[Finding]:
    """As :func:`_recovery_findings`, but a recovery that is under way is not a finding."""
    if _unfinished_note(file, lake) is None or is_process_alive(_lock_path(file)):
        return []
    return [Finding("unfinished", _UNFINISHED, "renew")]


def _lake_finding(damage: Damage) -> Finding:
    repair: Repair = "copy" if damage.snapshot is None else "mend"
    return Finding(f"table {damage.kind}", damage.what, repair, [str(damage.table)])


def _publication_findings(lake: LakeSettings, source: SourceSettings) -> list[Finding]:
    with source_session(source.dsn, "looking at the publications") as connection:
        missing = missing_publications(connection, source.publications)
    if missing:
        listed = ", ".join(map(repr, missing))
        return [Finding("publication", f"the source has no publication {listed} any more", "renew")]
    if _all_republished(lake, source):
        what = "the publication was dropped and made again: the stream lacks what was not published meanwhile"
        return [Finding("publication", what, "renew")]
    return []


def _all_republished(lake: LakeSettings, source: SourceSettings) -> bool:
    """Return whether every table is published by something else than before.

    A single such table would be copied again by the next sync.
    """
    from slotlake.spark.read.point import ReadPoint

    fingerprints = [
        CatalogFingerprint.from_json(table.fingerprint) for table in ReadPoint.latest(lake).tables()
    ]
    members_before = {
        fingerprint.relation_id: fingerprint.members
        for fingerprint in fingerprints
        if fingerprint is not None and fingerprint.members
    }
    # One table that is published as before is enough, and nearly always it is among the first.
    some = dict(islice(members_before.items(), _TABLES_ASKED_FIRST))
    published_as_before = _published_as_before(source, some)
    if published_as_before is None or (not published_as_before and len(some) < len(members_before)):
        published_as_before = _published_as_before(source, members_before)
    return published_as_before is False


def _published_as_before(source: SourceSettings, members_before: Mapping[int, frozenset[str]]) -> bool | None:
    """Return whether one of these tables is published by what published it; None if none is published."""
    members_now = {
        oid: fingerprint.members
        for oid, fingerprint in fingerprints_at(source, members_before.keys(), None).items()
        if fingerprint.members
    }
    if not members_now:
        return None
    return any(members_before[oid] & members for oid, members in members_now.items())


def _is_lost(connection: psycopg.Connection[Any], source: SourceSettings, position: int) -> bool:
    """Return whether there is no slot, or a useless one of ours. A slot of others must not be replaced."""
    state = inspect_slot(connection, source.slot)
    if state is None:
        return True
    row = connection.execute("SELECT current_database()").fetchone()
    ours = (state.plugin, state.database) == (source.plugin, row and row[0])
    lost = state.lost or state.restart_lsn is None
    return ours and (lost or (state.confirmed_flush_lsn or 0) > position)


def _pending_findings(file: PipelineFile, position: int) -> list[Finding]:
    """Find that a batch that waits to be applied was altered; the slot still has its changes."""
    try:
        batch = batch_starting_at(file.changelog_dir, position)
        if batch is not None:
            batch.verify()
    except ChangeLogError as error:
        return [Finding("batch", error.what, "pull")]
    return []
