"""What becomes of a pulled batch: apply, publish, confirm, each step callable alone and safe to repeat.

Each step asks the lake where it is.  A batch that is already published is left alone by every step;
a batch that does not follow the lake's position is refused.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from slotlake.decoder.changelog.batches import Batch, batch_positions, batches
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.slots.confirm import confirm
from slotlake.infra.config.of_tables import on_conflict
from slotlake.infra.reports import ApplyReport, ConfirmReport, PublishReport, PullReport
from slotlake.infra.selection import derived_gone
from slotlake.infra.selection.aside import SettingAside, stops_all
from slotlake.infra.selection.types import on_lossy
from slotlake.infra.source import standing_puller
from slotlake.infra.source.wal_notes import note_measures
from slotlake.infra.state import batch_notes as journal
from slotlake.infra.state.notes import STAGED, StateFile
from slotlake.infra.sync.findings import Judgement
from slotlake.infra.sync.gates import Gates
from slotlake.spark.names import LakeName, parse_postgres_name, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.apply.stage import Applied
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.publish.swap import Published

_log = logging.getLogger(__name__)
_STAGED_AGAIN_MAX = 3


@dataclass
class Totals:
    """What a run has brought to the lake over all its batches.

    Attributes:
        last: the last batch that was pulled; None if there was none.
        transactions: of all batches.
        changes: of all batches.
        tables: source table → rows changed.
        conflicts: source table → kind of conflict → how many.
        seconds: step → seconds.
        lag_seconds: the longest time from a commit until it was queryable; None without transactions.
        warnings: what its publications met.
        commits: of each batch, when its oldest and its newest transaction was committed.
    """

    last: PullReport | None = None
    transactions: int = 0
    changes: int = 0
    tables: dict[str, int] = field(default_factory=dict)
    conflicts: dict[str, dict[str, int]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    lag_seconds: float | None = None
    warnings: list[str] = field(default_factory=list)
    commits: list[str] = field(default_factory=list)

    @contextmanager
    def timed(self, step: str) -> Iterator[None]:
        """Add the time that is spent within to the step's seconds."""
        started = time.monotonic()
        try:
            yield
        finally:
            self.seconds[step] = self.seconds.get(step, 0.0) + time.monotonic() - started

    def pulled(self, report: PullReport) -> None:
        """Count a batch that was pulled, if there is one."""
        if report.batch is not None:
            self.last = report
            self.transactions += report.transactions
            self.changes += report.changes
            self.commits += [time for time in (report.oldest_commit, report.newest_commit) if time]

    def published(self, report: PullReport) -> None:
        """Note for how long the oldest commit of a batch has waited until now, when it is queryable."""
        if report.oldest_commit is not None:
            waited = datetime.now(UTC) - datetime.fromisoformat(report.oldest_commit)
            self.lag_seconds = round(max(0.0, self.lag_seconds or 0.0, waited.total_seconds()), 3)

    def applied(self, report: ApplyReport) -> None:
        """Count a batch that was applied."""
        for table, count in report.tables.items():
            self.tables[table] = self.tables.get(table, 0) + count
        for table, counts in report.conflicts.items():
            counts_so_far = self.conflicts.setdefault(table, {})
            counts_so_far.update({kind: counts_so_far.get(kind, 0) + count for kind, count in counts.items()})


