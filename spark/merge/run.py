"""Runs the SQL that stages one table: shapes it, hands Spark rows, names the result."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from slotlake.spark.catalog.base import load_one
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.merge.bounds import Markers
from slotlake.spark.merge.during_statements import failpoint_during, temporary_settings, within_bounds
from slotlake.spark.merge.failures import explained
from slotlake.spark.merge.fields import field_changes, field_types
from slotlake.spark.merge.rows import view_of_rows
from slotlake.spark.merge.sizes import shuffle_partitions
from slotlake.spark.names import literal
from slotlake.spark.publish.commits import RUN, STEPS, Point
from slotlake.spark.publish.derived_tables import empty_insert
from slotlake.spark.publish.swap import Loaded, steps_staged
from slotlake.spark.tables.metadata import STAGE, ancestry, summary
from slotlake.spark.tables.schema import (
    SCHEMA_PROPERTY,
    STAGED_SCHEMA_PROPERTY,
    TableSchema,
    schema_of,
    unbounded,
)
from slotlake.spark.tables.settle import STAGED_FIELDS_PROPERTY, settle

_SNAPSHOT_PROPERTY = "spark.sql.iceberg.snapshot-property."
_GATHERED = {"spark.sql.iceberg.distribution-mode": "hash"}
_NO_MARKERS = Markers()


@dataclass(frozen=True)
class Work:
    """One table to be staged for one point.

    Attributes:
        opened: gives the session; it opens Spark if nothing has needed it before.
        directory: where folded rows go for Spark to read.
        run: in every snapshot that this work makes. A statement that a killed run left in a Spark server may
            write to the same branch at any moment, and an INSERT meets no conflict.
        gathers: the rows that a MERGE writes are brought together first, so that they fill few files.
    """

    opened: Callable[[], SparkSession]
    lake: LakeSettings
    point: Point
    table: Loaded
    directory: Path
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    gathers: bool = False

    @property
    def session(self) -> SparkSession:
        """The session that runs the table's statements."""
        return self.opened()


def summaries(work: Work, *, before: int = 0) -> list[dict[str, str]]:
    """Return the summaries of the snapshots that lead from main to what is staged."""
    with open_catalog(work.lake) as catalog:
        metadata = load_one(catalog, work.table.name).metadata
    staged = itertools.islice(ancestry(metadata, STAGE), steps_staged(metadata) - before)
    return [summary(snapshot) for snapshot in staged]


def run_statements(
    work: Work,
    sql: Sequence[str],
    properties: Mapping[str, str] = MappingProxyType({}),
    *,
    nothing_staged: bool = True,
    markers: Markers = _NO_MARKERS,
) -> None:
    """Run statements that make one snapshot each on ``stage``; the last snapshot gets the point's name.

    Raises:
        LakeError: Spark failed.
    """
    _run_with_properties(work, sql[:-1], {}, markers)
    steps = 1 if len(sql) == 1 and nothing_staged else 1 + _steps_so_far(work)
    properties_of_last = {**work.point.summary, STEPS: str(steps), **properties}
    with failpoint_during("apply.mid_merge"):
        _run_with_properties(work, sql[-1:], properties_of_last, markers)


def run_steps(work: Work, sql: Sequence[str], markers: Markers = _NO_MARKERS) -> None:
    """Run statements that do not complete the table.

    Raises:
        LakeError: Spark failed.
    """
    _run_with_properties(work, sql, {}, markers)


def run_query(work: Work, sql: str, markers: Markers = _NO_MARKERS) -> pa.Table:
    """Run a query and return its rows.

    Raises:
        LakeError: Spark failed.
    """
    with (
        explained(work.table),
        within_bounds(work.session, str(work.table.name)),
        shuffle_partitions(work.session, work.table.metadata),
    ):
        return _execute(work.session, sql, markers).toArrow()


def _run_with_properties(
    work: Work, sql: Sequence[str], properties: Mapping[str, str], markers: Markers
) -> None:
    """Run statements whose snapshots say whose they are, and this."""
    settings = {_SNAPSHOT_PROPERTY + key: value for key, value in {RUN: work.run, **properties}.items()}
    with (
        temporary_settings(work.session, settings | (_GATHERED if work.gathers else {})),
        shuffle_partitions(work.session, work.table.metadata),
    ):
        for statement in sql:
            run(work.session, work.table, statement, markers)


def run(session: SparkSession, table: Loaded, sql: str, markers: Markers = _NO_MARKERS) -> None:
    """Run one statement.

    Raises:
        StageConflictError: another statement changed the table meanwhile.
        LakeError: with Spark's error class; its whole message may hold row values.
    """
    with explained(table), within_bounds(session, str(table.name)):
        _execute(session, sql, markers).collect()


def _execute(session: SparkSession, sql: str, markers: Markers) -> DataFrame:
    values = markers.of(sql)
    return session.sql(sql, args=dict(values)) if values else session.sql(sql)


def apply_shape(work: Work, schema: TableSchema) -> frozenset[str]:
    """Give the table the columns that the shape names; the lake names of all companions it has then."""
    metadata, present = work.table.metadata, field_types(work.table.metadata)
    for change in field_changes(work.table, work.lake.catalog, schema):
        run(work.session, work.table, change)
    final = settle(schema, schema_of(metadata, work.table.name))
    present_properties = metadata["properties"]
    properties = {k: v for k, v in unbounded(schema.columns).items() if present_properties.get(k) != v}
    if present_properties.get(SCHEMA_PROPERTY) != final.schema.to_json():
        # Also if it was staged before: that was discarded after this metadata was read.
        properties[STAGED_SCHEMA_PROPERTY] = final.schema.to_json()
        properties |= {} if final.plan is None else {STAGED_FIELDS_PROPERTY: final.plan}
    if properties:
        listed = ", ".join(f"{literal(key)} = {literal(value)}" for key, value in properties.items())
        table = work.table.name.sql(work.lake.catalog)
        run(work.session, work.table, f"ALTER TABLE {table} SET TBLPROPERTIES ({listed})")
    return frozenset(c.exact_name for c in schema.columns if c.exact or c.exact_name in present)


def stage_shape(work: Work, schema: TableSchema) -> None:
    """Bring another shape into the table's branch ``stage``, and not one row.

    Raises:
        LakeError: Spark failed.
    """
    apply_shape(work, schema)
    run_statements(work, [empty_insert(work.table.name, work.lake.catalog)])


@contextmanager
def view_of(work: Work, rows: pa.Table, schema: str) -> Iterator[str]:
    """Make a temporary view of rows for the time of the context; yields its name.

    Args:
        schema: their columns as DDL of Spark SQL, so that Spark opens no file to infer them.
    """
    with view_of_rows(work.session, rows, schema, work.directory, "folded") as view:
        yield view


def _steps_so_far(work: Work) -> int:
    with open_catalog(work.lake) as catalog:
        return steps_staged(load_one(catalog, work.table.name).metadata)
