"""Copy tables again that are set aside: each under a snapshot, and published whole at one LSN.

Every sync looks whether the cause may have ended, by the source's catalog: something of the table changed
there, or a while has passed, which is longer after each try that failed.  A refusal that the pipeline file
asks for (`on_conflict`, `on_lossy`: fail) ends when the file does not ask for it any more.  `slotlake resume`
does not wait for any of this.  A table that is locked, or not published any more, is left as it is.

A sync begins such copies for a bounded time (`source.copy_seconds_per_sync`), and waits once for open
transactions.  A large table is copied over several syncs (`infra.sync.recopying`).

Invariant: the swap that publishes the copy removes the table's record (spark/publish/aside.py), so it is
followed from exactly there on; a try that fails changes nothing but the record.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable, published_names
from slotlake.decoder.errors import (
    LakeError,
    LockedError,
    PipelineFileError,
    SlotError,
    SlotlakeError,
    SourceError,
)
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import redact, source_session
from slotlake.infra.config.of_tables import on_conflict
from slotlake.infra.config.table_names import by_name
from slotlake.infra.copy.tables import published_tables
from slotlake.infra.reports import ResumeReport
from slotlake.infra.selection.aside import require_columns, tables_aside
from slotlake.infra.selection.file_tables import command
from slotlake.infra.selection.types import on_lossy
from slotlake.infra.source.fingerprints import CatalogFingerprint, fingerprints_at
from slotlake.infra.sync.batch_steps import BatchSteps
from slotlake.infra.sync.over_syncs import TimeBudget
from slotlake.infra.sync.reading_again import WholeTablesAgain
from slotlake.infra.sync.recopying import RecopiedTables, lake_row_count
from slotlake.infra.sync.schema import large_tables
from slotlake.spark.names import lake_table, parse_postgres_name, postgres_name
from slotlake.spark.publish.lives import Event

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.publish.aside import Aside, Name

WAIT_SECONDS = 10.0
_NAMES = 'name it as PostgreSQL writes it: public.orders, "Odd Schema"."Odd Name"'
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 60.0, 86400.0
_TRIES_AT_ONCE = 3
_LAST_TRY = "; when it was copied again last: "

_CATALOG_STATE = """
SELECT c.oid::bigint, coalesce(c.relacl::text, ''), c.relreplident::text,
       has_schema_privilege(c.relnamespace, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), EXISTS (
           SELECT FROM pg_locks l WHERE l.relation = c.oid AND l.granted AND l.mode = 'AccessExclusiveLock'
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())),
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                 AND a.attgenerated = '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


@dataclass(frozen=True)
class _CatalogState:
    """What the source's catalog says of a table now.

    Attributes:
        locked: somebody has a lock on it with which nobody can read it.
        columns: it has at least one column.
        needs_slot: it is read under a snapshot for which all open transactions must end: the lake has nothing
            of it, or it is published by something else than when the lake's content was read.
        fingerprint: hash of all of it, and of what the pipeline file says of the table.
    """

    locked: bool
    columns: bool
    needs_slot: bool
    fingerprint: str


@dataclass(frozen=True)
class _LargeTable:
    """A table that is copied again over several syncs."""

    aside: Aside
    state: _CatalogState
    table: SourceTable


