"""Makes a derived table: with the mirror's columns, filled with the mirror's rows.

It begins at the position at which it becomes visible, with the rows that the mirror has there.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pyspark.sql import SparkSession

from slotlake.spark import exchange
from slotlake.spark.catalog.base import Loaded, load, load_one
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.history.modes import MODES, with_mirror_fields
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.run import Work, run, run_statements
from slotlake.spark.names import LakeName, copying, derived_table_name, lake_table, parse_postgres_name
from slotlake.spark.publish.commits import Point, commits_name
from slotlake.spark.publish.derived_tables import (
    SUFFIXES,
    Source,
    column_names,
    derived_table_names,
    load_derived_tables,
    with_derived_names,
)
from slotlake.spark.publish.points import COMMITTED
from slotlake.spark.publish.swap import require_owner, reset_stage
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables import soft_deletes
from slotlake.spark.tables.schema import TableSchema, schema_of


@dataclass(frozen=True)
class NewDerivedTable:
    """A derived table to be made.

    Attributes:
        name: its name in the lake.
        mode: the kind of derived table.
        mirror: the mirror's name.
        schema: the mirror's shape.
    """

    name: LakeName
    mode: str
    mirror: LakeName
    schema: TableSchema

    def definition(
        self, name: LakeName, catalog: str, pipeline: str, location: str, table_format: int
    ) -> str:
        """Return the SQL that makes it.

        Args:
            name: the name that it gets, which may be a hidden one.
            location: the directory of the table, as a URI.
        """
        return MODES[self.mode].definition(name, catalog, self.schema, pipeline, location, table_format)


def missing_derived_tables(
    catalog: Catalog, tables: Sequence[TableSchema], modes: Mapping[str, Collection[str]]
) -> list[NewDerivedTable]:
    """Return the derived tables to make, of mirrors that are new or that the lake has already.

    Args:
        modes: source table → modes that the pipeline file asks for.
    """
    if not modes:
        return []
    namespace = catalog.lake.namespace
    mirrors = [lake_table(namespace, *parse_postgres_name(table)) for table in modes]
    pointers = catalog.pointers_of(with_derived_names(mirrors))
    new_mirrors = {table.lake_name(namespace): table for table in tables}
    missing = []
    for table, mirror in zip(modes, mirrors, strict=True):
        if mirror in new_mirrors:
            schema = new_mirrors[mirror]
        elif mirror in pointers:
            schema = schema_of(load(pointers, mirror).metadata, mirror)
        else:
            continue
        present = derived_table_names(pointers, mirror)
        missing_modes = [mode for mode in SUFFIXES if mode in modes[table] and mode not in present]
        missing += [
            NewDerivedTable(derived_table_name(mirror, SUFFIXES[mode]), mode, mirror, schema)
            for mode in missing_modes
        ]
    return missing


def fill_derived_table(
    session: SparkSession,
    lake: LakeSettings,
    derived: NewDerivedTable,
    mirror_schema: TableSchema | None,
    point: Point,
) -> None:
    """Put the mirror's rows into a derived table that is still hidden.

    Args:
        mirror_schema: the mirror's shape, if the mirror is still hidden too; else None.

    Raises:
        LakeError: Spark failed.
    """
    mode, hidden = MODES[derived.mode], copying(derived.name)
    directory = exchange.exchange_directory(lake, point.pipeline, point.batch)
    work = Work(lambda: session, lake, point, _load(lake, hidden), directory)
    table = with_mirror_fields(work, derived.mode, mirror_schema or derived.schema, {}).table
    mirror = copying(derived.mirror) if mirror_schema is not None else derived.mirror
    rows = soft_deletes.live_rows(mirror.sql(lake.catalog), marked=derived.schema.soft_deletes)
    source = copy_source(lake, _load(lake, mirror), rows, point)
    for statement in mode.copy_statements(table.metadata, hidden.sql(lake.catalog), source):
        run(session, table, statement)


def stage_leftover_tables(
    session: SparkSession, lake: LakeSettings, tables: Mapping[LakeName, TableSchema], point: Point
) -> list[LakeName]:
    """Stage the copied rows in derived tables that an earlier mirror of that name left; return those tables.

    Args:
        tables: new mirror → its shape.

    Raises:
        LakeError: one of them is not this pipeline's, or Spark failed.
    """
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers_of(with_derived_names(tables))
        leftovers = [
            (table, mode, mirror)
            for mirror in tables
            for mode, table in load_derived_tables(pointers, mirror).items()
        ]
        for table, _, _ in leftovers:
            require_owner(table, point.pipeline)
        reset_stage(catalog, [table for table, _, _ in leftovers])
    for table, mode, mirror in leftovers:
        directory = exchange.exchange_directory(lake, point.pipeline, point.batch)
        work = with_mirror_fields(
            Work(lambda: session, lake, point, _load(lake, table.name), directory), mode, tables[mirror], {}
        )
        hidden = _load(lake, copying(mirror))
        rows = soft_deletes.live_rows(hidden.name.sql(lake.catalog), marked=tables[mirror].soft_deletes)
        source = copy_source(lake, hidden, rows, point)
        branch = f"{table.name.sql(lake.catalog)}.branch_stage"
        run_statements(work, MODES[mode].copy_statements(work.table.metadata, branch, source))
    return [table.name for table, _, _ in leftovers]


def copy_source(lake: LakeSettings, mirror: Loaded, name: str, point: Point) -> Source:
    """Return a mirror's rows as a copy.

    Args:
        name: the mirror, or a branch of it, as Spark SQL names it.
    """
    return Source(
        name, column_names(mirror.metadata), point.position, point.commit_time or _source_time(lake)
    )


def take_copy(work: Work, mode: str, schema: TableSchema, mirror: LakeName, names: Mapping[str, str]) -> None:
    """Stage a mirror's staged rows in a derived table, as those of a copy.

    Args:
        names: field → its new name, of fields that are renamed with the publication.

    Raises:
        LakeError: Spark failed.
    """
    work = with_mirror_fields(work, mode, schema, names)
    catalog = work.lake.catalog
    rows = soft_deletes.live_rows(f"{mirror.sql(catalog)}.branch_stage", marked=schema.soft_deletes)
    source = copy_source(work.lake, _load(work.lake, mirror), rows, work.point)
    branch = f"{work.table.name.sql(catalog)}.branch_stage"
    run_statements(work, MODES[mode].copy_statements(work.table.metadata, branch, source))


def _source_time(lake: LakeSettings) -> datetime:
    """The source's time, as far as the lake knows it."""
    with open_catalog(lake) as catalog:
        name = commits_name(lake.namespace)
        pointers = catalog.pointers_of([name])
        newest = (
            catalog_metadata.newest_of_a_point(load(pointers, name).metadata) if name in pointers else None
        )
    commit_time = catalog_metadata.summary(newest).get(COMMITTED)
    return datetime.fromisoformat(commit_time) if commit_time else datetime.now(UTC)


def _load(lake: LakeSettings, name: LakeName) -> Loaded:
    with open_catalog(lake) as catalog:
        return load_one(catalog, name)
