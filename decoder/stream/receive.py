"""One START_REPLICATION: from the command, through COPY BOTH, to its end.

Owns the replication socket.  It reads many messages at a time (see nap.py), answers the server in time from
the same loop, and turns every early end of the stream into one clear error.

Invariant: only `Stream.confirm` confirms.  Other status updates leave the flushed position unset, which the
server ignores (walsender.c, ProcessStandbyReplyMessage); as written position they give what has been
received, so that the server does not ask again and again.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psycopg
from psycopg import pq

from slotlake.decoder.errors import (
    SlotBusyError,
    SlotlakeError,
    SourceError,
    SourceUnavailableError,
    StreamingError,
    UnsendableError,
)
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.closing import Closes
from slotlake.decoder.server.silence import Silence, Verdict, limit_seconds
from slotlake.decoder.server.source import (
    SourceSettings,
    as_stored,
    connect_replication,
    explain,
    redact,
    source_errors,
    stored_texts,
)
from slotlake.decoder.server.timeline import Origin, require_same
from slotlake.decoder.server.waiting import no_answer, readable
from slotlake.decoder.slots.position import require_slot_at
from slotlake.decoder.stream.copy_data import CopyReader, Frames
from slotlake.decoder.stream.errors import UNDECODABLE, about_a_table, missing_publication, stream_error
from slotlake.decoder.stream.framing import status_update
from slotlake.decoder.stream.nap import FIRST_LOOPBACK_SECONDS, FIRST_SECONDS, FIRST_UNIX_SECONDS, Nap
from slotlake.decoder.stream.options import Options, negotiate

STATUS_SECONDS = 5.0
_INTERNAL_ERROR, _PROGRAM_LIMIT = b"XX000", b"54000"
_UNSENDABLE = (
    "if a row is larger than the server can send (1 GiB as text, which is 512 MB of bytea), set "
    "source.binary: true, or leave the large column out of the publication (a column list), then run "
    "`slotlake recover`; else the server's log of this moment says more"
)
START_RETRY_SECONDS = 5.0
_END_SECONDS = 0.5
# The kernel doubles it.  If the sender's largest segment does not fit in the window, it waits for probes.
_LOOPBACK_RECEIVE_BYTES = 64 << 10


class Stream(Closes):
    """A running logical replication stream; use as a context manager.

    Args:
        options: pgoutput's options; without them, those that follow from the source's settings.
        plugin_options: options of another plugin, by name.
        origin: the server that must answer.

    Attributes:
        status_seconds: a status update is due this long after the last.
        exhausted: always False; the stream goes on until the server ends it.
    """

    exhausted = False

    def __init__(
        self,
        source: SourceSettings,
        start: int,
        *,
        options: Options | None = None,
        plugin_options: Sequence[tuple[str, str]] | None = None,
        origin: Origin | None = None,
    ) -> None:
        self._source = source
        self._start = start
        self._nap = Nap()
        self._written = start
        self._last_drain = self._last_status = time.monotonic()
        self.status_seconds = STATUS_SECONDS
        self._connection = connect_replication(source.dsn)
        self._pgconn = self._connection.pgconn
        self._warned: SlotlakeError | None = None
        self._options: Options | None = None
        self._pgconn.notice_handler = self._notice
        try:
            with source_errors(source.dsn, "starting replication"):
                if origin is not None:
                    require_same(self._connection, origin, source.dsn)
                self._begin(self._prepared(self._command(options, plugin_options)))
            self._require_position()
        except BaseException:
            self._connection.close()
            raise

    def _require_position(self) -> None:
        """Check that the stream begins at the wanted position; if it has ended already, raise the reason."""
        try:
            require_slot_at(self._connection, self._source, self._start)
        except SourceUnavailableError:
            self.drain()
            raise

    def _command(self, options: Options | None, plugin_options: Sequence[tuple[str, str]] | None) -> bytes:
        if plugin_options is not None:
            return replication_command(self._source.slot, self._start, plugin_options)
        self._options = options or negotiate(self._source, self._pgconn.server_version)
        return start_command(self._source, self._options, self._start)

    def _prepared(self, command: bytes) -> bytes:
        """The command in the connection's encoding; sets that to the stored one if the options say so."""
        if self._options is None or not self._options.as_stored:
            as_stored(self._connection)
            return command
        (stored,) = stored_texts(self._connection, [command.decode()])
        as_stored(self._connection, always=True)
        return stored

    def _begin(self, command: bytes) -> None:
        timeout = _sender_timeout(self._connection)
        self.status_seconds = STATUS_SECONDS if timeout <= 0 else min(STATUS_SECONDS, timeout / 3)
        self._silence = Silence(limit_seconds(timeout))
        # Made before the server starts to send: from then on it waits for answers.
        self._reader = CopyReader(self._pgconn)
        deadline = time.monotonic() + START_RETRY_SECONDS
        while True:
            failure = self._start_failure(command)
            if failure is None:
                break
            # Our own last reader may use the slot until the server notices that it has gone.
            if not isinstance(failure, SlotBusyError) or time.monotonic() >= deadline:
                raise failure
            time.sleep(0.1)
        self._nap = Nap(_shape_socket(self._pgconn))

    def _start_failure(self, command: bytes) -> SlotlakeError | None:
        try:
            self._pgconn.send_query(command)
            result = _result(self._pgconn, self._silence.limit)
        except psycopg.Error as error:
            return explain(error, self._source.dsn)
        except TimeoutError:
            return no_answer(redact(self._source.dsn), self._silence.limit)
        if result.status == pq.ExecStatus.COPY_BOTH:
            return None
        try:
            _drop_results(self._pgconn, time.monotonic() + self._silence.limit)
        except psycopg.Error as error:  # the server refused, and then the connection was lost too
            return explain(error, self._source.dsn)
        return stream_error(self._source, result, self._start)

    def _notice(self, result: pq.abc.PGresult) -> None:
        self._warned = missing_publication(self._source, result) or self._warned

    @property
    def socket(self) -> int:
        """The connection's file descriptor."""
        return int(self._pgconn.socket)

    def drain(self) -> Frames:
        """Everything that has arrived, without waiting: the content of each CopyData.

        Raises:
            SourceError, SlotError: the server ended the stream, or the connection was lost.
        """
        try:
            frames = self._reader.drain()
        except psycopg.Error as error:
            raise self._broken(error) from None
        if self._warned is not None:
            raise self._warned
        if frames.ended:
            raise self._ended()
        self._learn(len(frames.data))
        self._watch(len(frames.data))
        return frames

    def _learn(self, size: int) -> None:
        now = time.monotonic()
        self._nap.drained(size, now - self._last_drain)
        self._last_drain = now

    def _watch(self, size: int) -> None:
        verdict = self._silence.looked(size, time.monotonic())
        if verdict is Verdict.ASK:
            self.send(status_update(self._written, time.time(), ask=True))
        elif verdict is Verdict.LOST:
            raise no_answer(redact(self._source.dsn), self._silence.limit)

    def rest(self, seconds_max: float) -> None:
        """Sleep for one nap, or wait for the socket's next byte in a quiet period."""
        if self._nap.idle:
            due = self._last_status + self.status_seconds - time.monotonic()
            self._wait(min(seconds_max, due))
        else:
            time.sleep(min(self._nap.seconds, max(0.0, seconds_max)))

    def _wait(self, seconds: float) -> None:
        try:
            readable(self._pgconn, seconds)
        except psycopg.Error as error:
            raise self._broken(error) from None

    def report(self, written: int, *, now: bool = False) -> None:
        """Report to the server what has been received, if that is due (or ``now``)."""
        self._written = max(self._written, written)
        if now or time.monotonic() - self._last_status >= self.status_seconds:
            self.send(status_update(self._written, time.time()))

    def confirm(self, lsn: int) -> None:
        """Tell the server that it may remove the WAL before ``lsn``."""
        self.send(status_update(self._written, time.time(), flushed=lsn))

    def send(self, message: bytes) -> None:
        """Send one message to the server.

        Raises:
            SourceUnavailableError: the connection was lost.
        """
        try:
            self._pgconn.put_copy_data(message)
            self._pgconn.flush()
        except psycopg.Error as error:
            raise self._broken(error) from None
        self._last_status = time.monotonic()

    def close(self) -> None:
        """End the stream, in an orderly way if the server answers, so that it frees the slot at once."""
        try:
            self._pgconn.put_copy_end()
            self._pgconn.flush()
            self._await_end(time.monotonic() + _END_SECONDS)
        except psycopg.Error:
            pass
        finally:
            self._connection.close()

    def _await_end(self, deadline: float) -> None:
        while time.monotonic() < deadline:
            size, _ = self._pgconn.get_copy_data(1)
            if size < 0:
                _drop_results(self._pgconn, deadline)
                return
            if size == 0:
                readable(self._pgconn, deadline - time.monotonic())
                self._pgconn.consume_input()

    def _ended(self) -> SlotlakeError:
        try:
            result = _result(self._pgconn, self._silence.limit)
        except psycopg.Error as error:
            return self._broken(error)
        except TimeoutError:
            return no_answer(redact(self._source.dsn), self._silence.limit)
        failure = stream_error(self._source, result, self._written)
        state = result.error_field(pq.DiagnosticField.SQLSTATE)
        if state == _INTERNAL_ERROR and self._options is not None and self._options.streaming != "off":
            # A rolled-back ALTER TABLE in a transaction in progress: "could not map filenumber …" (18.4).
            return StreamingError(failure.what, where=failure.where, way_out="set source.streaming: off")
        if state == _PROGRAM_LIMIT or (state == _INTERNAL_ERROR and not about_a_table(result)):
            return UnsendableError(failure.what, where=failure.where, way_out=_UNSENDABLE)
        if state == _INTERNAL_ERROR:
            return SourceError(failure.what, where=failure.where, way_out=UNDECODABLE)
        return failure

    def _broken(self, error: psycopg.Error) -> SlotlakeError:
        explained = explain(error, self._source.dsn)
        return SourceUnavailableError(
            f"the replication stream was lost after {format_lsn(self._written)}: {explained.what}",
            where=explained.where,
            way_out="run the same command again: nothing of the unfinished batch was stored",
        )