class TablesAside:
    """Tables that are set aside, copied again when they may be followed again."""

    def __init__(self, pipeline: OpenPipeline) -> None:
        self._pipeline = pipeline
        self._file, self._lake, self._source = pipeline.file, pipeline.lake, pipeline.source

    def bring_back(self, names: Collection[Name], progress: Progressing, seconds_max: float) -> list[str]:
        """Copy tables again that are set aside and may be followed again.

        Args:
            names: schema and name of tables that were set aside when the run began.
            seconds_max: no further table is begun after so long; the copy of large ones has its own time.

        Returns:
            The tables that are followed again, as PostgreSQL writes them.
        """
        resumed: list[str] = []
        left: list[str] = []
        large: dict[Name, _LargeTable] = {}
        budget, waited = TimeBudget(seconds_max), list[SlotError]()
        for entry, state in self._due_now(names):
            if (table := self._large_table_or_none(entry)) is not None:
                large[entry.name] = _LargeTable(entry, state, table)
                continue
            if (waited and state.needs_slot) or not budget.begins():
                left.append(entry.source_name)
                continue
            progress(f"{entry.source_name} was set aside: copied again", 0)
            with _ignoring_errors_of([entry.name]) as slot_errors:
                self._copy(entry, state, progress)
                resumed.append(entry.source_name)
            waited += slot_errors
        with _ignoring_errors_of(large):
            resumed += self._copy_ranges(large, progress)
        if left:
            why = f"others were copied for {seconds_max:g} s (source.copy_seconds_per_sync)"
            why = waited[0].what if waited else why
            progress(f"{len(left)} tables stay set aside until the next sync, from {left[0]} on: {why}", 0)
        return resumed

    def _due_now(self, names: Collection[Name]) -> Iterator[tuple[Aside, _CatalogState]]:
        """Yield those of these tables that may be followed again, with what the catalog says of them."""
        from slotlake.spark.publish.aside_write import forget

        for name, entry in tables_aside(self._lake).items() if names else ():
            if name not in names:
                continue
            state = self._catalog_state(entry)
            if state is None and entry.lsn is None:
                forget(self._lake, [name])  # it is gone, and the lake never had it
            if entry.joins:
                continue
            if state is not None and not state.locked and _is_due(self._file, entry, state):
                yield entry, state

    def resume(self, table: str, progress: Progressing) -> ResumeReport:
        """Copy a table again that is set aside, now.

        Args:
            table: the table, as PostgreSQL writes it.

        Raises:
            PipelineFileError: it is neither set aside nor followed.
            SourceError: it is not published any more; it stays set aside.
            SlotlakeError: it cannot be followed yet; it stays set aside.
        """
        started = time.monotonic()
        try:
            name = parse_postgres_name(table)
        except KeyError:
            raise PipelineFileError(
                f"{table!r} is not a table name", where="resume", way_out=_NAMES
            ) from None
        entry = tables_aside(self._lake).get(name)
        if entry is None:
            return self._report_of_followed(table, name)
        state = self._catalog_state(entry)
        if state is None:
            raise _unpublished(self._file, self._source, name, "it stays set aside")
        RecopiedTables(self._pipeline).give_up_stale(progress)
        report = self._resume(entry, state, progress)
        BatchSteps(self._pipeline).confirm_position()
        return replace(report, seconds=round(time.monotonic() - started, 3))

    def _report_of_followed(self, table: str, name: Name) -> ResumeReport:
        """The report on a table that is not set aside.

        Raises:
            PipelineFileError: the lake does not have it.
            SourceError: it is not published any more.
        """
        from slotlake.spark.read.point import ReadPoint

        if name not in {(mirror.schema, mirror.table) for mirror in ReadPoint.latest(self._lake).tables()}:
            listed = ", ".join(entry.source_name for entry in tables_aside(self._lake).values()) or "none"
            raise PipelineFileError(
                f"the lake has no table {table}",
                where="resume",
                way_out=f"name a table that is set aside: {listed}",
            )
        with source_session(self._source.dsn, "looking at the publications") as connection:
            if name not in published_names(connection, self._source.publications):
                raise _unpublished(self._file, self._source, name, "the lake's table stays as it was")
        return replace(
            _new_report(self._lake.namespace, name, format_lsn(self._pipeline.position())),
            already=True,
        )

    def _resume(self, entry: Aside, state: _CatalogState, progress: Progressing) -> ResumeReport:
        """Copy a table that is set aside: whole, or as many ranges of a large one as there is time for."""
        table = self._large_table_or_none(entry)
        if table is None:
            lsn, rows = self._copy(entry, state, progress)
            return replace(_new_report(self._lake.namespace, entry.name, format_lsn(lsn)), rows=rows)
        is_whole = bool(self._copy_ranges({entry.name: _LargeTable(entry, state, table)}, progress))
        report = _new_report(self._lake.namespace, entry.name, format_lsn(self._pipeline.position()))
        if is_whole:
            return replace(report, rows=lake_row_count(self._lake, entry.name))
        return replace(
            report, copying=RecopiedTables(self._pipeline).progress_by_table().get(report.table, "0 ranges")
        )

    def _copy(self, entry: Aside, state: _CatalogState, progress: Progressing) -> tuple[int, int]:
        """Copy a table and publish it; return the LSN and its rows. An error of the table is recorded."""
        try:
            table = self._published_table(entry.name)
            lsn, copies = WholeTablesAgain(self._pipeline).read_again(
                [table], WAIT_SECONDS, progress, at_slot=state.needs_slot
            )
            return lsn, sum(copy.rows for copy in copies)
        except SlotlakeError as error:
            own = _explained_by_files(self._lake, entry.name, error)
            if own.table == entry.name:
                _note_failed(self._lake, self._pipeline.name, entry, state, own)
            raise own from error

    def _large_table_or_none(self, entry: Aside) -> SourceTable | None:
        """The table if it is large, so that it is copied over several syncs; else None."""
        try:
            large = large_tables.large(self._pipeline, [self._published_table(entry.name)])
        except SlotlakeError as error:
            if error.table != entry.name:
                raise
            return None  # to copy it in one piece meets the same, and notes it
        return large[0] if large else None

    def _copy_ranges(self, large: Mapping[Name, _LargeTable], progress: Progressing) -> list[str]:
        """Copy more ranges of these tables; return those that are whole, and followed again."""
        if not large:
            return []
        lake, name, tables = self._lake, self._pipeline.name, [each.table for each in large.values()]
        begun = [each.aside for each in large.values() if each.aside.cause != "again"]
        large_tables.record_copied_over_syncs(lake, name, begun)
        try:
            resumed = RecopiedTables(self._pipeline).copy_more(tables, progress)
        except SlotlakeError as error:
            failed = large.get(error.table) if error.table is not None else None
            if failed is not None:
                _note_failed(lake, name, replace(failed.aside, cause="again"), failed.state, error)
            raise
        mended = [each.aside for each in large.values() if each.aside.cause == "again" and each.aside.tries]
        still_set_aside = [entry for entry in mended if entry.source_name not in resumed]
        large_tables.record_copied_over_syncs(lake, name, still_set_aside)
        return resumed

    def _published_table(self, name: Name) -> SourceTable:
        tables = published_tables(self._pipeline, to_read=False, include_aside=[name])
        chosen = next((table for table in tables if (table.schema, table.table) == name), None)
        if chosen is None:
            raise SourceError(
                f"the table {postgres_name(*name)} is not published any more",
                where=redact(self._source.dsn),
                way_out="ALTER PUBLICATION … ADD TABLE, then resume it",
            ).of(*name)
        require_columns([chosen])
        return chosen

    def _catalog_state(self, entry: Aside) -> _CatalogState | None:
        """Ask the source's catalog about a table; None if the table is not published now."""
        source = self._source
        with source_session(source.dsn, "looking at a table set aside") as connection:
            if entry.name not in published_names(connection, source.publications):
                return None
            row = connection.execute(_CATALOG_STATE, entry.name).fetchone()
        if row is None:
            return None
        oid, *rights, locked, columns = row
        fingerprint = fingerprints_at(self._source, [oid], None).get(oid)
        text = repr((oid, rights, fingerprint, _section_text(self._file, entry.name))).encode()
        before = _members_at_copy(self._lake, entry)
        members = frozenset() if fingerprint is None else fingerprint.members
        needs_slot = before != (oid, members) or entry.lsn is None
        return _CatalogState(locked, columns, needs_slot, hashlib.sha256(text).hexdigest())


