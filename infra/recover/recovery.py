"""`slotlake recover`: from whatever is wrong back to a pipeline that runs, by the cheapest sound way.

First the plan, which is shown; it is carried out only when asked for.  Tables that were moved are moved back.
Changes that no slot has any more are taken by their net effect: a new slot exports a snapshot, lake and
source are compared there by hash buckets, and what differs becomes a batch from the lake's position to the
slot's, applied and published like any other (docs/adr/0023).  Readers find the tables all the time.

If it is killed, the next `recover` ends it: until the batch is published the note `recovering.json` says that
a recovery was begun, and `sync` refuses; whatever was written is written again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import missing_publications
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import source_session
from slotlake.infra.recover.approved import forget_plan, require_approved
from slotlake.infra.recover.compare import (
    EQUAL,
    LEFT,
    NEW,
    NOTHING,
    ROWS,
    WHOLE,
    TableRepair,
    compare,
    session_now,
    sizes,
)
from slotlake.infra.recover.copy import WHY
from slotlake.infra.recover.report import RecoverReport
from slotlake.infra.selection.absent import absent_mirrors, set_absent_aside
from slotlake.infra.selection.aside import (
    SettingAside,
    forget_stopped,
    is_of_one_table,
    stopped_by,
    tables_aside,
    with_resume,
)
from slotlake.infra.source import standing_puller
from slotlake.infra.sync.batch_steps import BatchSteps
from slotlake.infra.sync.findings import Diagnosis, Judgement
from slotlake.spark.names import lake_table, postgres_name

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.maintenance.integrity import Damage
    from slotlake.spark.names import LakeName
    from slotlake.spark.publish.aside import Name


class Recovery:
    """What is wrong with a pipeline, and what mends it."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def recover(
        self, *, carry_out: bool, progress: Progressing, approved: str | None = None
    ) -> RecoverReport:
        """Judge the pipeline, plan what mends it, and with ``carry_out`` do so.

        Args:
            carry_out: do what the plan says.
            approved: carry out the plan of this name (`infra.recover.approved`) only; None: what is planned.

        Raises:
            SlotBusyError: another reader holds the slot; that is no loss, and waiting helps.
            SourceError: the source cannot be asked.
            LakeError: the lake cannot be asked; or the plan is not the one that was approved.
        """
        started = time.monotonic()
        diagnosis = Judgement(self._pipeline).judge(files=True)
        if not diagnosis.findings:
            forget_plan(self._file)
            return self._report_of_whole(diagnosis)
        if not carry_out:
            return self._report(diagnosis, self._planned(diagnosis, progress), started)
        if approved is not None:
            require_approved(self._pipeline, approved, lambda: self._plan_now(diagnosis, progress))
        diagnosis = self._with_commits_mended(diagnosis)
        tables = self._carry_out(diagnosis, progress)
        forget_stopped(self._file)
        forget_plan(self._file)
        return self._report(diagnosis, tables, started, carried_out=True)

    def _plan_now(self, diagnosis: Diagnosis, progress: Progressing) -> RecoverReport:
        return self._report(diagnosis, self._planned(diagnosis, progress), time.monotonic())

    def _report(
        self,
        diagnosis: Diagnosis,
        tables: list[TableRepair],
        started: float,
        *,
        carried_out: bool = False,
    ) -> RecoverReport:
        """The report on a pipeline of which something is wrong, or was."""
        return RecoverReport(
            self._pipeline.name,
            "; ".join(finding.what for finding in diagnosis.findings)
            + (_set_aside_tables(self._lake) if carried_out else ""),
            _plan(self._source, diagnosis, tables, carried_out=carried_out),
            carried_out=carried_out,
            findings=diagnosis.findings,
            tables=tables,
            rows=sum(table.rows for table in tables),
            bytes=sum(table.bytes for table in tables),
            written=sum(table.how in {ROWS, WHOLE, NEW} for table in tables),
            lost=_losses(diagnosis),
            lsn=format_lsn(self._pipeline.position() if carried_out else diagnosis.position),
            seconds=round(time.monotonic() - started, 3),
        )

    def _report_of_whole(self, diagnosis: Diagnosis) -> RecoverReport:
        """The report on a pipeline of which nothing is lost."""
        at = format_lsn(diagnosis.position)
        summary = f"nothing is lost: the lake is whole, and the slot still has all changes from {at} on"
        return RecoverReport(
            self._pipeline.name,
            summary + _unmended_troubles(self._file, self._lake),
            [],
            carried_out=False,
            lsn=at,
        )

    def _planned(self, diagnosis: Diagnosis, progress: Progressing) -> list[TableRepair]:
        """What each table would get if it were done now."""
        from slotlake.infra.copy.tables import published_tables
        from slotlake.spark.read.point import ReadPoint

        if diagnosis.needs("renew"):
            broken = unreadable(diagnosis.damages)
            if any(each.position is not None for each in diagnosis.damages):
                return []  # the lake as it will be compared is not what readers see now
            if unpublished(self._source):
                return []  # of which rows, nobody can tell before the publication is made
            tables = published_tables(self._pipeline)
            with session_now(self._source.dsn) as connection:
                comparisons = compare(
                    connection,
                    self._pipeline.for_comparing(ReadPoint.latest(self._lake)),
                    tables,
                    broken,
                    progress,
                    spared=lambda error: is_of_one_table(self._file, error),
                )
            return [each.repair for each in comparisons]
        names = {name for each in diagnosis.findings if each.repair == "copy" for name in each.tables}
        names -= {str(each.table) for each in diagnosis.damages if each.is_derived}  # made from their mirrors
        absent = {str(each.table) for each in absent_mirrors(diagnosis.damages)}
        repairs = [(name, WHOLE, "copied again in place") for name in sorted(names - absent)]
        repairs += [(name, NEW, "the catalog lacks it") for name in sorted(absent)]
        return self._with_sizes(repairs)

    def _with_sizes(self, repairs: Sequence[tuple[str, str, str]]) -> list[TableRepair]:
        """Repairs of lake tables (name, how, why), with what the source's planner thinks that they have."""
        from slotlake.infra.copy.tables import published_tables

        namespace = self._lake.namespace
        tables = {str(lake_table(namespace, t.schema, t.table)): t for t in published_tables(self._pipeline)}
        with source_session(self._source.dsn, "sizes of the tables") as connection:
            known = sizes(connection, [tables[name].relation_id for name, _, _ in repairs if name in tables])
        return [
            TableRepair(name, how, *known.get(tables[name].relation_id, (0, 0)), why=why)
            if name in tables
            else TableRepair(name, how, why=why)
            for name, how, why in repairs
        ]

    def _with_commits_mended(self, diagnosis: Diagnosis) -> Diagnosis:
        """Move the table `commits` back to where it was, and judge the others again by its newest row."""
        from slotlake.spark.maintenance.integrity import repair_damage

        if all(each.position is None for each in diagnosis.damages):
            return diagnosis
        repair_damage(self._lake, diagnosis.damages)
        second = Judgement(self._pipeline).judge(files=True)
        findings = {each.what: each for each in [*diagnosis.findings, *second.findings]}
        return Diagnosis(second.position, list(findings.values()), [*diagnosis.damages, *second.damages])

    def _carry_out(self, diagnosis: Diagnosis, progress: Progressing) -> list[TableRepair]:
        """Mend what is wrong; return what each table got."""
        from slotlake.infra.sync.modes import begin_modes
        from slotlake.spark.maintenance.integrity import repair_damage
        from slotlake.spark.maintenance.removal import drop_tables
        from slotlake.spark.publish.rewind import rewind_tables

        self._pipeline.stream.end()
        if diagnosis.needs("renew"):
            standing_puller.stop(self._file)
        repair_damage(self._lake, diagnosis.damages)
        rewind_tables(self._lake, self._pipeline.name)
        if diagnosis.needs("pull"):
            _rename_altered_batches(self._file, diagnosis.position)
        derived = [each.table for each in diagnosis.damages if each.snapshot is None and each.is_derived]
        if derived:
            drop_tables(self._lake, self._pipeline.name, derived)
        absent = set_absent_aside(self._pipeline, diagnosis.damages, every=True)
        broken = unreadable(diagnosis.damages) - {
            *derived,
            *(d.table for d in absent_mirrors(diagnosis.damages)),
        }
        aside = {lake_table(self._lake.namespace, *name): name for name in tables_aside(self._lake)}
        tables = self._copy_or_compare(diagnosis, broken - aside.keys(), progress)
        damaged = {aside[table] for table in broken & aside.keys()}
        tables += self._brought_back(absent, damaged, progress)
        if derived:
            begin_modes(self._pipeline, progress, all_or_none=True)
        return tables

    def _copy_or_compare(
        self, diagnosis: Diagnosis, broken: Collection[LakeName], progress: Progressing
    ) -> list[TableRepair]:
        """Compare all tables at a new slot if one is needed; else copy those that cannot be read."""
        from slotlake.infra.recover.copy import CopiedAgain
        from slotlake.infra.recover.renew import Renewal
        from slotlake.infra.sync.joining_tables import JoiningTables

        if diagnosis.needs("renew"):
            salvage = _may_apply_waiting(diagnosis)
            return SettingAside(self._pipeline).retry_without_troubled(
                lambda: Renewal(self._pipeline).renew(broken, salvage=salvage, progress=progress),
            )
        if not broken:
            return []
        tables = CopiedAgain(self._pipeline).copy_again(broken, progress)
        JoiningTables(self._pipeline).add_new_tables(progress)
        return tables

    def _brought_back(
        self, absent: Collection[Name], damaged: Collection[Name], progress: Progressing
    ) -> list[TableRepair]:
        """Copy tables again that are set aside, as the catalog lacks them or they are damaged.

        One that cannot be copied stays set aside.
        """
        from slotlake.infra.sync.resuming import TablesAside
        from slotlake.spark.read.point import ReadPoint

        names = {*absent, *damaged} & tables_aside(self._lake).keys()
        if not names:
            return []
        brought = TablesAside(self._pipeline).bring_back(
            names, progress, math.inf
        )  # whoever recovers waits for all of them
        BatchSteps(self._pipeline).confirm_position()
        point, aside = ReadPoint.latest(self._lake), tables_aside(self._lake)
        lacked = {postgres_name(*name) for name in absent}
        repairs = [
            TableRepair(table, NEW, point.count(table), why="the catalog lacked it")
            if table in lacked
            else TableRepair(table, WHOLE, point.count(table), why=WHY)
            for table in brought
        ]
        return repairs + [
            TableRepair(aside[name].source_name, LEFT, why=aside[name].reason)
            for name in names
            if name in aside
        ]


