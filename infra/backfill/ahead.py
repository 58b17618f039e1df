"""Read whole tables while batches go on, and publish them where the lake is then.

The lake is brought to the LSN L of a snapshot under the lock.  All rows are read under that snapshot without
it.  Under the lock again, the lake is brought to a second snapshot, at P.  Let K be the keys that the batches
between L and P name, old keys and new ones.  A row whose key is not in K is the same in both snapshots. So
the tables at P are what was read, without the rows with a key in K, and the rows with a key in K as the
second snapshot shows them (as in `infra.copy.forward`, whose conditions hold here too).

Invariant: the tables are published at P, exactly as the second snapshot shows them; or nothing is published,
and the caller reads them again under the lock.  That is so if a table was altered, rewritten, truncated,
copied or set aside meanwhile, if too many rows were changed, or if the change log lacks a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import pyarrow as pa

from slotlake.decoder.catalog.fingerprints import TableFingerprint
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.copy.parts import Part, whole_part
from slotlake.decoder.copy.table import CopiedFile, CopyCrew, CopyJob
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.advance.nonblocking import at_nonblocking_snapshot
from slotlake.infra.backfill.batches_between import batches_between
from slotlake.infra.backfill.publishing import backfill_point
from slotlake.infra.backfill.report import TableBackfilled
from slotlake.infra.copy.described import require_as_copied, schemas_at
from slotlake.infra.copy.forward import distinct_keys, key_condition, named_keys, too_many
from slotlake.infra.copy.tables import copy_into
from slotlake.infra.journal.verified import copied_since, note_copied, read_verified
from slotlake.infra.schema.large_tables import replaced_in_place
from slotlake.infra.selection.aside import tables_aside
from slotlake.infra.selection.types import refuse_lossy_copy
from slotlake.spark.exchange import make_directory

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.copy.replace_ranged import RangedReplacement
    from slotlake.spark.names import LakeName
    from slotlake.spark.publish.place import CopyTarget
    from slotlake.spark.tables.schema import TableSchema

BYTES_MIN = 16 << 20  # what is smaller is read in less than a second, and batches may wait for that
_KEYS_PER_QUERY = 100_000
_PURPOSE = "backfilling"


def suits(pipeline: OpenPipeline, tables: Sequence[SourceTable]) -> bool:
    """Return whether these tables can be read while batches go on, and are worth it.

    Args:
        pipeline: the pipeline, with its source and lake.
    """
    aside = tables_aside(pipeline)
    if any((table.schema, table.table) in aside for table in tables):
        return False
    sizes: dict[SourceTable, int] = {}

    def is_wanted(table: SourceTable, parts: Sequence[Part]) -> bool:
        sizes[table] = sum(part.bytes for part in parts)
        return True

    suited = replaced_in_place(pipeline, tables, is_wanted)
    return len(suited) == len(tables) and sum(sizes.values()) >= BYTES_MIN


@dataclass
class WholeTables:
    """A backfill of whole tables whose first LSN the lake has reached.

    Attributes:
        snapshot: the source's snapshot, under which all rows are read.
        schemas, fingerprints: what the tables were there.
        reports: what was read.
    """

    pipeline: OpenPipeline
    snapshot: ExportedSnapshot
    schemas: Mapping[SourceTable, TableSchema]
    fingerprints: Mapping[int, TableFingerprint]
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
        schemas, fingerprints = schemas_at(pipeline, snapshot, tables)
        whole = cls(pipeline, snapshot, schemas, fingerprints)
        whole._clear()
        resources.callback(whole._clear)
        whole._place(snapshot.lsn).begin(schemas.values())
        return whole

    def read(self, progress: Progressing) -> None:
        """Read all rows; without the lock.

        Args:
            progress: called with the rows so far.
        """
        place = self._place(self.snapshot.lsn)
        for table, schema in self.schemas.items():
            try:
                files = copy_into(self.pipeline, table, self.snapshot, place.target(schema), progress)
            except ChangedMeanwhileError:
                return
            rows = sum(file.rows for file in files)
            names = f"{table.schema}.{table.table}", str(self._lake_name(schema))
            self.reports.append(TableBackfilled(*names, rows))
        self._is_read = True

    def publish(self, wait_seconds: float, progress: Progressing) -> int | None:
        """Stage the rows, those that changed meanwhile as they are now, and publish them; under the lock.

        Args:
            wait_seconds: how long transactions may stay open if a slot's snapshot must be used.
            progress: called with a line for each longer step.

        Returns:
            The LSN; None if the tables must be read again: nothing was published.

        Raises:
            LakeError: Spark failed, or the lake was changed meanwhile; nothing was published.
        """
        with at_nonblocking_snapshot(self.pipeline, wait_seconds, progress) as later:
            stale = self._stale(later.lsn) if self._is_read else None
            try:
                if stale is not None:
                    self._publish_at(later, stale, progress)
                    return later.lsn
            except ChangedMeanwhileError:
                pass
        progress("tables were changed meanwhile: reading them again, and batches wait", 0)
        self.reports.clear()
        return None

    def _publish_at(
        self, later: ExportedSnapshot, stale: Mapping[SourceTable, pa.Table], progress: Progressing
    ) -> None:
        require_as_copied(self.pipeline, self.schemas, self.fingerprints)
        place = self._place(later.lsn)
        place.begin(self.schemas.values())
        for table, keys in stale.items():
            schema = self.schemas[table]
            progress(f"copy {table.quoted}: rows that changed meanwhile", keys.num_rows)
            self._read_again(table, place.target(schema), keys, later)
        require_as_copied(self.pipeline, self.schemas, self.fingerprints)
        for number, (table, keys) in enumerate(stale.items()):
            rows = place.register(self.schemas[table], keys if keys.num_rows else None)
            self.reports[number] = replace(self.reports[number], rows=rows)
        reach("backfill.staged")
        names = [schema.source_name for schema in self.schemas.values()]
        note_copied(self.pipeline.file.state_dir, names, later.lsn)
        place.publish(names)

    def _stale(self, position: int) -> dict[SourceTable, pa.Table] | None:
        """The keys that were changed meanwhile, by table; None if they cannot be said, or are too many."""
        from slotlake.spark.read.point import ReadPoint

        chain = batches_between(self.pipeline, self.snapshot.lsn, position)
        if chain is None:
            return None
        verified, aside = read_verified(self.pipeline.file.state_dir), tables_aside(self.pipeline)
        present = {mirror.source_name for mirror in ReadPoint.latest(self.pipeline.lake).tables()}
        stale: dict[SourceTable, pa.Table] = {}
        for report, (table, schema) in zip(self.reports, self.schemas.items(), strict=True):
            keys = [named_keys(batch, table) for batch in chain]
            known = [each for each in keys if each is not None]
            merged = distinct_keys(known)
            if (
                len(known) < len(keys)
                or too_many(merged, report.rows)
                or (table.schema, table.table) in aside
                or schema.source_name not in present
                or copied_since(verified, schema.source_name, self.snapshot.lsn)
            ):
                return None
            stale[table] = merged
        return stale

    def _read_again(
        self, table: SourceTable, target: CopyTarget, keys: pa.Table, later: ExportedSnapshot
    ) -> None:
        """Read the rows with these keys as the later snapshot shows them."""
        if not keys.num_rows:
            return
        again = target.again
        make_directory(again.directory)
        dsn = self.pipeline.source.dsn
        with source_session(dsn, "planning the copy") as connection:
            conditions = [
                key_condition(connection, table, keys.slice(at, _KEYS_PER_QUERY))
                for at in range(0, keys.num_rows, _KEYS_PER_QUERY)
            ]
        jobs = [
            CopyJob(table, again, whole_part(table), f"again-{number:05d}", condition)
            for number, condition in enumerate(conditions)
        ]
        files: dict[CopyJob, list[CopiedFile]] = {}
        workers = self.pipeline.file.copy_workers
        with CopyCrew(dsn, later.snapshot, jobs, workers=workers, done=files.__setitem__) as crew:
            crew.wait(jobs)
        read = [file for job in jobs for file in files.get(job, ())]
        refuse_lossy_copy(self.pipeline, table, later, read)

    def _place(self, lsn: int) -> RangedReplacement:
        from slotlake.spark.copy.replace_ranged import RangedReplacement

        point = backfill_point(self.pipeline, lsn, list(self.schemas), 0)
        return RangedReplacement(
            self.pipeline.session, self.pipeline.lake, point, lambda schema: schema, _PURPOSE
        )

    def _lake_name(self, schema: TableSchema) -> LakeName:
        return schema.lake_name(self.pipeline.lake.namespace)

    def _clear(self) -> None:
        from slotlake.spark.copy.replace_ranged import remove_ranges

        names = [self._lake_name(schema) for schema in self.schemas.values()]
        remove_ranges(self.pipeline.lake, names, _PURPOSE)
