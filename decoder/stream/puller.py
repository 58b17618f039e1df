"""One connection to a slot, and the batches that are read from it.

There are two threads.  The caller's thread owns the socket: it receives, sorts (framing.py) and answers the
server, also while the other thread assembles transactions (assembly/), decodes and writes.  They exchange
message buffers of limited number and size, so the memory does not depend on the size of a transaction.

A puller can go on after a batch: messages that the server has sent after the batch's end stay in memory, and
so do open transactions; the next batch begins where this one ended.  Invariant: after any failure the
unfinished batch is removed, the puller cannot be used any more, and the slot has not moved.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from slotlake.decoder.assembly.assembler import Assembler
from slotlake.decoder.assembly.prepared import Noted, PreparedStore, noted_in
from slotlake.decoder.assembly.spool import MEMORY_BYTES, SpoolRoom
from slotlake.decoder.catalog.source_types import source_types
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.changelog.incoming import incoming_path
from slotlake.decoder.changelog.row_keys import keys_of
from slotlake.decoder.changelog.writer import BatchIdentity, BatchWriter
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder, Unreadable
from slotlake.decoder.errors import DEFECT, ProtocolError
from slotlake.decoder.failpoints import reach
from slotlake.decoder.protocol.relations import RelationVersion
from slotlake.decoder.server.closing import Closes
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.server.timeline import Origin
from slotlake.decoder.stream.ahead import Ahead, asks_for_reply
from slotlake.decoder.stream.bulk import BulkStream
from slotlake.decoder.stream.copy_data import Frames
from slotlake.decoder.stream.framing import ENDED_EARLY, NO_LIMIT, RUNNING, Bounds, Framing
from slotlake.decoder.stream.options import Options
from slotlake.decoder.stream.receive import Stream
from slotlake.decoder.translation.messages import Translation

CHUNK_BYTES = 16 << 20
_BUFFERS = 3
_PROGRESS_SECONDS = 0.25
_REST_SECONDS = 1.0


@dataclass(frozen=True)
class PullProgress:
    """How far a pull has come: bytes and transactions received, position reached and position wanted."""

    received_bytes: int
    transactions: int
    position: int
    until: int
    seconds: float


Progress = Callable[[PullProgress], None]


class _Sender(Protocol):
    """Where replication messages come from."""

    status_seconds: float
    exhausted: bool

    def drain(self) -> Frames: ...
    def rest(self, seconds_max: float) -> None: ...
    def report(self, written: int, *, now: bool = False) -> None: ...
    def close(self) -> None: ...


class Puller(Closes):
    """A running stream from a slot, which gives batches; use as a context manager.

    Args:
        options: pgoutput's options (`negotiate`).
        changelog: the folder for batches.
        start: the lake's position.
        memory_bytes: memory for transactions that have not ended.
        pass_over: if a value cannot be read, leave the rows of its table out of the batch and record this
            (`Batch.unreadable`); without it, such a value is an error.
        bulk_until: read one batch up to this position through SQL (bulk.py), not from a running stream.
        noted: prepared transactions whose changes the lake waits for, in addition to those of batches on
            disk.
    """

    def __init__(  # noqa: PLR0913 - each a choice of the caller's, by name
        self,
        source: SourceSettings,
        options: Options,
        changelog: Path,
        identity: BatchIdentity,
        start: int,
        *,
        memory_bytes: int = MEMORY_BYTES,
        pass_over: bool = False,
        bulk_until: int | None = None,
        noted: Noted = tuple,
    ) -> None:
        self._source, self._changelog, self._identity = source, changelog, identity
        self.position = start
        self._framing = Framing(Bounds(start, start))
        self._ahead = Ahead()
        store = PreparedStore(
            changelog,
            {"system_identifier": identity.system_identifier, "slot": identity.slot},
            None if _may_withhold(identity) else lambda: noted_in(changelog, self.position).union(noted()),
        )
        room = SpoolRoom(incoming_path(changelog, f"spool-{secrets.token_hex(4)}"), memory_bytes)
        # A two-phase slot sends prepared transactions, whatever the option two_phase says.
        assembler = Assembler(
            room, store, streaming=options.streaming, binary=options.binary, any_bytes=pass_over
        )
        self._decoding = _Decoding(assembler, _decoder(source, options), pass_over=pass_over)
        self._progress: Progress | None = None
        try:
            if options.as_stored:
                self._decoding.translation = Translation(source.dsn)
            self._stream = self._opened(options, bulk_until)
        except BaseException:
            self._decoding.stop()
            raise

    def _opened(self, options: Options, bulk_until: int | None) -> _Sender:
        origin = Origin(self._identity.system_identifier, self._identity.timeline)
        if bulk_until is None:
            return Stream(self._source, self.position, options=options, origin=origin)
        stream = BulkStream(self._source, options, self.position, bulk_until)
        try:
            stream.require_origin(origin)
        except BaseException:
            stream.close()
            raise
        return stream

    @property
    def open_transactions(self) -> int:
        """How many transactions in progress the server has sent in part."""
        return self._decoding.assembler.open_transactions

    def next_batch(
        self,
        until: int,
        *,
        max_bytes: int | None = None,
        deadline: float | None = None,
        progress: Progress | None = None,
    ) -> Batch:
        """The transactions from the puller's position up to ``until``, as a batch on disk.

        Args:
            max_bytes, deadline (of time.monotonic): limits; after one of them the batch ends at the next
                commit.
        """
        self._framing.begin(Bounds(self.position, until, NO_LIMIT if max_bytes is None else max_bytes))
        self._progress, self._begun = progress, time.monotonic()
        self._progress_seconds = self._begun
        writer = BatchWriter(self._changelog, self._identity, self.position)
        try:
            self._decoding.begin(writer)
            self._receive(deadline)
            self._decoding.finish()
            end = self._framing.received_lsn if self._framing.end == ENDED_EARLY else until
            prepared, resolved = self._decoding.settle()
            reach("pull.prepared")
            keys = keys_of(self._source, self._decoding.versions)
            unreadable = self._decoding.unreadable or {}
            batch = writer.finish(end, keys, prepared=prepared, resolved=resolved, unreadable=unreadable)
        except BaseException:
            self._decoding.stop()
            writer.abandon()
            raise
        self.position = end
        return batch

    def answer(self) -> None:
        """Between batches: tell the server that this reader is alive, if that is due."""
        self._stream.report(self._framing.received_lsn)

    def look_ahead(self) -> bool:
        """Between batches: receive what has arrived, for the next batch; return whether that should begin.

        It should if a transaction has ended after the last batch. Not for a reader through SQL.
        """
        asked = False
        if not self._ahead.full:
            data, lengths = self._arrived_frames()
            asked = asks_for_reply(data, lengths)
            self._ahead.add(data, lengths)
        self._stream.report(self._framing.received_lsn, now=asked)
        return self._ahead.calls_for_batch

    @property
    def looks_ahead(self) -> bool:
        """Whether `look_ahead` reads what arrives; not when so much waits that a batch must take it first."""
        return not self._ahead.full

    @property
    def socket(self) -> int:
        """The file descriptor of a running stream, to wait for what arrives; not of a reader through SQL."""
        assert isinstance(self._stream, Stream)
        return self._stream.socket

    def confirm(self, lsn: int) -> None:
        """Tell the server over this connection that the lake has everything before ``lsn``.

        Only a running stream can do this: a reader through SQL does not use the pipeline's slot itself.
        """
        assert isinstance(self._stream, Stream)
        self._stream.confirm(lsn)

    @property
    def status_seconds(self) -> float:
        """The caller must call `answer` at least this often."""
        return self._stream.status_seconds

    def _receive(self, deadline: float | None) -> None:
        framing = self._framing
        buffer = self._decoding.free_buffer()
        assert buffer is not None
        while framing.end == RUNNING:
            self._take(buffer)
            if self._stream.exhausted:
                framing.end_at_commit()
            self._report_progress()
            if framing.end != RUNNING:
                break
            if buffer.full(CHUNK_BYTES):
                self._decoding.submit(buffer)
                buffer = self._next_buffer()
            self._decoding.check()
            if not self._ahead:
                self._stream.rest(self._rest_seconds(deadline))
        self._decoding.submit(buffer)

    def _take(self, buffer: MessageBuffer) -> None:
        """Sort the messages left from the last batch, or those that arrived; keep those of the next batch."""
        data, lengths = self._ahead.take() if self._ahead else self._arrived_frames()
        used = self._framing.take(data, lengths, buffer)
        self._stream.report(self._framing.received_lsn, now=self._framing.asked_for_reply())
        self._ahead.add(data[int(lengths[:used].sum()) :], lengths[used:])

    def _arrived_frames(self) -> tuple[Any, Any]:
        frames = self._stream.drain()
        return frames.data, frames.lengths

    def _rest_seconds(self, deadline: float | None) -> float:
        if deadline is None:
            return _REST_SECONDS
        remaining_seconds = deadline - time.monotonic()
        if remaining_seconds > 0:
            return min(remaining_seconds, _REST_SECONDS)
        self._framing.end_at_commit()
        return 0.0 if self._framing.end == ENDED_EARLY else _REST_SECONDS

    def _next_buffer(self) -> MessageBuffer:
        """Wait until the decoder returns a buffer, and answer the server meanwhile."""
        while (buffer := self._decoding.free_buffer()) is None:
            self._stream.report(self._framing.received_lsn)
            self._decoding.wait(0.02)
        return buffer

    def _report_progress(self) -> None:
        now = time.monotonic()
        if self._progress is None or now - self._progress_seconds < _PROGRESS_SECONDS:
            return
        self._progress_seconds = now
        framing = self._framing
        taken = (framing.taken_bytes, framing.commits, framing.received_lsn)
        self._progress(PullProgress(*taken, framing.until, now - self._begun))

    def close(self) -> None:
        """End the stream; the server will send open transactions again."""
        self._decoding.stop()
        self._stream.close()


def _may_withhold(identity: BatchIdentity) -> bool:
    """True if a COMMIT PREPARED may come without its changes.

    At a failover PostgreSQL 17 loses the position from which the slot decodes two-phase (18 synchronizes
    ``two_phase_at``).  Of a transaction that was prepared while the slot was created, it then sends the
    outcome only.
    """
    return identity.server_version.startswith("17") and identity.timeline > 1


def _decoder(source: SourceSettings, options: Options) -> Decoder:
    """A decoder; it knows the source's own types if values may come in binary."""
    if not options.binary:
        return Decoder()
    return Decoder(binary=True, catalog=source_types(source))


