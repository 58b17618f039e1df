"""One table again from the source, at an exact LSN, while the stream goes on.

The lake is brought exactly to the snapshot's LSN first, so an older image can never beat a newer one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from decoder.errors import ApplyError, PipelineFileError
from decoder.lsn import format_lsn
from decoder.publications import SourceTable
from decoder.slots import ExportedSnapshot
from infra.batches import at_exact_lsn, confirm_position
from infra.reports import BackfillReport
from infra.selection import lake_schema
from infra.tables import copy_all, published_tables, replace_content
from spark.names import lake_table, parse_postgres_name

if TYPE_CHECKING:
    from infra.output import Progressing
    from infra.pipeline import Pipeline
    from spark.tables import TableSchema

SLOT_WAIT_SECONDS = 60.0


def copy_again(pipeline: Pipeline, name: str, progress: Progressing, started: float) -> BackfillReport:
    """Replace one table's content; a published table that the lake lacks is added.

    Raises:
        PipelineFileError: the publications have no such table.
    """
    table = _published(pipeline, name)
    _make_way(pipeline, table)
    try:
        snapshot, rows = _copied(pipeline, table, progress)
    except ApplyError:
        # A filter that no longer fits the table holds up the very batches that lead to the copy.
        if not _drop(pipeline, table, lambda held: bool(held.selection)):
            raise
        snapshot, rows = _copied(pipeline, table, progress)
    confirm_position(pipeline)
    return BackfillReport(
        table=f"{table.schema}.{table.table}",
        lake_table=str(lake_table(pipeline.lake.namespace, table.schema, table.table)),
        lsn=format_lsn(snapshot.lsn),
        rows=rows,
        seconds=time.monotonic() - started,
    )


def _published(pipeline: Pipeline, name: str) -> SourceTable:
    tables = {(table.schema, table.table): table for table in published_tables(pipeline)}
    try:
        return tables[parse_postgres_name(name)]
    except KeyError:
        listed = ", ".join(sorted(f"{schema}.{table}" for schema, table in tables)) or "none"
        raise PipelineFileError(
            f"the publications have no table {name}",
            where="--table",
            way_out=f"name one of those published, as PostgreSQL writes it: {listed}",
        ) from None


def _copied(pipeline: Pipeline, table: SourceTable, progress: Progressing) -> tuple[ExportedSnapshot, int]:
    with at_exact_lsn(pipeline, SLOT_WAIT_SECONDS, progress) as snapshot:
        return snapshot, _replace(pipeline, table, snapshot, progress)


def _make_way(pipeline: Pipeline, table: SourceTable) -> None:
    """Drop the lake's table if it takes something else of the source's: batches are not for it any more.

    Its readers miss it until the copy is published; in any other case it is replaced in place instead.
    """
    wanted = lake_schema(table)
    _drop(pipeline, table, lambda held: held.selection != wanted.selection)


def _drop(pipeline: Pipeline, table: SourceTable, when: Callable[[TableSchema], bool]) -> bool:
    """Drop the lake's table, if it is there and this holds; whether it was dropped."""
    from spark.read import Cut
    from spark.removal import drop_tables

    held = {(entry.schema, entry.table): entry for entry in Cut.latest(pipeline.lake).tables()}
    present = held.get((table.schema, table.table))
    if present is None or not when(present):
        return False
    drop_tables(pipeline.lake, pipeline.name, [present.lake_name(pipeline.lake.namespace)])
    return True


def _replace(
    pipeline: Pipeline, table: SourceTable, snapshot: ExportedSnapshot, progress: Progressing
) -> int:
    from spark.read import Cut

    known = {(entry.schema, entry.table) for entry in Cut.latest(pipeline.lake).tables()}
    if (table.schema, table.table) in known:
        return replace_content(pipeline, table, snapshot, progress)
    return sum(copy.rows for copy in copy_all(pipeline, [table], snapshot, progress))
