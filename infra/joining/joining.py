"""Tables that join the publication later: each is copied over several syncs, the others go on meanwhile.

At each pull ranges of joining tables are copied for a bounded time (`source.copy_seconds_per_sync`); what is
short enough joins at once (`infra.joining.over_syncs`; docs/adr/0025).  They are out of sight until they are
whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.infra.copy.joining_record import FOLDER
from slotlake.infra.copy.tables import copy_all
from slotlake.infra.joining import over_syncs
from slotlake.infra.joining.over_syncs import Way, copy_some, let_go
from slotlake.infra.joining.settled import PLACE, look_ahead
from slotlake.infra.schema.large_tables import by_size
from slotlake.infra.selection.aside import require_columns
from slotlake.infra.selection.tables import published_beside

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.names import LakeName


def add_new_tables(pipeline: OpenPipeline, progress: Progressing) -> list[str]:
    """Copy what there is time for of the tables that have joined the publications; those that are whole now.

    A table whose beginning is held up by transactions that are open is left to the next run.
    """
    fresh = _fresh(pipeline)
    let_go(pipeline, JOINS, {t.relation_id: (t.schema, t.table) for t in fresh}, progress)
    look_ahead(pipeline, fresh)
    if not fresh:
        return []
    ranged = by_size(pipeline, fresh)
    return copy_some(pipeline, JOINS, ranged, [t for t in fresh if t not in ranged], progress)


def how_far(pipeline: OpenPipeline) -> dict[str, str]:
    """The tables that are half copied, as PostgreSQL writes them, and how many ranges are there."""
    return over_syncs.how_far(pipeline, JOINS)


def give_up(pipeline: OpenPipeline, relation_ids: Collection[int] | None = None) -> list[str]:
    """Remove what half copied tables have left, of all or of these; the tables."""
    return over_syncs.give_up(pipeline, JOINS, relation_ids)


def _clear(pipeline: OpenPipeline, names: Sequence[LakeName]) -> None:
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.publish.place import clear_leftovers

    with open_catalog(pipeline.lake) as catalog:
        clear_leftovers(catalog, pipeline.name, names)


JOINS = Way(FOLDER, PLACE, "it was published", copy_all, _clear)


def _fresh(pipeline: OpenPipeline) -> list[SourceTable]:
    """Published tables that the lake does not have and is to have."""
    from slotlake.spark.read.point import Cut

    if pipeline.file.new_tables == "ignore":
        return []
    cut = Cut.latest(pipeline.lake)
    known = {(table.schema, table.table) for table in cut.tables()}
    fresh = published_beside(pipeline, known | cut.aside.keys())
    require_columns(fresh)
    return fresh
