"""A connection to the slot that stays open between batches: the server decodes open transactions only once.

Each START_REPLICATION makes the server decode again from the start of the oldest open transaction. For 20
micro-batches next to an open transaction of 70 MB, this cost the server 21 s of CPU. With one connection, it
cost 3 s (docs/adr/0007).  Invariant: a stream is used only at the lake's position. If it is at another
position, or if it has ended, a new stream begins at the lake's position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from slotlake.decoder.assembly.prepared import Noted
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import (
    ProtocolError,
    SlotlakeError,
    SourceError,
    SourceUnavailableError,
    StreamingError,
    UnsendableError,
    UntranslatableError,
)
from slotlake.decoder.failpoints import reach
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.position import writers_open
from slotlake.decoder.server.source import (
    SourceSettings,
    redact,
    source_session,
)
from slotlake.decoder.stream.bulk import BULK_MIN_BYTES
from slotlake.decoder.stream.options import negotiate
from slotlake.decoder.stream.preflight import (
    Planned,
    PullRequest,
    identity_of,
    look_at_source,
    no_matter,
    prepare,
)
from slotlake.decoder.stream.pull import WHOLE_TRANSACTIONS, Progress, pull, without_streaming_may_help
from slotlake.decoder.stream.puller import Puller


@dataclass(frozen=True)
class PullSettings:
    """The settings that all pulls of a pipeline share.

    Attributes:
        source: connection and slot.
        pipeline: its name, which the manifests hold.
        changelog: the folder of the batches.
        batch_bytes_max: a batch ends after so many bytes; None: no limit.
        memory_bytes: memory for the rows of one batch.
        waiting_prepared: returns the prepared transactions whose outcome the lake waits for.
        planned: called with a position before a batch is read, when everything up to it is committed.
    """

    source: SourceSettings
    pipeline: str
    changelog: Path
    batch_bytes_max: int | None
    memory_bytes: int
    waiting_prepared: Noted = tuple
    planned: Planned = no_matter

    def pull(self, position: int, until: int | None, progress: Progress | None) -> Batch:
        """Write the batch that follows a position, over a connection of its own.

        Args:
            until: where the batch ends; None: at the source's current position.
            progress: is called with the number of bytes while the batch is read.
        """
        return pull(
            self.source,
            self.pipeline,
            self.changelog,
            start=position,
            until=until,
            max_bytes=self.batch_bytes_max,
            memory_bytes=self.memory_bytes,
            pass_over=True,
            stream_by_need=True,
            noted=self.waiting_prepared,
            planned=self.planned,
            progress=progress,
        )


@dataclass(frozen=True)
class _StreamRequest:
    """A batch to write: LSNs of its start and its end."""

    position: int
    until: int
    progress: Progress | None


class StandingStream:
    """At most one connection to the slot, which stays open between batches.

    Args:
        settings: the pipeline's.
        report_line: called with a line of text for each event.
    """

    def __init__(
        self, settings: PullSettings, report_line: Callable[[str], None] = lambda line: None
    ) -> None:
        self._settings, self._report_line = settings, report_line
        self._puller: Puller | None = None
        self._streaming = True
        self._batches_requested = 0

    @property
    def wait_seconds(self) -> float:
        """`keep_alive` is due at least this often."""
        return self._puller.status_seconds / 2 if self._puller is not None else 60.0

    @property
    def connected(self) -> bool:
        """Whether the connection is open."""
        return self._puller is not None

    def worth_it(self) -> bool:
        """Return whether the next batch should come over this stream.

        It should if the connection is open, or from the second batch on if a transaction is open. A process
        that pulls only once would make the server decode such a transaction once in any case.
        """
        self._batches_requested += 1
        return self._puller is not None or (self._batches_requested > 1 and self.worth_keeping())

    def worth_keeping(self) -> bool:
        """Return whether an open transaction has written: the next connection would decode it again."""
        source = self._settings.source
        with source_session(source.dsn, "looking for open transactions") as connection:
            return writers_open(connection)

    def batch(
        self, position: int, until: int | None, progress: Progress | None = None, *, whole: bool = False
    ) -> Batch:
        """Return the batch that follows the lake's position; a batch that is on disk is used again.

        Args:
            until: where the batch ends; None: at the source's current position.
            progress: is called with the number of bytes while the batch is read.
            whole: read everything up to ``until``, even if it is more than ``batch_bytes_max``.
        """
        self._check_plugin()
        plan = prepare(self._request(position, until), own_stream=self._puller is not None)
        if isinstance(plan, Batch):
            return plan
        settings = self._settings
        limited = replace(settings, batch_bytes_max=None) if whole else settings
        return self._write_batch(_StreamRequest(position, plan.until, progress), limited)

    def _write_batch(self, request: _StreamRequest, settings: PullSettings) -> Batch:
        if self._puller is None and request.until - request.position >= BULK_MIN_BYTES:
            return self._catch_up(request, settings)
        try:
            return self._stream_batch_again(request, settings)
        except (UnsendableError, UntranslatableError):  # a pull over its own connection knows another way
            return settings.pull(request.position, request.until, request.progress)

    def _stream_batch_again(self, request: _StreamRequest, settings: PullSettings) -> Batch:
        """Stream a batch; try once more without streaming, or over a new connection, where that helps."""
        was_connected = self._puller is not None
        try:
            return self._stream_batch(request, settings)
        except (StreamingError, ProtocolError) as error:
            streaming = settings.source.streaming or "parallel" if self._streaming else "off"
            if not without_streaming_may_help(error, streaming):
                raise
            self._report_line(f"{error.what}; {WHOLE_TRANSACTIONS}, by this process from now on")
            self._streaming = False
        except SourceUnavailableError as error:
            if not was_connected:
                raise
            self._report_line(f"{error.what}; connecting again")
        return self._stream_batch(request, settings)

    def _check_plugin(self) -> None:
        source = self._settings.source
        if source.plugin != "pgoutput":
            raise SourceError(
                f"a standing puller reads only pgoutput, but the slot's plugin is {source.plugin}",
                where=redact(source.dsn),
                way_out="run slotlake sync without a standing puller",
            )

    def _catch_up(self, request: _StreamRequest, settings: PullSettings) -> Batch:
        """Pull a backlog over its own connection, which may use SQL; then open the stream behind it.

        The stream opens at once: the server decodes open transactions once more now, not after every backlog.
        """
        batch = settings.pull(request.position, request.until, request.progress)
        self.at(batch.end_lsn)
        return batch

    def _stream_batch(self, request: _StreamRequest, settings: PullSettings) -> Batch:
        try:
            puller = self.at(request.position)
            batch = puller.next_batch(
                request.until, max_bytes=settings.batch_bytes_max, progress=request.progress
            )
        except BaseException:
            self.end()
            raise
        reach("pull.renamed")
        return batch

    def at(self, position: int) -> Puller:
        """Return the stream at the lake's position; open it there if it is somewhere else."""
        if self._puller is None or self._puller.position != position:
            self.end()
            self._puller = self._open_puller(position)
        return self._puller

    def _open_puller(self, position: int) -> Puller:
        settings = self._settings
        source = settings.source
        state = look_at_source(self._request(position, None))
        options = state.options or negotiate(source, state.server.server_version)
        puller = Puller(
            source,
            options if self._streaming else replace(options, streaming="off"),
            settings.changelog,
            identity_of(state.server, settings.pipeline, source),
            position,
            memory_bytes=settings.memory_bytes,
            pass_over=True,
            noted=settings.waiting_prepared,
        )
        self._report_line(f"following {source.slot} from {format_lsn(position)}")
        return puller

    def _request(self, position: int, until: int | None) -> PullRequest:
        settings = self._settings
        return PullRequest(settings.source, settings.pipeline, settings.changelog, position, until)

    def confirm(self, position: int) -> bool:
        """Confirm a position over the stream; return False if no stream is at that position."""
        if self._puller is None or self._puller.position != position:
            return False
        try:
            self._puller.confirm(position)
        except SlotlakeError:
            self.end()
            return False
        return True

    @property
    def socket(self) -> int | None:
        """The file descriptor of the open connection; None if there is none."""
        return None if self._puller is None else self._puller.socket

    @property
    def looks_ahead(self) -> bool:
        """Whether the connection is open and `look_ahead` reads what arrives."""
        return self._puller is not None and self._puller.looks_ahead

    def look_ahead(self) -> bool:
        """Receive what has arrived, for the next batch; return whether that should begin.

        It should also begin if the connection is lost: the batch opens a new one, or says why it cannot.
        """
        if self._puller is None:
            return False
        try:
            return self._puller.look_ahead()
        except SlotlakeError as error:
            self.end()
            self._report_line(f"the stream ended: {error.what}; the next batch opens it again")
            return True

    def keep_alive(self) -> None:
        """Tell the server that this reader lives; it does nothing else between batches."""
        try:
            if self._puller is not None:
                self._puller.answer()
        except SlotlakeError as error:
            self.end()
            self._report_line(f"the stream ended: {error.what}; the next request opens it again")

    def end(self) -> None:
        """Close the connection, if it is open."""
        puller, self._puller = self._puller, None
        if puller is not None:
            puller.close()
