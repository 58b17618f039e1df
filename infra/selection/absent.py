"""Mirrors that the catalog lacks, and the newest point names: they are set aside, the others go on.

Derived tables that are gone are `infra.selection.derived_gone`'s.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from slotlake.infra.selection.aside import SettingAside, stops_all, tables_aside
from slotlake.spark.names import lake_table
from slotlake.spark.publish.lives import Event

if TYPE_CHECKING:
    from slotlake.decoder.catalog.publications import SourceTable
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.maintenance.integrity import Damage
    from slotlake.spark.publish.aside import Cause, Name


def set_absent_aside(pipeline: OpenPipeline, damages: Sequence[Damage], *, every: bool = False) -> list[Name]:
    """Set the mirrors aside that the catalog lacks, before anything is published without them.

    One of which no file is left joins like a new table, in the same sync. No batch that has changes of it is
    published before (`spark.publish.absent`).

    Args:
        damages: what is wrong with the lake's tables.
        every: also such a one, and one that is to stop all.

    Returns:
        Schema and name of those that are set aside, by this or before.

    Raises:
        LakeError: such a table is to stop all (`on_trouble: stop`).
    """
    from slotlake.spark.publish.absent import absent_error

    errors = {}
    for damage in absent_mirrors(damages):
        if not every and _joins(pipeline, damage):
            continue
        error = absent_error(pipeline.lake, damage.table, damage.what)
        assert error.table is not None
        errors[error.table] = error
    known = tables_aside(pipeline.lake).keys() if errors else set()
    for name in errors.keys() - known:
        if not every and stops_all(pipeline.file, name):
            raise errors[name]
    new: dict[Name, tuple[Cause, str, str, str]] = {
        n: ("absent", e.what, e.where, e.way_out) for n, e in sorted(errors.items()) if n not in known
    }
    if new:
        SettingAside(pipeline).record_aside(new)
    return sorted(errors)


def record_taken_away(pipeline: OpenPipeline, joining: Sequence[SourceTable]) -> Collection[Name]:
    """Record those joining tables as set aside that the lake had, until the copy that begins is published.

    Batches on the way to it pass them over. If it does not come to that, a later sync copies them.

    Args:
        joining: tables that are copied like new ones.

    Returns:
        Schema and name of those that the lake had.
    """
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.publish.absent import GONE
    from slotlake.spark.publish.commits import pins_in

    with open_catalog(pipeline.lake) as catalog:
        pins = pins_in(catalog)
    names = {
        (each.schema, each.table): lake_table(pipeline.lake.namespace, *(each.schema, each.table))
        for each in joining
    }
    taken: dict[Name, tuple[Cause, str, str, str]] = {
        source: (
            "again",
            f"{name} {GONE}; no file of it is left, so it is copied again",
            f"table {name}",
            "run slotlake resume",
        )
        for source, name in names.items()
        if name in pins
    }
    if taken:
        SettingAside(pipeline).record_aside(taken, Event.AGAIN)
    return taken.keys()


def _joins(pipeline: OpenPipeline, damage: Damage) -> bool:
    """Return whether the next sync can copy it like a new table."""
    from slotlake.spark.publish.absent import GONE
    from slotlake.spark.publish.place import has_files_of_others, table_directory

    if pipeline.file.new_tables == "ignore" or GONE not in damage.what:
        return False
    return not has_files_of_others(table_directory(pipeline.lake, damage.table), pipeline.name)


def absent_mirrors(damages: Sequence[Damage]) -> list[Damage]:
    """Return those damages that are mirrors which the catalog lacks.

    Args:
        damages: what is wrong with the lake's tables.
    """
    from slotlake.spark.maintenance.integrity import MISSING

    return [each for each in damages if each.kind == MISSING and not each.is_derived]


def without_recorded(lake: LakeSettings, damages: list[Damage]) -> list[Damage]:
    """Return what is wrong, without mirrors that are absent and set aside: that record says it.

    Args:
        damages: what is wrong with the lake's tables.
    """
    if not (absent := absent_mirrors(damages)):
        return damages
    known = {lake_table(lake.namespace, *name) for name in tables_aside(lake)}
    return [each for each in damages if each not in absent or each.table not in known]
