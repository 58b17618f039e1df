"""Packs small files of the tables that a batch changed, once the batch is published and confirmed.

It is the last thing of a sync, so no change waits for it, and it takes a bounded time: a table that got few
files costs a look at its metadata, and no further table begins after :data:`SECONDS_MAX`.  Invariant: a
table that cannot be compacted fails no sync, because its batch is published; the report says which, and why.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from slotlake.decoder.errors import ChangeLogError, SlotlakeError
from slotlake.infra.progress import Progressing, silent
from slotlake.infra.reports import ConfirmReport, TableCompacted
from slotlake.infra.selection.aside import tables_aside
from slotlake.infra.sync.batch_steps import BatchSteps, batch_named
from slotlake.spark.names import lake_table, parse_postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.names import LakeName

SECONDS_MAX = 5.0


class Compaction:
    """The small files of the tables that a batch changed."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline, self._file, self._lake = pipeline, pipeline.file, pipeline.lake

    def lake_names(self, tables: Iterable[str]) -> set[LakeName]:
        """Return the lake's names of source tables."""
        return {lake_table(self._lake.namespace, *parse_postgres_name(table)) for table in tables}

    def confirm_and_compact(self, batch: str | None) -> ConfirmReport:
        """Confirm the lake's position, then compact the tables that a batch changed.

        Args:
            batch: the batch's name; None, or one that is not in the change log any more: no table.
        """
        changed = _changed_tables(self._file, self._lake, batch)
        return replace(
            BatchSteps(self._pipeline).confirm_position(batch), compacted=self.compact(changed, silent)
        )

    def compact(
        self,
        changed: Collection[LakeName],
        progress: Progressing,
        seconds_max: float = SECONDS_MAX,
    ) -> list[TableCompacted]:
        """Pack small files of those tables that got many of them, as far as there is time.

        Args:
            changed: the tables that a batch has changed; their derived tables are looked at too.
            progress: called before a table is packed.
            seconds_max: after so long no further table begins; one is always packed.
        """
        if not self._file.maintenance.in_sync or not changed:
            return []
        return list(self._compacted(changed, progress, seconds_max))

    def _compacted(
        self, changed: Collection[LakeName], progress: Progressing, seconds_max: float
    ) -> Iterator[TableCompacted]:
        started = time.monotonic()
        for number, name in enumerate(self._due(changed)):
            if number and time.monotonic() - started > seconds_max:
                return
            progress("compact", 0)
            packed = self._packed(name)
            if packed is not None:
                yield packed

    def _due(self, changed: Collection[LakeName]) -> list[LakeName]:
        """Return the tables that are to be packed, without those that are set aside."""
        from slotlake.spark.maintenance.small_files import tables_to_pack

        aside = {lake_table(self._lake.namespace, *name) for name in tables_aside(self._lake)}
        return tables_to_pack(self._lake, set(changed) - aside, _target_bytes(self._file))

    def _packed(self, name: LakeName) -> TableCompacted | None:
        from slotlake.spark.direct.packing import pack_directly
        from slotlake.spark.maintenance.small_files import pack_table

        started, target = time.monotonic(), _target_bytes(self._file)
        try:
            packed = pack_table(
                lambda: self._pipeline.session,
                self._lake,
                name,
                self._pipeline.name,
                target,
                pack_directly,
            )
        except SlotlakeError as error:
            return TableCompacted(str(name), failed=error.what, seconds=round(time.monotonic() - started, 3))
        if packed is None:
            return None
        seconds = round(time.monotonic() - started, 3)
        return TableCompacted(str(name), packed.rewritten_files, packed.written_files, seconds)


def _changed_tables(file: PipelineFile, lake: LakeSettings, name: str | None) -> set[LakeName]:
    from slotlake.spark.publish import sidecar
    from slotlake.spark.publish.publication import touched_tables

    if name is None:
        return set()
    try:
        batch = batch_named(file, name)
    except ChangeLogError:
        return set()
    return set(touched_tables(lake, batch, sidecar.read(batch)))


def _target_bytes(file: PipelineFile) -> int:
    return file.maintenance.target_file_mb << 20
