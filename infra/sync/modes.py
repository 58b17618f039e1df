"""Begin the derived tables that the pipeline file asks for, where the lake has none of them yet.

The file only begins things.  Derived tables that the lake has go on being fed whatever the file says, because
a history with a gap would be a false one; `status` names those that the file does not ask for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotlake.infra.config.of_tables import derived_modes
from slotlake.infra.selection import derived_gone
from slotlake.infra.selection.aside import stops_all, tables_aside
from slotlake.spark.names import parse_postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.read.point import ReadPoint


def begin_modes(pipeline: OpenPipeline, progress: Progressing, *, all_or_none: bool = False) -> list[str]:
    """Begin derived tables that the file asks for and the lake lacks, at the lake's position.

    One in whose directory there are files is noted (`infra.selection.derived_gone`), and the others begin.

    Args:
        pipeline: a pipeline whose lake has its tables.
        progress: called with the number of tables.
        all_or_none: fail if one cannot begin; ``on_trouble: stop`` of its mirror says so, too.

    Returns:
        The lake tables that were made.

    Raises:
        LakeError: Spark failed, or the catalog cannot be reached.
    """
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.names import lake_table
    from slotlake.spark.publish.derived_tables import derived_table_names
    from slotlake.spark.read.point import ReadPoint

    file, lake = pipeline.file, pipeline.lake
    modes_in_file = [file.mode, *(section.mode or () for section in file.tables.values())]
    if not any(mode != "mirror" for modes in modes_in_file for mode in modes):
        return []
    with open_catalog(lake) as catalog:
        names = frozenset(catalog.names())
    lacking = {}
    aside = {each.source_name for each in tables_aside(pipeline.lake).values()}
    mirrors = ReadPoint.latest(lake).all_mirrors.by_source_name
    for table, modes in derived_modes(file, mirrors).items():
        present_modes = derived_table_names(names, lake_table(lake.namespace, *parse_postgres_name(table)))
        missing = [mode for mode in modes if mode not in present_modes]
        if missing and table not in aside:
            lacking[table] = missing
    derived_gone.note_present(pipeline.file, pipeline.lake.namespace, names)
    if not all_or_none:
        lacking = _without_files_in_the_way(pipeline, lacking)
    return _begin(pipeline, lacking, progress) if lacking else []


def _without_files_in_the_way(pipeline: OpenPipeline, lacking: dict[str, list[str]]) -> dict[str, list[str]]:
    """Leave out the derived tables in whose directories there are files, and note them."""
    from slotlake.spark.names import derived_table_name, lake_table
    from slotlake.spark.publish.derived_tables import SUFFIXES
    from slotlake.spark.publish.place import has_files_of_others, table_directory

    lake, in_the_way, free = pipeline.lake, {}, {}
    for table, modes in lacking.items():
        mirror = lake_table(lake.namespace, *parse_postgres_name(table))
        for mode in modes:
            name = derived_table_name(mirror, SUFFIXES[mode])
            directory = table_directory(lake, name)
            if has_files_of_others(directory, pipeline.name):
                in_the_way[name] = str(directory)
        stops = stops_all(pipeline.file, parse_postgres_name(table))
        rest = [m for m in modes if stops or derived_table_name(mirror, SUFFIXES[m]) not in in_the_way]
        if rest:
            free[table] = rest
    derived_gone.note_in_the_way(pipeline.file, pipeline.lake.namespace, in_the_way)
    return free


def _begin(pipeline: OpenPipeline, lacking: dict[str, list[str]], progress: Progressing) -> list[str]:
    from slotlake.infra.copy.tables import TableCopies
    from slotlake.spark.copy.initial import InitialCopy

    progress("derived tables: begun for " + ", ".join(lacking), len(lacking))
    point = TableCopies(pipeline).copy_point(pipeline.position(), "copy", 0, "modes")
    with InitialCopy.begin(pipeline.session, pipeline.lake, pipeline.name, [], lacking) as copy:
        published = copy.publish(point)
    derived_gone.note_begun(pipeline, published.snapshots)
    return sorted(published.snapshots)


def tables_not_in_file(file: PipelineFile, point: ReadPoint) -> list[str]:
    """Derived tables of the lake that the pipeline file does not ask for."""
    mirrors = point.tables()
    modes_in_file = derived_modes(file, [(table.schema, table.table) for table in mirrors])
    return [
        str(name)
        for table in mirrors
        for mode, name in point.derived_tables(table.source_name).items()
        if mode not in modes_in_file.get(table.source_name, ())
    ]