def start_command(source: SourceSettings, options: Options, start: int) -> bytes:
    """Return the START_REPLICATION command for pgoutput."""
    return replication_command(source.slot, start, plugin_options(source, options))


def plugin_options(source: SourceSettings, options: Options) -> list[tuple[str, str]]:
    """Name and value of each option for pgoutput (protocol manual, section 54.5.1)."""
    names = ",".join('"' + name.replace('"', '""') + '"' for name in source.publications)
    pairs = [("proto_version", str(options.proto_version)), ("publication_names", names)]
    if options.streaming != "off":
        pairs.append(("streaming", options.streaming))
    if options.two_phase:
        pairs.append(("two_phase", "on"))
    if options.binary:
        pairs.append(("binary", "true"))
    if options.messages:
        pairs.append(("messages", "true"))
    if options.origin != "any":
        pairs.append(("origin", options.origin))
    return pairs


def replication_command(slot: str, start: int, options: Sequence[tuple[str, str]]) -> bytes:
    """Return START_REPLICATION with the options for the slot's plugin."""
    option_list = ", ".join(f"{_name(name)} {_literal(value)}" for name, value in options)
    command = f'START_REPLICATION SLOT "{slot}" LOGICAL {format_lsn(start)}'
    return (f"{command} ({option_list})" if option_list else command).encode()


