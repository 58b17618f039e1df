"""Pull: from the slot to one whole batch of the change log.

Owns the order of things: the slot is judged, the end position fixed, a batch that is on disk already
is taken as it is, else changes are streamed, decoded and written side by side, and the batch is
renamed.  Nothing is confirmed to the server: that is `decoder.confirm`, after the lake has
published.

Two threads.  This one owns the socket: it receives, sorts (framing.py) and answers the server, also
while the other decodes and writes.  Between them go message buffers of a bounded number and size, so
memory does not depend on how large a transaction is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

from decoder.batch_writer import BatchIdentity, BatchWriter, empty_batch, remove_leftovers
from decoder.buffer import MessageBuffer
from decoder.changelog import Batch, batch_starting_at
from decoder.columnar import Decoder
from decoder.errors import ChangeLogError, ProtocolError, SourceError
from decoder.failpoints import reach
from decoder.framing import CUT, NO_LIMIT, RUNNING, Bounds, Framing
from decoder.lsn import format_lsn
from decoder.position import page_floor, settled_position
from decoder.publications import check_publications
from decoder.receive import Stream
from decoder.relations import RelationVersion
from decoder.slots import check_slot
from decoder.source import ServerIdentity, SourceSettings, connect, identify, redact, source_errors

CHUNK_BYTES = 16 << 20
_BUFFERS = 3
_PROGRESS_SECONDS = 0.25
_REST_SECONDS = 1.0


@dataclass(frozen=True)
class PullProgress:
    """How far a pull has come: bytes and transactions received, position reached of the one wanted."""

    received_bytes: int
    transactions: int
    position: int
    until: int
    seconds: float


Progress = Callable[[PullProgress], None]


def pull(
    source: SourceSettings,
    pipeline: str,
    changelog_dir: Path,
    *,
    start: int,
    until: int | None = None,
    max_bytes: int | None = None,
    max_seconds: float | None = None,
    progress: Progress | None = None,
) -> Batch:
    """Bring all transactions from ``start`` on into one batch of the change log.

    Args:
        start: the lake's position.
        until: the batch's exact end; without it, a position behind all that was committed before
            the call, or the end of a batch from ``start`` that is on disk already.
        max_bytes: payload bytes after which the batch ends early, at the next commit.
        max_seconds: likewise in time.
        progress: called a few times a second.

    Returns:
        The batch, whole and on disk; `Batch.empty` (and not on disk) when start and end are the same.

    Raises:
        SourceError, SlotError: the server or the slot, each with its way out.
        ChangeLogError: the disk does not take the batch, or an old batch is damaged.
        ProtocolError: the stream is not what it should be.
        In every case nothing of an unfinished batch is left and nothing was confirmed.
    """
    remove_leftovers(changelog_dir)
    server = identify(source.dsn)
    with connect(source.dsn) as connection, source_errors(source.dsn, "looking at the slot"):
        check_slot(connection, source, position=start)
        check_publications(connection, source.publications)
        settled = settled_position(connection)
    identity = _identity(server, pipeline, source)
    known = batch_starting_at(changelog_dir, start, until)
    if known is not None:
        return _reused(known, identity)
    until = _end(source, start, until, settled)
    if until == start:
        return empty_batch(changelog_dir, identity, start)
    bounds = Bounds(start, until, NO_LIMIT if max_bytes is None else max_bytes)
    deadline = None if max_seconds is None else time.monotonic() + max_seconds
    batch = _Pull(source, BatchWriter(changelog_dir, identity, start), bounds, deadline, progress).run()
    reach("pull.renamed")
    return batch


def _identity(server: ServerIdentity, pipeline: str, source: SourceSettings) -> BatchIdentity:
    return BatchIdentity(
        pipeline=pipeline,
        system_identifier=server.system_identifier,
        timeline=server.timeline,
        database=server.database,
        slot=source.slot,
        server_version=server.version_text,
    )


def _end(source: SourceSettings, start: int, until: int | None, settled: int) -> int:
    if until is not None and until < start:
        raise ValueError(f"a batch from {format_lsn(start)} cannot end at {format_lsn(until)}")
    wanted = start if until is None else until
    if page_floor(wanted) > settled:
        raise SourceError(
            f"the server's WAL ends at {format_lsn(settled)}, before {format_lsn(wanted)}",
            where=redact(source.dsn),
            way_out="this is not the server that the lake was fed from, or it was restored to an earlier "
            "moment: connect to the right one, or make the lake anew with `slotlake init`",
        )
    return max(start, settled) if until is None else until


def _reused(batch: Batch, identity: BatchIdentity) -> Batch:
    """A batch on disk is used again if it is whole and of the same source."""
    if str(batch.manifest["system_identifier"]) != identity.system_identifier:
        raise ChangeLogError(
            "the change log holds a batch of another server from the lake's position on",
            where=str(batch.path),
            way_out="connect to the server that the lake was fed from, or move a wrong batch away",
        )
    if (batch.manifest["slot"], batch.manifest["database"]) != (identity.slot, identity.database):
        raise ChangeLogError(
            f"the change log holds a batch from slot {batch.manifest['slot']!r} in database "
            f"{batch.manifest['database']!r} from the lake's position on",
            where=str(batch.path),
            way_out="give each pipeline a change log directory of its own, or move that batch away",
        )
    batch.verify()
    return batch


class _Pull:
    """One batch from the first message to the rename."""

    def __init__(
        self,
        source: SourceSettings,
        writer: BatchWriter,
        bounds: Bounds,
        deadline: float | None,
        progress: Progress | None,
    ) -> None:
        self._source, self._writer, self._bounds, self._deadline = source, writer, bounds, deadline
        self._framing = Framing(bounds)
        self._decoding = _Decoding(writer)
        self._progress = progress
        self._begun = self._told = time.monotonic()

    def run(self) -> Batch:
        try:
            with Stream(self._source, self._bounds.start) as stream:
                self._receive(stream)
            self._decoding.finish()
            end = self._framing.seen if self._framing.end == CUT else self._bounds.until
            return self._writer.finish(end, keys_of(self._source, self._decoding.versions))
        except BaseException:
            self._decoding.stop()
            self._writer.abandon()
            raise

    def _receive(self, stream: Stream) -> None:
        framing = self._framing
        buffer = self._decoding.free_buffer()
        assert buffer is not None
        while True:
            frames = stream.drain()
            framing.take(frames.data, frames.lengths, buffer)
            stream.report(framing.seen, now=framing.asked_for_reply())
            self._tell()
            if framing.end != RUNNING:
                break
            if buffer.size_bytes >= CHUNK_BYTES:
                self._decoding.submit(buffer)
                buffer = self._next_buffer(stream)
            self._decoding.check()
            stream.rest(self._rest_seconds())
        self._decoding.submit(buffer)

    def _rest_seconds(self) -> float:
        if self._deadline is None:
            return _REST_SECONDS
        left = self._deadline - time.monotonic()
        if left > 0:
            return min(left, _REST_SECONDS)
        self._framing.cut_at_commit()
        return 0.0 if self._framing.end == CUT else _REST_SECONDS

    def _next_buffer(self, stream: Stream) -> MessageBuffer:
        """Wait for a buffer to come back from the decoder, answering the server meanwhile."""
        while (buffer := self._decoding.free_buffer()) is None:
            stream.report(self._framing.seen)
            self._decoding.wait(0.02)
        return buffer

    def _tell(self) -> None:
        now = time.monotonic()
        if self._progress is None or now - self._told < _PROGRESS_SECONDS:
            return
        self._told = now
        framing = self._framing
        self._progress(
            PullProgress(
                framing.taken_bytes, framing.commits, framing.seen, self._bounds.until, now - self._begun
            )
        )


class _Decoding:
    """The other thread: takes full buffers in order, decodes them, appends to the batch."""

    def __init__(self, writer: BatchWriter) -> None:
        self._writer = writer
        self._decoder = Decoder()
        self._free = [MessageBuffer() for _ in range(_BUFFERS)]
        self._under_way: list[tuple[Future[None], MessageBuffer]] = []
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="slotlake-decode")
        self._next_seq = self._next_txn = 0
        self._open = False
        self.versions: list[RelationVersion] = []

    def free_buffer(self) -> MessageBuffer | None:
        self.check()
        return self._free.pop() if self._free else None

    def submit(self, buffer: MessageBuffer) -> None:
        self._under_way.append((self._thread.submit(self._decode, buffer), buffer))

    def check(self) -> None:
        """Take back finished buffers; raise what the other thread raised."""
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
        """Wait for all; the last chunk must end with a commit."""
        while self._under_way:
            self.wait(1.0)
            self.check()
        self._thread.shutdown()
        if self._open:
            raise ProtocolError("the batch ends inside a transaction")

    def stop(self) -> None:
        """Give up: what has not begun is dropped, what has is waited for."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _decode(self, buffer: MessageBuffer) -> None:
        chunk = self._decoder.decode(buffer, first_seq=self._next_seq, first_txn=self._next_txn, partial=True)
        if chunk.consumed != buffer.count:
            raise ProtocolError(f"the decoder left {buffer.count - chunk.consumed} messages over")
        self._next_seq, self._next_txn, self._open = chunk.next_seq, chunk.next_txn, chunk.open
        self.versions += [version for version in chunk.rows if version not in self.versions]
        self._writer.append(chunk)
        reach("pull.mid")


