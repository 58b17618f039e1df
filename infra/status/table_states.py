"""The tables of a status report: where each is in the lake and in its life, and which are set aside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.infra.reports import Alarm, TableStatus
from slotlake.infra.selection.aside import with_resume
from slotlake.infra.source.fingerprints import CatalogFingerprint
from slotlake.infra.sync import joining_tables
from slotlake.infra.sync.recopying import RecopiedTables
from slotlake.spark.names import lake_table, parse_postgres_name, postgres_name
from slotlake.spark.publish.lives import Event, Life, after

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.publish.aside import Aside
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.schema import TableSchema


def table_states(
    namespace: str, point: ReadPoint, published: set[tuple[str, str]] | None
) -> list[TableStatus]:
    """Return the status of each table of the lake, and of those that are set aside and absent.

    Args:
        point: the newest consistency point.
        published: tables of the publications by schema and name; None if the source cannot be reached.
    """
    mirrors = {(table.schema, table.table): table for table in point.tables()}
    states = [_table_status(namespace, point, table, published) for table in mirrors.values()]
    return states + [_absent(namespace, each) for name, each in point.aside.items() if name not in mirrors]


def with_lives(
    pipeline: OpenPipeline,
    point: ReadPoint | None,
    listed: Sequence[TableStatus],
    published: set[tuple[str, str]] | None,
) -> list[TableStatus]:
    """Add their lives to the status of tables, and tables that join and are not listed.

    Args:
        pipeline: says where the lake and the state folder are.
        point: the newest consistency point; None before the initial copy.
        listed: the tables of the lake, and those of a copy.
        published: tables of the publications by schema and name; None if the source cannot be reached.
    """
    mirrors = {} if point is None else point.all_mirrors.by_source_name
    # A lake of an earlier version does not name what joins; the state folder does.
    known = {
        name: life
        for name, life in joining_tables.JoiningTables(pipeline).lives().items()
        if name not in mirrors
    }
    known |= {} if point is None else point.lives

    def shown(name: tuple[str, str]) -> Life:
        life = known.get(name, Life.FOLLOWED if name in mirrors else Life.COPYING)
        # The publications are the truth about this: stored, it would be wrong once it is published again.
        left = published is not None and name not in published
        return after(life, Event.UNPUBLISHED, postgres_name(*name)) if left else life

    tables = [replace(each, life=str(shown(parse_postgres_name(each.table)))) for each in listed]
    others = {name: shown(name) for name in known.keys() - {parse_postgres_name(t.table) for t in listed}}
    return tables + [
        TableStatus(
            postgres_name(*name),
            str(lake_table(pipeline.lake.namespace, *name)),
            str(life),
            None,
            [],
            life=str(life),
        )
        for name, life in sorted(others.items())
        if life is not Life.ABSENT
    ]


def _table_status(
    namespace: str, point: ReadPoint, table: TableSchema, published: set[tuple[str, str]] | None
) -> TableStatus:
    fingerprint = CatalogFingerprint.from_json(table.fingerprint)
    return TableStatus(
        table=table.source_name,
        lake_table=str(lake_table(namespace, table.schema, table.table)),
        state=_state(point, (table.schema, table.table), published),
        snapshot_id=_snapshot_id(point, table.source_name),
        key=list(table.key),
        takes=selection_report(table.selection, soft_deletes=table.soft_deletes),
        conflicts=point.conflicts(table.source_name).counts,
        copied_again="" if fingerprint is None else fingerprint.why,
        beside=sorted(map(str, point.derived_tables(table.source_name).values())),
        columns={column.name: column.lake_name for column in table.live if column.lake_name != column.name},
    )


def _state(point: ReadPoint, name: tuple[str, str], published: set[tuple[str, str]] | None) -> str:
    if name in point.aside:
        lsn = point.aside[name].lsn
        return "set aside" if lsn is None else f"set aside since {format_lsn(lsn)}"
    return "ready" if published is None or name in published else "not published any more"


def _snapshot_id(point: ReadPoint, table: str) -> int | None:
    try:
        return point.snapshot_id(table)
    except (KeyError, SlotlakeError):
        return None


def _absent(namespace: str, entry: Aside) -> TableStatus:
    """Return the status of a table that is set aside and that the lake does not have yet, or any more."""
    lake_name = str(lake_table(namespace, *entry.name))
    return TableStatus(entry.source_name, lake_name, "set aside", None, [])


def set_aside_alarms(point: ReadPoint, published: set[tuple[str, str]] | None) -> list[Alarm]:
    """Return an alarm for each table that is set aside, is still published, and needs a person."""
    return [
        Alarm(
            "set aside",
            f"table {each.source_name} is set aside: {each.reason}",
            with_resume(each.way_out),
            each.source_name,
        )
        for each in point.aside.values()
        if (published is None or each.name in published) and not each.needs_nobody
    ]


def set_aside_entries(pipeline: OpenPipeline, point: ReadPoint) -> list[dict[str, Any]]:
    """Return the tables that are set aside; ``copied``: how much of a table is copied again, or None."""
    ranges = RecopiedTables(pipeline).progress_by_table() if point.aside else {}
    return [{**each.as_dict(), "copied": ranges.get(each.source_name)} for each in point.aside.values()]


def set_aside_warnings(pipeline: OpenPipeline, point: ReadPoint) -> list[str]:
    """Return a warning for each table that is set aside and that the next syncs bring back by themselves."""
    ranges = RecopiedTables(pipeline).progress_by_table() if point.aside else {}
    return [
        f"table {each.source_name} is set aside: {each.reason_with(ranges.get(each.source_name))}"
        for each in point.aside.values()
        if each.needs_nobody
    ]


def selection_report(selection: str, *, soft_deletes: bool = False) -> dict[str, Any]:
    """What a table takes, and whether its deleted rows stay, for `status`; empty if all is as usual."""
    from slotlake.spark.row_filter.selection import Selection

    chosen = Selection.from_json(selection)
    named = {
        "filter": " OR ".join(f"({each})" for each in chosen.filters) if len(chosen.filters) > 1 else
        "".join(chosen.filters),
        "columns": list(chosen.columns or ()),
        "operations": list(chosen.operations or ()),
        "on_delete": "mark" if soft_deletes else "",
    }  # fmt: skip
    return {key: value for key, value in named.items() if value}
