"""`slotlake maintain`: each table in turn, under the pipeline's lock, for a limited time.

The lock is given back after each table, so that a micro-batch waits for one table at most; and no table is
begun when the time that the pipeline file gives is over: the next run goes on with those that were left.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.reports import MaintainReport, TableMaintained

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.maintenance.rewrite import Care, Maintained
    from slotlake.spark.names import LakeName

_LAST_LEFT = "maintained-last"


def maintain(
    pipeline: OpenPipeline, table: str | None, progress: Progressing, wait_seconds: float
) -> MaintainReport:
    """Compact, expire, remove: all tables of the pipeline, or one (as PostgreSQL writes it).

    Raises:
        BusyError: another run was at work for longer than ``wait_seconds``; tables before are maintained.
        LakeError: see `spark.maintenance.rewrite.maintain_table`.
    """
    from slotlake.spark.maintenance.rewrite import maintain_table

    started = time.monotonic()
    pipeline.position()  # that there is a lake is told before Spark is started
    names = _turn(pipeline, _names(pipeline, table))
    done: list[Maintained] = []
    for name in names:
        if done and time.monotonic() - started > pipeline.file.maintenance.minutes_max * 60:
            break
        progress("maintain: tables", len(done) + 1, len(names))
        with pipeline.exclusively(wait_seconds):
            done.append(maintain_table(pipeline.session, pipeline.lake, name, pipeline.name, _care(pipeline)))
    left = [str(name) for name in names[len(done) :]]
    _remember(pipeline, left)
    return MaintainReport(
        pipeline.name, [_reported(each) for each in done], left, round(time.monotonic() - started, 3)
    )


def _care(pipeline: OpenPipeline) -> Care:
    from slotlake.spark.maintenance.expiry import Grace
    from slotlake.spark.maintenance.rewrite import Care

    section = pipeline.file.maintenance
    grace = Grace(section.unused_minutes * 60, section.orphan_hours * 3600)
    return Care(grace, section.target_file_mb << 20)


def _names(pipeline: OpenPipeline, table: str | None) -> list[LakeName]:
    from slotlake.spark.maintenance.rewrite import tables_to_maintain
    from slotlake.spark.names import lake_table, parse_postgres_name

    names = tables_to_maintain(pipeline.lake, pipeline.name)
    if table is None:
        return names
    try:
        wanted = lake_table(pipeline.lake.namespace, *parse_postgres_name(table))
        return [names[names.index(wanted)]]
    except (KeyError, ValueError):
        raise PipelineFileError(
            f"the lake has no table {table}",
            where="--table",
            way_out="name one as PostgreSQL writes it; slotlake status lists them",
        ) from None


def _turn(pipeline: OpenPipeline, names: list[LakeName]) -> list[LakeName]:
    """Those first that the last run had no time for."""
    try:
        left = (pipeline.file.state_dir / _LAST_LEFT).read_text().splitlines()
    except OSError:
        left = []
    turn = {name: number for number, name in enumerate(left)}
    return sorted(names, key=lambda name: turn.get(str(name), len(left)))


def _remember(pipeline: OpenPipeline, left: list[str]) -> None:
    place = pipeline.file.state_dir / _LAST_LEFT
    if left:
        place.write_text("\n".join(left))
    else:
        place.unlink(missing_ok=True)


def _reported(table: Maintained) -> TableMaintained:
    return TableMaintained(
        lake_table=table.table,
        staged=table.staged,
        rewritten_files=table.rewritten_files,
        written_files=table.written_files,
        expired_snapshots=table.expired_snapshots,
        removed_files=table.removed.files,
        removed_bytes=table.removed.size,
    )
