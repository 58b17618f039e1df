"""Stages rows read again from the source, at an exact LSN, as the whole content of a lake table.

The new content is staged like a batch (all rows go, the new ones come) and published like one, so
the table keeps its history, and readers see the old content or the new.  Tables beside it
(spark/history/modes.py) take in the same rows, as those of a copy, in the same point.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql import SparkSession

from slotlake.decoder.errors import DamagedError
from slotlake.decoder.failpoints import reach
from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.copy import marked
from slotlake.spark.copy.stale_rows import key_condition
from slotlake.spark.history.new_tables import copy_source, take_copy
from slotlake.spark.lake import LakeSettings
from slotlake.spark.maintenance.unreadable import require_manifests
from slotlake.spark.merge.rows import read_files, view_of_rows
from slotlake.spark.merge.run import Work, apply_shape, run_statements, run_steps, stage_shape
from slotlake.spark.names import quote
from slotlake.spark.publish.commits import Point
from slotlake.spark.publish.derived_tables import empty_insert
from slotlake.spark.publish.place import CopyTarget, companions_in
from slotlake.spark.publish.sidecar import TableCopy
from slotlake.spark.publish.swap import Loaded, Published, publish_tables, require_owner, reset_stage
from slotlake.spark.session import shares_files
from slotlake.spark.storage.location import Location
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.change import schema_after_copy
from slotlake.spark.tables.manifests import with_nothing_staged
from slotlake.spark.tables.schema import TableSchema, schema_of
from slotlake.spark.tables.settle import settle

# Takes the work, the copy, the table's shape then, its companions, and stale keys.
Content = Callable[[Work, TableCopy, TableSchema, Collection[str], "pa.Table | None"], None]


def publish_wider_columns(
    session: SparkSession, lake: LakeSettings, point: Point, schema: TableSchema
) -> Published:
    """Publish another shape of a table, whose columns only became wider, with the rows that it has.

    Args:
        point: as for `spark.copy.replacement.Replacement`.

    Raises:
        ApplyError: the lake does not stand at the point.
        LakeError: Spark failed, or the lake was changed meanwhile; nothing was published.
    """
    name = schema.lake_name(lake.namespace)
    with open_catalog(lake) as catalog:
        table = load_one(catalog, name)
        require_owner(table, point.pipeline)
        reset_stage(catalog, [table])
    stage_shape(Work(lambda: session, lake, point, table, Path()), schema)
    return publish_tables(lake, replace(point, changed={str(name): 0}), [name], start=point.position)


def insert_rows(
    work: Work,
    table_copy: TableCopy,
    schema: TableSchema,
    companions: Collection[str],
    stale: pa.Table | None,
) -> None:
    """Stage a copy's rows, read by Spark, as the whole content of a table.

    Args:
        companions: lake names of the exact-text columns that the table has.
        stale: keys whose rows come from the target's ``again``; None: all rows are as copied.
    """
    target = table_copy.target
    columns, values = [], []
    for column in schema.live:
        columns.append(column.lake_name)
        values.append(target.names[column.name])
        if column.exact_name in companions:
            columns.append(column.exact_name)
            values.append(target.exact_names.get(column.name, ""))
    selected = [quote(value) if value else "CAST(NULL AS STRING)" for value in values]
    branch = f"{work.table.name.sql(work.lake.catalog)}.branch_stage"
    delete, insert = f"DELETE FROM {branch}", f"INSERT INTO {branch} ({', '.join(map(quote, columns))}) "
    insert += f"SELECT {', '.join(selected)} FROM "
    if schema.soft_deletes or shares_files(work.session):
        with _rows(work, table_copy, schema, stale) as rows:
            if schema.soft_deletes:
                source = copy_source(work.lake, work.table, rows, work.point)
                inserted = (columns, selected)
                run_statements(work, marked.statements(work, schema, companions, source, inserted))
            else:
                run_statements(work, [delete, f"{insert}{rows}"])
        return
    run_steps(work, [delete])
    for rows in _slices(work, table_copy, schema, stale):
        run_steps(work, [f"{insert}{rows}"])
    run_statements(work, [empty_insert(work.table.name, work.lake.catalog)], nothing_staged=False)


def stage_copy(
    work: Work,
    table_copy: TableCopy,
    derived: Mapping[str, Loaded],
    stale: pa.Table | None = None,
    content: Content = insert_rows,
) -> TableSchema:
    """Stage a copy as all that a table holds; its shape once it is published.

    Args:
        derived: the tables beside it that take in the copy, by mode.
        stale: keys (`stale_rows.delete_rows`) whose rows are taken from the target's ``again`` instead.

    Raises:
        LakeError: Spark failed.
    """
    _pass_over_damaged(work)
    before = schema_of(work.table.metadata, work.table.name)
    files = copied_files(table_copy.target, stale)
    schema = replace(schema_after_copy(before, table_copy.schema), drop=table_copy.schema.drop)
    schema = schema.with_exact(companions_in(files, table_copy.target)).filled()
    content(work, table_copy, schema, apply_shape(work, schema), stale)
    final = settle(schema, before)
    for mode, each in derived.items():
        reach("apply.between_modes")
        take_copy(replace(work, table=each), mode, schema, work.table.name, final.names)
    return final.schema


def _pass_over_damaged(work: Work) -> None:
    """Stage a table without files if its manifests cannot be read: to delete all rows, Spark reads them."""
    head = catalog_metadata.head(work.table.metadata)
    try:
        require_manifests([(work.table.name, work.table.metadata, head)])
    except DamagedError:
        with open_catalog(work.lake) as catalog:
            table = load_one(catalog, work.table.name)
            catalog.move([catalog.prepared(table, with_nothing_staged(table.metadata))])


def places(target: CopyTarget, stale: pa.Table | None) -> list[Path]:
    """The directories with a copy's files: those of its ranges, and of rows that were read again."""
    again = target.again.directory
    return [target.directory, *([again] if stale is not None and again.is_dir() else [])]