def _name(option: str) -> str:
    """The option's name; quoted if it has hyphens, as wal2json's names do."""
    return option if option.replace("_", "a").isalnum() else f'"{option}"'


def _literal(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _sender_timeout(connection: psycopg.Connection[Any]) -> float:
    """The server's wal_sender_timeout in seconds; 0: none."""
    row = connection.execute(
        "SELECT setting::int / 1000.0 FROM pg_settings WHERE name = 'wal_sender_timeout'"
    ).fetchone()
    return float(row[0]) if row is not None else 0.0


def _result(pgconn: pq.abc.PGconn, seconds_max: float) -> pq.abc.PGresult:
    """Wait for the next result; TimeoutError if it does not come in time."""
    _await_result(pgconn, time.monotonic() + seconds_max)
    result = pgconn.get_result()
    assert result is not None
    return result


def _drop_results(pgconn: pq.abc.PGconn, deadline: float) -> None:
    """Read the remaining results of a command, as far as they come in time."""
    with suppress(TimeoutError):
        while True:
            _await_result(pgconn, deadline)
            if pgconn.get_result() is None:
                return


def _await_result(pgconn: pq.abc.PGconn, deadline: float) -> None:
    """Wait until PQgetResult can return at once: while it waits itself, it keeps the interpreter's lock."""
    while True:
        pgconn.flush()
        if not pgconn.is_busy():
            return
        remaining_seconds = deadline - time.monotonic()
        if remaining_seconds <= 0 or not readable(pgconn, remaining_seconds):
            raise TimeoutError
        pgconn.consume_input()


def _shape_socket(pgconn: pq.abc.PGconn) -> float:
    """On loopback keep the receive window small; return the first nap, in seconds.

    If the window is full, the sender's kernel collects small messages into large segments, which is far
    cheaper than to deliver each.  On a real network the window must be large enough for the data in transit.
    """
    with socket.socket(fileno=os.dup(pgconn.socket)) as channel:
        if channel.family not in (socket.AF_INET, socket.AF_INET6):
            return FIRST_UNIX_SECONDS
        with suppress(OSError):  # the other side has reset the connection: the first drain raises the error
            if _loopback(channel.getpeername()[0]):
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LOOPBACK_RECEIVE_BYTES)
                return FIRST_LOOPBACK_SECONDS
        return FIRST_SECONDS


def _loopback(address: str) -> bool:
    return address.startswith("127.") or address in ("::1", "::ffff:127.0.0.1")
