"""One pipeline, opened: the same steps for the command, for Airflow and for a Python program.

Owns the order of the steps and nothing else: decoder/ pulls and confirms, spark/ applies and
publishes, expectations/ compares.  Where the lake is, is asked of the lake each time.  Spark starts
when the first step needs it and stays warm until the pipeline is closed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from slotlake.infra.maintain.of_tables import PipelineTables
from slotlake.infra.progress import Progressing, silent
from slotlake.infra.query.queries import PinnedQueries, QueryResult, parsed_at
from slotlake.infra.reports import (
    ApplyReport,
    ConfirmReport,
    CopyWorkerReport,
    InitReport,
    MaintainReport,
    PublishReport,
    PullReport,
    ResumeReport,
    RunReport,
    StatusReport,
    SyncReport,
    TriggerReport,
)
from slotlake.infra.state.events import note_copies
from slotlake.infra.status.telling import Telling

if TYPE_CHECKING:
    from slotlake.decoder.errors import SlotlakeError
    from slotlake.expectations.results import Report
    from slotlake.infra.backfill.replay import ReplayReport
    from slotlake.infra.backfill.report import BackfillReport
    from slotlake.infra.maintain.dropping import DropReport
    from slotlake.infra.recover.report import RecoverReport
    from slotlake.infra.source.bell import Bell
    from slotlake.infra.status.schema_changes import SchemaReport
    from slotlake.infra.status.types_report import TypesReport
    from slotlake.infra.sync.loop import RunLimits, RunListener


class Pipeline(PipelineTables, Telling):
    """A pipeline file and what it takes to run it: each step, each look, each repair is a method."""

    # -- the steps ------------------------------------------------------------------------------------

    def init(self, *, progress: Progressing = silent, wait_seconds: float = 0.0) -> InitReport:
        """Make publication, slot and lake tables, and copy what the source holds. Idempotent."""
        from slotlake.infra.copy.bootstrap import Bootstrap
        from slotlake.infra.maintain.dropping import begin_again
        from slotlake.infra.selection import known_tables

        with self.exclusively(wait_seconds, step="init"):
            begin_again(self.file.state_dir)
            report = Bootstrap(self).initialise(progress)
            if not report.already:
                note_copies(self.file.state_dir, [table.table for table in report.tables])
            known_tables.write_note(self.file.state_dir, self.lake, [table.table for table in report.tables])
            return report

    def help_copy(self, *, progress: Progressing = silent, wait_seconds: float = 60.0) -> CopyWorkerReport:
        """Copy ranges of the initial copy that another machine runs; docs/initial-copy.md.

        Args:
            wait_seconds: how long to wait for that copy to begin.

        Raises:
            PipelineFileError: machines do not share the state of this pipeline.
            LakeError: no initial copy was under way for so long.
        """
        from slotlake.infra.copy.worker import help_copy

        return help_copy(self, progress, wait_seconds)

    def install_trigger(self) -> TriggerReport:
        """Install the event trigger that numbers the columns of altered tables (docs/schema.md)."""
        from slotlake.infra.source.ddl_trigger import install

        return install(self)

    def pull(self, *, progress: Progressing = silent, wait_seconds: float = 0.0) -> PullReport:
        """Write the next change log batch up to the source's position now; or find one written before."""
        from slotlake.infra.source.wal_notes import note_source_position
        from slotlake.infra.sync.catch_up import Sync
        from slotlake.spark.catalog.looks import sparing

        with self.reporting("pull"), self.exclusively(wait_seconds, step="pull"), sparing():
            note_source_position(self.file.state_dir, self.source.dsn)
            return Sync(self).pull_next(progress)

    def apply(self, batch: str, *, wait_seconds: float = 60.0) -> ApplyReport:
        """Stage a batch of the change log; readers see nothing of it."""
        from slotlake.infra.sync.batch_steps import BatchSteps

        with self.reporting("apply"), self.exclusively(wait_seconds, step="apply"):
            return BatchSteps(self).apply_named(batch)

    def publish(self, batch: str, *, wait_seconds: float = 60.0) -> PublishReport:
        """Make a staged batch visible, all tables at once."""
        from slotlake.infra.sync.batch_steps import BatchSteps

        with self.reporting("publish"), self.exclusively(wait_seconds, step="publish"):
            return BatchSteps(self).publish_named(batch)

    def confirm(self, batch: str | None = None, *, wait_seconds: float = 60.0) -> ConfirmReport:
        """Let the server forget WAL up to the lake's position.

        Args:
            batch: the batch that was published; tables that it changed are compacted, if they need it.
            wait_seconds: how long to wait for another run.
        """
        from slotlake.infra.sync.compaction import Compaction

        with self.reporting("confirm"), self.exclusively(wait_seconds, step="confirm"):
            report = Compaction(self).confirm_and_compact(batch)
        self.look_again()
        return report

    def sync(self, *, progress: Progressing = silent, wait_seconds: float = 0.0) -> SyncReport:
        """One micro-batch: catch up with the source's position now, apply, publish, confirm."""
        from slotlake.infra.sync.catch_up import Sync
        from slotlake.spark.catalog.looks import sparing

        with self.reporting("sync"), self.exclusively(wait_seconds, step="sync"), sparing():
            report = Sync(self).catch_up(progress)
        self.look_again(aside=report.set_aside)
        return report

    def run(
        self,
        limits: RunLimits | None = None,
        *,
        bell: Bell | None = None,
        listener: RunListener | None = None,
        progress: Progressing = silent,
    ) -> RunReport:
        """Micro-batches in a loop, as the source has changes, until a limit is reached (docs/continuous.md).

        Args:
            limits: when it ends; never, when not given.
            bell: its `stop`, called by another thread or a signal, ends the loop after the batch at hand.
            listener: called with the report of each batch, and with a line for other events.

        Raises:
            SlotlakeError: something that waiting does not mend, or has not mended in time.
        """
        from slotlake.infra.source.bell import Bell
        from slotlake.infra.sync import loop

        given, verifier = listener or loop.RunListener(), None

        def batch(report: SyncReport) -> None:
            given.batch(report)
            self.look_again(aside=report.set_aside)

        def tried(error: SlotlakeError | None) -> None:
            if error is not None:
                self.step_failed("sync", error)
            elif self.tells:
                self.step_worked("sync")
                self.notifier.tell()

        listener = loop.RunListener(batch, given.line, tried)
        if self.file.verify.is_left_on:
            from slotlake.infra.verify.background import BackgroundVerifier

            verifier = BackgroundVerifier(self, listener.line)
        with self.reporting("sync"):
            return loop.run(self, limits or loop.RunLimits(), bell or Bell(), listener, progress, verifier)

    def verify(
        self,
        scope: str = "full",
        tables: Sequence[str] = (),
        *,
        source_load: float | None = None,
        connections: int | None = None,
        at_least: str | None = None,
        slot_timeout_seconds: float = 60.0,
        progress: Progressing = silent,
    ) -> Report:
        """Compare lake and source at an exact LSN while the source is being written, and batches go on.

        Args:
            scope: ``full``, ``changed`` since it was found equal, or ``rolling``: slices whose turn it is.
            tables: only these, as PostgreSQL writes them.
            source_load: the share of one core of the source that it may take; all, when not given.
            connections: how many read the source at once; as the pipeline file says, when not given.
            at_least: an LSN that the lake is said to have reached.
            slot_timeout_seconds: how long to wait for transactions that are open at the start.

        Raises:
            LakeError: the lake is behind ``at_least``.
            SourceError: transactions stayed open for too long; the message names them.
        """
        from slotlake.infra.verify.verification import Verification, VerifyRequest

        asked = (scope, tuple(tables), source_load, connections, slot_timeout_seconds, at_least)
        with self.reporting("verify"):
            report = Verification(self).verify(VerifyRequest(*asked), progress)
        self.look_again()
        return report

    def backfill(
        self,
        table: str | Sequence[str],
        *,
        where: str | None = None,
        key_range: str | None = None,
        dry_run: bool = False,
        progress: Progressing = silent,
    ) -> BackfillReport:
        """Make lake tables, or chosen rows of them, equal to the source at an exact LSN; docs/backfill.md.

        Args:
            table: one or several, as PostgreSQL writes them; one that the lake lacks is added.
            where: an SQL condition; rows that satisfy it on either side are read again. All when not given.
            key_range: ``A..B`` of the key's first column, ends included.
            dry_run: only say what would change.
        """
        from slotlake.infra.backfill.backfill import BackfillRequest, backfill

        tables = (table,) if isinstance(table, str) else tuple(table)
        report = backfill(self, BackfillRequest(tables, where, key_range, dry_run), progress, 60.0)
        self.look_again()
        return report

    def replay(
        self,
        namespace: str,
        *,
        start: str | datetime | None = None,
        end: str | datetime | None = None,
        transactions: int | None = None,
        progress: Progressing = silent,
    ) -> ReplayReport:
        """Apply archived batches once more, in a scratch namespace; the live tables are not touched.

        Args:
            namespace: of the scratch tables; those of an earlier replay are replaced.
            start: begin with the lake as it was there (an LSN or a time); the oldest kept point.
            end: where to end; the newest point.
            transactions: in batches of so many; the batches that they were, when not given.
        """
        from slotlake.infra.backfill.replay import Range, replay

        return replay(self, namespace, Range(parsed_at(start), parsed_at(end), transactions), progress)

    def maintain(
        self,
        table: str | None = None,
        *,
        rewrite_layout: bool = False,
        progress: Progressing = silent,
        wait_seconds: float = 0.0,
    ) -> MaintainReport:
        """Compact the lake's tables, and let go of what no kept point needs. Changes no row.

        Args:
            table: only this one, as PostgreSQL writes it.
            rewrite_layout: also write anew all tables that have files of an earlier layout.
        """
        from slotlake.infra.maintain.maintenance import maintain

        with self.reporting("maintain"):
            return maintain(self, table, progress, wait_seconds, rewrite_layout=rewrite_layout)

    def resume(self, table: str, *, progress: Progressing = silent) -> ResumeReport:
        """Copy a table again that was set aside; as `PipelineTables.resume`, and then look again."""
        report = super().resume(table, progress=progress)
        self.look_again(repaired=not report.already)
        return report

    # -- looking --------------------------------------------------------------------------------------

    def rows(
        self, table: str, columns: Sequence[str] | None = None, at: str | datetime | None = None
    ) -> Iterator[tuple[str | None, ...]]:
        """The rows of a lake table as tuples of PostgreSQL text (None for NULL), in no particular order.

        Args:
            table: as PostgreSQL writes it: ``public.orders``, ``"Odd Name"``.
            columns: source column names; all, in source order, when not given.
            at: an LSN, or a moment (ISO 8601 text or a datetime; UTC if it names no zone): the newest kept
                point at or before it. The newest point when not given.

        Raises:
            KeyError: the lake has no such table or column.
            LakeError: ``at`` is in the future, or older than what the lake keeps.
        """
        from slotlake.spark.read.point import ReadPoint

        return ReadPoint.of(self.lake, parsed_at(at)).rows(table, columns)

    def query(self, sql: str, at: str | datetime | None = None, *, engine: str = "auto") -> QueryResult:
        """Run a SELECT over the lake, every table pinned to one point.

        Args:
            at: as in :meth:`rows`.
            engine: ``duckdb``, ``spark``, or ``auto``: DuckDB where it can read the lake.

        Raises:
            LakeError: the SQL is wrong or no query of this lake's tables, or the lake has no such point.
        """
        return self.pinned_queries(at, engine=engine).ask(sql)

    def pinned_queries(
        self,
        at: str | datetime | None = None,
        *,
        engine: str = "auto",
        report_line: Callable[[str], None] = lambda line: None,
    ) -> PinnedQueries:
        """Pin a point, for any number of queries; the arguments are those of :meth:`query`.

        Args:
            at: as in :meth:`rows`.
            engine: as in :meth:`query`.
            report_line: called with a line for the person who waits.
        """
        return PinnedQueries(self, parsed_at(at), engine, report_line)

    def status(self) -> StatusReport:
        """Where the pipeline stands; works also when one of the two sides cannot be reached."""
        from slotlake.infra.status.overview import overview

        return overview(self)

    def schema_changes(self) -> SchemaReport:
        """Changes of the tables' columns: those that the next sync will meet, and past ones."""
        from slotlake.infra.status.schema_changes import schema_changes

        return schema_changes(self)

    def types(self) -> TypesReport:
        """What became of every column's type in the lake."""
        from slotlake.infra.status.types_report import types_report

        return types_report(self)

    # -- the worst days -------------------------------------------------------------------------------

    def drop(self, *, lake: bool = False) -> DropReport:
        """End the pipeline: its slot and the publications it made; with ``lake`` its tables too."""
        from slotlake.infra.maintain.dropping import Dropping

        with self.exclusively(step="drop", on_one_side=True):
            return Dropping(self).drop(lake=lake)

    def recover(
        self, *, carry_out: bool = False, approved: str | None = None, progress: Progressing = silent
    ) -> RecoverReport:
        """Find out what is wrong and what would mend it; with ``carry_out`` do so (docs/runbook).

        Args:
            carry_out: do what the plan says.
            approved: only if that is still the plan of this name (`infra.recover.approved`).
        """
        from slotlake.infra.maintain.dropping import begin_again
        from slotlake.infra.recover.recovery import Recovery

        with self.exclusively(step="recover"):
            if carry_out and approved is None:
                begin_again(self.file.state_dir)
            report = Recovery(self).recover(carry_out=carry_out, approved=approved, progress=progress)
        if report.carried_out:
            self.repaired(report.plan)
        self.look_again(repaired=report.carried_out)
        return report

    def verification_summary(self, report: Report) -> dict[str, Any]:
        """A verification without row values, for logs and XComs: verdict, LSN, counts."""
        from slotlake.infra.verify.verification import summary

        return summary(report)
