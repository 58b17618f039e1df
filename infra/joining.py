"""Tables that join the publication later: each is copied over several syncs, the others go on meanwhile.

At each pull ranges of joining tables are copied for a bounded time (`source.copy_seconds_per_sync`); what is
short enough joins at once (`infra.over_syncs`; docs/adr/0025).  It is made out of sight until it is whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from decoder.changelog import Batch
from decoder.failpoints import reach
from decoder.publications import SourceTable
from infra import over_syncs
from infra.aside import require_columns
from infra.copy_forward import named_keys
from infra.joining_record import FOLDER, FOLDERS, JoiningRecord
from infra.large_tables import by_size
from infra.over_syncs import Way, copy_some, let_go
from infra.selection import published_beside
from infra.settled import PLACE, look_ahead
from infra.tables import copy_all

if TYPE_CHECKING:
    from infra.output import Progressing
    from infra.pipeline import Pipeline
    from spark.names import LakeName


def add_new_tables(pipeline: Pipeline, progress: Progressing) -> list[str]:
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


def note_changes(pipeline: Pipeline, batch: Batch) -> None:
    """Keep which rows a batch changes of tables that are copied; before anyone applies it."""
    if batch.empty:
        return
    for folder in FOLDERS:
        _note_in(JoiningRecord(pipeline.file.state_dir / folder), batch)


def _note_in(record: JoiningRecord, batch: Batch) -> None:
    for relation_id, table in record.joining.items():
        positions = (batch.start_lsn, batch.end_lsn)
        if batch.end_lsn > table.since.position and positions not in table.noted:
            unread = (table.since.schema, table.since.table) in batch.unreadable
            record.note(relation_id, positions, None if unread else named_keys(batch, table.since))
            reach("join.noted")


def joining_tables(pipeline: Pipeline) -> set[tuple[str, str]]:
    """Schema and name of the tables that are half copied."""
    return {(t.since.schema, t.since.table) for t in JoiningRecord.of(pipeline).joining.values()}


def how_far(pipeline: Pipeline) -> dict[str, str]:
    """The tables that are half copied, as PostgreSQL writes them, and how many ranges are there."""
    return over_syncs.how_far(pipeline, JOINS)


def give_up(pipeline: Pipeline, relation_ids: Collection[int] | None = None) -> list[str]:
    """Remove what half copied tables have left, of all or of these; the tables."""
    return over_syncs.give_up(pipeline, JOINS, relation_ids)


def _clear(pipeline: Pipeline, names: Sequence[LakeName]) -> None:
    from spark.catalog import open_catalog
    from spark.initial_place import clear_leftovers

    with open_catalog(pipeline.lake) as catalog:
        clear_leftovers(catalog, pipeline.name, names)


JOINS = Way(FOLDER, PLACE, "it was published", copy_all, _clear)


def _fresh(pipeline: Pipeline) -> list[SourceTable]:
    """Published tables that the lake does not have and is to have."""
    from spark.read import Cut

    if pipeline.file.new_tables == "ignore":
        return []
    cut = Cut.latest(pipeline.lake)
    known = {(table.schema, table.table) for table in cut.tables()}
    fresh = published_beside(pipeline, known | cut.aside.keys())
    require_columns(fresh)
    return fresh