@contextmanager
def _ignoring_errors_of(names: Collection[Name]) -> Iterator[list[SlotError]]:
    """Ignore errors of these tables, which are theirs alone, and errors of the slot that waiting mends.

    Yields:
        A list that takes an error of the slot: transactions that are open did not end in time.
    """
    waited: list[SlotError] = []
    try:
        yield waited
    except SlotError as error:
        if not error.retryable:
            raise
        waited.append(error)
    except SlotlakeError as error:
        if error.table not in names:
            raise


def _unpublished(file: PipelineFile, source: SourceSettings, name: Name, stays: str) -> SourceError:
    table = postgres_name(*name)
    return SourceError(
        f"the table {table} is not published any more; {stays}",
        where=f"publications {', '.join(source.publications)}",
        way_out=f"publish it again ({command(file, 'add', name)}), or drop its lake table if nobody reads it",
    ).of(*name)


def _new_report(namespace: str, name: Name, lsn: str) -> ResumeReport:
    return ResumeReport(postgres_name(*name), str(lake_table(namespace, *name)), lsn)


def _explained_by_files(lake: LakeSettings, name: Name, error: SlotlakeError) -> SlotlakeError:
    """The error, or what is wrong with the files of the table and of what is kept beside it."""
    from slotlake.spark.catalog.base import load_all
    from slotlake.spark.catalog.open import open_catalog
    from slotlake.spark.maintenance.unreadable import damage_behind
    from slotlake.spark.publish.derived_tables import with_derived_names

    if not isinstance(error, LakeError) or error.table is not None:
        return error
    with open_catalog(lake) as catalog:
        names = catalog.pointers_of(with_derived_names([lake_table(lake.namespace, *name)]))
        tables = load_all(catalog, sorted(names))
    return damage_behind(error, list(tables.values()), name) or error


