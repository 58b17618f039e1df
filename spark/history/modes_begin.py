"""The beginning of a table beside a mirror: made with the mirror's columns, filled with the mirror's rows.

It begins at the position at which it becomes visible, with the rows that the mirror has there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Loaded, load
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.history.modes import MODES, shaped
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.run import Work, run, run_statements
from slotlake.spark.names import LakeName, beside, copying, lake_table, parse_postgres_name
from slotlake.spark.publish.commits import Point, commits_name
from slotlake.spark.publish.derived_tables import SUFFIXES, Source, fields_present, load_beside, tables_beside
from slotlake.spark.publish.points import COMMITTED
from slotlake.spark.publish.swap import require_owner, reset_stage
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.schema import TableSchema, schema_of


@dataclass(frozen=True)
class Beside:
    """A table to be made beside a mirror.

    Attributes:
        schema: the mirror's.
    """

    name: LakeName
    mode: str
    mirror: LakeName
    schema: TableSchema

    def definition(self, name: LakeName, catalog: str, pipeline: str, location: str) -> str:
        """The SQL that makes it, under this name."""
        return MODES[self.mode].definition(name, catalog, self.schema, pipeline, location)


def wanted_beside(
    catalog: Catalog, tables: Sequence[TableSchema], modes: Mapping[str, Collection[str]]
) -> list[Beside]:
    """What is to be made: beside tables that are made too, and beside those that are there."""
    if not modes:
        return []
    namespace, pointers = catalog.lake.namespace, catalog.pointers()
    made = {table.lake_name(namespace): table for table in tables}
    found = []
    for table in modes:
        mirror = lake_table(namespace, *parse_postgres_name(table))
        if mirror in made:
            schema = made[mirror]
        elif mirror in pointers:
            schema = schema_of(load(pointers, mirror).metadata, mirror)
        else:
            continue
        held = tables_beside(pointers, mirror)
        wanted = [mode for mode in SUFFIXES if mode in modes[table] and mode not in held]
        found += [Beside(beside(mirror, SUFFIXES[mode]), mode, mirror, schema) for mode in wanted]
    return found


def fill(
    session: SparkSession, lake: LakeSettings, made: Beside, copied: TableSchema | None, point: Point
) -> None:
    """Put the mirror's rows into a table that nobody sees yet.

    Args:
        copied: the mirror's shape, if the mirror cannot be seen yet either.

    Raises:
        LakeError: Spark failed.
    """
    mode, hidden = MODES[made.mode], copying(made.name)
    directory = lake_files.control_directory(lake, point.pipeline, point.batch)
    work = Work(session, lake, point, _load(lake, hidden), directory)
    table = shaped(work, made.mode, copied or made.schema, {}).table
    mirror = copying(made.mirror) if copied is not None else made.mirror
    source = copy_of(lake, _load(lake, mirror), mirror.sql(lake.catalog), point)
    for statement in mode.copied(table.metadata, hidden.sql(lake.catalog), source):
        run(session, table, statement)


def stage_left(
    session: SparkSession, lake: LakeSettings, tables: Mapping[LakeName, TableSchema], point: Point
) -> list[LakeName]:
    """Stage the copied rows in what an earlier mirror of that name has left beside it; the tables staged.

    Raises:
        LakeError: one of them is not this pipeline's, or Spark failed.
    """
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers()
        left = [
            (table, mode, mirror)
            for mirror in tables
            for mode, table in load_beside(pointers, mirror).items()
        ]
        for table, _, _ in left:
            require_owner(table, point.pipeline)
        reset_stage(catalog, [table for table, _, _ in left])
    for table, mode, mirror in left:
        directory = lake_files.control_directory(lake, point.pipeline, point.batch)
        work = shaped(
            Work(session, lake, point, _load(lake, table.name), directory), mode, tables[mirror], {}
        )
        hidden = _load(lake, copying(mirror))
        source = copy_of(lake, hidden, hidden.name.sql(lake.catalog), point)
        branch = f"{table.name.sql(lake.catalog)}.branch_stage"
        run_statements(work, MODES[mode].copied(work.table.metadata, branch, source))
    return [table.name for table, _, _ in left]


def copy_of(lake: LakeSettings, mirror: Loaded, name: str, point: Point) -> Source:
    """A mirror's rows as a copy; ``name``: of the table, or of a branch of it, in Spark SQL."""
    return Source(name, fields_present(mirror.metadata), point.position, point.commit_time or _clock(lake))


def take_copy(work: Work, mode: str, schema: TableSchema, mirror: LakeName, names: Mapping[str, str]) -> None:
    """Stage the rows that are staged of a mirror, as those of a copy.

    Args:
        work: with the table beside it.
        schema: the mirror's shape as it is staged.
        names: fields that get another name with the publication, and that name.

    Raises:
        LakeError: Spark failed.
    """
    work = shaped(work, mode, schema, names)
    catalog = work.lake.catalog
    source = copy_of(work.lake, _load(work.lake, mirror), f"{mirror.sql(catalog)}.branch_stage", work.point)
    branch = f"{work.table.name.sql(catalog)}.branch_stage"
    run_statements(work, MODES[mode].copied(work.table.metadata, branch, source))


def _clock(lake: LakeSettings) -> datetime:
    """The source's time, as far as the lake knows it."""
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers()
        name = commits_name(lake.namespace)
        newest = (
            catalog_metadata.newest_of_a_point(load(pointers, name).metadata) if name in pointers else None
        )
    told = catalog_metadata.summary(newest).get(COMMITTED)
    return datetime.fromisoformat(told) if told else datetime.now(UTC)


def _load(lake: LakeSettings, name: LakeName) -> Loaded:
    with open_catalog(lake) as catalog:
        return load(catalog.pointers(), name)
