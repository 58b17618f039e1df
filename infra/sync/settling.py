"""The snapshot under which a table begins to be copied while transactions are open.

A transaction that wrote to a table before that was published may commit later: it is not sent whole, so the
snapshot must show it.  A slot's snapshot waits for everybody.  Here only those are waited for that may have
written to the table: who has a lock for that once the table is seen to be published
(`decoder.slots.writers`).  Who comes later writes behind the publication's commit, and is sent.  They are
noted; a sync that finds one of them still open leaves the table to the next, without waiting.  A table that
was made when all tables were published already has no such writers.

Invariant: `settled_snapshot` yields a snapshot at the lake's position, and the tables that may begin under
it.  Where none can be judged (`infra.sync.nonblocking`) it is a slot's, for which the same transactions
are waited for once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import SlotError
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.decoder.slots.visible import VisibleTransactions
from slotlake.decoder.slots.writers import Membership, memberships, open_writers, publications_text
from slotlake.infra.state.notes import SETTLING, Note, StateFile
from slotlake.infra.sync.at_lsn import Advance
from slotlake.infra.sync.nonblocking import enter_nonblocking_snapshot
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing

SLOT_WAIT_SECONDS = 10.0
WRITERS_WAIT_SECONDS = 0.5
_AGAIN_SECONDS = 60.0  # on a standby nobody says which transactions are open
_POLL_SECONDS = 0.05
_State = dict[str, Any]


@contextmanager
def settled_snapshot(
    pipeline: OpenPipeline,
    tables: Sequence[SourceTable],
    slot_wait_seconds: float,
    progress: Progressing,
    settling: Note = SETTLING,
) -> Iterator[tuple[ExportedSnapshot, list[SourceTable]] | None]:
    """Bring the lake to a snapshot, and yield it with the tables that may begin, or end, under it.

    Args:
        pipeline: a pipeline whose lake has its tables.
        slot_wait_seconds: how long transactions may stay open if a slot's snapshot must be used.
        progress: called with a line for each table that waits.
        settling: the note of the transactions that they wait for.

    Yields:
        The snapshot and the tables; None if there is none now.
    """
    note = _WaitingNote(pipeline, settling)
    settled_tables = note.without_writers(tables, progress)
    with ExitStack() as resources:
        snapshot = enter_nonblocking_snapshot(pipeline, progress, resources) if settled_tables else None
        if snapshot is not None:
            unchanged = note.published_as_before(pipeline, snapshot, settled_tables)
            yield snapshot, [table for table in tables if table in unchanged]
            return
        if (settled_tables or not note.judges) and note.may_wait_for_slot():
            waited = _slot_snapshot_or_none(pipeline, slot_wait_seconds, progress, resources, note)
            if waited is not None:
                yield waited, list(tables)
                return
        yield None


def _slot_snapshot_or_none(
    pipeline: OpenPipeline, seconds: float, progress: Progressing, resources: ExitStack, note: _WaitingNote
) -> ExportedSnapshot | None:
    try:
        return resources.enter_context(Advance(pipeline).at_slot_snapshot(seconds, progress))
    except SlotError as error:
        if not error.retryable:
            raise
        note.note_slot_failed()
        return None


def open_writers_by_table(state_dir: Path, settling: Note = SETTLING) -> dict[str, str]:
    """Return table, as PostgreSQL writes it → the transactions for which it waits before it can begin."""
    entries = _read(settling.of(state_dir))["tables"].values()
    return {entry["table"]: ", ".join(entry["open"]) for entry in entries if entry["open"]}


def note_publications(pipeline: OpenPipeline, fresh: Sequence[SourceTable]) -> None:
    """Note how the publications are, for tables that are made later; forget tables that join no more."""
    note = _WaitingNote(pipeline)
    if note.forget_others(fresh) or not note.knows_publications:
        note.note_publications()


class _WaitingNote:
    """What is known from sync to sync about open transactions, in a file; it only saves waiting.

    Attributes:
        judges: the server can say who writes to a table.
    """

    def __init__(self, pipeline: OpenPipeline, settling: Note = SETTLING) -> None:
        self._pipeline, self._file = pipeline, settling.of(pipeline.file.state_dir)
        self._state = _read(self._file)
        self._memberships: Mapping[int, Membership] = {}
        self.judges = pipeline.source.plugin == "pgoutput"

    def without_writers(self, tables: Sequence[SourceTable], progress: Progressing) -> set[SourceTable]:
        """The tables to which no open transaction wrote before they were published."""
        if not self.judges:
            return set()
        dsn = self._pipeline.source.dsn
        with source_session(dsn, "looking at who writes to a table") as connection:
            if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
                self.judges = False
            if not self.judges:
                return set()
            has_new_tables = self._note_writers(connection, tables)
            deadline = time.monotonic() + WRITERS_WAIT_SECONDS
            while has_new_tables and self._any_writer_open() and time.monotonic() < deadline:
                time.sleep(_POLL_SECONDS)
                self._drop_ended_writers(connection)
        self._write()
        settled_tables = {table for table in tables if self._has_no_writers(table)}
        for table in tables:
            if table not in settled_tables and table.relation_id in self._memberships:
                writers = ", ".join(self._state["tables"][str(table.relation_id)]["open"])
                progress(
                    f"copy {table.quoted}: waits for who wrote to it before it was published ({writers})", 0
                )
        return settled_tables

    def _note_writers(self, connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> bool:
        """Note who writes to the tables; return whether a table was looked at for the first time."""
        ids = [table.relation_id for table in tables]
        self._note_shown(connection)
        # First how they are published, as committed; then who holds them.
        self._memberships = memberships(connection, ids, self._pipeline.source.publications)
        writers, entries = open_writers(connection, ids), self._state["tables"]
        server, xmax = self._server(connection), VisibleTransactions.parse(_snapshot(connection)).xmax
        names = {table.relation_id: postgres_name(table.schema, table.table) for table in tables}
        has_new_writers = False
        for oid, membership in self._memberships.items():
            entry_before = entries.get(str(oid))
            if entry_before is None or (entry_before["how"], entry_before["server"]) != (
                membership.text,
                server,
            ):
                holders = [] if self._was_made_published(membership, xmax) else sorted(writers[oid])
                entry = {"table": names[oid], "how": membership.text, "server": server, "open": holders}
                entries[str(oid)] = entry
                has_new_writers |= bool(holders)
            else:
                entry_before["open"] = sorted(set(entry_before["open"]) & writers[oid])
        return has_new_writers

    def _note_shown(self, connection: psycopg.Connection[Any]) -> None:
        """Note which transactions had ended when the publications were first seen as they are."""
        publications = publications_text(connection, self._pipeline.source.publications)
        if self._state["publications"] != publications:
            self._state["publications"], self._state["shown"] = publications, _snapshot(connection)

    def _was_made_published(self, membership: Membership, xmax: int) -> bool:
        """Return whether the table was made after all tables were seen to be published."""
        shown = VisibleTransactions.parse(self._state["shown"])
        return (
            membership.by_all
            and membership.creator is not None
            and shown.ended_since(membership.creator, xmax)
        )

    def _server(self, connection: psycopg.Connection[Any]) -> str:
        row = connection.execute("SELECT pg_postmaster_start_time()::text").fetchone()
        return "" if row is None else str(row[0])

    def _any_writer_open(self) -> bool:
        return any(entry["open"] for entry in self._state["tables"].values())

    def _drop_ended_writers(self, connection: psycopg.Connection[Any]) -> None:
        now = open_writers(connection, self._memberships.keys())
        for oid in self._memberships:
            entry = self._state["tables"][str(oid)]
            entry["open"] = sorted(set(entry["open"]) & now[oid])

    def _has_no_writers(self, table: SourceTable) -> bool:
        oid = table.relation_id
        return oid in self._memberships and not self._state["tables"][str(oid)]["open"]

    def published_as_before(
        self, pipeline: OpenPipeline, snapshot: ExportedSnapshot, tables: set[SourceTable]
    ) -> set[SourceTable]:
        """The tables that the snapshot shows published as they were when their writers were looked for."""
        dsn, ids = pipeline.source.dsn, [table.relation_id for table in tables]
        with source_session(dsn, "taking up the snapshot") as connection:
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                taken = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.snapshot))
                connection.execute(taken)
                now = memberships(connection, ids, pipeline.source.publications)
            return {t for t in tables if now.get(t.relation_id) == self._memberships.get(t.relation_id)}

    def may_wait_for_slot(self) -> bool:
        """Return whether the transactions ended for which a slot was waited for in vain."""
        failed = self._state["failed"]
        if failed is None:
            return True
        waited, shown = failed["at"], VisibleTransactions.parse(failed["shown"])
        if failed["standby"]:
            return bool(time.time() - waited >= _AGAIN_SECONDS)
        dsn = self._pipeline.source.dsn
        with source_session(dsn, "looking for open transactions") as connection:
            now = VisibleTransactions.parse(_snapshot(connection))
        return all(now.shows(xid) for xid in shown.in_progress)

    def note_slot_failed(self) -> None:
        """Note the open transactions, for which a slot was waited for in vain."""
        dsn = self._pipeline.source.dsn
        with source_session(dsn, "looking for open transactions") as connection:
            standby = connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            self._state["failed"] = {"at": time.time(), "shown": _snapshot(connection), "standby": standby}
        self._write()

    @property
    def knows_publications(self) -> bool:
        return bool(self._state["publications"])

    def note_publications(self) -> None:
        """Note how the publications are now."""
        dsn = self._pipeline.source.dsn
        with source_session(dsn, "reading the publications") as connection:
            if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,):
                self._note_shown(connection)
        self._write()

    def forget_others(self, tables: Sequence[SourceTable]) -> bool:
        """Forget tables that are not among these; return whether there were some."""
        entries = self._state["tables"]
        others = entries.keys() - {str(table.relation_id) for table in tables}
        for other in others:
            del entries[other]
        return bool(others)

    def _write(self) -> None:
        with suppress(OSError):
            self._file.write(self._state)


def _snapshot(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    return str(row[0])


def _read(note: StateFile) -> _State:
    empty: _State = {"publications": "", "shown": "", "tables": {}, "failed": None}
    state = note.mapping()
    return state if state.keys() == empty.keys() else empty
