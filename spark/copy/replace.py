"""Replaces the whole content of a lake table by rows read again from the source at an exact LSN.

The new content is staged like a batch (all rows go, the new ones come) and published like one, so
the table keeps its history, and readers see the old content or the new.  Tables beside it
(spark/history/modes.py) take in the same rows, as those of a copy, in the same point.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.decoder.failpoints import reach
from slotlake.spark import lake_files
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy.again import named
from slotlake.spark.history.new_tables import take_copy
from slotlake.spark.history.reserved_columns import rename_reserved_columns
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.run import Work, run_statements, shape, stage_shape
from slotlake.spark.names import LakeName, quote
from slotlake.spark.publish.commits import Point
from slotlake.spark.publish.derived_tables import load_derived_tables
from slotlake.spark.publish.place import CopyTarget, companions_in
from slotlake.spark.publish.sidecar import Copied
from slotlake.spark.publish.swap import Loaded, Published, load, publish_tables, require_owner, reset_stage
from slotlake.spark.tables.change import replaced
from slotlake.spark.tables.schema import TableSchema, schema_of
from slotlake.spark.tables.settle import settled

# Takes the work, the copy, the table's shape then, its companions, and stale keys.
Content = Callable[[Work, Copied, TableSchema, Collection[str], "pa.Table | None"], None]


class Replacement:
    """``with Replacement.begin(...) as it``: write files to ``it.target``, then ``it.publish(point)``.

    ``point.position`` must be the lake's position: sync up to the snapshot's LSN first.  ``point.batch``
    must be new each time.  A table that the lake lacks is not for this: add it with
    :class:`spark.copy.initial.InitialCopy`.

    Attributes:
        target: where the files go, and what their columns are called.
        schema: the table as it will be in the lake.
    """

    def __init__(self, session: SparkSession, lake: LakeSettings, copied: Copied, name: LakeName) -> None:
        self._session = session
        self._lake = lake
        self._copied = copied
        self._name = name
        self.schema = copied.schema

    @property
    def target(self) -> CopyTarget:
        """Where the files go."""
        return replace(self._copied.target, lake_table=str(self._name))

    @classmethod
    def begin(
        cls, session: SparkSession, lake: LakeSettings, pipeline: str, schema: TableSchema
    ) -> Replacement:
        """Make a place for the files, empty.

        Raises:
            LakeError: the lake has no such table, or it is not this pipeline's.
        """
        name = schema.lake_name(lake.namespace)
        require_owner(_load(lake, name), pipeline)
        parts = (lake, "backfill", name.namespace, name.table)
        lake_files.remove_tree(lake_files.control_directory(*parts))
        return cls(session, lake, Copied(schema, lake_files.control_directory(*parts), 0, "asked for"), name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        lake_files.remove_tree(self._copied.directory)

    def publish(self, point: Point) -> Published:
        """Stage the new content and publish it.

        Raises:
            ApplyError: the lake does not stand at the point.
            LakeError: Spark failed, or the lake was changed meanwhile; nothing was published.
        """
        point = replace(point, changed={str(self._name): point.changes})
        return publish_tables(self._lake, point, self.stage(point), start=point.position)

    def stage(self, point: Point) -> list[LakeName]:
        """Stage the new content; the tables to be published then, together with others if need be.

        Raises:
            LakeError: Spark failed.
        """
        with open_catalog(self._lake) as catalog:
            pointers = catalog.pointers()
            table = load(pointers, self._name)
            table, beside = rename_reserved_columns(catalog, table, load_derived_tables(pointers, self._name))
            reset_stage(catalog, [table, *beside.values()])
        work = Work(self._session, self._lake, point, table, self._copied.directory)
        stage_copy(work, self._copied, beside)
        return [*(each.name for each in beside.values()), self._name]


def promote(session: SparkSession, lake: LakeSettings, point: Point, schema: TableSchema) -> Published:
    """Publish another shape of a table, whose columns only became wider, with the rows that it has.

    ``point`` is as for :class:`Replacement`.

    Raises:
        ApplyError: the lake does not stand at the point.
        LakeError: Spark failed, or the lake was changed meanwhile; nothing was published.
    """
    name = schema.lake_name(lake.namespace)
    with open_catalog(lake) as catalog:
        table = load(catalog.pointers(), name)
        require_owner(table, point.pipeline)
        reset_stage(catalog, [table])
    stage_shape(Work(session, lake, point, table, Path()), schema)
    return publish_tables(lake, replace(point, changed={str(name): 0}), [name], start=point.position)


def insert_rows(
    work: Work, copied: Copied, schema: TableSchema, companions: Collection[str], stale: pa.Table | None
) -> None:
    """Stage a copy's rows, read by Spark, as all that a table holds."""
    target = copied.target
    columns, values = [], []
    for column in schema.live:
        columns.append(column.lake_name)
        values.append(target.names[column.name])
        if column.exact_name in companions:
            columns.append(column.exact_name)
            values.append(target.exact_names.get(column.name, ""))
    listed = ", ".join(map(quote, columns))
    taken = ", ".join(quote(value) if value else "CAST(NULL AS STRING)" for value in values)
    branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
    with _rows(work, copied, schema, stale) as rows:
        run_statements(
            work, [f"DELETE FROM {branch}", f"INSERT INTO {branch} ({listed}) SELECT {taken} FROM {rows}"]
        )


