"""Read whole tables while batches go on, and publish them where the lake is then.

The lake is brought to the LSN L of a snapshot under the lock.  All rows are read under that snapshot without
it.  Under the lock again, the lake is brought to a second snapshot, at P, and the ranges to P by the keys
that the batches between L and P name (`infra.copy.forward`, whose conditions hold here too).

Invariant: the tables are published at P, exactly as the second snapshot shows them; or nothing is published,
and the caller reads them again under the lock.  That is so if a table was altered or rewritten meanwhile, or
is not as it was in the lake.  One that was truncated or copied, or of which too many rows were changed, or
the change log lacks a batch, is read again as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.copy.parts import Part
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.backfill.batches_between import batches_between
from slotlake.infra.backfill.report import TableBackfilled, reports_of
from slotlake.infra.copy.copying import Attempt, Filling
from slotlake.infra.copy.described import Described
from slotlake.infra.copy.forward import distinct_keys, named_keys, too_many
from slotlake.infra.copy.record import CopyRecord
from slotlake.infra.copy.tables import InPlace, TableCopies, clear_ranges
from slotlake.infra.selection.aside import tables_aside
from slotlake.infra.state.verified import copied_since, read_verified
from slotlake.infra.sync.nonblocking import at_nonblocking_snapshot
from slotlake.infra.sync.schema.large_tables import replaced_in_place

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.copy.replacement import Replacement

BYTES_MIN = 16 << 20  # what is smaller is read in less than a second, and batches may wait for that
_HOW: Final = InPlace("backfilling")


def suits(pipeline: OpenPipeline, tables: Sequence[SourceTable]) -> bool:
    """Return whether these tables can be read while batches go on, and are worth it."""
    aside = tables_aside(pipeline.lake)
    if any((table.schema, table.table) in aside for table in tables):
        return False
    sizes: dict[SourceTable, int] = {}

    def is_wanted(table: SourceTable, parts: Sequence[Part]) -> bool:
        sizes[table] = sum(part.bytes for part in parts)
        return True

    suited = replaced_in_place(pipeline.lake, pipeline.source, tables, is_wanted)
    return len(suited) == len(tables) and sum(sizes.values()) >= BYTES_MIN


class _ByBatches(Attempt):
    """Ranges that are brought forward by the batches of the change log: the slot was confirmed meanwhile."""

    def changed(
        self, pipeline: OpenPipeline, lsn: int, rows: Mapping[SourceTable, int], progress: Progressing
    ) -> Mapping[SourceTable, pa.Table | None]:
        """The keys that batches named since the first snapshot."""
        chain = batches_between(pipeline, self.first, lsn)
        verified = read_verified(pipeline.file.state_dir)
        changed: dict[SourceTable, pa.Table | None] = {}
        for table, count in rows.items():
            keys = [named_keys(batch, table) for batch in chain or ()]
            known = distinct_keys([each for each in keys if each is not None])
            is_lost = chain is None or None in keys or copied_since(verified, table.quoted, self.first)
            changed[table] = None if is_lost or too_many(known, count) else known
            if changed[table] is None:
                progress(f"copy {table.quoted}: changed meanwhile, so it is read again, and batches wait", 0)
        return changed


@dataclass
class WholeTables:
    """A backfill of whole tables whose first LSN the lake has reached.

    Attributes:
        snapshot: the source's snapshot, under which all rows are read.
        described: the tables as they were there.
        reports: what was read.
    """

    pipeline: OpenPipeline
    snapshot: ExportedSnapshot
    described: Described
    reports: list[TableBackfilled] = field(default_factory=list)
    _is_read: bool = False

    @classmethod
    def begin(
        cls,
        pipeline: OpenPipeline,
        tables: Sequence[SourceTable],
        snapshot: ExportedSnapshot,
        resources: ExitStack,
    ) -> WholeTables:
        """Make places for the rows; under the pipeline's lock.

        Args:
            pipeline: the pipeline, whose lake stands at the snapshot's LSN.
            tables: published tables that suit.
            resources: removes what was read.
        """
        whole = cls(pipeline, snapshot, Described.at(pipeline, snapshot, tables))
        for error in whole.described.errors.values():
            raise error
        whole._clear()
        resources.callback(whole._clear)
        whole._place().begin(whole.described.schemas.values())
        return whole

    def read(self, progress: Progressing) -> None:
        """Read all rows, without the lock."""
        attempt = _ByBatches(self._record, self.snapshot.lsn, finishes=False)
        inputs = self._place(), self.described, self.snapshot, progress, attempt
        _, states = Filling(self.pipeline).fill_tables(*inputs)
        states.forget()
        self._is_read = not self.described.errors

    def publish(self, wait_seconds: float, progress: Progressing) -> int | None:
        """Stage the rows, those that changed meanwhile as they are now, and publish them; under the lock.

        Args:
            wait_seconds: how long transactions may stay open if a slot's snapshot must be used.

        Returns:
            The LSN; None if the tables must be read again: nothing was published.

        Raises:
            LakeError: Spark failed, or the lake was changed meanwhile; nothing was published.
        """
        with at_nonblocking_snapshot(self.pipeline, wait_seconds, progress) as later:
            tables, attempt = list(self.described.schemas), _ByBatches(self._record, self.snapshot.lsn)
            try:
                if self._is_read and self._are_in_lake():
                    copied = TableCopies(self.pipeline).copy_in_place(tables, later, progress, _HOW, attempt)
                    if len(copied.copies) == len(tables):
                        self.reports = reports_of(copied.copies)
                        return later.lsn
            except ChangedMeanwhileError:
                pass
        progress("tables were changed meanwhile: reading them again, and batches wait", 0)
        return None

    def _are_in_lake(self) -> bool:
        from slotlake.spark.read.point import ReadPoint

        present = {mirror.source_name for mirror in ReadPoint.latest(self.pipeline.lake).followed()}
        return present >= {schema.source_name for schema in self.described.schemas.values()}

    @property
    def _record(self) -> CopyRecord:
        return CopyRecord(self.pipeline.file.state_dir / _HOW.purpose)

    def _place(self) -> Replacement:
        return TableCopies(self.pipeline).replacement(list(self.described.schemas), self.snapshot.lsn, _HOW)

    def _clear(self) -> None:
        clear_ranges(self.pipeline.lake, self.described.schemas.values(), _HOW)
        self._record.forget()
