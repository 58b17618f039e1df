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
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.decoder.errors import LakeError
from slotlake.decoder.failpoints import reach
from slotlake.spark.catalog.open import Catalog, Move, check_lake, open_catalog
from slotlake.spark.catalog.tags import tagged
from slotlake.spark.copy.again import forget
from slotlake.spark.copy.files import with_files
from slotlake.spark.history.new_tables import (
    NewDerivedTable,
    fill_derived_table,
    missing_derived_tables,
    stage_leftover_tables,
)
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.run import run
from slotlake.spark.names import LakeName, copying
from slotlake.spark.publish.commits import Point, commits_name, create_commits, with_point
from slotlake.spark.publish.place import (
    CopyTarget,
    Kept,
    clear_leftovers,
    companions_in,
    forget_marker,
    hidden_tables,
    mark,
    place_of,
    target_of,
)
from slotlake.spark.publish.points import positions_to_keep
from slotlake.spark.publish.swap import (
    Loaded,
    Published,
    load,
    point_move,
    require_position,
    staged_id,
    staged_move,
)
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN
from slotlake.spark.tables.schema import PIPELINE_PROPERTY, SCHEMA_PROPERTY, TableSchema, create_table

_NO_MODES: Mapping[str, Collection[str]] = {}
__all__ = ["CopyTarget", "InitialCopy", "initialised"]


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
        beside: Sequence[NewDerivedTable],
    ) -> None:
        self._session = session
        self._lake = lake
        self._pipeline = pipeline
        self._tables = {table.lake_name(lake.namespace): table for table in tables}
        self._beside = {each.name: each for each in beside}
        self._registered: set[LakeName] = set()
        self._published = False
        self._kept: Kept | None = None

    @classmethod
    def begin(
        cls,
        session: SparkSession,
        lake: LakeSettings,
        pipeline: str,
        tables: Sequence[TableSchema],
        modes: Mapping[str, Collection[str]] = _NO_MODES,
        kept: Kept | None = None,
    ) -> InitialCopy:
        """Drop leftovers of an earlier attempt and make the tables out of sight.

        Args:
            kept: by table, names of files in its target's directory that stay; when given, leaving without
                publish drops nothing (`initial_place.clear_unfinished` does).
            modes: by the source name of tables, what to begin beside them: of those that are copied, or that
                the lake has and are not.

        Raises:
            LakeError: a table of that name is there already, or the lake cannot be reached.
        """
        check_lake(lake)
        with open_catalog(lake) as catalog:
            copy = cls(session, lake, pipeline, tables, missing_derived_tables(catalog, tables, modes))
            copy._refuse_existing(catalog)
            copy._kept = kept
            clear_leftovers(catalog, pipeline, {*copy._names, *hidden_tables(catalog)}, kept or {})
            for name in copy._names:
                catalog.make_namespace(copying(name).namespace)
        try:
            for name in copy._names:
                copy._create(name)
        except BaseException:
            copy._give_up()
            raise
        return copy

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        if not self._published:
            self._give_up()

    def target(self, schema: TableSchema) -> CopyTarget:
        """Where this table's files go."""
        name = schema.lake_name(self._lake.namespace)
        with open_catalog(self._lake) as catalog:
            return target_of(name, load(catalog.pointers(), copying(name)).metadata, self._tables[name])

    def register(self, schema: TableSchema, stale: pa.Table | None = None) -> int:
        """Make the files in the target's directory the table's content; how many rows it has then.

        Args:
            stale: keys (`initial_again.forget`) whose rows those files have as they are no more: they are
                left out, and the files in the target's ``again`` taken in instead.

        Raises:
            LakeError: Spark cannot read them.
        """
        name = schema.lake_name(self._lake.namespace)
        target = self.target(schema)
        files = sorted(target.directory.glob("*.parquet"))
        again = sorted(target.again.glob("*.parquet")) if stale is not None else []
        self._tables[name] = self._tables[name].with_exact(companions_in([*files, *again], target))
        # An empty table needs a snapshot too: the point's name stands on it.
        hidden = self._take_in(name, files, self._unused_companions(name))
        if stale is not None and files:
            forget(self._session, self._lake, hidden, self._tables[name], stale)
        if again:
            self._take_in(name, again)
        self._registered.add(name)
        return _rows(self._load(copying(name)))

    def leave_out(self, schemas: Iterable[TableSchema]) -> None:
        """Publish these tables, and what is beside them, not with the others; their copied files stay."""
        names = {schema.lake_name(self._lake.namespace) for schema in schemas}
        if not names:
            return
        beside = [name for name, each in self._beside.items() if each.mirror in names]
        with open_catalog(self._lake) as catalog:
            catalog.drop([copying(name) for name in names])
            clear_leftovers(catalog, self._pipeline, beside)
        self._tables = {name: table for name, table in self._tables.items() if name not in names}
        self._beside = {name: each for name, each in self._beside.items() if name not in beside}

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
        for each in self._beside.values():
            fill_derived_table(self._session, self._lake, each, self._tables.get(each.mirror), point)
        left = stage_leftover_tables(self._session, self._lake, self._tables, point)
        with open_catalog(self._lake) as catalog:
            hidden = {name: load(catalog.pointers(), copying(name)) for name in self._names}
            snapshots = {name: catalog_metadata.ref(t.metadata, MAIN) or 0 for name, t in hidden.items()}
            snapshots |= {name: staged_id(load(catalog.pointers(), name)) for name in left}
            rows = {str(name): _rows(hidden[name]) for name in self._tables}
            kept, commits = self._commits(catalog, replace(point, changed=rows), snapshots)
            moves = [self._visible(catalog, hidden[name], name, point, kept) for name in hidden]
            moves += [staged_move(catalog, load(catalog.pointers(), name), point, kept) for name in left]
            moves.append(commits)
            reach("init.before_publish")
            catalog.move(moves)
            self._published = True
            for namespace in {copying(name).namespace for name in self._names}:
                catalog.drop_namespace(namespace)
        for name in [*hidden, commits_name(self._lake.namespace)]:
            forget_marker(place_of(self._lake, name))
        return Published(point, point.position, False, {str(name): id_ for name, id_ in snapshots.items()})

    @property
    def _names(self) -> list[LakeName]:
        """All tables that are made."""
        return [*self._tables, *self._beside]

    def _load(self, name: LakeName) -> Loaded:
        with open_catalog(self._lake) as catalog:
            return load(catalog.pointers(), name)

    def _refuse_existing(self, catalog: Catalog) -> None:
        pointers = catalog.pointers()
        for name in self._names:
            if name in pointers and not self._left_half_published(pointers, name, catalog):
                owner = load(pointers, name).metadata.get("properties", {}).get(PIPELINE_PROPERTY)
                raise LakeError(
                    "the lake has a table of that name already"
                    + (f", of pipeline {owner}" if owner else ", not made by slotlake"),
                    where=f"table {name} in {self._lake.place}",
                    way_out="give the pipeline another lake.namespace, or drop that table first",
                )
        owned_by(catalog, self._pipeline)

    def _left_half_published(
        self, pointers: Mapping[LakeName, str], name: LakeName, catalog: Catalog
    ) -> bool:
        """Drop a table of ours that `commits` does not know, where tables are published one by one."""
        ours = load(pointers, name).metadata.get("properties", {}).get(PIPELINE_PROPERTY) == self._pipeline
        left = ours and self._lake.publish == "per_table" and not owned_by(catalog, self._pipeline)
        if left:
            catalog.drop([name])
        return left

    def _create(self, name: LakeName) -> None:
        location = place_of(self._lake, name)
        mark(location, self._pipeline, kept=bool((self._kept or {}).get(name)))
        given = (self._lake.catalog, self._pipeline, f"file://{location}")
        if name in self._beside:
            sql = self._beside[name].definition(copying(name), *given)
        else:
            sql = create_table(copying(name), given[0], self._tables[name], *given[1:])
        run(self._session, Loaded(name, "", {}), sql)

    def _take_in(self, name: LakeName, files: Sequence[Path], unused: Collection[str] = ()) -> Loaded:
        """Make these files content of a hidden table, from which these columns leave."""
        with open_catalog(self._lake) as catalog:
            hidden = load(catalog.pointers(), copying(name))
            catalog.move([catalog.prepared(hidden, with_files(hidden.metadata, files, unused))])
            return load(catalog.pointers(), copying(name))

    def _unused_companions(self, name: LakeName) -> list[str]:
        return [c.exact_name for c in self._tables[name].columns if c.kept.inexact and not c.exact]

    def _visible(
        self, catalog: Catalog, table: Loaded, name: LakeName, point: Point, kept: list[int]
    ) -> Move:
        metadata = catalog_metadata.with_summary(
            table.metadata, catalog_metadata.ref(table.metadata, MAIN) or 0, point.summary
        )
        if name in self._tables:
            shape: dict[str, str | None] = {SCHEMA_PROPERTY: self._tables[name].to_json()}
            metadata = catalog_metadata.with_properties(metadata, shape)
        return catalog.prepared(table, tagged(metadata, {}, point.position, kept), name)

    def _commits(
        self, catalog: Catalog, point: Point, snapshots: dict[LakeName, int]
    ) -> tuple[list[int], Move]:
        """The points that are kept, and the move of `commits`."""
        name = commits_name(self._lake.namespace)
        pointers = catalog.pointers()
        if name in pointers:
            present = load(pointers, name)
            require_position(present.metadata, name, point, point.position)
            kept = positions_to_keep(present.metadata, point.position, True, self._lake.keep)
            return kept, point_move(catalog, present, point, snapshots, kept)
        hidden = copying(name)
        catalog.make_namespace(hidden.namespace)
        location = place_of(self._lake, name)
        clear_leftovers(catalog, self._pipeline, [name])
        mark(location, self._pipeline)
        create_commits(catalog.iceberg, hidden, f"file://{location}", self._pipeline)
        made = load(catalog.pointers(), hidden)
        metadata = with_point(made, point, snapshots, snapshots)
        kept = [point.position]
        return kept, catalog.prepared(made, tagged(metadata, {}, point.position, kept), name)

    def _give_up(self) -> None:
        if self._kept is None:
            self._abandon()

    def _abandon(self) -> None:
        with open_catalog(self._lake) as catalog:
            clear_leftovers(catalog, self._pipeline, [*self._names, commits_name(self._lake.namespace)])


def _rows(table: Loaded) -> int:
    return catalog_metadata.live_rows(catalog_metadata.head(table.metadata)) or 0


def initialised(lake: LakeSettings, pipeline: str) -> bool:
    """Has this pipeline published its initial copy into this lake?

    Raises:
        LakeError: another pipeline uses this namespace, or the lake cannot be reached.
    """
    with open_catalog(lake) as catalog:
        return owned_by(catalog, pipeline)


def owned_by(catalog: Catalog, pipeline: str) -> bool:
    """Is there a `commits` table, and is it this pipeline's?

    Raises:
        LakeError: it is another one's.
    """
    name = commits_name(catalog.lake.namespace)
    pointers = catalog.pointers()
    if name not in pointers:
        return False
    owner = load(pointers, name).metadata.get("properties", {}).get(PIPELINE_PROPERTY)
    if owner != pipeline:
        raise LakeError(
            "the lake's namespace belongs to " + (f"pipeline {owner}" if owner else "something else"),
            where=f"table {name} in {catalog.lake.place}",
            way_out="give this pipeline a lake.namespace of its own",
        )
    return True
