"""Where a pipeline stands, asked of both sides; a side that cannot be reached is said, not fatal."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from slotlake.decoder.assembly.prepared import PreparedStore
from slotlake.decoder.catalog import ddl_trigger
from slotlake.decoder.catalog.publications import published_names
from slotlake.decoder.changelog.batches import batches
from slotlake.decoder.errors import LakeError, SlotlakeError, SourceError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.position import source_position
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import SlotState, inspect_slot
from slotlake.infra.advance.findings import quick_findings
from slotlake.infra.config.private_files import kept_private
from slotlake.infra.joining import recopying
from slotlake.infra.reports import Alarm, StatusReport, TableStatus, Watched
from slotlake.infra.selection.aside import with_resume
from slotlake.infra.source import standing_puller
from slotlake.infra.source.fingerprints import CatalogFingerprint
from slotlake.infra.status import copy as overview_copy
from slotlake.infra.status.watch import watched

if TYPE_CHECKING:
    from datetime import datetime

    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.spark.publish.aside import Aside
    from slotlake.spark.read.point import ReadPoint

_ONE_BY_ONE = (
    "lake.publish is per_table: where the catalog cannot publish tables together, they are published one "
    "after another, and tables opened at `latest` can differ in position (query and --at never do)"
)
_SLOT_MISSING = "slot missing"


@kept_private
def overview(pipeline: OpenPipeline) -> StatusReport:
    """Read the lake, the slot and the change log; change nothing."""
    warnings: list[str] = []
    reached, cut = _lake_side(pipeline, warnings)
    position = None if cut is None else cut.position
    committed, published_at = (None, None) if cut is None else cut.newest_times()
    slot, source_lsn, trigger, watch = _source_side(pipeline, (position, committed), warnings)
    copy = overview_copy.copy_under_way(pipeline, None if slot is None else slot.retained_bytes, warnings)
    state = _state(cut is not None, slot, source_lsn) if reached else "lake unreachable"
    if cut is not None and slot is None and pipeline.file.dropped_note.exists():
        state = "dropped"
    if cut is None and reached:
        state = overview_copy.state(copy) or state
    published = None if cut is None or source_lsn is None else _published(pipeline, cut, warnings)
    watch = _judge(pipeline, position, slot, watch, state)
    watch = replace(watch, alarms=[*watch.alarms, *_alarms_aside(cut, published)])
    warnings += [str(alarm) for alarm in watch.alarms]
    if slot is not None and slot.wal_status == "extended":
        warnings.append("the slot holds back more WAL than max_wal_size (wal_status extended): sync soon")
    if cut is not None and source_lsn is not None:
        _compare_choices(pipeline, warnings)
    warnings += [] if cut is None else _unasked(pipeline, cut) + _copied_again(pipeline, cut)
    if pipeline.lake.publish == "per_table":
        warnings.append(_ONE_BY_ONE)
    archived = batches(pipeline.file.changelog_dir)
    return StatusReport(
        **vars(watch),
        pipeline=pipeline.name,
        state=state,
        last_consistent_lsn=None if position is None else format_lsn(position),
        last_commit_time=_iso(committed),
        published_at=_iso(published_at),
        source_lsn=None if source_lsn is None else format_lsn(source_lsn),
        lag_bytes=None if position is None or source_lsn is None else max(0, source_lsn - position),
        slot=None if slot is None else _slot_fields(slot),
        retained_wal_bytes=None if slot is None else slot.retained_bytes,
        wal_status=None if slot is None else slot.wal_status,
        safe_wal_size=None if slot is None else slot.safe_wal_size,
        changelog_batches=len(archived),
        changelog_bytes=sum(f.stat().st_size for path in archived for f in path.iterdir()),
        tables=overview_copy.with_copied(pipeline, _tables(pipeline, cut, published), copy),
        prepared=_prepared(pipeline, position),
        standing_puller=standing_puller.process_id(pipeline),
        ddl_trigger=trigger,
        copy=None if copy is None else {key: copy[key] for key in ("process", "lsn", "since", "slot")},
        set_aside=[] if cut is None else _told_aside(pipeline, cut),
        warnings=warnings,
    )


def _lake_side(pipeline: OpenPipeline, warnings: list[str]) -> tuple[bool, ReadPoint | None]:
    """Whether the lake can be read, and its newest cut, if this pipeline has one."""
    from slotlake.spark.copy.initial import is_initialised
    from slotlake.spark.read.point import ReadPoint

    try:
        return True, ReadPoint.latest(pipeline.lake) if is_initialised(pipeline.lake, pipeline.name) else None
    except LakeError as error:
        warnings.append(str(error).replace("\n", ";"))
        return False, None


def _source_side(
    pipeline: OpenPipeline, lake: tuple[int | None, datetime | None], warnings: list[str]
) -> tuple[SlotState | None, int | None, str | None, Watched]:
    try:
        with source_session(pipeline.source.dsn) as connection:
            state = inspect_slot(connection, pipeline.source.slot)
            trigger = ddl_trigger.state(connection)
        watch = watched(pipeline, state, *lake)
        return state, source_position(pipeline.source), trigger, watch
    except SourceError as error:
        warnings.append(str(error).replace("\n", ";"))
        return None, None, None, Watched()


def _judge(
    pipeline: OpenPipeline, position: int | None, slot: SlotState | None, watch: Watched, state: str
) -> Watched:
    """The alarms with what only both sides together tell."""
    if position is None:
        return watch
    found = [Alarm(each.kind, each.what, "slotlake recover") for each in quick_findings(pipeline)]
    if state == _SLOT_MISSING:
        what = f"the replication slot {pipeline.source.slot!r} does not exist"
        found.append(Alarm(state, what, "slotlake recover"))
    if slot is not None and (slot.confirmed_flush_lsn or 0) > position:
        what = "the slot is confirmed beyond the lake's position"
        found.append(Alarm("slot ahead", what, "slotlake recover"))
    return replace(watch, alarms=[*found, *watch.alarms])


def _unasked(pipeline: OpenPipeline, cut: ReadPoint) -> list[str]:
    from slotlake.infra.sync.modes import tables_not_in_file

    return [
        f"{name} is fed, though the pipeline file asks for it no more: DROP TABLE ends it"
        for name in tables_not_in_file(pipeline.file, cut)
    ]


def _compare_choices(pipeline: OpenPipeline, warnings: list[str]) -> None:
    from slotlake.infra.selection.tables import refuse_changed

    try:
        refuse_changed(pipeline)
    except SlotlakeError as error:
        warnings.append(str(error).replace("\n", ";"))


def _state(initialised: bool, slot: SlotState | None, source_lsn: int | None) -> str:
    if not initialised:
        return "not initialised"
    if source_lsn is None:
        return "source unreachable"
    if slot is None:
        return _SLOT_MISSING
    return "slot lost" if slot.lost else "ready"


def _slot_fields(slot: SlotState) -> dict[str, Any]:
    fields = asdict(slot)
    for name in ("restart_lsn", "confirmed_flush_lsn"):
        fields[name] = None if fields[name] is None else format_lsn(fields[name])
    return fields


def _prepared(pipeline: OpenPipeline, position: int | None) -> list[dict[str, Any]]:
    """Transactions prepared before the lake's position, whose outcome it does not hold."""
    if position is None:
        return []
    return [
        which.entry()
        for which in PreparedStore(pipeline.file.changelog_dir, {}).waiting()
        if which.prepare_lsn < position
    ]