class BatchSteps:
    """The steps of a batch that was pulled."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def apply_and_publish(self, pulled: PullReport, totals: Totals, progress: Progressing) -> None:
        """Apply and publish a pulled batch, if there is one, and confirm the lake's position.

        Args:
            pulled: the report of the pull; its ``batch`` is None if nothing was new.
            totals: the counts of the run, to which those of this batch are added.
            progress: called with a line for each step.
        """
        totals.pulled(pulled)
        if pulled.batch is not None:
            with totals.timed("apply"):
                progress("apply", 0)
                totals.applied(self.apply_named(pulled.batch, judged=True))
            with totals.timed("publish"):
                progress("publish", 0)
                totals.warnings += self.publish_named(pulled.batch).warnings
            totals.published(pulled)
        with totals.timed("confirm"):
            self.confirm_position()

    def apply_named(self, name: str, *, judged: bool = False) -> ApplyReport:
        """Stage a batch, after checking that it is what its manifest says.

        Args:
            judged: the lake's tables have been looked at.
        """
        started = time.monotonic()
        self._pipeline.save_changelog()  # what is applied can be had on every machine
        batch = batch_named(self._file, name)
        batch.verify()
        if not judged:
            Judgement(self._pipeline).require_whole()
        elif (touched := _touched_since(self._lake, batch)) is not None:
            Judgement(self._pipeline).require_whole(only=touched)
        applied = SettingAside(self._pipeline).retry_without_troubled(lambda: self._staged(batch))
        _note_staged(self._file, self._lake.namespace, batch, applied)
        _note_gone_before(self._file, self._lake, applied)
        conflicts = {
            table.source_table: table.conflicts.counts for table in applied.tables.values() if table.conflicts
        }
        seconds = time.monotonic() - started
        if not applied.already_published:
            journal.note_applied(self._file.state_dir, batch, seconds, conflicts)
        return ApplyReport(
            batch=name,
            already_published=applied.already_published,
            tables={table.source_table: table.changes for table in applied.tables.values()},
            conflicts=conflicts,
            set_aside=SettingAside(self._pipeline).reasons(),
            seconds=seconds,
        )

    def _staged(self, batch: Batch) -> Applied:
        from slotlake.spark.apply.lossy import refuse_lossy_batch
        from slotlake.spark.apply.stage import apply_batch
        from slotlake.spark.java import JavaEndedError
        from slotlake.spark.publish import sidecar

        SettingAside(self._pipeline).pass_over(batch)
        contents = sidecar.read(batch)
        refuse_lossy_batch(self._lake, batch, on_lossy(self._file), contents)
        inputs = self._lake, batch, self._pipeline.name, on_conflict(self._file), contents
        try:
            return apply_batch(self._pipeline.engine, *inputs)
        except JavaEndedError as error:
            _log.warning(
                "%s; another one stages the tables one by one", error.what, extra={"batch": batch.name}
            )
        try:
            return apply_batch(self._pipeline.engine, *inputs, together=False)
        except JavaEndedError as error:
            raise error.lasting() from error

    def publish_named(self, name: str) -> PublishReport:
        """Publish a staged batch."""
        started = time.monotonic()
        batch = batch_named(self._file, name)
        published, warnings = SettingAside(self._pipeline).retry_without_troubled(
            lambda: self._published_surely(batch)
        )
        if not published.already:
            journal.note_published(self._file.state_dir, batch, time.monotonic() - started)
        return PublishReport(
            batch=name,
            lsn=format_lsn(published.position),
            already_published=published.already,
            tables=dict(published.snapshots),
            seconds=time.monotonic() - started,
            warnings=warnings,
        )

    def _published_surely(self, batch: Batch) -> tuple[Published, list[str]]:
        """Publish a batch; stage it again first if a killed run's last statement has written there meanwhile.

        A Connect server carries on with it when its client is gone.  Each killed run has but one such
        statement for each table.
        """
        from slotlake.spark.publish.swap import StagedOverError

        for _ in range(_STAGED_AGAIN_MAX):
            try:
                return self._published(batch)
            except StagedOverError as error:
                _log.warning("%s; staging it again", error.what, extra={"batch": batch.name})
                self.apply_named(batch.name)
        return self._published(batch)

    def _published(self, batch: Batch) -> tuple[Published, list[str]]:
        """Publish a batch; return what to warn of, too: derived tables without which it was done."""
        from slotlake.spark.publish import sidecar
        from slotlake.spark.publish.publication import DerivedGoneError, publish_batch

        SettingAside(self._pipeline).pass_over(batch)  # a table may have been set aside since it was applied
        if self._pipeline.position() < batch.end_lsn:
            Gates(self._pipeline).require_gates(batch)
        staged, contents = _tables_staged(self._file, batch), sidecar.read(batch)
        try:
            return publish_batch(self._lake, batch, self._pipeline.name, contents, staged), []
        except DerivedGoneError as error:
            if any(stops_all(self._file, staged[name]) for name in error.gone):
                raise
            gone = error.gone
        derived_gone.note_dropped(
            self._file, self._lake.namespace, gone
        )  # before it is published: that takes them out of `commits`
        remaining = {name: source for name, source in staged.items() if name not in gone}
        published = publish_batch(self._lake, batch, self._pipeline.name, contents, remaining)
        return published, [str(alarm) for alarm in derived_gone.gone_alarms(self._file, self._lake.namespace)]

    def confirm_position(self, batch: str | None = None) -> ConfirmReport:
        """Confirm the lake's position to the server, then remove batches that are old enough.

        Args:
            batch: that was published, if another process may have done that.
        """
        started = time.monotonic()
        position = self._pipeline.position()
        self._pipeline.save_changelog()  # the server does not send again what is confirmed
        confirmed = "stream" in vars(self._pipeline) and self._pipeline.stream.confirm(position)
        if not (confirmed or standing_puller.confirm(self._file, position)):
            confirm(self._source, position)
        journal.note_confirmed(self._file.state_dir, time.monotonic() - started, batch)
        note_measures(self._file.state_dir, self._source, position)
        self._forget_old_batches(position)
        return ConfirmReport(self._source.slot, format_lsn(position))

    def _forget_old_batches(self, position: int) -> None:
        """Remove archived batches that are published and older than the pipeline file keeps them."""
        from slotlake.spark.publish import sidecar

        oldest = time.time() - self._file.changelog.keep_days * 86400
        old = [
            path
            for path in batches(self._file.changelog_dir)
            if (positions := batch_positions(path.name)) is not None
            and positions[1] <= position
            and path.stat().st_mtime < oldest
        ]
        for path in old:
            shutil.rmtree(path, ignore_errors=True)
            shutil.rmtree(sidecar.place(path), ignore_errors=True)
        if (
            old and self._pipeline.stored is not None
        ):  # once in a while, not after every batch: it lists them all
            self._pipeline.stored.forget_older(position, oldest)


def batch_named(file: PipelineFile, name: str) -> Batch:
    """Open a batch of the change log by its name.

    Raises:
        ChangeLogError: there is no such batch.
    """
    path = file.changelog_dir / name
    if "/" in name or not path.is_dir():
        raise ChangeLogError(
            f"the change log has no batch {name!r}",
            where=str(file.changelog_dir),
            way_out="clear the pull task too, or run: slotlake sync. If another machine pulled it, "
            "changelog.path and state.path must be where both machines see them (docs/workers.md)",
        )
    return Batch.open(path)


def _touched_since(lake: LakeSettings, batch: Batch) -> list[LakeName] | None:
    """The tables of a batch, if the judgement may rest on an earlier look at them; else None."""
    from slotlake.spark.catalog.looks import Looks
    from slotlake.spark.publish import sidecar
    from slotlake.spark.publish.derived_tables import with_derived_names
    from slotlake.spark.publish.publication import touched_tables

    if not lake.memory.of(Looks).is_in_use:
        return None
    return with_derived_names(touched_tables(lake, batch, sidecar.read(batch)))


def _staged_note(file: PipelineFile) -> StateFile:
    return STAGED.of(file.state_dir)


def _note_staged(file: PipelineFile, namespace: str, batch: Batch, applied: Applied) -> None:
    """Note which tables the lake had when the batch was applied; if that fails, only the note is lost."""
    tables = {table: each.source_table for table, each in applied.tables.items()}
    derived = _names(name for each in applied.tables.values() for name in each.derived)
    asked = derived_gone.asked_for(file, namespace, derived)
    tables |= {str(name): postgres_name(*source) for name, source in asked.items()}
    with suppress(OSError):
        _staged_note(file).write({"batch": batch.name, "digest": batch.digest, "tables": tables})


def _names(tables: Iterable[str]) -> list[LakeName]:
    return [LakeName.parse(table) for table in tables]


def _note_gone_before(file: PipelineFile, lake: LakeSettings, applied: Applied) -> None:
    """Note derived tables that the newest point has, and that were gone when the batch was applied."""
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.publish.commits import pins_in
    from slotlake.spark.publish.derived_tables import SUFFIXES

    possible = _names(table + suffix for table in applied.tables for suffix in SUFFIXES.values())
    present = {name for each in applied.tables.values() for name in _names(each.derived)}
    if absent := derived_gone.asked_for(file, lake.namespace, set(possible) - present):
        with open_catalog(lake) as catalog:
            pins = pins_in(catalog)
        derived_gone.note_dropped(file, lake.namespace, absent.keys() & pins.keys())


def _tables_staged(file: PipelineFile, batch: Batch) -> dict[LakeName, tuple[str, str]]:
    """The mirrors, and the derived tables that the pipeline file asks for, that were staged for a batch.

    None if another machine applied it, whose note is not seen here.
    """
    note = _staged_note(file).mapping()
    if (note.get("batch"), note.get("digest")) != (batch.name, batch.digest):
        return {}
    return {LakeName.parse(table): parse_postgres_name(name) for table, name in note["tables"].items()}