def copied_files(target: CopyTarget, stale: pa.Table | None) -> list[Location]:
    """The Parquet files in these directories."""
    folders = places(target, stale)
    return [Location(f"file://{path}") for folder in folders for path in sorted(folder.glob("*.parquet"))]


def _slices(work: Work, table_copy: TableCopy, schema: TableSchema, stale: pa.Table | None) -> Iterator[str]:
    """The copy's rows, in Spark SQL, some at a time: they pass through the session (`spark.merge.rows`)."""
    target, names = table_copy.target, _names(table_copy.target, schema)
    with _unchanged(work, target, schema, stale) as unchanged:
        for number, place in enumerate(_read_places(target, stale)):
            for rows in read_files(sorted(place.glob("*.parquet")), names):
                definitions = _definitions(target, schema)
                with view_of_rows(work.session, rows, definitions, work.directory, "copied") as view:
                    yield f"{quote(view)} AS t WHERE {'true' if number else unchanged}"


def _names(target: CopyTarget, schema: TableSchema) -> list[str]:
    return [target.names[c.name] for c in schema.live] + list(target.exact_names.values())


def _read_places(target: CopyTarget, stale: pa.Table | None) -> list[Path]:
    return places(target, stale if stale is not None and stale.num_rows else None)


@contextmanager
def _unchanged(work: Work, target: CopyTarget, schema: TableSchema, stale: pa.Table | None) -> Iterator[str]:
    """The condition that a copied row ``t`` is none of the stale ones."""
    if stale is None or not stale.num_rows:
        yield "true"
        return
    key = [schema.column(name) for name in schema.key]
    names = [(target.names[c.name], target.exact_names.get(c.name)) for c in key]
    with key_condition(work.session, work.directory, key, stale, names) as condition:
        yield f"NOT {condition}"


def _definitions(target: CopyTarget, schema: TableSchema) -> str:
    definitions = [f"{quote(target.names[c.name])} {c.spark_type}" for c in schema.live]
    return ", ".join([*definitions, *(f"{quote(name)} string" for name in target.exact_names.values())])


@contextmanager
def _rows(work: Work, table_copy: TableCopy, schema: TableSchema, stale: pa.Table | None) -> Iterator[str]:
    """The copy's rows, in Spark SQL; a column that no file has is NULL."""
    target = table_copy.target
    with ExitStack() as stack:
        views = [
            stack.enter_context(_view(work, target, schema, place)) for place in _read_places(target, stale)
        ]
        condition = stack.enter_context(_unchanged(work, target, schema, stale))
        if condition == "true":
            yield quote(views[0])
            return
        unchanged = f"SELECT * FROM {quote(views[0])} AS t WHERE {condition}"
        yield f"({' UNION ALL '.join([unchanged, *(f'SELECT * FROM {quote(v)}' for v in views[1:])])})"


@contextmanager
def _view(work: Work, target: CopyTarget, schema: TableSchema, place: Path) -> Iterator[str]:
    """A temporary view of the files of a directory."""
    definitions = _definitions(target, schema)
    files, names = sorted(place.glob("*.parquet")), _names(target, schema)
    if files and not shares_files(work.session):
        rows = pa.concat_tables(read_files(files, names), promote_options="default")
        with view_of_rows(work.session, rows, definitions, work.directory, "copied") as view:
            yield view
        return
    view = f"copied_{uuid.uuid4().hex}"
    if shares_files(work.session):
        frame = work.session.read.schema(definitions).parquet(place.as_uri())
    else:
        frame = work.session.createDataFrame([], definitions)
    frame.createOrReplaceTempView(view)
    try:
        yield view
    finally:
        work.session.catalog.dropTempView(view)
