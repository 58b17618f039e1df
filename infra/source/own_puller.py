"""A standing puller in a thread of the process that works through the batches (`slotlake run`).

Other runs of the pipeline get their batches from it between two batches of that process, as from
`slotlake pull --follow`.  Invariant: its connection opens only while the caller has the pipeline's lock.
"""

from __future__ import annotations

from collections.abc import Callable
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING

from slotlake.decoder.errors import BusyError
from slotlake.infra.source import standing_puller

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.source.bell import Bell


class OwnPuller:
    """At most one thread that serves the pipeline.

    Args:
        pipeline: the pipeline.
        bell: rings when there is something to pull.
        report_line: called with a line of text for each event.
    """

    def __init__(self, pipeline: OpenPipeline, bell: Bell, report_line: Callable[[str], None]) -> None:
        self._pipeline, self._bell, self._report_line = pipeline, bell, report_line
        self._thread: Thread | None = None

    @property
    def serves(self) -> bool:
        """Whether the thread lives: the bell rings when there is something to pull."""
        return self._thread is not None and self._thread.is_alive()

    def begin(self) -> None:
        """Start the thread, unless it lives, another process serves, or the plugin has no such stream.

        Raises:
            SlotlakeError: the slot cannot be read.
        """
        if self.serves or self._pipeline.source.plugin != "pgoutput":
            return
        outcome: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = Thread(target=self._serve, args=(outcome,), name="slotlake-puller", daemon=True)
        self._thread.start()
        failure = outcome.get()
        if failure is not None:
            self._thread.join()
            if not isinstance(failure, BusyError):
                raise failure

    def _serve(self, outcome: SimpleQueue[BaseException | None]) -> None:
        try:
            standing_puller.serve(
                self._pipeline, self._report_line, self._bell, began=lambda: outcome.put(None)
            )
        except BaseException as error:  # noqa: BLE001 - another thread raises it
            outcome.put(error)
        self._bell.ring()  # the next batch starts it again

    def end(self) -> None:
        """End the thread and its connection."""
        if self._thread is not None and self._thread.is_alive():
            standing_puller.stop(self._pipeline.file)
            self._thread.join()
        self._thread = None