def _note_failed(
    lake: LakeSettings, name: str, entry: Aside, state: _CatalogState, error: SlotlakeError
) -> None:
    from slotlake.spark.publish.aside_write import write

    if not error.retryable or isinstance(error, LockedError):
        now = datetime.now(UTC).isoformat(timespec="seconds")
        failed = replace(entry, what=error.what, where=error.where, way_out=error.way_out)
        if entry.cause == "absent":  # to bring it back remains the way out
            what = f"{entry.what.split(_LAST_TRY)[0]}{_LAST_TRY}{error.what}"
            failed = replace(entry, what=what, where=error.where)
        record = replace(failed, tries=entry.tries + 1, tried=now, seen=state.fingerprint)
        write(lake, name, [record], Event.TRIED)


def _section_text(file: PipelineFile, name: Name) -> str:
    """What the pipeline file says of a table. Leaving out a column may let the table be followed again."""
    section = by_name(file.tables).get(name)
    return "" if section is None else section.model_dump_json()


def _members_at_copy(lake: LakeSettings, entry: Aside) -> tuple[int, Collection[str]] | None:
    from slotlake.spark.read.point import ReadPoint

    for table in ReadPoint.latest(lake).tables():
        if (table.schema, table.table) == entry.name and (
            fingerprint := CatalogFingerprint.from_json(table.fingerprint)
        ) is not None:
            return fingerprint.relation_id, fingerprint.members
    return None


def _is_due(file: PipelineFile, entry: Aside, state: _CatalogState) -> bool:
    if entry.cause == "on_conflict":
        return on_conflict(file).of(*entry.name) != "fail"
    if entry.cause == "on_lossy":
        return not on_lossy(file).may_fail(*entry.name)
    if not state.columns:
        return False
    if state.fingerprint != entry.seen or entry.tries < _TRIES_AT_ONCE:
        return True
    pause = min(_FIRST_PAUSE_SECONDS * 2 ** min(entry.tries - _TRIES_AT_ONCE, 32), _PAUSE_SECONDS_MAX)
    return datetime.now(UTC) - datetime.fromisoformat(entry.tried) >= timedelta(seconds=pause)
