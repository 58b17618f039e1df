"""Where a pipeline is, read from both sides. If one side cannot be reached, the report says so."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.decoder.assembly.prepared import PreparedStore
from slotlake.decoder.catalog import ddl_trigger
from slotlake.decoder.catalog.publications import published_names, unsent_warnings
from slotlake.decoder.changelog.batches import batches
from slotlake.decoder.errors import LakeError, PipelineFileError, SlotlakeError, SourceError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.position import source_position
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import SlotState, inspect_slot
from slotlake.infra.config.identity import other_lake_error
from slotlake.infra.config.private_files import with_private_files
from slotlake.infra.copy.unfinished import UnfinishedCopy
from slotlake.infra.reports import Alarm, StatusReport, TableStatus, Watched
from slotlake.infra.selection.derived_gone import gone_alarms
from slotlake.infra.selection.file_tables import FileFinding, file_findings, finding_alarms
from slotlake.infra.selection.pending import pending_warnings
from slotlake.infra.selection.readers import reader_warnings
from slotlake.infra.source import standing_puller
from slotlake.infra.source.own_slot import require_own_slot_name
from slotlake.infra.state.notes import DROPPED
from slotlake.infra.state.verified import coverage, read_verified
from slotlake.infra.status import copy as copy_status
from slotlake.infra.status.table_states import (
    set_aside_alarms,
    set_aside_entries,
    set_aside_warnings,
    table_states,
    with_lives,
)
from slotlake.infra.status.watch import watched
from slotlake.infra.sync.findings import Judgement
from slotlake.infra.sync.gates import refusal

if TYPE_CHECKING:
    from datetime import datetime

    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.read.point import ReadPoint

_PUBLISHED_ONE_BY_ONE = (
    "lake.publish is per_table: if the catalog cannot publish tables together, they are published one after "
    "another, and tables opened at `latest` can have different positions (query and --at always use one)"
)
_SLOT_MISSING = "slot missing"
# Each table costs reading its manifests, each file a look at the folder.
_TABLES_MAX, _FILES_MAX = 100, 5_000
_OF_A_COPY = ("process", "lsn", "since", "slot", "machines")


@dataclass(frozen=True)
class _LakeSide:
    """What the lake says.

    Attributes:
        point: its newest consistency point, None before `init`.
        times: when the newest transaction in the lake was committed, and when it was published.
    """

    reachable: bool
    point: ReadPoint | None = None
    times: tuple[datetime | None, datetime | None] = (None, None)
    warnings: list[str] = field(default_factory=list)

    @property
    def position(self) -> int | None:
        return None if self.point is None else self.point.position


@dataclass(frozen=True)
class _SourceSide:
    """What the source says.

    Attributes:
        published: schema and name of its published tables, None if not read.
        file_findings: tables of which the pipeline file says something else.
    """

    slot: SlotState | None = None
    lsn: int | None = None
    ddl_trigger: str | None = None
    watched: Watched = field(default_factory=Watched)
    published: set[tuple[str, str]] | None = None
    file_findings: list[FileFinding] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def reachable(self) -> bool:
        return self.lsn is not None


@with_private_files
def overview(pipeline: OpenPipeline) -> StatusReport:
    """Read the lake, the slot and the change log; change nothing."""
    return _Overview(pipeline).read()


def _verification(state_dir: Path) -> dict[str, Any] | None:
    verified = read_verified(state_dir)
    if not verified["tables"] and not verified["open"]:
        return None
    return {"different": sorted(verified["open"]), **(coverage(verified) or {})}


def _verification_warnings(file: PipelineFile) -> Iterator[str]:
    verification, within = _verification(file.state_dir) or {}, file.verify.full_within
    if different := verification.get("different"):
        yield (
            f"found different from the source, and not equal since: {', '.join(different[:10])}: "
            "slotlake verify lists the keys, slotlake backfill reads such rows again"
        )
    if within is not None and time.time() - verification.get("oldest", time.time()) > within:
        yield (
            "not all rows were verified within verify.full_within: is cdc_verify, or slotlake run, at work? "
            "Else choose a longer time, or a greater source_load"
        )


def _batch_lag(point: ReadPoint) -> float | None:
    from slotlake.spark.publish.commits import commits_name, newest_lag

    return newest_lag(point.pinned[commits_name(point.lake.namespace)].metadata)


class _Overview:
    """What is read of an open pipeline for its status."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def read(self) -> StatusReport:
        """Read the lake, the slot and the change log; change nothing."""
        self._look_at_state()
        lake = _lake_side(self._lake, self._pipeline.name)
        source = self._source_side(lake)
        copy = UnfinishedCopy(self._pipeline).unfinished()
        state = self._state(lake, source, copy)
        alarms = self._alarms(lake, source, state)
        return StatusReport(
            **vars(replace(source.watched, alarms=alarms)),
            **_positions(lake, source),
            **_slot_fields(source.slot),
            **self._archive(),
            pipeline=self._pipeline.name,
            state=state,
            tables=self._tables(lake, source, copy),
            prepared=self._prepared(lake.position),
            standing_puller=standing_puller.process_id(self._file),
            ddl_trigger=source.ddl_trigger,
            copy=None if copy is None else {key: copy[key] for key in _OF_A_COPY if key in copy},
            set_aside=[] if lake.point is None else set_aside_entries(self._pipeline, lake.point),
            views={} if lake.point is None else _views(self._lake),
            batch_lag_seconds=None if lake.point is None else _batch_lag(lake.point),
            verification=_verification(self._file.state_dir),
            warnings=self._warnings(lake, source, copy, alarms),
        )

    def _look_at_state(self) -> None:
        """See what other machines have noted; where the store does not answer, its lake says so."""
        if self._pipeline.state is not None:
            try:
                self._pipeline.state.refresh()
            except SlotlakeError:
                self._pipeline.state.go_without()

    def _source_side(self, lake: _LakeSide) -> _SourceSide:
        committed, _ = lake.times
        try:
            with source_session(self._source.dsn) as connection:
                slot = inspect_slot(connection, self._source.slot)
                trigger = ddl_trigger.state(connection)
            measured = watched(self._pipeline, slot, lake.position, committed)
            lsn = source_position(self._source)
        except SourceError as error:
            return _SourceSide(warnings=[_one_line(error)])
        if lake.point is None:
            return _SourceSide(slot, lsn, trigger, measured)
        return _SourceSide(slot, lsn, trigger, measured, *self._published(lake.point))

    def _published(self, point: ReadPoint) -> tuple[set[tuple[str, str]], list[FileFinding], list[str]]:
        """What is published, where the pipeline file says something else, and what the stream cannot send."""
        source = self._source
        in_lake = point.all_mirrors.by_source_name.keys() | point.aside.keys()
        with source_session(source.dsn, "reading the publications") as connection:
            published = published_names(connection, source.publications)
            findings = file_findings(self._pipeline, connection, in_lake, published)
            unsent = [
                f"{each.table}: {each.what}" for each in unsent_warnings(connection, source.publications)
            ]
        return published, findings, unsent

    def _state(self, lake: _LakeSide, source: _SourceSide, copy: dict[str, Any] | None) -> str:
        if not lake.reachable:
            return "lake unreachable"
        if lake.point is None:
            return copy_status.state(copy) or "not initialised"
        if source.slot is None and DROPPED.of(self._file.state_dir).exists():
            return "dropped"
        if not source.reachable:
            return "source unreachable"
        if source.slot is None:
            return _SLOT_MISSING
        return "slot lost" if source.slot.lost else "ready"

    def _alarms(self, lake: _LakeSide, source: _SourceSide, state: str) -> list[Alarm]:
        if lake.point is None or lake.position is None:
            return source.watched.alarms
        if source.reachable:
            try:
                require_own_slot_name(self._file, self._source)
            except PipelineFileError as error:
                return [Alarm("slot changed", error.what, error.way_out), *source.watched.alarms]
        findings = Judgement(self._pipeline).quick_findings(files=_looks_at_files(self._lake, lake.point))
        alarms = [Alarm(each.kind, each.what, "slotlake recover") for each in findings]
        if state == _SLOT_MISSING:
            what = f"the replication slot {self._source.slot!r} does not exist"
            alarms.append(Alarm(state, what, "slotlake recover"))
        if source.slot is not None and (source.slot.confirmed_flush_lsn or 0) > lake.position:
            what = "the slot is confirmed beyond the lake's position"
            alarms.append(Alarm("slot ahead", what, "slotlake recover"))
        alarms += [*source.watched.alarms, *set_aside_alarms(lake.point, source.published)]
        alarms += finding_alarms(source.file_findings)
        return [*alarms, *gone_alarms(self._file, self._lake.namespace)]

    def _warnings(
        self,
        lake: _LakeSide,
        source: _SourceSide,
        copy: dict[str, Any] | None,
        alarms: list[Alarm],
    ) -> list[str]:
        """Return all warnings: of each side, the alarms, and what the pipeline file asks for in vain."""
        slot, point = source.slot, lake.point
        warnings = [*lake.warnings, *source.warnings]
        warnings += copy_status.interrupted_copy_warnings(copy, None if slot is None else slot.retained_bytes)
        if point is None and lake.reachable and (error := other_lake_error(self._file, self._lake)):
            warnings.append(_one_line(error))
        if point is not None and source.published is not None:
            warnings += _ignored_tables(self._file, point, source.published)
        warnings += [each.warning for each in source.file_findings if not each.lacking]
        warnings += [str(alarm) for alarm in alarms]
        warnings += _verification_warnings(self._file)
        if slot is not None and slot.wal_status == "extended":
            warnings.append("the slot retains more WAL than max_wal_size (wal_status extended): sync soon")
        if point is not None:
            warnings += self._changed_choices() if source.reachable else []
            warnings += _unused_tables(self._file, point) + set_aside_warnings(self._pipeline, point)
            warnings += pending_warnings(point) + reader_warnings(self._file)
        warnings += [f"the last batch is not published: {each}" for each in refusal(self._file)]
        if self._lake.publish == "per_table":
            warnings.append(_PUBLISHED_ONE_BY_ONE)
        return warnings

    def _changed_choices(self) -> list[str]:
        """Return what the pipeline file says now and the lake cannot follow."""
        from slotlake.infra.selection.tables import refuse_changed

        try:
            refuse_changed(self._pipeline)
        except SlotlakeError as error:
            return [_one_line(error)]
        return []

    def _archive(self) -> dict[str, Any]:
        if self._pipeline.stored is not None:
            with suppress(LakeError):  # else what this machine has of it
                count, size = self._pipeline.stored.sizes()
                return {"changelog_batches": count, "changelog_bytes": size}
        archived = batches(self._file.changelog_dir)
        size = sum(file.stat().st_size for path in archived for file in path.iterdir())
        return {"changelog_batches": len(archived), "changelog_bytes": size}

    def _tables(self, lake: _LakeSide, source: _SourceSide, copy: dict[str, Any] | None) -> list[TableStatus]:
        visible = (
            [] if lake.point is None else table_states(self._lake.namespace, lake.point, source.published)
        )
        listed = copy_status.with_copies(self._lake.namespace, visible, copy)
        return with_lives(self._pipeline, lake.point, listed, source.published)

    def _prepared(self, position: int | None) -> list[dict[str, Any]]:
        """Return the transactions that were prepared before the lake's position and have no outcome in it."""
        if position is None:
            return []
        return [
            prepared.entry()
            for prepared in PreparedStore(self._file.changelog_dir, {}).waiting()
            if prepared.prepare_lsn < position
        ]


