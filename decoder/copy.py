"""The initial copy of a table: COPY under an exported snapshot into Parquet files for Iceberg.

Every column is asked for as the text that its type's output function gives (`types.sql_text`), framed
by COPY's binary format, and goes through the same table of types as the stream, so that a row copied
and the same row streamed are equal to the last bit.  The files carry Iceberg's field ids and can be
registered in place as the table's data.

Invariant: the rows are exactly those that the publication's filter lets through as the snapshot sees
them; memory is bounded by a few chunks; on failure none of the files is left.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import psycopg
import pyarrow as pa
from psycopg import pq, sql
from pyarrow import parquet

from decoder.copy_data import CopyReader
from decoder.copy_frames import CopyFrames
from decoder.errors import ChangeLogError, SourceError
from decoder.failpoints import reach
from decoder.forms import Form
from decoder.nap import Nap
from decoder.publications import SourceColumn, SourceTable
from decoder.source import connect, explain, redact, source_errors
from decoder.types import column_type, from_slices, sql_text
from decoder.waiting import Patience, WatchedConnection, readable

CHUNK_BYTES = 16 << 20
ROWS_PER_FILE = 2_000_000
_PARQUET: dict[str, Any] = {
    "compression": "zstd",
    "compression_level": 3,
    "store_decimal_as_integer": True,
    "write_statistics": True,
}


class CopyPlace(Protocol):
    """Where one table's files go and what stands in them; keys are source column names."""

    @property
    def directory(self) -> Path: ...
    @property
    def names(self) -> Mapping[str, str]: ...
    @property
    def field_ids(self) -> Mapping[str, int]: ...
    @property
    def exact_names(self) -> Mapping[str, str]: ...
    @property
    def exact_field_ids(self) -> Mapping[str, int]: ...
    @property
    def forms(self) -> Mapping[str, Form]: ...
    @property
    def inner_ids(self) -> Mapping[str, Sequence[int]]: ...


@dataclass(frozen=True)
class CopiedFile:
    """A finished file; ``exact``: source columns for which it has an exact-text companion."""

    path: Path
    rows: int
    bytes: int
    exact: tuple[str, ...]


@dataclass(frozen=True)
class CopyProgress:
    """How far a copy has come."""

    table: str
    rows: int
    received_bytes: int
    seconds: float


def copy_table(
    dsn: str,
    snapshot: str,
    table: SourceTable,
    place: CopyPlace,
    *,
    rows_per_file: int = ROWS_PER_FILE,
    progress: Callable[[CopyProgress], None] | None = None,
) -> list[CopiedFile]:
    """Copy the published rows and columns of a table, as the snapshot sees them.

    Args:
        snapshot: name of an exported snapshot that is still held (`slots.ExportedSnapshot`).
        place: an existing directory, and names and field ids; arrays are typed as
            `types.column_type` says (decimals, timestamps in microseconds, UTC-adjusted or not).
        rows_per_file: a file ends at the first chunk after this many rows.

    Returns:
        The files, in order; none when there are no rows.

    Raises:
        SourceError: the server refuses: privileges, row-level security, a snapshot that is gone.
        ChangeLogError: the files cannot be written.
    """
    writer = _Files(table, place, rows_per_file)
    reading = _Reading(dsn, table, writer, progress)
    try:
        # Closed, not committed: in the middle of a COPY nothing else can be said to the server.
        with closing(connect(dsn)) as connection, source_errors(dsn, f"copying {table.quoted}"):
            _take_snapshot(connection, snapshot)
            reading.run(connection)
        return writer.finish()
    except BaseException as error:
        reading.stop()
        writer.abandon()
        if isinstance(error, OSError | pa.ArrowException):
            raise _unwritable(place.directory, error) from None
        raise


def copy_query(table: SourceTable) -> str:
    """The COPY command for a table; ONLY for a plain one, whose children are published by themselves."""
    columns = ", ".join(sql_text(sql.Identifier(c.name).as_string(None), c.type_oid) for c in table.columns)
    only = "" if table.kind == "p" else "ONLY "
    where = f" WHERE {table.row_filter}" if table.row_filter is not None else ""
    return f"COPY (SELECT {columns} FROM {only}{table.quoted}{where}) TO STDOUT (FORMAT binary)"


