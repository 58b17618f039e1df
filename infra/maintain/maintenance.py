"""`slotlake maintain`: one table after the other, while batches go on, for a limited time.

The pipeline's lock is taken for the short steps only: to commit what was rewritten meanwhile, to expire, and
to decide which files nobody needs (`spark.maintenance.turns`). When the time limit of the pipeline file is
over, no further table begins; the next run starts with the waiting tables.
"""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from slotlake.decoder.errors import DamagedError, PipelineFileError
from slotlake.infra.config.private_files import with_private_files
from slotlake.infra.opened.readers import seconds_read
from slotlake.infra.reports import MaintainReport, TableMaintained
from slotlake.infra.state.notes import MAINTAINED, StateFile

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.maintenance.expiry import Grace
    from slotlake.spark.maintenance.plan import Care
    from slotlake.spark.maintenance.rewrite import Maintained
    from slotlake.spark.maintenance.turns import Turns
    from slotlake.spark.names import LakeName

_PART = "maintaining"
_TURN_SECONDS = 60.0


@with_private_files
def maintain(
    pipeline: OpenPipeline,
    table: str | None,
    progress: Progressing,
    wait_seconds: float,
    *,
    rewrite_layout: bool = False,
) -> MaintainReport:
    """Pack files, expire snapshots and remove files of all tables or of one.

    Args:
        table: one table, as PostgreSQL writes it; None: all.
        progress: is called before each table.
        wait_seconds: how long to wait for another run, for each table.
        rewrite_layout: also write anew all tables that have files of an earlier layout.

    Raises:
        BusyError: another run worked for longer than ``wait_seconds``; the tables before are maintained.
        LakeError: see `spark.maintenance.rewrite.maintain_table`.
    """
    with pipeline.locks.part(_PART), pipeline.reading():
        return _Maintenance(pipeline).maintain(table, progress, wait_seconds, rewrite_layout=rewrite_layout)


class _Maintenance:
    """The upkeep of a lake's tables, one after the other."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._file, self._lake = pipeline, pipeline.file, pipeline.lake

    def maintain(
        self,
        table: str | None,
        progress: Progressing,
        wait_seconds: float,
        *,
        rewrite_layout: bool,
    ) -> MaintainReport:
        from slotlake.spark.direct.rewritten import forget_clones
        from slotlake.spark.java import JavaEndedError
        from slotlake.spark.maintenance.rewrite import Maintained, maintain_table

        started = time.monotonic()
        self._pipeline.position()  # raises a clear error if there is no lake, before Spark starts
        names = _waiting_first(self._file.state_dir, self.lake_names(table))
        with self._pipeline.exclusively(wait_seconds, step="maintain"):
            forget_clones(self._lake, self._pipeline.name)
        turns = self.turns(wait_seconds)
        maintained: list[Maintained] = []
        warned: list[str] = []
        for name in names:
            if maintained and time.monotonic() - started > self._file.maintenance.minutes_max * 60:
                break
            progress("maintain: tables", len(maintained) + 1, len(names))
            care = _care(self._file, rewrite_layout)
            opened = cache(lambda: self._pipeline.session)  # many tables need no Spark
            try:
                maintained.append(maintain_table(opened, self._lake, name, self._pipeline.name, care, turns))
                if damaged := maintained[-1].damaged:
                    warned.append(
                        f"no file of {name} is removed before a point of the past expires: the list of "
                        f"its files cannot be read: {damaged}"
                    )
            except (JavaEndedError, DamagedError) as error:
                warned.append(f"table {name} stays as it is: {error.what} ({error.where}); {error.way_out}")
                maintained.append(Maintained(str(name)))
        waiting = [str(name) for name in names[len(maintained) :]]
        _remember(self._file.state_dir, waiting)
        ended, warnings = self.end_uploads()
        return MaintainReport(
            self._pipeline.name,
            [_reported(each) for each in maintained],
            waiting,
            round(time.monotonic() - started, 3),
            ended,
            [*warned, *warnings],
        )

    def end_uploads(self) -> tuple[int, list[str]]:
        """End the uploads in parts that killed runs have left; a store that refuses leads to a warning."""
        from slotlake.spark.storage.base import StoreRefusedError, StoreUnavailableError
        from slotlake.spark.storage.uploads import end_uploads

        lake, oldest = self._lake, time.time() - self._file.maintenance.orphan_hours * 3600
        # Keys that are lent for tables do not list what is under way in the bucket.
        folders = [lake.root] if lake.is_in_bucket and not lake.borrows_keys else []
        folders += [self._pipeline.stored.root] if self._pipeline.stored is not None else []
        try:
            return sum(end_uploads(folder, lake.storage, oldest) or 0 for folder in folders), []
        except (StoreRefusedError, StoreUnavailableError) as error:
            return 0, [f"uploads that killed runs have left stay: {error.what}; {error.way_out}"]

    def turns(self, wait_seconds: float) -> Turns:
        from slotlake.spark.direct.rewritten import rewrite_apart
        from slotlake.spark.maintenance.turns import Turns

        seconds = max(wait_seconds, _TURN_SECONDS)  # what was rewritten is not to be lost for a batch at work

        def alone() -> AbstractContextManager[None]:
            return self._pipeline.exclusively(seconds, step="maintain")

        def grace(usual: Grace) -> Grace:
            return replace(usual, unused=max(usual.unused, seconds_read(self._file.state_dir)))

        return Turns(alone, wait_seconds, grace, rewrite_apart)

    def lake_names(self, table: str | None) -> list[LakeName]:
        from slotlake.spark.maintenance.rewrite import tables_to_maintain
        from slotlake.spark.names import lake_table, parse_postgres_name

        names = tables_to_maintain(self._lake, self._pipeline.name)
        if table is None:
            return names
        try:
            name = lake_table(self._lake.namespace, *parse_postgres_name(table))
            return [names[names.index(name)]]
        except (KeyError, ValueError):
            raise PipelineFileError(
                f"the lake has no table {table}",
                where="--table",
                way_out="write a table's name as PostgreSQL does; slotlake status lists the tables",
            ) from None


def _care(file: PipelineFile, rewrite_layout: bool) -> Care:
    from slotlake.spark.maintenance.expiry import Grace
    from slotlake.spark.maintenance.plan import Care

    section = file.maintenance
    grace = Grace(section.unused_minutes * 60, section.orphan_hours * 3600)
    return Care(grace, section.target_file_mb << 20, rewrite_layout=rewrite_layout)


def _waiting_first(state_dir: Path, names: list[LakeName]) -> list[LakeName]:
    """Put the tables first for which the last run had no time."""
    waiting = _waiting_note(state_dir).read() or []
    turn = {name: number for number, name in enumerate(waiting)}
    return sorted(names, key=lambda name: turn.get(str(name), len(waiting)))


def _remember(state_dir: Path, waiting: list[str]) -> None:
    if waiting:
        _waiting_note(state_dir).write(waiting)
    else:
        _waiting_note(state_dir).remove()


def _waiting_note(state_dir: Path) -> StateFile:
    return MAINTAINED.of(state_dir)


def _reported(table: Maintained) -> TableMaintained:
    return TableMaintained(
        lake_table=table.table,
        staged=table.staged,
        rewritten_files=table.rewritten_files,
        written_files=table.written_files,
        expired_snapshots=table.expired_snapshots,
        removed_files=table.removed.files,
        removed_bytes=table.removed.size,
        given_up_files=table.given_up,
    )
