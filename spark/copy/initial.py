"""Fills new tables out of sight and makes all of them visible, with `commits`, in one transaction.

Tables are made in hidden namespaces (``<namespace>__copying``), but their files lie where they stay:
``<warehouse>/<namespace>/<table>``.  The copied Parquet files are registered in place, nothing is
written twice.  Publishing renames the tables in the catalog, all in one SQL transaction: a reader
finds all of them, with the point in `commits`, or none.  So are the tables beside them
(spark/history/modes.py), which take their first rows from the copied ones; also, later, beside tables that
the lake has already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Self

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.decoder.errors import LakeError
from slotlake.decoder.failpoints import reach
from slotlake.spark import exchange
from slotlake.spark.catalog.base import load_all, load_one
from slotlake.spark.catalog.open import Catalog, Move, check_lake, open_catalog
from slotlake.spark.catalog.tags import tagged
from slotlake.spark.copy.files import with_files
from slotlake.spark.copy.marked import rewrite_with_own_columns
from slotlake.spark.copy.owner import is_initialised, is_owned_by
from slotlake.spark.copy.spread import Spread, spread
from slotlake.spark.copy.stale_rows import delete_rows
from slotlake.spark.history.layouts import laid_out
from slotlake.spark.history.new_tables import (
    NewDerivedTable,
    copy_source,
    fill_derived_table,
    missing_derived_tables,
    stage_leftover_tables,
)
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.table_files import count_rows
from slotlake.spark.merge.run import run
from slotlake.spark.names import LakeName, copying, require_metastore_name
from slotlake.spark.publish.commits import Point, commits_name, create_commits, pins_of, with_point
from slotlake.spark.publish.place import (
    CopyTarget,
    DirectoryInUseError,
    Names,
    RetainedFiles,
    claim_directory,
    clear_leftovers,
    companions_in,
    copy_target,
    hidden_tables,
    remove_marker,
    remove_ranges,
    table_directory,
)
from slotlake.spark.publish.points import positions_to_keep
from slotlake.spark.publish.swap import (
    Loaded,
    Published,
    load,
    mains_after,
    point_move,
    require_position,
    staged_move,
)
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.layout import is_laid_out
from slotlake.spark.tables.metadata import MAIN
from slotlake.spark.tables.schema import PIPELINE_PROPERTY, SCHEMA_PROPERTY, TableSchema, create_table

__all__ = ["CopyTarget", "InitialCopy", "is_initialised"]


class InitialCopy:
    """One initial copy (or the addition of tables to a pipeline) under way.

    ``with InitialCopy.begin(...) as copy``: target(t) → write files → register(t) for each table,
    then publish(point).  Leaving without publish drops all, unless it is resumable; so does the next begin
    after a crash, but for the files that it is to keep.
    """

    def __init__(
        self,
        session: SparkSession,
        lake: LakeSettings,
        pipeline: str,
        tables: Sequence[TableSchema],
        derived: Sequence[NewDerivedTable],
    ) -> None:
        self._session = session
        self._lake = lake
        self._pipeline = pipeline
        self._tables = {table.lake_name(lake.namespace): table for table in tables}
        self._derived = {each.name: each for each in derived}
        self._registered: set[LakeName] = set()
        self._published = False
        self._retained: RetainedFiles | None = None

    @classmethod
    def begin(
        cls,
        session: SparkSession,
        lake: LakeSettings,
        pipeline: str,
        tables: Sequence[TableSchema],
        modes: Mapping[str, Collection[str]] = MappingProxyType({}),
        retained: RetainedFiles | None = None,
    ) -> InitialCopy:
        """Drop leftovers of an earlier attempt and make the tables out of sight.

        Args:
            retained: by table, names of files in its target's directory that stay; when given, leaving
                without publish drops nothing (`place.clear_unfinished` does).
            modes: by the source name of tables, what to begin beside them: of those that are copied, or that
                the lake has and are not.

        Raises:
            LakeError: a table of that name is there already, or the lake cannot be reached.
        """
        for table in tables if lake.is_metastore else ():
            require_metastore_name(lake.place, table.lake_name(lake.namespace), (table.schema, table.table))
        check_lake(lake)
        with open_catalog(lake) as catalog:
            copy = cls(session, lake, pipeline, tables, missing_derived_tables(catalog, tables, modes))
            copy._refuse_existing(catalog)
            copy._retained = retained
            clear_leftovers(catalog, pipeline, {*copy._names, *hidden_tables(catalog)}, retained or {})
            for name in copy._names:
                catalog.make_namespace(copying(name).namespace)
        try:
            for name in copy._names:
                copy._create(name)
        except BaseException:
            copy._drop_unless_resumable()
            raise
        return copy

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if not self._published:
            self._drop_unless_resumable()

    def target(self, schema: TableSchema) -> CopyTarget:
        """Where this table's files go."""
        name = schema.lake_name(self._lake.namespace)
        with open_catalog(self._lake) as catalog:
            hidden = load_one(catalog, copying(name))
            return copy_target(self._lake, name, hidden.metadata, self._tables[name])

    def register(self, schema: TableSchema, stale: pa.Table | None = None, names: Names = None) -> int:
        """Make the files in the target's directory the table's content; how many rows it has then.

        Args:
            names: only of these files; None: of all.
            stale: keys (`stale_rows.delete_rows`) whose rows those files have as they are no more: they are
                left out, and the files in the target's ``again`` taken in instead.

        Raises:
            LakeError: Spark cannot read them.
        """
        name = schema.lake_name(self._lake.namespace)
        target = self.target(schema)
        files = target.locations(names)
        again = target.again.locations() if stale is not None else []
        self._tables[name] = self._tables[name].with_exact(companions_in([*files, *again], target))
        # An empty table needs a snapshot too: the point's name stands on it.
        hidden = self._add_files(name, files, self._unused_companions(name))
        if stale is not None and files:
            delete_rows(self._session, self._lake, hidden, self._tables[name], stale)
        if again:
            self._add_files(name, again)
        self._registered.add(name)
        return _rows(self._load(copying(name)))

    def leave_out(self, schemas: Iterable[TableSchema]) -> None:
        """Publish these tables, and what is beside them, not with the others; their copied files stay."""
        names = {schema.lake_name(self._lake.namespace) for schema in schemas}
        if not names:
            return
        derived = [name for name, each in self._derived.items() if each.mirror in names]
        with open_catalog(self._lake) as catalog:
            catalog.drop([copying(name) for name in names])
            clear_leftovers(catalog, self._pipeline, derived)
        self._tables = {name: table for name, table in self._tables.items() if name not in names}
        self._derived = {name: each for name, each in self._derived.items() if name not in derived}

    def publish(self, point: Point) -> Published:
        """Make all tables, and `commits`, visible at once.

        Raises:
            LakeError: a table was not registered, or the catalog cannot be reached.
            ApplyError: tables are added to a lake that does not stand at the point.
        """
        missing = sorted(str(name) for name in self._tables.keys() - self._registered)
        if missing:
            raise LakeError(
                "a table was not copied", where=f"table {missing[0]}", way_out="run the copy again"
            )
        self._fill_own_columns(point)
        for each in self._derived.values():
            fill_derived_table(self._session, self._lake, each, self._tables.get(each.mirror), point)
        leftovers = stage_leftover_tables(self._session, self._lake, self._tables, point)
        with open_catalog(self._lake) as catalog:
            loaded = load_all(catalog, [copying(name) for name in self._names])
            hidden = {name: loaded[copying(name)] for name in self._names}
            snapshots = {name: catalog_metadata.ref(t.metadata, MAIN) or 0 for name, t in hidden.items()}
            staged = load_all(catalog, leftovers)
            rows = {str(name): _rows(hidden[name]) for name in self._tables}
            present = self._present_commits(catalog, point)
            keep_positions = [point.position]
            if present is not None:
                keep_positions = positions_to_keep(present.metadata, point.position, True, self._lake.keep)
            moves = [staged_move(catalog, table, point, keep_positions) for table in staged.values()]
            snapshots |= mains_after(moves)
            moves += [
                self._move_to_visible(catalog, hidden[name], name, point, keep_positions) for name in hidden
            ]
            point = replace(point, changed=rows)
            if present is not None:
                moves.append(point_move(catalog, present, point, snapshots, keep_positions))
            else:
                moves.append(self._first_commits(catalog, point, snapshots))
            reach("init.before_publish")
            catalog.move(moves)
            self._published = True
            for namespace in {copying(name).namespace for name in self._names}:
                catalog.drop_namespace(namespace)
        for name in [*hidden, commits_name(self._lake.namespace)]:
            remove_marker(table_directory(self._lake, name))
            remove_ranges(self._lake, name, hidden[name].metadata if name in hidden else None)
        return Published(point, point.position, False, {str(name): id_ for name, id_ in snapshots.items()})

    def _fill_own_columns(self, point: Point) -> None:
        """Give the copied rows of mirrors that mark deleted rows their own columns: at this LSN, live."""
        for name in [name for name, schema in self._tables.items() if schema.soft_deletes]:
            hidden = self._load(copying(name))
            source = copy_source(self._lake, hidden, hidden.name.sql(self._lake.catalog), point)
            run(self._session, hidden, rewrite_with_own_columns(source))

    @property
    def _names(self) -> list[LakeName]:
        """All tables that are made."""
        return [*self._tables, *self._derived]

    def _load(self, name: LakeName) -> Loaded:
        with open_catalog(self._lake) as catalog:
            return load_one(catalog, name)

    def _refuse_existing(self, catalog: Catalog) -> None:
        pointers = catalog.pointers_of(self._names)
        for name in self._names:
            if name in pointers and not self._drop_half_published(pointers, name, catalog):
                owner = load(pointers, name).metadata.get("properties", {}).get(PIPELINE_PROPERTY)
                raise LakeError(
                    "the lake has a table of that name already"
                    + (f", of pipeline {owner}" if owner else ", not made by slotlake"),
                    where=f"table {name} in {self._lake.place}",
                    way_out="give the pipeline another lake.namespace, or drop that table first",
                ).of(*self._source(name))
        is_owned_by(catalog, self._pipeline)

    def _drop_half_published(
        self, pointers: Mapping[LakeName, str], name: LakeName, catalog: Catalog
    ) -> bool:
        """Drop a table of ours that `commits` does not know, where tables are published one by one."""
        is_own = load(pointers, name).metadata.get("properties", {}).get(PIPELINE_PROPERTY) == self._pipeline
        half_published = is_own and self._lake.publish == "per_table" and name not in self._pins(catalog)
        if half_published:
            catalog.drop([name])
        return half_published

    def _pins(self, catalog: Catalog) -> Collection[LakeName]:
        """The tables that the newest point names."""
        if not is_owned_by(catalog, self._pipeline):
            return ()
        return pins_of(load_one(catalog, commits_name(self._lake.namespace)))

    def _create(self, name: LakeName) -> None:
        location = table_directory(self._lake, name)
        try:
            claim_directory(location, self._pipeline, reuse=bool((self._retained or {}).get(name)))
        except DirectoryInUseError as error:
            raise error.of(*self._source(name)) from None
        table_place = (self._lake.catalog, self._pipeline, location)
        derived = self._derived.get(name)
        schema = self._tables[name] if derived is None else derived.schema
        table_format = self._lake.format_of(schema.source_name)
        if derived is not None:
            sql = derived.definition(copying(name), *table_place, table_format)
        else:
            sql = create_table(copying(name), table_place[0], schema, *table_place[1:], table_format)
        run(self._session, Loaded(name, "", {}), sql)
        if self._lake.layout_of(schema.source_name):
            self._lay_out(name, schema, "" if derived is None else derived.mode)

    def _source(self, name: LakeName) -> tuple[str, str]:
        """The source table of a table that is made."""
        derived = self._derived.get(name)
        schema = self._tables[name] if derived is None else derived.schema
        return schema.schema, schema.table

    def _lay_out(self, name: LakeName, schema: TableSchema, mode: str) -> None:
        """Give a hidden table its layout; a history of a mirror that lost a column of it begins without."""
        layout = self._lake.layout_of(schema.source_name)
        if mode and not {column.name for column in schema.live}.issuperset(layout.columns):
            return
        with open_catalog(self._lake) as catalog:
            table = load_one(catalog, copying(name))
            metadata = laid_out(table.metadata, layout, schema, mode)
            if metadata is not table.metadata:
                catalog.move([catalog.prepared(table, metadata)])

    def _add_files(self, name: LakeName, files: Sequence[Location], unused: Collection[str] = ()) -> Loaded:
        """Make these files' rows content of a hidden table, from which these columns leave."""
        with open_catalog(self._lake) as catalog:
            hidden = load_one(catalog, copying(name))
            partitions: Spread = {}
            if is_laid_out(hidden.metadata) and files:
                partitions = self._spread(name, hidden, files)
                files = list(partitions)
            metadata = with_files(hidden.metadata, files, unused, partitions=partitions)
            catalog.move([catalog.prepared(hidden, metadata)])
            return load_one(catalog, copying(name))

    def _spread(self, name: LakeName, hidden: Loaded, files: Sequence[Location]) -> Spread:
        directory = exchange.exchange_path(self._lake, "copying", name.namespace, name.table, "spread")
        try:
            return spread(files, hidden.metadata, directory)
        except LakeError as error:
            schema = self._tables[name]
            raise error.of(schema.schema, schema.table) from None

    def _unused_companions(self, name: LakeName) -> list[str]:
        return [c.exact_name for c in self._tables[name].columns if c.representation.inexact and not c.exact]

    def _move_to_visible(
        self, catalog: Catalog, table: Loaded, name: LakeName, point: Point, keep_positions: list[int]
    ) -> Move:
        metadata = catalog_metadata.with_summary(
            table.metadata, catalog_metadata.ref(table.metadata, MAIN) or 0, point.summary
        )
        if name in self._tables:
            shape: dict[str, str | None] = {SCHEMA_PROPERTY: self._tables[name].to_json()}
            metadata = catalog_metadata.with_properties(metadata, shape)
        return catalog.prepared(table, tagged(metadata, {}, point.position, keep_positions), name)

    def _present_commits(self, catalog: Catalog, point: Point) -> Loaded | None:
        """The table `commits`, which stands at the point; None if the lake has none yet."""
        name = commits_name(self._lake.namespace)
        pointers = catalog.pointers_of([name])
        if name not in pointers:
            return None
        present = load(pointers, name)
        require_position(present.metadata, name, point, point.position)
        return present

    def _first_commits(self, catalog: Catalog, point: Point, snapshots: dict[LakeName, int]) -> Move:
        """Make `commits` out of sight; the move that makes it visible."""
        name = commits_name(self._lake.namespace)
        hidden = copying(name)
        catalog.make_namespace(hidden.namespace)
        location = table_directory(self._lake, name)
        clear_leftovers(catalog, self._pipeline, [name])
        claim_directory(location, self._pipeline)
        create_commits(catalog.iceberg, hidden, location, self._pipeline)
        new_table = load_one(catalog, hidden)
        metadata = with_point(self._lake.memory, new_table, point, snapshots, snapshots.keys())
        return catalog.prepared(new_table, tagged(metadata, {}, point.position, [point.position]), name)

    def _drop_unless_resumable(self) -> None:
        if self._retained is None:
            self._drop_all()

    def _drop_all(self) -> None:
        with open_catalog(self._lake) as catalog:
            clear_leftovers(catalog, self._pipeline, [*self._names, commits_name(self._lake.namespace)])


def _rows(table: Loaded) -> int:
    return count_rows(catalog_metadata.head(table.metadata))