def _unmended_troubles(file: PipelineFile, lake: LakeSettings) -> str:
    """What no recovery mends: the error that the last sync ended with, and tables set aside."""
    stopped = stopped_by(file)
    warning = f"; but the next sync will stop again at {stopped}" if stopped else ""
    return warning + _set_aside_tables(lake)


def _set_aside_tables(lake: LakeSettings) -> str:
    return "".join(
        f"; but table {each.source_name} is set aside ({each.reason}): {with_resume(each.way_out)}"
        for each in tables_aside(lake).values()
    )


def unpublished(source: SourceSettings) -> list[str]:
    """The pipeline's publications that the source does not have."""
    with source_session(source.dsn, "looking at the publications") as connection:
        return missing_publications(connection, source.publications)


def unreadable(damages: Collection[Damage]) -> set[LakeName]:
    """Lake tables of which something was lost."""
    return {each.table for each in damages if each.snapshot is None}


def _plan(
    source: SourceSettings, diagnosis: Diagnosis, tables: Sequence[TableRepair], *, carried_out: bool
) -> list[str]:
    lines = [
        f"move {each.table} back to where slotlake left it (snapshot {each.snapshot}); no row is copied"
        for each in diagnosis.damages
        if each.snapshot is not None
    ]
    if not carried_out and any(each.position is not None for each in diagnosis.damages):
        lines.append("look at the other tables, which its newest row names, and mend them likewise")
    if diagnosis.needs("pull"):
        lines.append("move the altered batch aside; the next sync pulls it again, the slot has its changes")
    lines += [
        f"make {each.table} again, from its mirror"
        for each in diagnosis.damages
        if each.snapshot is None and each.is_derived
    ]
    if diagnosis.needs("renew"):
        lines += _renewal(source, tables, carried_out=carried_out)
    else:
        lines += [_copy_line(table) for table in tables]
    return lines