def _take_snapshot(connection: psycopg.Connection[Any], snapshot: str) -> None:
    connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    try:
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
    except (psycopg.errors.UndefinedObject, psycopg.errors.InvalidParameterValue):
        raise SourceError(
            f"the exported snapshot {snapshot!r} is gone",
            where="the session that exported it has ended",
            way_out="run the same command again",
        ) from None
    # Rather fail than copy a part of the rows.
    connection.execute("SET LOCAL row_security = off")


class _Reading:
    """Receives here, decodes and writes in another thread, one chunk ahead."""

    def __init__(
        self,
        dsn: str,
        table: SourceTable,
        writer: _Files,
        progress: Callable[[CopyProgress], None] | None,
    ) -> None:
        self._dsn, self._table, self._writer, self._progress = dsn, table, writer, progress
        self._frames = CopyFrames(len(table.columns))
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slotlake-copy")
        self._under_way: Future[None] | None = None
        self._received = 0
        self._begun = time.monotonic()

    def run(self, connection: WatchedConnection) -> None:
        pgconn = connection.pgconn
        pgconn.send_query(copy_query(self._table).encode())
        self._expect(connection, pq.ExecStatus.COPY_OUT)
        nap, reader, patience = Nap(), CopyReader(pgconn), Patience(connection)
        pieces: list[bytes] = []
        size = messages = 0
        ended, drained = False, time.monotonic()
        while not ended:
            frames = reader.drain()
            ended = frames.ended
            now = time.monotonic()
            nap.drained(len(frames.data), now - drained)
            drained = now
            pieces.append(frames.data.tobytes())
            size, messages = size + len(frames.data), messages + len(frames.lengths)
            if size >= CHUNK_BYTES or ended:
                self._submit(b"".join(pieces), messages)
                pieces, size, messages = [], 0, 0
            elif nap.idle:
                _wait(connection, patience)
            else:
                time.sleep(nap.seconds)
        self._expect(connection, pq.ExecStatus.COMMAND_OK)
        self._wait()
        self._thread.shutdown()
        self._frames.end()

    def stop(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _expect(self, connection: WatchedConnection, wanted: int) -> None:
        pgconn, patience = connection.pgconn, Patience(connection)
        while pgconn.is_busy():
            _wait(connection, patience)
            pgconn.consume_input()
        result = pgconn.get_result()
        if result is None or result.status != wanted:
            raise self._refused(result)

    def _refused(self, result: pq.abc.PGresult | None) -> SourceError:
        where = f"{self._table.quoted} at {redact(self._dsn)}"
        if result is None:
            return SourceError("the server ended the copy", where=where, way_out="run the same command again")
        error = psycopg.errors.error_from_result(result)
        if "row-level security" in str(error):
            return SourceError(
                f"row-level security hides rows of {self._table.quoted} from this role",
                where=where,
                way_out="ALTER ROLE … BYPASSRLS, or use the table's owner",
            )
        return explain(error, self._dsn, f"copying {self._table.quoted}")

    def _submit(self, raw: bytes, messages: int) -> None:
        self._wait()
        self._under_way = self._thread.submit(self._decode, raw, messages)

    def _wait(self) -> None:
        if self._under_way is not None:
            self._under_way.result()

    def _decode(self, raw: bytes, messages: int) -> None:
        self._received += len(raw)
        # One message is one row, but for the header before the first and the end mark.
        rows, slices = self._frames.take(raw, messages + 1)
        if rows:
            self._writer.append(
                rows, [self._parsed(c, s) for c, s in zip(self._table.columns, slices, strict=True)]
            )
            reach("init.mid_copy")
        if self._progress is not None:
            seconds = time.monotonic() - self._begun
            self._progress(CopyProgress(self._table.quoted, self._writer.rows, self._received, seconds))

    def _parsed(self, column: SourceColumn, slices: Any) -> tuple[pa.Array, pa.Array | None]:
        kind = column_type(column.type_oid, column.typmod)
        parsed: tuple[pa.Array, pa.Array | None] = from_slices(slices, kind, column=column.name)
        form = self._writer.place.forms.get(column.name)
        return parsed if form is None else form.keep(*parsed)


def _wait(connection: WatchedConnection, patience: Patience) -> None:
    """For the server's next bytes, or a second."""
    if readable(connection.pgconn, 1.0):
        patience.heard()
    else:
        patience.nothing()


class _Files:
    """The Parquet files of one table; a new one when the last is long enough or lacks a column."""

    def __init__(self, table: SourceTable, place: CopyPlace, rows_per_file: int) -> None:
        self._table, self.place, self._rows_per_file = table, place, rows_per_file
        self._done: list[CopiedFile] = []
        self._writer: parquet.ParquetWriter | None = None
        self._path = place.directory
        self._exact: tuple[str, ...] = ()
        self._file_rows = 0
        self.rows = 0

    def append(self, rows: int, columns: list[tuple[pa.Array, pa.Array | None]]) -> None:
        named = list(zip(self._table.columns, columns, strict=True))
        exact = tuple(column.name for column, (_, text) in named if text is not None)
        if self._writer is None or not set(exact) <= set(self._exact):
            self._next_file(tuple(c.name for c in self._table.columns if c.name in {*exact, *self._exact}))
        assert self._writer is not None
        arrays = [typed for _, (typed, _) in named]
        texts = {column.name: text for column, (_, text) in named if text is not None}
        arrays += [texts.get(name, pa.nulls(rows, pa.string())) for name in self._exact]
        self._writer.write_table(pa.Table.from_arrays(arrays, schema=self._writer.schema))
        self._file_rows += rows
        self.rows += rows
        if self._file_rows >= self._rows_per_file:
            self._close()

    def _next_file(self, exact: tuple[str, ...]) -> None:
        self._close()
        self._exact = exact
        self._path = self.place.directory / f"copy-{len(self._done):05d}.parquet"
        schema = self._schema()
        # Numbers and times are smaller, and written faster, without a dictionary that most of them overflow.
        texts = [field.name for field in schema if pa.types.is_string(field.type)]
        self._writer = parquet.ParquetWriter(self._path, schema, use_dictionary=texts, **_PARQUET)

    def _schema(self) -> pa.Schema:
        place = self.place
        fields = [
            _field(place.names[c.name], _kept(place, c), place.field_ids[c.name]) for c in self._table.columns
        ]
        fields += [
            _field(place.exact_names[name], pa.string(), place.exact_field_ids[name]) for name in self._exact
        ]
        return pa.schema(fields)

    def _close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is None:
            return
        writer.close()
        handle = os.open(self._path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        size = self._path.stat().st_size
        self._done.append(CopiedFile(self._path, self._file_rows, size, self._exact))
        self._file_rows = 0

    def finish(self) -> list[CopiedFile]:
        self._close()
        return self._done

    def abandon(self) -> None:
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
        except (OSError, pa.ArrowException):
            pass
        for path in [*(file.path for file in self._done), self._path]:
            if path.suffix == ".parquet":
                path.unlink(missing_ok=True)


def _field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={b"PARQUET:field_id": str(field_id).encode()})


def _kept(place: CopyPlace, column: SourceColumn) -> pa.DataType:
    """The column's type in the files; within it the field ids of its parts."""
    form = place.forms.get(column.name)
    if form is None:
        return column_type(column.type_oid, column.typmod).arrow
    kind, ids = form.arrow, list(place.inner_ids.get(column.name, ()))
    if ids and pa.types.is_list(kind):
        return pa.list_(_field(kind.value_field.name, kind.value_type, ids[0]))
    if ids and pa.types.is_struct(kind):
        return pa.struct([_field(part.name, part.type, id_) for part, id_ in zip(kind, ids, strict=True)])
    return kind


def _unwritable(directory: Path, error: Exception) -> ChangeLogError:
    number = getattr(error, "errno", None)
    reason = os.strerror(number) if number else str(error)
    return ChangeLogError(
        f"the copied table cannot be written: {reason}",
        where=str(directory),
        way_out="free or enlarge the disk (or correct its permissions), then run the same command again; "
        "the files written so far were removed",
    )
