"""Reads a slot, or a recording, into a consumer.

Owns the rule by which reading ends.  With an end position U the consumer gets exactly the transactions whose
commit record starts before U.  Some plugins (test_decoding, decoderbufs) do not send that position, but only
the end of the record, with the commit itself: with ``until`` their transactions wait until then, unless the
consumer itself drops transactions that do not commit (`keeps_until_commit`).  Without ``until``, reading ends
after everything that was committed before the call.

Nothing is confirmed, so a slot can be read again and again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from slotlake.decoder.catalog.publications import check_publications
from slotlake.decoder.catalog.source_types import keep_asking
from slotlake.decoder.errors import ConsumerError, ProtocolError, SourceError
from slotlake.decoder.plugins.catalog import Catalog, LiveCatalog, NotingCatalog
from slotlake.decoder.plugins.consumer import Capabilities, Consumer, capabilities_of
from slotlake.decoder.plugins.delivery import Delivery
from slotlake.decoder.plugins.model import Event, Message, Startup
from slotlake.decoder.plugins.reader import Reader, ReaderBase
from slotlake.decoder.plugins.readers import NUMBERS_AS_TEXT, check_plugin, plugin_options, reader_for
from slotlake.decoder.plugins.recording import BROKEN, Recording, RecordingWriter
from slotlake.decoder.protocol.message_record import record_start
from slotlake.decoder.server.position import settled_position
from slotlake.decoder.server.source import SourceSettings, redact, source_session
from slotlake.decoder.server.timeline import Origin
from slotlake.decoder.slots.slot import check_slot
from slotlake.decoder.stream.receive import Stream
from slotlake.decoder.types.catalog import load_types

_LSN = struct.Struct(">Q")
_REST_SECONDS = 1.0
_END_UNKNOWN_AT_BEGIN = ("test_decoding", "decoderbufs")
_OUTSIDE = ("begin", "begin_prepare", "message", "stream_commit", "commit_prepared", "rollback_prepared")

_ENDS = ("commit", "prepare", "stream_commit", "stream_prepare", "commit_prepared", "rollback_prepared")


class HiddenNumbersError(SourceError):
    """The plugin prints NaN and infinity as NULL: wal2json before 2.6."""


@dataclass(frozen=True)
class Bounds:
    """Start and end of reading; ``exact``: the caller gave the end."""

    start: int
    until: int
    exact: bool


@dataclass(frozen=True)
class _Received:
    lsn: int
    payload: bytes


def read_slot(
    source: SourceSettings,
    consumer: Consumer,
    *,
    options: Mapping[str, str] | None = None,
    start: int | None = None,
    until: int | None = None,
    record: Path | None = None,
    origin: Origin | None = None,
) -> int:
    """Give a slot's transactions to a consumer, in commit order; nothing is confirmed.

    Args:
        source: server and slot; its ``plugin`` must be the slot's.
        options: options of the plugin, which replace the default ones; an empty value removes an option.
        start: the slot's confirmed position if not given.
        until: exact end; without it everything that was committed before the call is read.
        record: also write the raw messages to this file (see `decoder.plugins.recording`).
        origin: the server that must answer; any if not given.

    Returns:
        The position up to which everything was delivered.

    Raises:
        ConsumerError: the consumer lacks a callback or failed.
        SourceError, SlotError, ProtocolError: as for a pull.
    """
    position = 0
    for reached in slot_steps(
        source, consumer, options=options, start=start, until=until, record=record, origin=origin
    ):
        position = reached
    return position


def slot_steps(
    source: SourceSettings,
    consumer: Consumer,
    *,
    options: Mapping[str, str] | None = None,
    start: int | None = None,
    until: int | None = None,
    record: Path | None = None,
    origin: Origin | None = None,
) -> Iterator[int]:
    """As `read_slot`, message by message: yields the position after each, and at the end.

    Args:
        source, consumer, options, start, until, record, origin: as in `read_slot`.
    """
    source = _within(source, capabilities_of(consumer))
    with ExitStack() as stack:
        slot = _Slot(source, options, start, until, origin)
        startup = slot.startup
        writer = stack.enter_context(RecordingWriter(record, startup)) if record is not None else None
        live = LiveCatalog(source.dsn)
        stack.callback(live.close)
        catalog: Catalog = live if writer is None else NotingCatalog(live, writer.answer)
        reader = reader_for(
            source.plugin, startup.options, catalog, two_phase=startup.two_phase, types=slot.types
        )
        if isinstance(reader, ReaderBase):
            reader.any_bytes = bool(getattr(consumer, "takes_any_bytes", False))
        delivery = stack.enter_context(Delivery(consumer, startup))
        keeps = bool(getattr(consumer, "keeps_until_commit", False))
        yield from _Reading(reader, delivery, slot.bounds, writer, keeps=keeps).steps(slot)


def read_file(path: Path, consumer: Consumer) -> int:
    """Give the transactions of a recording to a consumer; return the number of messages read.

    Raises:
        ProtocolError: the file or a message in it is damaged, or the recording is incomplete.
        ConsumerError: the consumer lacks a callback or failed.
    """
    return sum(1 for _ in file_steps(path, consumer))


def file_steps(path: Path, consumer: Consumer) -> Iterator[int]:
    """As `read_file`, message by message: yields the position of each.

    Raises:
        ProtocolError: the file is damaged, or ends inside a transaction.
    """
    recording = Recording(path)
    with ExitStack() as stack:
        stack.callback(recording.close)
        startup, answers = recording.startup, recording.catalog
        reader = reader_for(startup.plugin, startup.options, answers, two_phase=startup.two_phase)
        delivery = stack.enter_context(Delivery(consumer, startup))
        for lsn, payload in recording.messages():
            delivery.take(reader.read(payload, lsn))
            yield lsn
        if reader.open:
            raise ProtocolError("the recording ends inside a transaction", where=str(path), way_out=BROKEN)


def _within(source: SourceSettings, capabilities: Capabilities) -> SourceSettings:
    """The settings, checked against the consumer's capabilities, which also decide what they leave open."""
    asked = {"streaming": source.streaming not in (None, "off"), "two_phase": source.two_phase}
    takes = {"streaming": capabilities.streaming, "two_phase": capabilities.two_phase}
    for name in (name for name in asked if asked[name] and not takes[name]):
        raise ConsumerError(
            f"the source's settings have {name}, but the consumer lacks the callbacks for it",
            where=f"source.{name}",
            way_out=f"implement these callbacks (docs/plugins.md), or leave {name} out: then transactions "
            "come whole",
        )
    if source.streaming is None and (not capabilities.streaming or source.plugin != "pgoutput"):
        return replace(source, streaming="off")
    return source


