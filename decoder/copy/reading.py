"""Reads one part of a table: COPY's bytes in one thread, decoding and writing in another.

Invariant: memory is limited to a few chunks, whatever the part's size.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import pq, sql

from slotlake.decoder.catalog.publications import SourceColumn, SourceTable
from slotlake.decoder.copy.files import CopyPlace, PartFiles
from slotlake.decoder.copy.frames import CopyFrames
from slotlake.decoder.copy.parts import Part, part_query
from slotlake.decoder.errors import SourceError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.server.source import explain, redact, source_session
from slotlake.decoder.server.waiting import Patience, WatchedConnection, readable
from slotlake.decoder.stream.copy_data import CopyReader
from slotlake.decoder.stream.nap import Nap
from slotlake.decoder.types.representations import Pair
from slotlake.decoder.types.table import column_type, from_copied

_NO_PRIVILEGE = "42501"


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


class SnapshotGoneError(SourceError):
    """The exported snapshot has ended with its session."""


class StoppedError(Exception):
    """Another part has failed."""


def take_snapshot(connection: psycopg.Connection[Any], snapshot: str) -> None:
    """Begin a transaction that sees what an exported snapshot shows.

    Raises:
        SnapshotGoneError: its session has ended.
    """
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
        raise SnapshotGoneError(
            f"the exported snapshot {snapshot!r} does not exist any more, because its session has ended",
            where="SET TRANSACTION SNAPSHOT",
            way_out="run the same command again",
        ) from None
    # With row-level security the copy must fail, not read a part of the rows.
    connection.execute("SET LOCAL row_security = off")


def is_open(dsn: str, snapshot: str) -> bool:
    """Return whether an exported snapshot can still be read from.

    Raises:
        SourceError: the source does not answer.
    """
    with source_session(dsn, "looking for the snapshot") as connection:
        try:
            take_snapshot(connection, snapshot)
        except SnapshotGoneError:
            return False
        finally:
            connection.execute("ROLLBACK")
        return True


class Reading:
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
                raise StoppedError
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
