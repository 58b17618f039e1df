"""The consistency point of a backfill, and its publication."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.infra.backfill.report import TableBackfilled
from slotlake.infra.copy.tables import copy_point
from slotlake.infra.journal.verified import note_copied
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.spark.names import LakeName
    from slotlake.spark.publish.commits import Point


def backfill_point(pipeline: OpenPipeline, lsn: int, tables: Sequence[SourceTable], changes: int) -> Point:
    """Describe the consistency point of a backfill.

    Args:
        lsn: where the lake stands.
        tables: all that the backfill reads.
        changes: rows that are inserted, changed and deleted.
    """
    others = f"+{len(tables) - 1}" if len(tables) > 1 else ""
    name = f"{postgres_name(tables[0].schema, tables[0].table)}{others}"
    return copy_point(pipeline, lsn, "backfill", changes, name)


def publish(
    pipeline: OpenPipeline,
    names: Sequence[LakeName],
    lsn: int,
    tables: Sequence[SourceTable],
    done: Sequence[TableBackfilled],
    whole: Sequence[SourceTable] = (),
) -> None:
    """Publish what is staged, if anything is.

    Args:
        pipeline: the pipeline; its lock is held.
        names: the lake tables in which something is staged.
        lsn: where the lake stands.
        tables: all that the backfill reads.
        done: what was done to each of them.
        whole: those that are replaced as a whole.

    Raises:
        LakeError: the lake was changed meanwhile; nothing was published.
    """
    from slotlake.spark.publish.swap import publish_tables

    if not names:
        return
    changed = {t.lake_table: t.changes for t in done if t.inserted is None or t.changes}
    point = replace(backfill_point(pipeline, lsn, tables, sum(changed.values())), changed=changed)
    note_copied(pipeline.file.state_dir, [postgres_name(t.schema, t.table) for t in whole], lsn)
    publish_tables(pipeline.lake, point, names, start=lsn)
