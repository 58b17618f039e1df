"""Tables that join the publication later: each is copied over several syncs, the others go on meanwhile.

At each pull ranges of joining tables are copied for a bounded time (`source.copy_seconds_per_sync`); what is
short enough joins at once (`infra.joining.over_syncs`; docs/adr/0025).  They are out of sight until they are
whole.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from slotlake.decoder.catalog.publications import SourceTable, check_publications, source_tables
from slotlake.decoder.catalog.remembered_fingerprints import RememberedNames
from slotlake.decoder.server.source import source_session
from slotlake.infra.copy.joining_record import JOINING_FOLDER
from slotlake.infra.copy.tables import copy_all
from slotlake.infra.joining import over_syncs
from slotlake.infra.joining.over_syncs import CopyKind, copy_some, give_up_stale
from slotlake.infra.joining.settling import PLACE, note_publications
from slotlake.infra.schema.large_tables import resumable_by_size
from slotlake.infra.selection.absent import record_taken_away
from slotlake.infra.selection.aside import require_columns
from slotlake.infra.selection.layouts import require_layouts
from slotlake.infra.selection.tables import lake_selections, selected

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.names import LakeName

_PUBLISHED: WeakKeyDictionary[OpenPipeline, RememberedNames] = WeakKeyDictionary()


def add_new_tables(pipeline: OpenPipeline, progress: Progressing) -> list[str]:
    """Copy what there is time for of the tables that have joined the publications.

    A table that cannot begin because of open transactions is left to the next run.

    Returns:
        The tables that are whole, and published, as PostgreSQL writes them.
    """
    new_tables = _new_tables(pipeline)
    give_up_stale(
        pipeline, JOINING_TABLES, {t.relation_id: (t.schema, t.table) for t in new_tables}, progress
    )
    note_publications(pipeline, new_tables)
    if not new_tables:
        return []
    record_taken_away(pipeline, new_tables)
    ranged = resumable_by_size(pipeline, new_tables)
    return copy_some(pipeline, JOINING_TABLES, ranged, [t for t in new_tables if t not in ranged], progress)


def progress_by_table(pipeline: OpenPipeline) -> dict[str, str]:
    """Return table, as PostgreSQL writes it → how many ranges are there, of tables that are half copied."""
    return over_syncs.progress_by_table(pipeline, JOINING_TABLES)


def give_up(pipeline: OpenPipeline, relation_ids: Collection[int] | None = None) -> list[str]:
    """Remove what half copied tables have left, of all or of these OIDs; return the tables."""
    return over_syncs.give_up(pipeline, JOINING_TABLES, relation_ids)


def _clear(pipeline: OpenPipeline, names: Sequence[LakeName]) -> None:
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.publish.place import clear_leftovers

    with open_catalog(pipeline.lake) as catalog:
        clear_leftovers(catalog, pipeline.name, names)


JOINING_TABLES = CopyKind(JOINING_FOLDER, PLACE, "it was published", copy_all, _clear)


def _new_tables(pipeline: OpenPipeline) -> list[SourceTable]:
    """Published tables that the lake does not have, and that the pipeline file wants."""
    from slotlake.spark.read.point import ReadPoint

    if pipeline.file.new_tables == "ignore":
        return []
    point = ReadPoint.latest(pipeline.lake)
    new_tables = _newly_published(pipeline, point.all_mirrors.by_source_name, point.aside)
    require_columns(new_tables)
    require_layouts(pipeline.file, new_tables)
    return new_tables


def _newly_published(
    pipeline: OpenPipeline, names: Collection[tuple[str, str]], aside: Collection[tuple[str, str]]
) -> list[SourceTable]:
    """Return published tables, as far as the lake takes them, that are not among these (schema, table).

    Of the others only the names are read, if any has changed: in most pulls nothing is new.

    Args:
        pipeline: the pipeline, with its source and publications.
        names: the tables that the lake has; nobody changes it.
        aside: the tables that are set aside.
    """
    source, remembered = pipeline.source, _PUBLISHED.setdefault(pipeline, RememberedNames())
    with source_session(source.dsn, "reading the publications") as connection:
        check_publications(connection, source.publications)
        new_names = remembered.others(connection, source.publications, names).difference(aside)
        if not new_names:
            return []
        joining = source_tables(connection, source.publications, new_names)
        return selected(pipeline.file, connection, joining, lake_selections(pipeline))