def _views(lake: LakeSettings) -> dict[str, str | None]:
    """The namespaces of pinned views, each with its point."""
    from slotlake.spark.catalog.open import open_catalog

    if not lake.views:
        return {}
    with open_catalog(lake) as catalog:
        spaces = catalog.view_namespaces()
    return {s.name: None if s.position is None else format_lsn(s.position) for s in spaces}


def _lake_side(lake: LakeSettings, name: str) -> _LakeSide:
    from slotlake.spark.copy.owner import is_initialised
    from slotlake.spark.read.point import ReadPoint

    try:
        point = ReadPoint.latest(lake) if is_initialised(lake, name) else None
    except LakeError as error:
        return _LakeSide(False, warnings=[_one_line(error)])
    return _LakeSide(True) if point is None else _LakeSide(True, point, point.newest_times())


def _looks_at_files(lake: LakeSettings, point: ReadPoint) -> bool:
    """Return whether to see that files are there: in a folder, if they are few; else `recover` does it."""
    if lake.is_in_bucket or len(point.pinned) > _TABLES_MAX:
        return False
    summaries = [(each.snapshot or {}).get("summary", {}) for each in point.pinned.values()]
    return sum(int(each.get("total-data-files", 0)) for each in summaries) <= _FILES_MAX


def _ignored_tables(file: PipelineFile, point: ReadPoint, published: set[tuple[str, str]]) -> list[str]:
    from slotlake.spark.names import postgres_name

    ignored = published - {(table.schema, table.table) for table in point.tables()} - point.aside.keys()
    if not ignored or file.new_tables != "ignore":
        return []
    names = ", ".join(sorted(postgres_name(*name) for name in ignored))
    return [f"published, and not in the lake because of new_tables: ignore: {names}"]


