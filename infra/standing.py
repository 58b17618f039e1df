"""A stream that outlives its batch, so that transactions that stay open are decoded once.

Each START_REPLICATION makes the server decode again from where the oldest open transaction began: 20
micro-batches beside an open transaction of 70 MB cost it 21 s of CPU, over one connection 3 s
(docs/adr/0007).  Invariant: a stream is used only where the lake's position says so; if it stands elsewhere
or has broken off, it is begun anew there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from slotlake.decoder.assembly.prepared import Noted
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import (
    SlotlakeError,
    SourceError,
    SourceUnavailableError,
    StreamingError,
    UnsendableError,
)
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.position import writers_open
from slotlake.decoder.server.source import (
    SourceSettings,
    redact,
    source_session,
)
from slotlake.decoder.stream.bulk import BULK_MIN_BYTES
from slotlake.decoder.stream.options import negotiate
from slotlake.decoder.stream.preflight import PullRequest, identity_of, look_at_source, prepare
from slotlake.decoder.stream.pull import Progress, pull
from slotlake.decoder.stream.puller import Puller


@dataclass(frozen=True)
class PullSettings:
    """What a pipeline's pulls have in common; sizes in bytes."""

    source: SourceSettings
    pipeline: str
    changelog: Path
    batch_bytes_max: int | None
    memory_bytes: int
    noted: Noted = tuple  # as of a `Puller`

    def pull(self, position: int, until: int | None, progress: Progress | None) -> Batch:
        """The batch that follows a position, over a connection of its own."""
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
            noted=self.noted,
            progress=progress,
        )


class StandingStream:
    """At most one connection to the slot, kept between batches.

    Args:
        told: called with a line of text for each event.
    """

    def __init__(self, settings: PullSettings, told: Callable[[str], None] = lambda line: None) -> None:
        self._settings, self._told = settings, told
        self._puller: Puller | None = None
        self._streaming = True
        self._asked = 0

    @property
    def wait_seconds(self) -> float:
        """`keep_alive` is due at least this often."""
        return self._puller.status_seconds / 2 if self._puller is not None else 60.0

    @property
    def connected(self) -> bool:
        return self._puller is not None

    def worth_it(self) -> bool:
        """Is a stream held, or is this not the first batch and a transaction open?

        A process that pulls once would have it decoded once in any case.
        """
        self._asked += 1
        return self._puller is not None or (self._asked > 1 and self.worth_keeping())

    def worth_keeping(self) -> bool:
        """Is a transaction open that has written, which the next connection would decode again?"""
        source = self._settings.source
        with source_session(source.dsn, "looking for open transactions") as connection:
            return writers_open(connection)

    def batch(
        self, position: int, until: int | None, progress: Progress | None = None, *, whole: bool = False
    ) -> Batch:
        """The batch that follows the lake's position; one that is on disk is taken as it is.

        Args:
            whole: all up to ``until``, however much that is.
        """
        self._check_plugin()
        plan = prepare(self._request(position, until), own_stream=self._puller is not None)
        if isinstance(plan, Batch):
            return plan
        usual = self._settings
        try:
            self._settings = replace(usual, batch_bytes_max=None) if whole else usual
            made = self._cut(position, plan.until, progress)
        finally:
            self._settings = usual
        self._told(f"{made.name}: {made.transactions} transactions, {made.changes} changes")
        return made

    def _cut(self, position: int, until: int, progress: Progress | None) -> Batch:
        held = self._puller is not None
        if not held and until - position >= BULK_MIN_BYTES:
            return self._catch_up(position, until, progress)
        try:
            return self._cut_once(position, until, progress)
        except StreamingError as error:
            self._told(f"{error.what}; read without streaming from now on")
            self._streaming = False
        except SourceUnavailableError as error:
            if not held:
                raise
            self._told(f"{error.what}; begun again")
        except UnsendableError:
            return self._settings.pull(position, until, progress)  # which knows another way
        try:
            return self._cut_once(position, until, progress)
        except UnsendableError:
            return self._settings.pull(position, until, progress)

    def _check_plugin(self) -> None:
        source = self._settings.source
        if source.plugin != "pgoutput":
            raise SourceError(
                f"a standing puller reads pgoutput only, and the slot is of {source.plugin}",
                where=redact(source.dsn),
                way_out="run slotlake sync without it",
            )

    def _catch_up(self, position: int, until: int, progress: Progress | None) -> Batch:
        """A backlog: read through SQL where that is possible; the stream begins behind it.

        At once, so that what stays open is decoded once more and not with every backlog.
        """
        made = self._settings.pull(position, until, progress)
        self.at(made.end_lsn)
        return made

    def _cut_once(self, position: int, until: int, progress: Progress | None) -> Batch:
        limit = self._settings.batch_bytes_max
        try:
            return self.at(position).next_batch(until, max_bytes=limit, progress=progress)
        except BaseException:
            self.end()
            raise

    def at(self, position: int) -> Puller:
        """The stream, where the lake stands."""
        if self._puller is None or self._puller.position != position:
            self.end()
            self._puller = self._opened(position)
        return self._puller

    def _opened(self, position: int) -> Puller:
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
            noted=settings.noted,
        )
        self._told(f"following {source.slot} from {format_lsn(position)}")
        return puller

    def _request(self, position: int, until: int | None) -> PullRequest:
        settings = self._settings
        return PullRequest(settings.source, settings.pipeline, settings.changelog, position, until)

    def confirm(self, position: int) -> bool:
        """Confirm over the stream; False when there is none that stands there."""
        if self._puller is None or self._puller.position != position:
            return False
        try:
            self._puller.confirm(position)
        except SlotlakeError:
            self.end()
            return False
        return True

    def keep_alive(self) -> None:
        """Nothing is received between batches: the server waits, and is told that this reader lives."""
        try:
            if self._puller is not None:
                self._puller.answer()
        except SlotlakeError as error:
            self.end()
            self._told(f"the stream ended: {error.what}; it is begun again at the next request")

    def end(self) -> None:
        """Let go of the slot."""
        puller, self._puller = self._puller, None
        if puller is not None:
            puller.close()
