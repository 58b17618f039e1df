"""Begin the derived tables that the pipeline file asks for, where the lake has none of them yet.

The file only begins things.  Derived tables that the lake has go on being fed whatever the file says, because
a history with a gap would be a false one; `status` names those that the file does not ask for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from slotlake.infra.config.modes import derived_modes
from slotlake.infra.selection.aside import tables_aside
from slotlake.spark.names import COMMITS, LakeName, belongs, parse_postgres_name, source_table

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.read.point import ReadPoint


def begin_modes(pipeline: OpenPipeline, progress: Progressing) -> list[str]:
    """Begin derived tables that the file asks for and the lake lacks, at the lake's position.

    Returns:
        The lake tables that were made.

    Raises:
        LakeError: Spark failed, or the catalog cannot be reached.
    """
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.names import lake_table
    from slotlake.spark.publish.derived_tables import derived_table_names

    file, lake = pipeline.file, pipeline.lake
    modes_in_file = [file.mode, *(section.mode or () for section in file.tables.values())]
    if not any(mode != "mirror" for modes in modes_in_file for mode in modes):
        return []
    with open_catalog(lake) as catalog:
        names = frozenset(catalog.names())
    lacking = {}
    aside = {each.source_name for each in tables_aside(pipeline).values()}
    for table, modes in derived_modes(file, _mirrors(lake.namespace, names)).items():
        present_modes = derived_table_names(names, lake_table(lake.namespace, *parse_postgres_name(table)))
        missing = [mode for mode in modes if mode not in present_modes]
        if missing and table not in aside:
            lacking[table] = missing
    return _begin(pipeline, lacking, progress) if lacking else []


def _mirrors(namespace: str, names: Iterable[LakeName]) -> list[tuple[str, str]]:
    """The source tables of the lake's mirrors, by their names alone."""
    from slotlake.spark.publish.derived_tables import SUFFIXES

    return [
        source_table(namespace, name)
        for name in sorted(names)
        if belongs(name.namespace, namespace)
        and name.table != COMMITS
        and not name.table.lower().endswith(tuple(SUFFIXES.values()))
    ]


def _begin(pipeline: OpenPipeline, lacking: dict[str, list[str]], progress: Progressing) -> list[str]:
    from slotlake.infra.copy.tables import copy_point
    from slotlake.spark.copy.initial import InitialCopy

    progress("derived tables: begun for " + ", ".join(lacking), len(lacking))
    point = copy_point(pipeline, pipeline.position(), "copy", 0, "modes")
    with InitialCopy.begin(pipeline.session, pipeline.lake, pipeline.name, [], lacking) as copy:
        published = copy.publish(point)
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
