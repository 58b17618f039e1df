"""The snapshot under which a table begins to be copied, beside transactions that are open.

A transaction that wrote to a table before that was published may commit later: it is not sent whole, so no
snapshot will do that does not show it.  A slot's snapshot waits for everybody.  Here only those are waited
for that may have written to the table: who holds a lock for that once the table is seen to be published
(`decoder.slots.writers`).  Who comes later writes behind the publication's commit, and is sent.  They are
noted; a sync that finds one of them still open leaves the table to the next, without waiting.  A table that
was made when all tables were published already has no such writers.

Invariant: `settled_snapshot` yields a snapshot at the lake's position, and the tables that may begin under
it.  Where none can be judged (`infra.advance.exact`) it is a slot's, for which the same transactions are
waited for once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import SlotError
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.slot import ExportedSnapshot
from slotlake.decoder.slots.visible import Shown
from slotlake.decoder.slots.writers import Membership, memberships, open_writers, publications_text
from slotlake.infra.advance.advance import at_exact_lsn
from slotlake.infra.advance.exact import found_beside_writers
from slotlake.infra.state_file import StateFile
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing

SLOT_WAIT_SECONDS = 10.0
WRITERS_WAIT_SECONDS = 0.5
_AGAIN_SECONDS = 60.0  # on a standby nobody says which transactions are open
_POLL_SECONDS = 0.05
PLACE = "settling.json"
_Told = dict[str, Any]


@contextmanager
def settled_snapshot(
    pipeline: OpenPipeline,
    tables: Sequence[SourceTable],
    slot_wait_seconds: float,
    progress: Progressing,
    place: str = PLACE,
) -> Iterator[tuple[ExportedSnapshot, list[SourceTable]] | None]:
    """A snapshot, to whose position the lake is brought, and the tables that may begin, or end, under it.

    Args:
        slot_wait_seconds: how long transactions may stay open, should the snapshot have to be a slot's.
        place: the file of the pipeline's state in which it is noted for whom they wait.
    """
    note = _Note(pipeline, place)
    quiet = note.quiet(tables, progress)
    with ExitStack() as held:
        snapshot = found_beside_writers(pipeline, progress, held) if quiet else None
        if snapshot is not None:
            same = note.still(pipeline, snapshot, quiet)
            yield snapshot, [table for table in tables if table in same]
            return
        if (quiet or not note.judges) and note.slot_may_come():
            waited = _slot(pipeline, slot_wait_seconds, progress, held, note)
            if waited is not None:
                yield waited, list(tables)
                return
        yield None


def _slot(
    pipeline: OpenPipeline, seconds: float, progress: Progressing, held: ExitStack, note: _Note
) -> ExportedSnapshot | None:
    try:
        return held.enter_context(at_exact_lsn(pipeline, seconds, progress))
    except SlotError as error:
        if not error.retryable:
            raise
        note.slot_came_not()
        return None


def awaited(pipeline: OpenPipeline, place: str = PLACE) -> dict[str, str]:
    """Tables, as PostgreSQL writes them, that cannot begin yet, and the transactions that they wait for."""
    entries = _read(pipeline, place)["tables"].values()
    return {entry["table"]: ", ".join(entry["open"]) for entry in entries if entry["open"]}


def look_ahead(pipeline: OpenPipeline, fresh: Sequence[SourceTable]) -> None:
    """Note how the publications are, for tables that are made later; forget tables that join no more."""
    note = _Note(pipeline)
    if note.forget_others(fresh) or not note.knows_publications:
        note.look_ahead()


class _Note:
    """What is known from sync to sync, in a file of the pipeline's state; only spares waiting.

    Attributes:
        judges: is there a server that says who writes?
    """

    def __init__(self, pipeline: OpenPipeline, place: str = PLACE) -> None:
        self._pipeline, self._place, self._told = pipeline, place, _read(pipeline, place)
        self._seen: Mapping[int, Membership] = {}
        self.judges = pipeline.source.plugin == "pgoutput"

    def quiet(self, tables: Sequence[SourceTable], progress: Progressing) -> set[SourceTable]:
        """Those to which nobody who is open wrote before they were published."""
        if not self.judges:
            return set()
        dsn = self._pipeline.source.dsn
        with source_session(dsn, "looking at who writes to a table") as connection:
            if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,):
                self.judges = False
            if not self.judges:
                return set()
            found = self._looked(connection, tables)
            until = time.monotonic() + WRITERS_WAIT_SECONDS
            while found and self._open() and time.monotonic() < until:
                time.sleep(_POLL_SECONDS)
                self._forget_ended(connection)
        self._write()
        quiet = {table for table in tables if self._is_quiet(table)}
        for table in tables:
            if table not in quiet and table.relation_id in self._seen:
                who = ", ".join(self._told["tables"][str(table.relation_id)]["open"])
                progress(f"copy {table.quoted}: waits for who wrote to it before it was published ({who})", 0)
        return quiet

    def _looked(self, connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> bool:
        """Note who is open; was any table looked at for the first time?"""
        ids = [table.relation_id for table in tables]
        self._since(connection)
        # First how they are published, as committed; then who holds them.
        self._seen = memberships(connection, ids, self._pipeline.source.publications)
        now, entries = open_writers(connection, ids), self._told["tables"]
        server, xmax = self._server(connection), Shown.parse(_snapshot(connection)).xmax
        names = {table.relation_id: postgres_name(table.schema, table.table) for table in tables}
        fresh = False
        for oid, how in self._seen.items():
            known = entries.get(str(oid))
            if known is None or (known["how"], known["server"]) != (how.text, server):
                holders = [] if self._born_published(how, xmax) else sorted(now[oid])
                entry = {"table": names[oid], "how": how.text, "server": server, "open": holders}
                entries[str(oid)] = entry
                fresh |= bool(holders)
            else:
                known["open"] = sorted(set(known["open"]) & now[oid])
        return fresh

    def _since(self, connection: psycopg.Connection[Any]) -> None:
        """Which transactions had ended when the publications were first seen as they are."""
        how = publications_text(connection, self._pipeline.source.publications)
        if self._told["publications"] != how:
            self._told["publications"], self._told["shown"] = how, _snapshot(connection)

    def _born_published(self, how: Membership, xmax: int) -> bool:
        """Was it made after all tables were seen to be published?"""
        shown = Shown.parse(self._told["shown"])
        return how.by_all and how.made is not None and shown.ended_since(how.made, xmax)

    def _server(self, connection: psycopg.Connection[Any]) -> str:
        row = connection.execute("SELECT pg_postmaster_start_time()::text").fetchone()
        return "" if row is None else str(row[0])

    def _open(self) -> bool:
        return any(entry["open"] for entry in self._told["tables"].values())

    def _forget_ended(self, connection: psycopg.Connection[Any]) -> None:
        now = open_writers(connection, self._seen.keys())
        for oid in self._seen:
            entry = self._told["tables"][str(oid)]
            entry["open"] = sorted(set(entry["open"]) & now[oid])

    def _is_quiet(self, table: SourceTable) -> bool:
        oid = table.relation_id
        return oid in self._seen and not self._told["tables"][str(oid)]["open"]

    def still(
        self, pipeline: OpenPipeline, snapshot: ExportedSnapshot, tables: set[SourceTable]
    ) -> set[SourceTable]:
        """Those that the snapshot shows to be published as they were when their writers were looked for."""
        dsn, ids = pipeline.source.dsn, [table.relation_id for table in tables]
        with source_session(dsn, "taking up the snapshot") as connection:
            with connection.transaction():
                connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
                taken = sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot.snapshot))
                connection.execute(taken)
                now = memberships(connection, ids, pipeline.source.publications)
            return {t for t in tables if now.get(t.relation_id) == self._seen.get(t.relation_id)}

    def slot_may_come(self) -> bool:
        """Have those ended for whom a slot was waited for in vain?"""
        failed = self._told["failed"]
        if failed is None:
            return True
        waited, shown = failed["at"], Shown.parse(failed["shown"])
        if failed["standby"]:
            return bool(time.time() - waited >= _AGAIN_SECONDS)
        dsn = self._pipeline.source.dsn
        with source_session(dsn, "looking for open transactions") as connection:
            now = Shown.parse(_snapshot(connection))
        return all(now.shows(xid) for xid in shown.in_progress)

    def slot_came_not(self) -> None:
        """Transactions stayed open."""
        dsn = self._pipeline.source.dsn
        with source_session(dsn, "looking for open transactions") as connection:
            standby = connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
            self._told["failed"] = {"at": time.time(), "shown": _snapshot(connection), "standby": standby}
        self._write()

    @property
    def knows_publications(self) -> bool:
        return bool(self._told["publications"])

    def look_ahead(self) -> None:
        """How the publications are now."""
        dsn = self._pipeline.source.dsn
        with source_session(dsn, "reading the publications") as connection:
            if connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,):
                self._since(connection)
        self._write()

    def forget_others(self, tables: Sequence[SourceTable]) -> bool:
        """Were tables noted that are not among these?"""
        entries = self._told["tables"]
        others = entries.keys() - {str(table.relation_id) for table in tables}
        for other in others:
            del entries[other]
        return bool(others)

    def _write(self) -> None:
        with suppress(OSError):
            _file(self._pipeline, self._place).write(self._told)


def _snapshot(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SELECT pg_current_snapshot()::text").fetchone()
    assert row is not None
    return str(row[0])


def _read(pipeline: OpenPipeline, place: str) -> _Told:
    told: _Told = {"publications": "", "shown": "", "tables": {}, "failed": None}
    read = _file(pipeline, place).mapping()
    return read if read.keys() == told.keys() else told


def _file(pipeline: OpenPipeline, place: str) -> StateFile:
    return StateFile(pipeline.file.state_dir / place)