def _published(pipeline: OpenPipeline, cut: ReadPoint, warnings: list[str]) -> set[tuple[str, str]]:
    """Published tables, by schema and name; those that the lake is not to have are said."""
    from slotlake.spark.names import postgres_name

    source = pipeline.source
    with source_session(source.dsn, "reading the publications") as connection:
        found = published_names(connection, source.publications)
    ignored = found - {(table.schema, table.table) for table in cut.tables()} - cut.aside.keys()
    if ignored and pipeline.file.new_tables == "ignore":
        listed = ", ".join(sorted(postgres_name(*name) for name in ignored))
        warnings.append(f"published, and not in the lake because of new_tables: ignore: {listed}")
    return found


def _tables(
    pipeline: OpenPipeline, cut: ReadPoint | None, published: set[tuple[str, str]] | None
) -> list[TableStatus]:
    from slotlake.infra.selection.tables import selection_report
    from slotlake.spark.names import lake_table

    if cut is None:
        return []
    entries = []
    for table in cut.tables():
        lake_name = str(lake_table(pipeline.lake.namespace, table.schema, table.table))
        snapshot = _snapshot(cut, table.source_name)
        takes = selection_report(table.selection)
        met = cut.conflicts(table.source_name).counts
        key = list(table.key)
        beside = sorted(map(str, cut.derived_tables(table.source_name).values()))
        mark = CatalogFingerprint.from_json(table.fingerprint)
        name = (table.schema, table.table)
        there = published is None or name in published
        state = "ready" if there else "not published any more"
        state = f"set aside since {format_lsn(cut.aside[name].lsn or 0)}" if name in cut.aside else state
        again = "" if mark is None else mark.why
        named = {column.name: column.lake_name for column in table.live if column.lake_name != column.name}
        entries.append(
            TableStatus(
                table.source_name, lake_name, state, snapshot, key, takes, met, again, beside, columns=named
            )
        )
    return entries + [_absent(pipeline, each) for each in cut.aside.values() if each.lsn is None]


def _absent(pipeline: OpenPipeline, each: Aside) -> TableStatus:
    """A table that is set aside, of which the lake has nothing yet."""
    from slotlake.spark.names import lake_table

    lake_name = str(lake_table(pipeline.lake.namespace, *each.name))
    return TableStatus(each.source_name, lake_name, "set aside", None, [])


def _alarms_aside(cut: ReadPoint | None, published: set[tuple[str, str]] | None) -> list[Alarm]:
    """One for each table that is set aside; what is published no more needs nobody."""
    if cut is None:
        return []
    return [
        Alarm("set aside", f"table {each.source_name} is set aside: {each.reason}", with_resume(each.way_out))
        for each in cut.aside.values()
        if (published is None or each.name in published) and not each.needs_nobody
    ]


def _told_aside(pipeline: OpenPipeline, cut: ReadPoint) -> list[dict[str, Any]]:
    """The tables that are set aside; of those that are copied over several syncs how much is copied."""
    ranges = recopying.progress_by_table(pipeline) if cut.aside else {}
    return [{**each.as_dict(), "copied": ranges.get(each.source_name)} for each in cut.aside.values()]


def _copied_again(pipeline: OpenPipeline, cut: ReadPoint) -> list[str]:
    ranges = recopying.progress_by_table(pipeline) if cut.aside else {}
    return [
        f"table {each.source_name} is set aside: {each.reason_with(ranges.get(each.source_name))}"
        for each in cut.aside.values()
        if each.needs_nobody
    ]


def _snapshot(cut: ReadPoint, table: str) -> int | None:
    try:
        return cut.snapshot_id(table)
    except (KeyError, SlotlakeError):
        return None


def _iso(moment: Any) -> str | None:
    return None if moment is None else str(moment.isoformat())
