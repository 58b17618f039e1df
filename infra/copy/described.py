"""Tables as a snapshot shows them, and what happens to them while they are copied.

A snapshot does not keep a table from being altered or rewritten, and a copy that is read after that is not
what the snapshot shows (`infra.source.fingerprints.changes_since`).  What happens to a table once all of its
rows are read does not matter: the stream has that.  So a table is looked at as soon as it is read.

Invariant: one table that changes costs the copies of the others nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.fingerprints import TableFingerprint
from slotlake.decoder.catalog.publication_tables import UNREAD_FILTER
from slotlake.decoder.catalog.publications import SourceTable, source_tables
from slotlake.decoder.catalog.vanished import VanishedError, vanished
from slotlake.decoder.copy.table import CopyJob
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.server.privileges import require_readable
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.infra.selection.aside import Errors, leave_out, require_columns
from slotlake.infra.selection.tables import SelectedTable, lake_schema
from slotlake.infra.source.fingerprints import (
    changed_error,
    changes_since,
    fingerprints_at,
    with_fingerprint,
)
from slotlake.infra.source.partitions import partition_changes, partitions_at

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.tables.schema import TableSchema

_LOOK_SECONDS = 0.2


@dataclass(frozen=True)
class Described:
    """Tables that are copied together, as the snapshot shows them.

    Attributes:
        schemas: source table → the lake table that it becomes.
        fingerprints: OID → what the catalog says of it at the snapshot.
        errors: tables that are left out, and why.
        unchanged: tables that were still as described once all of their rows were read.
    """

    pipeline: OpenPipeline
    schemas: Mapping[SourceTable, TableSchema]
    fingerprints: Mapping[int, TableFingerprint]
    errors: Errors
    unchanged: set[SourceTable] = field(default_factory=set)

    @classmethod
    def at(
        cls, pipeline: OpenPipeline, snapshot: ExportedSnapshot, tables: Sequence[SourceTable]
    ) -> Described:
        """Describe tables without those that are published otherwise by now than ``tables`` say.

        Args:
            snapshot: the snapshot under which they are copied.

        Raises:
            SourceError: the role may not read one of them whole, or one has no column.
            ChangedMeanwhileError: a table that changed is to stop all.
        """
        dsn = pipeline.source.dsn
        require_columns(tables)
        with source_session(dsn, "looking at privileges") as connection:
            require_readable(connection, {t.relation_id: [c.name for c in t.columns] for t in tables})
        partitions = partitions_at(pipeline.source, snapshot.snapshot, tables)
        fingerprints = fingerprints_at(
            pipeline.source, [table.relation_id for table in tables], snapshot.snapshot
        )
        errors: Errors = {}
        for table in _otherwise_published(pipeline.source, tables):
            what = "the table was altered, renamed or dropped before its copy began"
            leave_out(pipeline.file, errors, table, changed_error(table, what))
        schemas = {
            table: with_fingerprint(
                replace(lake_schema(table), partitions=partitions[table]), fingerprints.get(table.relation_id)
            )
            for table in tables
            if table not in errors
        }
        return cls(pipeline, schemas, fingerprints, errors)

    def look(self, tables: Collection[SourceTable]) -> None:
        """Note which of these tables, of which all rows are read, are still as described."""
        self.unchanged.update(set(tables) - self._changes(tables).keys())

    def remaining(self) -> dict[SourceTable, TableSchema]:
        """Return the tables without those that were dropped, or changed before all of their rows were read.

        Those that were altered, rewritten, or of which a partition was rewritten, attached or detached, are
        added to ``errors``; those that were dropped are not.

        Raises:
            ChangedMeanwhileError: such a table is to stop all.
        """
        ids = [table.relation_id for table in (*self.schemas, *self.errors)]
        dropped = vanished(self.pipeline.source.dsn, ids)
        present = {table for table in self.schemas if table.relation_id not in dropped}
        changes = self._changes(present - self.unchanged)
        gone = {table for table, error in changes.items() if isinstance(error, VanishedError)}
        for table in [table for table in self.errors if table.relation_id in dropped or table in gone]:
            del self.errors[table]
        for table, error in (changes | self._renamed()).items():
            if table not in gone:  # what the server refused meanwhile is explained by it
                self.errors.pop(table, None)
                leave_out(self.pipeline.file, self.errors, table, error)
        left = present - gone - self.errors.keys()
        return {table: schema for table, schema in self.schemas.items() if table in left}

    def _renamed(self) -> dict[SourceTable, ChangedMeanwhileError]:
        """Those of the tables left out that have another name by now."""
        now = fingerprints_at(self.pipeline.source, [table.relation_id for table in self.errors], None)
        return {
            table: changed_error(table, "the table was renamed while it was copied")
            for table in self.errors
            if (each := now.get(table.relation_id)) is not None
            and (each.schema, each.table) != (table.schema, table.table)
        }

    def _changes(self, tables: Collection[SourceTable]) -> dict[SourceTable, ChangedMeanwhileError]:
        if not tables:
            return {}
        ids = {table.relation_id for table in tables}
        fingerprints = {oid: each for oid, each in self.fingerprints.items() if oid in ids}
        partitions = {table: self.schemas[table].partitions for table in tables}
        return partition_changes(self.pipeline.source, partitions) | changes_since(
            self.pipeline.source, fingerprints, tables
        )


class Looks:
    """Looks at tables when all of their jobs are done, at most some times a second.

    Args:
        described: the tables.
        jobs: all that is read of them.
    """

    def __init__(self, described: Described, jobs: Iterable[CopyJob]) -> None:
        self._described = described
        self._unread: dict[SourceTable, set[CopyJob]] = {}
        for job in jobs:
            self._unread.setdefault(job.table, set()).add(job)
        self._read: set[SourceTable] = set()
        self._lock = threading.Lock()
        self._last = time.monotonic()

    def done(self, job: CopyJob) -> None:
        """Note that a job is done; called in any thread."""
        with self._lock:
            self._unread[job.table].discard(job)
            if not self._unread[job.table]:
                self._read.add(job.table)
            if not self._read or time.monotonic() - self._last < _LOOK_SECONDS:
                return
            tables, self._read = self._read, set()
        self._described.look(tables)
        self._last = time.monotonic()


def _otherwise_published(source: SourceSettings, tables: Sequence[SourceTable]) -> list[SourceTable]:
    """The tables that are not published any more as these say, which were read before the snapshot was made.

    What changes later is seen when the copy is done (`Described.remaining`).
    """
    names = {(table.schema, table.table) for table in tables}
    with source_session(source.dsn, "reading the publications") as connection:
        now = {table.relation_id: table for table in source_tables(connection, source.publications, names)}
    return [table for table in tables if not _is_same(table, now.get(table.relation_id))]


def _is_same(table: SourceTable, now: SourceTable | None) -> bool:
    """Return whether a copy has the same columns and rows; the filter of a table that is locked is unread."""
    if now is None or (table.schema, table.table, table.kind) != (now.schema, now.table, now.kind):
        return False
    if isinstance(table, SelectedTable) and table.selection:
        return set(table.columns) <= set(now.columns)
    same_rows = table.row_filter == now.row_filter or UNREAD_FILTER in {table.row_filter, now.row_filter}
    return same_rows and table.columns == now.columns