def stage_copy(
    work: Work,
    copied: Copied,
    beside: Mapping[str, Loaded],
    stale: pa.Table | None = None,
    content: Content = insert_rows,
) -> TableSchema:
    """Stage a copy as all that a table holds; its shape once it is published.

    Args:
        work: whose table is to be replaced.
        beside: the tables beside it that take in the copy, by mode.
        stale: keys (`again.forget`) whose rows are taken from the target's ``again`` instead.
        content: stages the mirror's rows.

    Raises:
        LakeError: Spark failed.
    """
    before = schema_of(work.table.metadata, work.table.name)
    files = sorted(each for place in places(copied.target, stale) for each in place.glob("*.parquet"))
    schema = replace(replaced(before, copied.schema), drop=copied.schema.drop)
    schema = schema.with_exact(companions_in(files, copied.target)).filled()
    content(work, copied, schema, shape(work, schema), stale)
    final = settled(schema, before)
    for mode, each in beside.items():
        reach("apply.between_modes")
        take_copy(replace(work, table=each), mode, schema, work.table.name, final.names)
    return final.schema


def places(target: CopyTarget, stale: pa.Table | None) -> list[Path]:
    """The directories with a copy's files: those of its ranges, and of rows that were read again."""
    again = [target.again] if stale is not None and target.again.is_dir() else []
    return [target.directory, *again]


@contextmanager
def _rows(work: Work, copied: Copied, schema: TableSchema, stale: pa.Table | None) -> Iterator[str]:
    """The copy's rows, in Spark SQL; a column that no file has is NULL."""
    target = copied.target
    definitions = [f"{quote(target.names[c.name])} {c.kept.spark}" for c in schema.live]
    definitions += [f"{quote(name)} string" for name in target.exact_names.values()]
    views = [f"copied_{uuid.uuid4().hex}" for _ in places(target, stale)]
    try:
        for view, place in zip(views, places(target, stale), strict=True):
            frame = work.session.read.schema(", ".join(definitions)).parquet(place.as_uri())
            frame.createOrReplaceTempView(view)
        if stale is None or not stale.num_rows:
            yield quote(views[0])
            return
        key = [schema.column(name) for name in schema.key]
        names = [(target.names[c.name], target.exact_names.get(c.name)) for c in key]
        with named(work.session, work.directory, key, stale, names) as condition:
            kept = f"SELECT * FROM {quote(views[0])} AS t WHERE NOT {condition}"
            yield f"({' UNION ALL '.join([kept, *(f'SELECT * FROM {quote(v)}' for v in views[1:])])})"
    finally:
        for view in views:
            work.session.catalog.dropTempView(view)


def _load(lake: LakeSettings, name: LakeName) -> Loaded:
    with open_catalog(lake) as catalog:
        return load(catalog.pointers(), name)
