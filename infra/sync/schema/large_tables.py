"""Which tables are too large to be copied in one sync; if they must be copied again, that is postponed.

In one piece the copy of a large table would hold all others up, and with them the slot.  So the table is set
aside, for a cause of its own, and copied over several syncs (`infra.sync.recopying`).

Large is what takes longer than one sync may spend on copies, by the size that the server reports and the rate
of an ordinary server.  Not postponed is what cannot be brought forward (no key, one range, not all kinds of
changes published), what the pipeline file wants to stop all (`on_trouble`), a table that takes other rows or
columns than it did, and one of which the lake has nothing yet.  Why so: docs/adr/0036.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.copy.parts import Part, plan_parts
from slotlake.decoder.server.source import source_session
from slotlake.infra.copy.forward import all_kinds_published, resumable
from slotlake.infra.copy.joining_record import RECOPYING_FOLDER, JoiningRecord
from slotlake.infra.selection.aside import SettingAside, stops_all
from slotlake.infra.selection.tables import lake_schema
from slotlake.spark.publish.lives import Event

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.sync.schema.findings import Findings
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.publish.aside import Aside, Name
    from slotlake.spark.tables.schema import TableSchema

BYTES_PER_SECOND = 25_000_000  # as the server stores them; a copy is rarely slower
_WHAT = "it is copied again over several syncs"
_BECAUSE = "it was set aside, because"
_WAY_OUT = (
    "nothing needs to be done: each sync copies more of it, as `slotlake resume` does at once; "
    "on_trouble: stop for the table has it copied in one piece, while all others wait"
)


def resumable_by_size(
    source: SourceSettings,
    tables: Sequence[SourceTable],
    is_wanted: Callable[[SourceTable, Sequence[Part]], bool] = lambda table, parts: True,
) -> list[SourceTable]:
    """Return the tables whose copy can be brought forward, the smallest first.

    Args:
        is_wanted: says by a table's ranges whether it is returned.
    """
    if not resumable(source):
        return []
    keyed = [table for table in tables if table.key]
    if not keyed:
        return []
    with source_session(source.dsn, "planning the copy") as connection:
        if not all_kinds_published(connection, source.publications):
            return []
        planned = plan_parts(connection, keyed)
        chosen = [table for table in keyed if is_wanted(table, planned[table])]
        return sorted(chosen, key=lambda table: sum(part.bytes for part in planned[table]))


def large(pipeline: OpenPipeline, tables: Sequence[SourceTable]) -> list[SourceTable]:
    """Return the tables that take too long for one sync, and can be copied over several."""
    begun_tables = JoiningRecord(pipeline.file.state_dir / RECOPYING_FOLDER).joining.keys()
    bytes_max = pipeline.file.source.copy_seconds_per_sync * BYTES_PER_SECOND

    def is_wanted(table: SourceTable, parts: Sequence[Part]) -> bool:
        takes_long = len(parts) > 1 and sum(part.bytes for part in parts) > bytes_max
        return takes_long or table.relation_id in begun_tables

    candidates = [table for table in tables if not stops_all(pipeline.file, (table.schema, table.table))]
    if not candidates:
        return []
    return replaced_in_place(pipeline.lake, pipeline.source, candidates, is_wanted)


def replaced_in_place(
    lake: LakeSettings,
    source: SourceSettings,
    tables: Sequence[SourceTable],
    is_wanted: Callable[[SourceTable, Sequence[Part]], bool],
) -> list[SourceTable]:
    """Return the tables whose copy can be brought forward, and takes the same rows and columns as the lake's.

    Args:
        is_wanted: says by a table's ranges whether it is returned.
    """
    from slotlake.spark.read.point import ReadPoint

    mirrors = {(each.schema, each.table): each for each in ReadPoint.latest(lake).tables()}
    same = [table for table in tables if _takes_the_same(table, mirrors)]
    return resumable_by_size(source, same, is_wanted)


def _takes_the_same(table: SourceTable, mirrors: Mapping[Name, TableSchema]) -> bool:
    """Return whether the lake's table takes the same rows and columns: they can be replaced in place."""
    mirror = mirrors.get((table.schema, table.table))
    if mirror is None:
        return False
    wanted = lake_schema(table)
    return (mirror.selection, mirror.soft_deletes) == (wanted.selection, wanted.soft_deletes)


def postpone_large(pipeline: OpenPipeline, copies: Mapping[SourceTable, str]) -> list[SourceTable]:
    """Set the large ones aside of tables that must be copied again.

    Args:
        copies: the tables, and why they are copied.

    Returns:
        The tables that were set aside.
    """
    postponed = large(pipeline, list(copies))
    if postponed:
        SettingAside(pipeline).record_aside({
                (table.schema, table.table): (
                    "again", f"{_WHAT}: {copies[table]}", f"table {table.quoted}", _WAY_OUT,
                )
                for table in postponed
            },
            Event.AGAIN,
        )  # fmt: skip
    return postponed


def without_large(pipeline: OpenPipeline, findings: Findings, *, compared: bool) -> Findings:
    """Set large tables aside, and return the findings without their copies.

    Args:
        findings: what a batch meets.
        compared: it is known which tables need no copy; else those that may need none stay.
    """
    postponed = postpone_large(
        pipeline, {t: why for t, why in findings.copies.items() if compared or t not in findings.alternatives}
    )
    if not postponed:
        return findings
    names = {(table.schema, table.table) for table in postponed}
    return replace(
        findings,
        copies={table: why for table, why in findings.copies.items() if table not in postponed},
        alternatives={table: each for table, each in findings.alternatives.items() if table not in postponed},
        republished=findings.republished - names,
    )


def record_copied_over_syncs(lake: LakeSettings, name: str, tables: Sequence[Aside]) -> None:
    """Record of tables that are set aside that they are being copied again over several syncs."""
    from slotlake.spark.publish.aside_write import write

    entries = [
        replace(each, cause="again", what=f"{_WHAT}: {_BECAUSE} {each.what}", way_out=_WAY_OUT, tries=0)
        for each in tables
    ]
    if entries:
        write(lake, name, entries, Event.AGAIN)


def copy_reason_of(each: Aside) -> str:
    """Why a table is copied again."""
    return each.what.removeprefix(f"{_WHAT}: ")
