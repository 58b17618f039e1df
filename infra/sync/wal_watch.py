"""How a run learns that the source has something for it, without asking the server again and again.

With pgoutput, an open replication connection says it: the server sends what is committed, and nothing while
there is nothing (infra/source/own_puller.py).  With another plugin, or while `slotlake pull --follow` of
another process has the slot, the run asks for the WAL position, less and less often.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import source_session
from slotlake.decoder.slots.pressure import wal_now
from slotlake.infra.source import standing_puller
from slotlake.infra.source.own_puller import OwnPuller

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.source.bell import Bell

_ASK_SECONDS, _ASK_SECONDS_MAX = 0.2, 5.0


class WalWatch:
    """Waits for changes of the source.

    Args:
        pipeline: the pipeline.
        bell: rings when there are changes; its `stop` ends the waiting.
        report_line: called with a line of text for each event.
    """

    def __init__(self, pipeline: OpenPipeline, bell: Bell, report_line: Callable[[str], None]) -> None:
        self._pipeline, self._bell = pipeline, bell
        self._puller = OwnPuller(pipeline, bell, report_line)
        self._wal: int | None = None

    def begin(self) -> None:
        """Open the connection to the slot, if it is not open; the caller has the pipeline's lock.

        Raises:
            SlotlakeError: the slot cannot be read.
        """
        self._puller.begin()
        if not self._puller.serves:
            self._wal = self._wal_position()

    def elsewhere(self) -> str | None:
        """Say who reads the slot on another machine; None if nobody does.

        Raises:
            LockUnreachableError: the database of the lock does not answer.
        """
        return None if self._puller.serves else standing_puller.elsewhere(self._pipeline)

    def wait(self, seconds: float) -> None:
        """Wait until there are changes, at most so long."""
        if self._puller.serves:
            self._bell.wait(seconds)
        else:
            self._ask_until(time.monotonic() + seconds)

    def _ask_until(self, deadline: float) -> None:
        pause = _ASK_SECONDS
        while not self._bell.stopped and (left := deadline - time.monotonic()) > 0:
            self._bell.pause(min(pause, left))
            position = self._wal_position()
            if position is None or position != self._wal:
                return
            pause = min(1.5 * pause, _ASK_SECONDS_MAX)

    def _wal_position(self) -> int | None:
        """The source's WAL position; None if it cannot be asked: the next batch says why."""
        with suppress(SourceError), source_session(self._pipeline.source.dsn) as connection:
            return wal_now(connection)
        return None

    def end(self) -> None:
        """Close the connection to the slot."""
        self._puller.end()