def keys_of(
    source: SourceSettings, versions: Sequence[RelationVersion]
) -> Mapping[RelationVersion, tuple[str, ...]]:
    """The columns that identify a row, per relation version.

    The stream itself says which under a default or index identity.  Under FULL (every column is marked)
    and NOTHING (none is) the primary key is asked from the catalog; a key with a column that this
    version does not publish is none.
    """
    keys = {v: tuple(c.name for c in v.columns if c.in_key) for v in versions if v.replica_identity in "di"}
    asked = [version for version in versions if version.replica_identity in "fn"]
    if not asked:
        return keys
    with connect(source.dsn) as connection, source_errors(source.dsn, "looking up primary keys"):
        for version in asked:
            key = _primary_key(connection, version.relation_id)
            published = {column.name for column in version.columns}
            keys[version] = key if published.issuperset(key) else ()
    return keys


def _primary_key(connection: psycopg.Connection[Any], relation_id: int) -> tuple[str, ...]:
    rows = connection.execute(
        "SELECT a.attname FROM pg_index i JOIN pg_attribute a "
        "ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey) "
        "WHERE i.indrelid = %s AND i.indisprimary ORDER BY a.attnum",
        (relation_id,),
    ).fetchall()
    return tuple(str(row[0]) for row in rows)