class _Slot:
    """The facts before the first message, and the messages."""

    def __init__(
        self,
        source: SourceSettings,
        options: Mapping[str, str] | None,
        start: int | None,
        until: int | None,
        origin: Origin | None,
    ) -> None:
        check_plugin(source.plugin)
        self._source, self._origin = source, origin
        with source_session(source.dsn, "looking at the slot") as connection:
            state = check_slot(connection, source, position=start)
            if source.plugin == "pgoutput":
                check_publications(connection, source.publications)
            else:
                _check_encoding(connection, source)
            version = connection.info.server_version
            settled = settled_position(connection)
            self.types = load_types(connection) if source.binary else None
            if self.types is not None:
                keep_asking(self.types, source.dsn)
        chosen = plugin_options(source, version, options)
        begin = start if start is not None else state.confirmed_flush_lsn or 0
        self.bounds = Bounds(begin, settled if until is None else until, until is not None)
        self.startup = Startup(source.plugin, chosen, begin, version, state.two_phase)

    def _stream(self) -> Stream:
        options = list(self.startup.options.items())
        try:
            return Stream(self._source, self.bounds.start, plugin_options=options, origin=self._origin)
        except SourceError as error:
            if NUMBERS_AS_TEXT in error.what and "unknown" in error.what:
                raise HiddenNumbersError(
                    error.what,
                    where=error.where,
                    way_out="wal2json before 2.6 lacks this option, and prints NaN and infinity in number "
                    "columns as null. Install wal2json 2.6, or accept this and remove the option: "
                    f"{NUMBERS_AS_TEXT}=",
                ) from None
            raise

    def received(self, reading: _Reading) -> Iterator[_Received]:
        """Yield the messages as they come; keepalives go to ``reading.reached``."""
        with self._stream() as stream:
            received_lsn = self.bounds.start
            while not reading.done():
                frames = stream.drain()
                data, at, asked = frames.data.tobytes(), 0, False
                for length in frames.lengths.tolist():
                    frame, at = data[at : at + length], at + length
                    if frame[:1] == b"w" and length >= 25:
                        yield _Received(_LSN.unpack_from(frame, 1)[0], frame[25:])
                    elif frame[:1] == b"k" and length == 18:
                        received_lsn = max(received_lsn, _LSN.unpack_from(frame, 1)[0])
                        asked |= frame[17] != 0
                        reading.reached(received_lsn)
                    else:
                        raise ProtocolError("the replication message has an unknown kind", lsn=received_lsn)
                    if reading.done():
                        break
                stream.report(received_lsn, now=asked)
                if not reading.done():
                    stream.rest(_REST_SECONDS)


