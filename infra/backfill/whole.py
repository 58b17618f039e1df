"""Read whole tables again: what is staged for one, and what a dry run reports of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publication_tables import require_filter
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.backfill.report import KEYS_SHOWN_MAX, TableBackfilled
from slotlake.infra.copy.described import require_as_copied, schemas_at
from slotlake.infra.copy.tables import copy_into
from slotlake.spark.names import lake_table, postgres_name

if TYPE_CHECKING:
    from slotlake.expectations.results import TableResult
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.names import LakeName
    from slotlake.spark.publish.commits import Point
    from slotlake.spark.read.point import ReadPoint


def stage_whole(
    pipeline: OpenPipeline,
    table: SourceTable,
    snapshot: ExportedSnapshot,
    point: Point,
    progress: Progressing,
) -> tuple[list[LakeName], TableBackfilled]:
    """Stage a table's rows, as the snapshot shows them, in place of all that the lake has of it.

    Args:
        pipeline: the pipeline, with its source and lake.
        snapshot: the snapshot under which it is read.
        point: the consistency point that the rows become part of.
        progress: called with the rows so far.

    Returns:
        The lake tables to be published then, and the table's report.

    Raises:
        LakeError: Spark failed.
    """
    from slotlake.spark.copy.replace import Replacement

    schemas, fingerprints = schemas_at(pipeline, snapshot, [table])
    schema = schemas[table]
    with Replacement.begin(pipeline.session, pipeline.lake, pipeline.name, schema) as replacement:
        files = copy_into(pipeline, table, snapshot, replacement.target, progress)
        require_as_copied(pipeline, schemas, fingerprints)
        names = replacement.stage(point)
    rows = sum(file.rows for file in files)
    lake_name = schema.lake_name(pipeline.lake.namespace)
    return names, TableBackfilled(f"{table.schema}.{table.table}", str(lake_name), rows)


def would_replace(
    pipeline: OpenPipeline,
    table: SourceTable,
    snapshot: ExportedSnapshot,
    point: ReadPoint,
    progress: Progressing,
) -> TableBackfilled:
    """Count how the lake's table would change if it were replaced.

    Args:
        snapshot: the snapshot under which the source is read.
        point: the lake at the snapshot's LSN.
        progress: called while rows are compared.
    """
    from slotlake.expectations.reconcile import reconcile
    from slotlake.expectations.results import DIFFERENT, DUPLICATED, EXTRA, MISSING, NO_TABLE

    sides = (pipeline.source.dsn, snapshot.snapshot, [table], pipeline.for_comparing(point))
    report = reconcile(*sides, lsn=snapshot.lsn, progress=progress, differences_max=KEYS_SHOWN_MAX)
    result = report.tables[postgres_name(table.schema, table.table)]
    totals, rows = result.totals, result.source_rows
    if NO_TABLE in totals:
        rows = _count(pipeline, table, snapshot)
        totals = {MISSING: rows}
    return TableBackfilled(
        table=f"{table.schema}.{table.table}",
        lake_table=str(lake_table(pipeline.lake.namespace, table.schema, table.table)),
        rows=rows,
        inserted=totals.get(MISSING, 0),
        changed=totals.get(DIFFERENT, 0) + totals.get(DUPLICATED, 0),
        deleted=totals.get(EXTRA, 0),
        keys=_keys(table, result),
    )


def _keys(table: SourceTable, result: TableResult) -> list[dict[str, object]]:
    """The keys that differ; none for a table without a key, whose rows have only their values as names."""
    from slotlake.expectations.chosen import DELETE, INSERT, UPDATE
    from slotlake.expectations.results import DIFFERENT, DUPLICATED, EXTRA, MISSING

    kinds = {MISSING: INSERT, EXTRA: DELETE, DIFFERENT: UPDATE, DUPLICATED: UPDATE}
    return [
        {"change": kinds[difference.kind], "key": dict(difference.key)}
        for difference in result.differences
        if table.key and difference.kind in kinds
    ]


def _count(pipeline: OpenPipeline, table: SourceTable, snapshot: ExportedSnapshot) -> int:
    from slotlake.expectations.source_side import snapshot_session

    only = "" if table.kind == "p" else "ONLY "
    require_filter(table.row_filter, table.quoted)
    where = f" WHERE {table.row_filter}" if table.row_filter else ""
    with snapshot_session(pipeline.source.dsn, snapshot.snapshot) as connection:
        row = connection.execute(f"SELECT count(*) FROM {only}{table.quoted}{where}".encode()).fetchone()
    return int(row[0]) if row else 0
