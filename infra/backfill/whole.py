"""What a dry run reports of a whole table that would be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publication_tables import require_filter
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.backfill.report import KEYS_SHOWN_MAX, TableBackfilled
from slotlake.spark.names import lake_table, postgres_name

if TYPE_CHECKING:
    from slotlake.expectations.results import TableResult
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.read.point import ReadPoint


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
