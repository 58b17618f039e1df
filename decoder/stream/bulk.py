"""A backlog read through SQL: the same messages as from START_REPLICATION, two to three times as fast.

The WAL sender spends most of its time on one send() per message.  The SQL function
pg_logical_slot_get_binary_changes runs the same decoding and the same output plugin into a tuplestore, and
COPY sends its rows in blocks (docs/adr/0009).  The function moves the slot that it reads, so it reads a
temporary copy of the pipeline's slot, which ends with the connection.

Invariants: the pipeline's slot does not move.  A `BulkStream` ends with a keepalive at ``until``; before it,
the stream has returned every transaction that commits before ``until``, in commit order.

The server collects all messages of one query in work_mem, then in a temporary file, before it sends the
first.  So a backlog is read in windows of WAL:

- Nobody knows in advance how large the messages of a window are (values that TOAST compressed can become a
  hundred times as large).  So the first window is small.  The size of each further window follows from the
  messages of the last one, and is at most GROWTH times the last size.
- The server decodes each window from the place where its oldest transaction may have begun.  So a window is
  at least about as long as the WAL that is decoded again for it.  If too much WAL would be decoded again, the
  batch ends at the end of a window.
- A transaction that is longer than a window comes whole with the window in which it commits: only the last
  window may send transactions in progress.
- A transaction that fills whole windows is left to the stream (START_REPLICATION), and so is a backlog for
  which the server has no space.  If the role may set it, the server itself stops at SPOOL_BYTES_MAX.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

import numpy as np
import psycopg
from psycopg import pq, sql

from slotlake.decoder.compiled.jit import Bytes, Ints
from slotlake.decoder.errors import BulkError, SlotlakeError, SourceUnavailableError, UntranslatableError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.closing import Closes
from slotlake.decoder.server.source import SourceSettings, as_stored, connect, explain, redact
from slotlake.decoder.server.timeline import Origin
from slotlake.decoder.server.waiting import Patience, readable
from slotlake.decoder.slots.position import require_server_of
from slotlake.decoder.slots.slot import SlotState, check_confirmed
from slotlake.decoder.stream.bulk_rows import CopiedRows, keepalive
from slotlake.decoder.stream.copy_data import CopyReader, Frames
from slotlake.decoder.stream.errors import missing_publication
from slotlake.decoder.stream.options import Options
from slotlake.decoder.stream.receive import plugin_options

BULK_MIN_BYTES = 8 << 20
FIRST_BYTES = 4 << 20
GROWTH = 4
SPOOL_BYTES = 256 << 20
SPOOL_BYTES_MAX = 2 << 30
WINDOW_BYTES = 256 << 20
WINDOW_BYTES_MAX = 1 << 30
AGAIN_BYTES_MAX = 1 << 30
# A transaction that began in this WAL comes whole with the first window.
BEFORE_BYTES_MAX = 512 << 20
STATUS_SECONDS = 60.0
_SETTINGS = "SET work_mem = '64MB'; SET lock_timeout = 0"
_NEARLY_EMPTY = 16  # if a window sends less than this part of its WAL, little in it has committed
_INSUFFICIENT_RESOURCES = "53"  # a full disk, temp_file_limit, memory: a stream does not need them
_CANCEL_SECONDS = 2.0
_WAITING, _SENDING, _DONE = range(3)
_NO_BYTES, _NO_LENGTHS = np.empty(0, np.uint8), np.empty(0, np.int64)


def worth_bulk(source: SourceSettings, slot: SlotState, start: int, until: int) -> bool:
    """Return whether the backlog is large enough for SQL, and SQL can read it.

    It cannot if decoding begins far before ``start``, or from a two-phase slot, whatever the pipeline's
    setting: a copy of such a slot does not know which prepared transactions the slot has sent.

    Args:
        start, until: a batch's positions.
    """
    size, again = until - start, start - (slot.restart_lsn or 0)
    near = again <= BEFORE_BYTES_MAX
    return source.bulk and not slot.two_phase and size >= BULK_MIN_BYTES and near


class BulkStream(Closes):
    """The changes between two positions, with the methods of a `receive.Stream`; use as a context manager.

    Args:
        options: pgoutput's options.
        start, until: a batch's positions.

    Raises:
        BulkError: the server cannot be read through SQL: no slot is free, no space for a temporary file, …
        SourceError: a publication is missing.
        UntranslatableError: a text cannot be sent in UTF-8.
        SourceUnavailableError: the connection failed.

    Attributes:
        exhausted: nothing more comes, though ``until`` is not reached: the batch must end where this ended.
    """

    status_seconds = STATUS_SECONDS

    def __init__(self, source: SourceSettings, options: Options, start: int, until: int) -> None:
        self._source, self._options = source, options
        self._start, self._position, self._until = start, start, until
        self._restart_lsn = self._again_bytes = self._window_sent = self._empty_bytes = 0
        self._window_start = start
        self.exhausted = False
        self._state = _WAITING
        self._window_end = start
        self._slot = f"{source.slot[:40]}_bulk_{time.time_ns() & 0xFFFFFFFF:08x}"
        self._connection = connect(source.dsn)
        self._pgconn, self._patience = self._connection.pgconn, Patience(self._connection)
        self._warned: SlotlakeError | None = None
        self._pgconn.notice_handler = self._notice
        try:
            if as_stored(self._connection):
                raise BulkError("the database has no encoding (SQL_ASCII)", where=redact(source.dsn))
            self._copy_slot(start)
            self._reader = CopyReader(self._pgconn)
            self._next_window()
        except psycopg.Error as error:
            self._connection.close()
            raise self._as_bulk_error(error) from None
        except BaseException:
            self._connection.close()
            raise

    def _notice(self, result: pq.abc.PGresult) -> None:
        self._warned = missing_publication(self._source, result) or self._warned

    def _copy_slot(self, start: int) -> None:
        """Create a copy of the slot for this session, and move it to ``start``."""
        run = self._connection.execute
        run(_SETTINGS)
        self._limit_spool()
        run("SELECT pg_copy_logical_replication_slot(%s, %s, true)", (self._source.slot, self._slot))
        confirmed, _ = self._copy_positions()
        check_confirmed(confirmed, start, f"slot {self._source.slot!r} at {redact(self._source.dsn)}")
        if confirmed < start:
            run("SELECT pg_replication_slot_advance(%s, %s::pg_lsn)", (self._slot, format_lsn(start)))

    def _limit_spool(self) -> None:
        """Limit the server's temporary files, if the role may set that and no smaller limit is set."""
        row = self._connection.execute(
            "SELECT setting::bigint FROM pg_settings WHERE name = 'temp_file_limit'"
        ).fetchone()
        limit_kib = SPOOL_BYTES_MAX >> 10
        if row is None or not 0 <= row[0] <= limit_kib:
            with suppress(psycopg.errors.InsufficientPrivilege):
                self._connection.execute(f"SET temp_file_limit = {limit_kib}".encode())

    def require_origin(self, origin: Origin) -> None:
        """Check that the copy of the slot is on that server.

        Raises:
            SourceUnavailableError: it is on another one.
            BulkError, UntranslatableError: the query has failed already, so the server dropped the copy.
        """
        try:
            require_server_of(self._connection, self._source, self._slot, origin)
        except SourceUnavailableError:
            self.drain()  # raises the query's own error, if it failed
            raise

    def _copy_positions(self) -> tuple[int, int]:
        """The copy's confirmed position, and the position at which decoding for the next window begins."""
        row = self._connection.execute(
            "SELECT confirmed_flush_lsn, restart_lsn FROM pg_replication_slots WHERE slot_name = %s",
            (self._slot,),
        ).fetchone()
        assert row is not None
        return parse_lsn(row[0]), parse_lsn(row[1])

    def _next_window(self) -> None:
        """Ask for the changes of some more WAL, or end early if too much would be decoded again for it."""
        _, restart = self._copy_positions()
        again_bytes = self._position - restart
        if self._position > self._start:
            self._again_bytes += again_bytes
            self._refuse_large_transaction(
                self._position - self._window_start, moved=restart > self._restart_lsn
            )
        self._restart_lsn = restart
        if self._again_bytes > AGAIN_BYTES_MAX:
            self._state, self.exhausted = _DONE, True
            return
        self._window_end = min(self._until, self._position + self._window_bytes(again_bytes))
        self._window_start, self._window_sent = self._position, 0
        last = self._window_end == self._until
        options = self._options if last else replace(self._options, streaming="off")
        self._pgconn.send_query(window_query(self._source, options, self._slot, self._window_end))
        self._state, self._rows = _WAITING, CopiedRows()

    def _refuse_large_transaction(self, window_bytes: int, *, moved: bool) -> None:
        """Stop if windows send next to nothing: their changes belong to a transaction that is still open."""
        nearly_empty = not moved and self._window_sent * _NEARLY_EMPTY < window_bytes
        self._empty_bytes = self._empty_bytes + window_bytes if nearly_empty else 0
        if self._empty_bytes >= WINDOW_BYTES // 2:
            raise BulkError(
                f"a transaction has more WAL than the window before {format_lsn(self._position)}",
                where=redact(self._source.dsn),
            )

    def _window_bytes(self, again_bytes: int) -> int:
        """WAL for the next window, from the WAL decoded again for it and the messages of the last one."""
        last_bytes = self._position - self._window_start
        bytes_max = min(max(WINDOW_BYTES, again_bytes), WINDOW_BYTES_MAX)
        if not last_bytes:
            return min(max(FIRST_BYTES, again_bytes // GROWTH), bytes_max)
        size = min(max(GROWTH * last_bytes, again_bytes), bytes_max)
        fits = SPOOL_BYTES * last_bytes // max(self._window_sent, 1)
        return min(size, max(fits, min(FIRST_BYTES, WINDOW_BYTES) // GROWTH))

    def drain(self) -> Frames:
        """Everything that has arrived, without waiting, as the contents of replication messages.

        Raises:
            BulkError, UntranslatableError, SourceUnavailableError: as the constructor.
        """
        try:
            frames = self._arrived_frames()
        except psycopg.Error as error:
            raise self._as_bulk_error(error) from None
        if self._warned is not None:
            raise self._warned
        return frames

    def _arrived_frames(self) -> Frames:
        if self._state == _WAITING:
            self._check_copy_began()
        if self._state != _SENDING:
            return _frames()
        frames = self._reader.drain()
        self._window_sent += len(frames.data)
        ended, contents = frames.ended, self._rows.take(frames)
        return _frames(contents, self._end_window()) if ended else Frames(*contents, ended=False)

    def _check_copy_began(self) -> None:
        """Note whether the server has begun to send."""
        self._pgconn.consume_input()
        if self._pgconn.is_busy():
            return
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COPY_OUT:
            raise _server_error(result, self._pgconn)
        self._state = _SENDING

    def _end_window(self) -> tuple[Bytes, Ints]:
        """Request the next window, so that the server works meanwhile; a keepalive for this window's end."""
        result = self._pgconn.get_result()
        if result is None or result.status != pq.ExecStatus.COMMAND_OK:
            raise _server_error(result, self._pgconn)
        while self._pgconn.get_result() is not None:
            pass
        self._rows.end()
        self._position = self._window_end
        position_message = keepalive(self._position)
        if self._position < self._until:
            self._next_window()
        else:
            self._state = _DONE
        return position_message

    def rest(self, seconds_max: float) -> None:
        """Wait until something more has arrived."""
        if self._state == _DONE:
            return
        if readable(self._pgconn, seconds_max):
            self._patience.heard()
        else:
            self._patience.nothing()

    def report(self, written: int, *, now: bool = False) -> None:
        """Do nothing: a server that answers a query does not wait for reports."""

    def close(self) -> None:
        """End the connection, and with it the copy of the slot; a running query is cancelled."""
        with suppress(psycopg.Error):
            if self._state != _DONE:
                self._connection.cancel_safe(timeout=_CANCEL_SECONDS)
        self._connection.close()

    def _as_bulk_error(self, error: psycopg.Error) -> Exception:
        explained = explain(error, self._source.dsn, "reading a backlog through SQL")
        no_room = (error.sqlstate or "")[:2] == _INSUFFICIENT_RESOURCES
        if isinstance(explained, UntranslatableError):
            return explained
        if isinstance(explained, SourceUnavailableError) and not no_room:
            return SourceUnavailableError(
                f"the connection was lost while a backlog was read: {explained.what}",
                where=explained.where,
                way_out="run the same command again: nothing of the unfinished batch was stored",
            )
        return BulkError(explained.what, where=redact(self._source.dsn), way_out="set source.bulk: false")


def window_query(source: SourceSettings, options: Options, slot: str, end: int) -> bytes:
    """Return the COPY of a slot's changes up to a position.

    The first record that ends there or later is included.
    """
    arguments = ", ".join(sql.quote(text) for option in plugin_options(source, options) for text in option)
    return (
        "COPY (SELECT lsn, data FROM pg_logical_slot_get_binary_changes("
        f"{sql.quote(slot)}, '{format_lsn(end)}', NULL, {arguments})) TO STDOUT (FORMAT binary)"
    ).encode()


def _frames(*parts: tuple[Bytes, Ints]) -> Frames:
    data, lengths = zip(*parts, strict=True) if parts else ((_NO_BYTES,), (_NO_LENGTHS,))
    return Frames(np.concatenate(data), np.concatenate(lengths), ended=False)


def _server_error(result: pq.abc.PGresult | None, pgconn: pq.abc.PGconn) -> psycopg.Error:
    if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
        return psycopg.errors.error_from_result(result)
    return psycopg.OperationalError(pgconn.get_error_message())