def _unused_tables(file: PipelineFile, point: ReadPoint) -> list[str]:
    from slotlake.infra.sync.modes import tables_not_in_file

    return [
        f"slotlake still writes {name}, but the pipeline file asks for it no longer: DROP TABLE ends this"
        for name in tables_not_in_file(file, point)
    ]


def _positions(lake: _LakeSide, source: _SourceSide) -> dict[str, Any]:
    committed, published_at = lake.times
    lag_bytes = None if lake.position is None or source.lsn is None else max(0, source.lsn - lake.position)
    return {
        "last_consistent_lsn": _lsn_text(lake.position),
        "last_commit_time": None if committed is None else committed.isoformat(),
        "published_at": None if published_at is None else published_at.isoformat(),
        "source_lsn": _lsn_text(source.lsn),
        "lag_bytes": lag_bytes,
    }


def _slot_fields(slot: SlotState | None) -> dict[str, Any]:
    if slot is None:
        return {"slot": None, "retained_wal_bytes": None, "wal_status": None, "safe_wal_size": None}
    fields = asdict(slot)
    for name in ("restart_lsn", "confirmed_flush_lsn"):
        fields[name] = _lsn_text(fields[name])
    return {
        "slot": fields,
        "retained_wal_bytes": slot.retained_bytes,
        "wal_status": slot.wal_status,
        "safe_wal_size": slot.safe_wal_size,
    }


def _lsn_text(lsn: int | None) -> str | None:
    return None if lsn is None else format_lsn(lsn)


def _one_line(error: SlotlakeError) -> str:
    return str(error).replace("\n", ";")
