"""The initial copy of a table: COPY under an exported snapshot into Parquet files for Iceberg.

Every column comes in COPY's binary format: as the value itself if its type has a reader of binary values,
else as the text from its output function (`types.copy_sql`).  Both use the same table of types as the
stream, so that a copied row and the same row from the stream are equal to the last bit.  The files have
Iceberg's field ids and can be registered in place as the table's data.

Invariant: the rows are exactly those of the snapshot that pass the publication's filter; memory is limited
to a few chunks for each part that is being read; a part that failed leaves no file.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import psycopg
import pyarrow as pa
from psycopg import pq, sql

from slotlake.decoder.catalog.publications import SourceColumn, SourceTable
from slotlake.decoder.catalog.vanished import require_named, vanished, vanished_error
from slotlake.decoder.copy.files import ROWS_PER_FILE, CopiedFile, CopyPlace, PartFiles, unwritable
from slotlake.decoder.copy.frames import CopyFrames
from slotlake.decoder.copy.parts import Part, part_query, plan_parts, whole_part
from slotlake.decoder.errors import SourceError, concerning
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import as_stored, connect, explain, redact, source_errors, source_session
from slotlake.decoder.server.waiting import Patience, WatchedConnection, readable
from slotlake.decoder.stream.copy_data import CopyReader
from slotlake.decoder.stream.nap import Nap
from slotlake.decoder.types.representations import Pair
from slotlake.decoder.types.table import column_type, from_copied

__all__ = ["CopiedFile", "CopyCrew", "CopyJob", "CopyPlace", "CopyProgress", "copy_query", "copy_table"]

WORKERS = 2
_NO_PRIVILEGE = "42501"
CHUNK_BYTES = 16 << 20
_CHUNKS_BYTES = 32 << 20  # for all parts that are read at once
_CHUNK_BYTES_MIN = 4 << 20


@dataclass(frozen=True)
class CopyProgress:
    """How far a copy has come."""

    table: str
    rows: int
    received_bytes: int
    seconds: float


@dataclass(frozen=True, eq=False)
class CopyJob:
    """A part to be copied.

    Attributes:
        place: an existing directory, and names and field ids; arrays have the types of
            `types.column_type` (decimals, timestamps in microseconds, UTC-adjusted or not).
        stem: the beginning of its files' names, different for each job with the same directory.
        condition: a further condition on its rows, as SQL.
    """

    table: SourceTable
    place: CopyPlace
    part: Part
    stem: str
    condition: str | None = None


Report = Callable[[CopyJob, int, int], None]
Done = Callable[[CopyJob, list[CopiedFile]], None]
Begins = Callable[[CopyJob], bool]


def _nothing(*arguments: object) -> None:
    """Do nothing: the caller gave no function."""


def _always(job: CopyJob) -> bool:
    return True


def copy_table(
    dsn: str,
    snapshot: str,
    table: SourceTable,
    place: CopyPlace,
    *,
    rows_per_file: int = ROWS_PER_FILE,
    workers: int = WORKERS,
    progress: Callable[[CopyProgress], None] | None = None,
) -> list[CopiedFile]:
    """Copy the published rows and columns of a table, as the snapshot sees them.

    Args:
        snapshot: name of an exported snapshot that is still open (`slots.ExportedSnapshot`).
        place: as in `CopyJob`.
        rows_per_file: a file ends at the first chunk after this many rows.
        workers: how many parts are read at once.

    Returns:
        The files, in order; none if there are no rows. After an error no file is left.

    Raises:
        SourceError: the server refuses: privileges, row-level security, a snapshot that does not exist.
        VanishedError: the table was dropped.
        ChangeLogError: the files cannot be written.
    """
    with source_session(dsn, f"looking at {table.quoted}") as connection:
        parts = plan_parts(connection, [table])[table]
    jobs = [CopyJob(table, place, part, f"copy-{part.number:05d}") for part in parts]
    finished: dict[CopyJob, list[CopiedFile]] = {}
    try:
        with CopyCrew(
            dsn,
            snapshot,
            jobs,
            workers=workers,
            rows_per_file=rows_per_file,
            done=finished.__setitem__,
            report=_Sum(table, progress).add if progress is not None else _nothing,
        ) as crew:
            crew.wait(jobs)
            if crew.dropped_tables:
                raise vanished_error(table.quoted)
    except BaseException:
        for file in (file for files in finished.values() for file in files):
            file.path.unlink(missing_ok=True)
        raise
    return [file for job in jobs for file in finished[job]]


def copy_query(table: SourceTable) -> str:
    """The COPY command for a whole table."""
    return part_query(table, whole_part(table))


class _Sum:
    """Adds the progress of a table's parts."""

    def __init__(self, table: SourceTable, progress: Callable[[CopyProgress], None]) -> None:
        self._table, self._progress = table, progress
        self._lock = threading.Lock()
        self._rows = self._bytes = 0
        self._begun = time.monotonic()

    def add(self, job: CopyJob, rows: int, received: int) -> None:
        with self._lock:
            self._rows, self._bytes = self._rows + rows, self._bytes + received
            seconds = time.monotonic() - self._begun
            self._progress(CopyProgress(self._table.quoted, self._rows, self._bytes, seconds))


