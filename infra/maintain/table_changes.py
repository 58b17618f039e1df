"""Lake tables become what the pipeline file asks for, all in one catalog transaction and without Spark."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.failpoints import reach
from slotlake.infra.sync.findings import Judgement

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.infra.selection.pending import Asked
    from slotlake.spark.catalog.base import Loaded
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.names import LakeName
    from slotlake.spark.read.point import ReadPoint
    from slotlake.spark.tables.metadata import Metadata

    Others = Mapping[LakeName, tuple[Any, Any]]
    # Checks all tables before anything is written for one of them, and says how each changes.
    Plan = Callable[[ReadPoint, Sequence[Loaded], Others], Callable[[Loaded], Metadata]]


def change_tables(
    pipeline: OpenPipeline, asked: Asked, tables: Collection[str], plan: Plan, progress: Progressing
) -> Others:
    """Change the tables that differ from what the pipeline file asks for.

    Args:
        asked: what the file asks for.
        tables: only these and their derived tables, as PostgreSQL writes them; none: all.
        plan: gets the tables that differ and returns what makes a table's new metadata.
        progress: is called for each table.

    Returns:
        The tables that were changed, with what they had and have.

    Raises:
        PipelineFileError: the lake has no such table.
        LakeError: the catalog cannot be reached, or was changed meanwhile; nothing was changed.
    """
    from slotlake.spark.read.point import ReadPoint

    pipeline.position()  # raises a clear error if there is no lake
    Judgement(pipeline).require_whole()
    point = ReadPoint.latest(pipeline.lake)
    chosen = _chosen(point, tables, asked.command)
    others = {name: pair for name, pair in asked.others(point).items() if not tables or name in chosen}
    if others:
        _swap(pipeline.lake, asked, point, others, plan, progress)
    return others


def _chosen(point: ReadPoint, tables: Collection[str], command: str) -> set[LakeName]:
    """The lake tables, derived ones included, that a user names."""
    chosen: set[LakeName] = set()
    for table in tables:
        try:
            chosen |= {point.find(table), *point.derived_tables(table).values()}
        except (KeyError, ValueError):
            raise PipelineFileError(
                f"the lake has no table {table}",
                where=command,
                way_out="write a table's name as PostgreSQL does; slotlake status lists the tables",
            ) from None
    return chosen


def _swap(
    lake: LakeSettings,
    asked: Asked,
    point: ReadPoint,
    others: Others,
    plan: Plan,
    progress: Progressing,
) -> None:
    from slotlake.spark.catalog.base import PointerMovedError, load
    from slotlake.spark.catalog.open import open_catalog

    with open_catalog(lake) as catalog:
        pointers = catalog.pointers()
        loaded = [load(pointers, name) for name in sorted(others)]
        changed = plan(point, loaded, others)
        moves = []
        for done, table in enumerate(loaded, 1):
            progress(f"{asked.name}: tables", done, len(loaded))
            moves.append(catalog.prepared(table, changed(table)))
        reach(f"{asked.name}.before_swap")
        try:
            catalog.move(moves)
        except PointerMovedError:
            catalog.forget(moves)
            raise
