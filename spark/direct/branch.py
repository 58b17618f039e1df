"""The branch ``stage`` of a table, to which a snapshot is added without Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from slotlake.decoder.failpoints import reach
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import PointerMovedError, open_catalog
from slotlake.spark.merge.run import Work
from slotlake.spark.publish.commits import RUN, STEPS
from slotlake.spark.publish.swap import steps_staged
from slotlake.spark.session_errors import StageConflictError
from slotlake.spark.tables.metadata import Metadata


def newest(work: Work) -> Work:
    """Return the work on the table as the catalog has it now."""
    with open_catalog(work.lake) as catalog:
        return replace(work, table=load_one(catalog, work.table.name))


def named(work: Work, properties: Mapping[str, str]) -> dict[str, str]:
    """Return what the summary of the snapshot says that completes the table for the point."""
    steps = 1 + steps_staged(work.table.metadata)
    return {**work.point.summary, STEPS: str(steps), **properties}


def move_stage(
    work: Work, staged: Callable[[Mapping[str, str]], Metadata], properties: Mapping[str, str]
) -> None:
    """Write a snapshot, and make it the head of the branch.

    Args:
        staged: writes the files; gets what the snapshot's summary is to say, and returns the metadata.
        properties: of the summary; without the point's the table is not complete.

    Raises:
        StageConflictError: another writer changed the table meanwhile.
        LakeError: a file cannot be written.
    """
    with open_catalog(work.lake) as catalog:
        with lake_files.side_by_side():
            move = catalog.prepared(work.table, staged({RUN: work.run, **properties}))
        reach("apply.mid_merge")
        try:
            catalog.move([move])
        except PointerMovedError as error:
            catalog.forget([move])
            raise StageConflictError(
                "another writer changed the table while a batch was staged",
                where=f"table {work.table.name}",
                way_out="run again; nothing was published",
            ) from error