class _StoppedError(Exception):
    """Another part has failed."""


class CopyCrew:
    """Reads parts under one snapshot, several at once, in the order of ``jobs``; use as a context manager.

    An exception inside the block stops the running parts; files of finished parts stay.

    Args:
        done: called, in a thread of the crew, with the files of each part once they are on disk.
        report: called with the number of further rows and bytes of a part.
        begins: called before each part, in a thread of the crew; if it returns False the part is left out.

    Attributes:
        dropped_tables: OIDs of tables that were dropped before all parts were read; they are left out.
    """

    def __init__(
        self,
        dsn: str,
        snapshot: str,
        jobs: Iterable[CopyJob],
        *,
        workers: int = WORKERS,
        rows_per_file: int = ROWS_PER_FILE,
        done: Done = _nothing,
        report: Report = _nothing,
        begins: Begins = _always,
    ) -> None:
        self._dsn, self._snapshot, self._rows_per_file = dsn, snapshot, rows_per_file
        self._done, self._report, self._begins = done, report, begins
        self._chunk_bytes = min(CHUNK_BYTES, max(_CHUNK_BYTES_MIN, _CHUNKS_BYTES // workers))
        self.dropped_tables: set[int] = set()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._local = threading.local()
        self._connections: list[WatchedConnection] = []
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="slotlake-copy")
        self._futures = {job: self._pool.submit(self._work, job) for job in jobs}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            self._stop.set()
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)
        for connection in self._connections:
            connection.close()

    def wait(self, jobs: Iterable[CopyJob]) -> None:
        """Wait until these parts are done, or left out.

        Raises:
            SourceError, ChangeLogError: as `copy_table`; also for a part that is not among ``jobs``.
        """
        for job in jobs:
            try:
                self._futures[job].result()
            except BaseException as error:  # noqa: BLE001 - it, or the first failure, is raised
                raise self._failure or error from None

    def _work(self, job: CopyJob) -> None:
        try:
            if self._stop.is_set():
                raise _StoppedError
            if not self._begins(job):
                return
            self._done(job, self._copy(job))
            reach("init.part_done")
        except BaseException as error:
            if self._was_dropped(job, error):
                return
            if not self._stop.is_set():
                self._failure = error
            self._stop.set()
            raise

    def _was_dropped(self, job: CopyJob, error: BaseException) -> bool:
        connection, self._local.connection = getattr(self._local, "connection", None), None
        if connection is not None:
            connection.close()  # its transaction has failed
        if isinstance(error, SourceError) and not self._stop.is_set():
            with suppress(SourceError):
                self.dropped_tables |= vanished(self._dsn, [job.table.relation_id])
        return job.table.relation_id in self.dropped_tables

    def _copy(self, job: CopyJob) -> list[CopiedFile]:
        writer = PartFiles(job.table, job.place, job.stem, self._rows_per_file)
        reading = _Reading(self._dsn, job, writer, (self._report, self._stop, self._chunk_bytes))
        try:
            with source_errors(self._dsn, f"copying {job.table.quoted}"):
                connection = self._connection()
                _take_snapshot(connection, self._snapshot)
                as_stored(connection)
                with concerning(job.table.schema, job.table.table):
                    reading.run(connection)
                    require_named(connection, job.part.name, job.part.relation_id)
                connection.execute("COMMIT")
            return writer.finish()
        except BaseException as error:
            reading.stop()
            writer.abandon()
            if isinstance(error, OSError | pa.ArrowException):
                raise unwritable(job.place.directory, error) from None
            raise

    def _connection(self) -> WatchedConnection:
        """This thread's connection; in the middle of a COPY it can only be closed, not rolled back."""
        connection: WatchedConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = connect(self._dsn)
            self._connections.append(connection)
        return connection


