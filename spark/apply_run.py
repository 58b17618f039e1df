"""Runs the SQL that stages one table: shapes it, hands Spark the folded rows, names the result."""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import SparkSession

from decoder.errors import LakeError
from decoder.failpoints import reach
from spark import lake_files
from spark.apply_sql import Target, statements, view_schema
from spark.catalog import open_catalog
from spark.catalog_metadata import Metadata, head, summary
from spark.commits import STEPS, Point
from spark.fold import Folded
from spark.lake import LakeSettings
from spark.names import literal
from spark.publish_swap import Loaded, load, steps_staged
from spark.session_errors import SPARK_ERRORS, is_conflict, reason
from spark.tables import SCHEMA_PROPERTY, STAGED_SCHEMA_PROPERTY, TableSchema, add_columns

_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_MID_MERGE_SECONDS = 0.05


class StageConflictError(LakeError):
    """Another statement changed the branch meanwhile, as one that a killed run left in a Spark server."""

    retryable = True


@dataclass(frozen=True)
class Work:
    """One table to be staged for one point. ``directory``: where folded rows go for Spark to read."""

    session: SparkSession
    lake: LakeSettings
    point: Point
    table: Loaded
    directory: Path


def stage(work: Work, schema: TableSchema, folds: Sequence[Folded]) -> None:
    """Bring folds into the table's branch ``stage``, one after the other.

    Args:
        schema: the table's shape after them.

    Raises:
        LakeError: Spark failed.
    """
    companions = shape(work, schema)
    rows = int(summary(head(work.table.metadata)).get("total-records", 0))
    name, catalog = work.table.name, work.lake.catalog
    targets = [replace(Target.of(name, catalog, schema, each, companions), lake_rows=rows) for each in folds]
    views = [_view(work, target, number) for number, target in enumerate(targets)]
    try:
        pairs = zip(targets, views, strict=True)
        run_statements(work, [statement for target, view in pairs for statement in statements(target, view)])
    finally:
        for view in views:
            work.session.catalog.dropTempView(view)


def run_statements(work: Work, sql: Sequence[str]) -> None:
    """Run statements that each make one snapshot on ``stage``; the last one's is named after the point.

    Raises:
        LakeError: Spark failed.
    """
    for statement in sql[:-1]:
        run(work.session, work.table, statement)
    steps = 1 if len(sql) == 1 else 1 + _steps_so_far(work)
    with _named(work.session, {**work.point.summary, STEPS: str(steps)}), _mid_merge():
        run(work.session, work.table, sql[-1])


def run(session: SparkSession, table: Loaded, sql: str) -> None:
    """Run one statement.

    Raises:
        StageConflictError: another statement changed the table meanwhile.
        LakeError: with Spark's error class; its whole message may hold row values.
    """
    try:
        session.sql(sql).collect()
    except SPARK_ERRORS as error:
        kind = StageConflictError if is_conflict(error) else LakeError
        raise kind(
            f"Spark could not change the table: {reason(error)}",
            where=f"table {table.name}",
            way_out="run again; if it comes back, Spark's own log says more. Nothing was published",
        ) from error


def shape(work: Work, schema: TableSchema) -> frozenset[str]:
    """Give the table the columns that the shape names; the lake names of all companions it has then."""
    metadata = work.table.metadata
    present = _fields(metadata)
    missing = [c.definition for c in schema.columns if c.lake_name not in present]
    missing += [c.exact_definition for c in schema.columns if c.exact and c.exact_name not in present]
    if missing:
        run(work.session, work.table, add_columns(work.table.name, work.lake.catalog, missing))
    if metadata["properties"].get(SCHEMA_PROPERTY) != schema.to_json():
        target = work.table.name.sql(work.lake.catalog)
        value = literal(schema.to_json())
        run(
            work.session,
            work.table,
            f"ALTER TABLE {target} SET TBLPROPERTIES ('{STAGED_SCHEMA_PROPERTY}' = {value})",
        )
    return frozenset(c.exact_name for c in schema.columns if c.exact or c.exact_name in present)


def _fields(metadata: Metadata) -> set[str]:
    current = next(s for s in metadata["schemas"] if s["schema-id"] == metadata["current-schema-id"])
    return {field["name"] for field in current["fields"]}


def _view(work: Work, target: Target, number: int) -> str:
    path = lake_files.write_parquet(target.fold.rows, work.directory / f"{number}.parquet")
    view = f"folded_{uuid.uuid4().hex}"
    work.session.read.schema(view_schema(target)).parquet(path.as_uri()).createOrReplaceTempView(view)
    return view


def _steps_so_far(work: Work) -> int:
    with open_catalog(work.lake) as catalog:
        return steps_staged(load(catalog.pointers(), work.table.name).metadata)


@contextmanager
def _named(session: SparkSession, properties: Mapping[str, str]) -> Iterator[None]:
    """Put properties on the snapshots made meanwhile; the setting would stick to all later ones."""
    for key, value in properties.items():
        session.conf.set(_SNAPSHOT_PROPERTY + key, value)
    try:
        yield
    finally:
        for key in properties:
            session.conf.unset(_SNAPSHOT_PROPERTY + key)


@contextmanager
def _mid_merge() -> Iterator[None]:
    """Where a test can end the process while Spark is at work."""
    if not os.environ.get("SLOTLAKE_FAILPOINT"):
        yield
        return
    timer = threading.Timer(_MID_MERGE_SECONDS, reach, ["apply.mid_merge"])
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
