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
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from contextlib import AbstractContextManager, nullcontext, suppress
from types import TracebackType
from typing import Self

import pyarrow as pa

from slotlake.decoder.catalog.vanished import require_named, vanished
from slotlake.decoder.copy.files import ROWS_PER_FILE, CopiedFile, CopyPlace, PartFiles, unwritable
from slotlake.decoder.copy.reading import CopyJob, Reading, Report, StoppedError, take_snapshot
from slotlake.decoder.errors import SourceError, concerning
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import as_stored, connect, source_errors
from slotlake.decoder.server.waiting import WatchedConnection

__all__ = ["CopiedFile", "CopyCrew", "CopyJob", "CopyPlace"]

WORKERS = 2
CHUNK_BYTES = 16 << 20
_CHUNKS_BYTES = 32 << 20  # for all parts that are read at once
_CHUNK_BYTES_MIN = 4 << 20


Done = Callable[[CopyJob, list[CopiedFile]], None]
Begins = Callable[[CopyJob], bool]
Failed = Callable[[CopyJob, BaseException], bool]
# Waits until one more part may be read, or the event is set; at its end another one may.
Turn = Callable[[threading.Event], AbstractContextManager[None]]
_LOOK_SECONDS = 1.0


def _nothing(*arguments: object) -> None:
    """Do nothing: the caller gave no function."""


def _always(job: CopyJob) -> bool:
    return True


def _stops_all(job: CopyJob, error: BaseException) -> bool:
    return False


class CopyCrew:
    """Reads parts under one snapshot, several at once, in the order of ``jobs``; use as a context manager.

    An exception inside the block stops the running parts; files of finished parts stay.

    Args:
        done: called, in a thread of the crew, with the files of each part once they are on disk.
        report: called with the number of further rows and bytes of a part.
        begins: called before each part, in a thread of the crew; if it returns False the part is left out.

    Attributes:
        turn: entered before a part that begins is read, and left when its connection is closed; None: each
            thread of the crew keeps its connection.
        failed: called, in a thread of the crew, with the error of a part; if it returns True the part is left
            out, and the others go on.
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
        self.turn: Turn | None = None
        self.failed: Failed = _stops_all
        self._chunk_bytes = min(CHUNK_BYTES, max(_CHUNK_BYTES_MIN, _CHUNKS_BYTES // workers))
        self.dropped_tables: set[int] = set()
        self._stop = threading.Event()
        self._failure: BaseException | None = None
        self._local = threading.local()
        self._connections: list[WatchedConnection] = []
        self._pool = ThreadPoolExecutor(max_workers=workers, thread_name_prefix="slotlake-copy")
        self._futures: dict[CopyJob, Future[None]] = {}
        self.add(jobs)

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

    def add(self, jobs: Iterable[CopyJob]) -> None:
        """Read these parts after those that wait already; also parts that were left out before."""
        self._futures |= {job: self._pool.submit(self._work, job) for job in jobs}

    def wait(self, jobs: Iterable[CopyJob], meanwhile: Callable[[], None] | None = None) -> None:
        """Wait until these parts are done, or left out.

        Args:
            meanwhile: called about once a second.

        Raises:
            SourceError, ChangeLogError: as `Reading.run`; also for a part that is not among ``jobs``.
        """
        for job in jobs:
            while meanwhile is not None and not wait_for([self._futures[job]], _LOOK_SECONDS).done:
                meanwhile()
            try:
                self._futures[job].result()
            except BaseException as error:  # noqa: BLE001 - it, or the first failure, is raised
                raise self._failure or error from None

    def _work(self, job: CopyJob) -> None:
        try:
            files = self._in_turn(job)
            if files is None:
                return
            self._done(job, files)
            reach("init.part_done")
        except BaseException as error:
            if self._was_dropped(job, error) or (not self._stop.is_set() and self.failed(job, error)):
                return
            if not self._stop.is_set():
                self._failure = error
            self._stop.set()
            raise

    def _in_turn(self, job: CopyJob) -> list[CopiedFile] | None:
        """Copy a part when it has its turn; None if it is left out, which costs no turn."""
        if self._stop.is_set():
            raise StoppedError
        if not self._begins(job):
            return None
        with nullcontext() if self.turn is None else self.turn(self._stop):
            try:
                if self._stop.is_set():
                    raise StoppedError
                return self._copy(job)
            finally:
                if self.turn is not None:
                    self._close_connection()

    def _close_connection(self) -> None:
        connection, self._local.connection = getattr(self._local, "connection", None), None
        if connection is not None:
            connection.close()
            self._connections.remove(connection)

    def _was_dropped(self, job: CopyJob, error: BaseException) -> bool:
        self._close_connection()  # its transaction has failed
        if isinstance(error, SourceError) and not self._stop.is_set():
            with suppress(SourceError):
                self.dropped_tables |= vanished(self._dsn, [job.table.relation_id])
        return job.table.relation_id in self.dropped_tables

    def _copy(self, job: CopyJob) -> list[CopiedFile]:
        writer = PartFiles(job.table, job.place, job.stem, self._rows_per_file)
        reading = Reading(self._dsn, job, writer, (self._report, self._stop, self._chunk_bytes))
        try:
            with source_errors(self._dsn, f"copying {job.table.quoted}"):
                connection = self._connection()
                take_snapshot(connection, self._snapshot)
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