def _take_snapshot(connection: psycopg.Connection[Any], snapshot: str) -> None:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
        raise SourceError(
            f"the exported snapshot {snapshot!r} does not exist any more, because its session has ended",
            where="SET TRANSACTION SNAPSHOT",
            way_out="run the same command again",
        ) from None
    # With row-level security the copy must fail, not read a part of the rows.
    connection.execute("SET LOCAL row_security = off")


class _Reading:
    """Receives data in this thread; decodes and writes in another thread, one chunk at a time."""

    def __init__(
        self, dsn: str, job: CopyJob, writer: PartFiles, crew: tuple[Report, threading.Event, int]
    ) -> None:
        self._dsn, self._job, self._table, self._writer = dsn, job, job.table, writer
        self._report, self._stop, self._chunk_bytes = crew
        self._frames = CopyFrames(len(job.table.columns))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slotlake-copy")
        self._under_way: Future[None] | None = None

    def run(self, connection: WatchedConnection) -> None:
        pgconn = connection.pgconn
        pgconn.send_query(part_query(self._table, self._job.part, self._job.condition).encode())
        self._expect(connection, pq.ExecStatus.COPY_OUT)
        nap, reader, patience = Nap(), CopyReader(pgconn), Patience(connection)
        pieces: list[bytes] = []
        size = messages = 0
        ended, drained = False, time.monotonic()
        while not ended:
            if self._stop.is_set():
                raise _StoppedError
            frames = reader.drain()
            ended = frames.ended
            now = time.monotonic()
            nap.drained(len(frames.data), now - drained)
            drained = now
            pieces.append(frames.data.tobytes())
            size, messages = size + len(frames.data), messages + len(frames.lengths)
            if size >= self._chunk_bytes or ended:
                self._submit(b"".join(pieces), messages)
                pieces, size, messages = [], 0, 0
            elif nap.idle:
                _wait(connection, patience)
            else:
                time.sleep(nap.seconds)
        self._expect(connection, pq.ExecStatus.COMMAND_OK)
        while pgconn.get_result() is not None:  # only then the connection accepts its next command
            pass
        self._wait()
        self._thread.shutdown()
        self._frames.end()

    def stop(self) -> None:
        """Stop, and wait for the work that has begun."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _expect(self, connection: WatchedConnection, status: int) -> None:
        pgconn, patience = connection.pgconn, Patience(connection)
        while pgconn.is_busy():
            _wait(connection, patience)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None or result.status != status:
            raise self._refusal(result)

    def _refusal(self, result: pq.abc.PGresult | None) -> SourceError:
        where = f"{self._table.quoted} at {redact(self._dsn)}"
        if result is None:
            return SourceError("the server ended the copy", where=where, way_out="run the same command again")
        error = psycopg.errors.error_from_result(result)
        if error.sqlstate == _NO_PRIVILEGE and self._has_row_security():
            return SourceError(
                f"row-level security hides rows of {self._table.quoted} from this role",
                where=where,
                way_out="ALTER ROLE … BYPASSRLS (as a superuser), or connect as the table's owner",
            )
        return explain(error, self._dsn, f"copying {self._table.quoted}", rows=True)

    def _has_row_security(self) -> bool:
        with source_session(self._dsn) as connection:
            asked = "SELECT row_security_active(%s::oid)"
            return connection.execute(asked, [self._table.relation_id]).fetchone() == (True,)

    def _submit(self, raw: bytes, messages: int) -> None:
        self._wait()
        self._under_way = self._thread.submit(self._decode, raw, messages)

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()

    def _decode(self, raw: bytes, messages: int) -> None:
        # One message is one row; the first also has the header, and the last is the trailer.
        rows, slices = self._frames.take(raw, messages + 1)
        if rows:
            columns = [self._parse(c, s) for c, s in zip(self._table.columns, slices, strict=True)]
            self._writer.append(rows, columns, len(raw))
            reach("init.mid_copy")
        self._report(self._job, rows, len(raw))

    def _parse(self, column: SourceColumn, slices: Any) -> Pair:
        kind = column_type(column.type_oid, column.typmod)
        parsed: tuple[pa.Array, pa.Array | None] = from_copied(slices, kind, column=column.name)
        representation = self._writer.place.representations.get(column.name)
        return parsed if representation is None else representation.keep(*parsed)


def _wait(connection: WatchedConnection, patience: Patience) -> None:
    """Wait for the server's next bytes, for at most a second."""
    if readable(connection.pgconn, 1.0):
        patience.heard()
    else:
        patience.nothing()