class _Decoding:
    """The other thread: it takes full buffers in order, assembles, decodes, and appends to the batch."""

    def __init__(self, assembler: Assembler, decoder: Decoder, *, pass_over: bool) -> None:
        self.assembler = assembler
        self._decoder = decoder
        self._writer: BatchWriter | None = None
        self._free = [MessageBuffer() for _ in range(_BUFFERS)]
        self._under_way: list[tuple[Future[None], MessageBuffer]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slotlake-decode")
        self._next_seq = self._next_txn = 0
        self._open = False
        self.versions: list[RelationVersion] = []
        self.unreadable: Unreadable | None = {} if pass_over else None
        self.translation: Translation | None = None

    def begin(self, writer: BatchWriter) -> None:
        """Begin a new batch, to which the next buffers belong."""
        self._writer = writer
        self._next_seq = self._next_txn = 0
        self.versions = []
        self.unreadable = None if self.unreadable is None else {}

    def free_buffer(self) -> MessageBuffer | None:
        self.check()
        return self._free.pop() if self._free else None

    def submit(self, buffer: MessageBuffer) -> None:
        self._under_way.append((self._thread.submit(self._work, buffer), buffer))

    def check(self) -> None:
        """Reuse finished buffers; raise the other thread's error, if there is one."""
        while self._under_way and self._under_way[0][0].done():
            future, buffer = self._under_way.pop(0)
            future.result()
            buffer.clear()
            self._free.append(buffer)

    def wait(self, seconds: float) -> None:
        if self._under_way:
            with suppress(TimeoutError):
                self._under_way[0][0].exception(timeout=seconds)

    def finish(self) -> None:
        """Wait for all buffers; the last chunk must end with a commit."""
        while self._under_way:
            self.wait(1.0)
            self.check()
        if self._open:
            raise ProtocolError(
                "the batch ends inside a transaction", where="the end of the batch", way_out=DEFECT
            )

    def settle(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """For the manifest: prepared transactions that were stored, and those whose outcome came."""
        prepared = [which.entry() for which in self.assembler.persist()]
        resolved = [which.entry(outcome=outcome) for which, outcome in self.assembler.resolved]
        self.assembler.resolved.clear()
        return prepared, resolved

    def stop(self) -> None:
        """Stop: drop the work that has not begun, and wait for the rest."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self.assembler.close()
        if self.translation is not None:
            self.translation.close()

    def _work(self, buffer: MessageBuffer) -> None:
        utf8 = buffer if self.translation is None else self.translation.take(buffer)
        for plain in self.assembler.take(utf8):
            self._decode(plain)

    def _decode(self, buffer: MessageBuffer) -> None:
        assert self._writer is not None
        counters = {"first_seq": self._next_seq, "first_txn": self._next_txn}
        chunk = self._decoder.decode(buffer, **counters, partial=True, unreadable=self.unreadable)
        if chunk.consumed != buffer.count:
            remaining = buffer.count - chunk.consumed
            raise ProtocolError(
                f"the decoder did not read the last {remaining} of {buffer.count} messages",
                where="a chunk of the batch",
                way_out=DEFECT,
            )
        self._next_seq, self._next_txn, self._open = chunk.next_seq, chunk.next_txn, chunk.open
        self.versions += [version for version in chunk.rows if version not in self.versions]
        self._writer.append(chunk)
        reach("pull.mid")