def _copy_line(table: TableRepair) -> str:
    if table.how == LEFT:
        return f"leave {table.table} set aside: {table.why}"
    if table.how == NEW:
        return (
            f"copy {table.table} again: the catalog lacks it; one that was renamed, or dropped by mistake, "
            "lacks nothing if it is brought back before this and before the next sync"
        )
    return f"copy {table.table} again in place, at an exact LSN"


def _renewal(source: SourceSettings, tables: Sequence[TableRepair], *, carried_out: bool) -> list[str]:
    in_place = "in place of what is left of the old one, and compare lake and source there"
    lines = [f"make a new slot {source.slot}, {in_place}"]
    if not carried_out and unpublished(source):
        lines.insert(
            0,
            "make the publications that are missing, of the tables that the pipeline file names and of those "
            "that the lake follows",
        )
    by_how = {
        how: [table for table in tables if table.how == how] for how in (ROWS, WHOLE, NEW, LEFT, NOTHING)
    }
    for table in by_how[ROWS]:
        kinds = ", ".join(f"{rows:,} {kind}" for kind, rows in table.differences.items())
        lines.append(f"{table.table}: write the rows that differ ({kinds}; about {table.bytes:,} bytes)")
    for table in by_how[WHOLE]:
        what = f"copy all of it again in place ({table.rows:,} rows, {table.bytes:,} bytes)"
        lines.append(f"{table.table}: {what}: {table.why}")
    lines += [f"{table.table}: copy it, the lake lacks it ({table.bytes:,} bytes)" for table in by_how[NEW]]
    if by_how[NOTHING]:
        lines.append(f"{EQUAL}{len(by_how[NOTHING]):,}")
    lines += [f"{table.table}: {table.why}" for table in by_how[LEFT]]
    return [*lines, "publish all of it as one consistency point, readers find the tables all the time"]