class _Reading:
    """One run from the first message to the end position."""

    def __init__(
        self,
        reader: Reader,
        delivery: Delivery,
        bounds: Bounds,
        writer: RecordingWriter | None,
        *,
        keeps: bool,
    ) -> None:
        self._reader, self._delivery, self._bounds, self._writer = reader, delivery, bounds, writer
        self._late = reader.plugin in _END_UNKNOWN_AT_BEGIN
        self._holds = bounds.exact and self._late and not keeps
        self._events: list[Event] = []
        self._end = bounds.start
        self._ended = bounds.start >= bounds.until

    def steps(self, slot: _Slot) -> Iterator[int]:
        if not self._ended:
            for message in slot.received(self):
                self._take(message)
                yield self._end
        yield self._end

    def done(self) -> bool:
        """True if the end position is reached."""
        return self._ended

    def reached(self, position: int) -> None:
        """Note that the server has sent all transactions that commit before ``position``."""
        if not self._reader.open:
            self._end = max(self._end, min(position, self._bounds.until))
            self._ended |= position >= self._bounds.until

    def _take(self, message: _Received) -> None:
        if self._writer is not None:
            self._writer.message(message.lsn, message.payload)
        for event in self._reader.read(message.payload, message.lsn):
            if self._is_beyond(event):
                self._ended = True
                self._end = max(self._end, self._bounds.until)
                return
            self._events.append(event)
        if not self._events or (self._holds and self._reader.open):
            return
        events, self._events = self._events, []
        if self._writer is not None:
            self._writer.keep()
        self._delivery.take(events)
        for event in events:
            self._note_end(event)

    def _is_beyond(self, event: Event) -> bool:
        """True if the event belongs to a record at the end position or later."""
        until, transaction = self._bounds.until, event.transaction
        if event.callback == "message" and transaction is None:
            return event.lsn > until and _message_starts(event) >= until
        if transaction is None or (self._late and not self._bounds.exact):
            return False
        if event.callback in _OUTSIDE and transaction.commit_lsn is not None:
            return transaction.commit_lsn >= until
        # A position is between two records: a commit record that ends after it does not start before it.
        return transaction.end_lsn is not None and transaction.end_lsn > until

    def _note_end(self, event: Event) -> None:
        transaction = event.transaction
        if transaction is None or transaction.end_lsn is None or event.callback not in _ENDS:
            return
        self._end = max(self._end, transaction.end_lsn)
        self._ended |= transaction.end_lsn >= self._bounds.until


def _message_starts(event: Event) -> int:
    if not isinstance(event.body, Message):
        return event.lsn
    return record_start(event.lsn, len(event.body.prefix.encode()) + 1 + len(event.body.content))


def _check_encoding(connection: Any, source: SourceSettings) -> None:
    """Refuse databases that are not UTF8: only pgoutput converts texts to the client's encoding."""
    row = connection.execute("SHOW server_encoding").fetchone()
    if row is None or row[0] != "UTF8":
        raise SourceError(
            f"{source.plugin} sends texts in the database's encoding, which is "
            f"{row[0] if row else 'unknown'}, not UTF8",
            where=redact(source.dsn),
            way_out="use pgoutput, which converts texts to UTF8",
        )