def _losses(diagnosis: Diagnosis) -> list[str]:
    """What is gone for good, a line each."""
    losses = []
    if diagnosis.needs("renew"):
        losses.append(
            f"what happened between {format_lsn(diagnosis.position)} and the new slot is seen by its net "
            "effect only: of a row that changed twice the last change, of one that came and went nothing; a "
            "history and a change log get it as one transaction at the new slot's position "
            "(origin slotlake_recover)"
        )
    if any(finding.kind in ("history", "restored") for finding in diagnosis.findings):
        losses.append(
            "changes that the lake has and the source has not, or not any more, are undone; histories "
            "and change logs keep the LSNs of before, which may be higher than those to come: ask these by "
            "time (docs/runbook/restored-backup.md)"
        )
    return losses + [loss for damage in diagnosis.damages if (loss := _loss_of(damage))]


def _loss_of(damage: Damage) -> str:
    """What a damaged table lacks for good; "" for nothing."""
    if damage.snapshot is None and damage.is_derived:
        return f"the past in {damage.table}: it begins again with the rows that there are now"
    return f"what somebody else wrote into {damage.table}" if damage.kind == "written" else ""


def _may_apply_waiting(diagnosis: Diagnosis) -> bool:
    """Return whether the batches that wait in the change log are still the source's."""
    return all(each.kind == "slot" for each in diagnosis.findings if each.repair == "renew")


def _rename_altered_batches(file: PipelineFile, position: int) -> None:
    """Rename a batch that waits and was altered, so that nothing takes it for a batch."""
    from slotlake.decoder.changelog.batches import batches
    from slotlake.spark.publish import sidecar

    for path in batches(file.changelog_dir):
        if path.name.startswith(f"{position:016X}-"):
            for each in (path, sidecar.place(path)):
                if each.exists():
                    each.rename(each.with_name(f"altered-{int(time.time())}-{each.name}"))
