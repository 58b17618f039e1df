"""The trigger of `airflow.schedule: on_change`: it looks at a source once a second, and wakes `cdc_sync`.

Airflow's triggerer runs one per pipeline, all on one event loop, so nothing here waits outside of it: the
connection is asynchronous, and what may block (imports, the pipeline file, an Airflow connection) happens in
a thread. Airflow keeps the arguments of a trigger in its database: the only one is the path of the pipeline
file, which is read again every minute.

Invariants: no failure of a source or of the file ends the trigger; it tries again, at most every half minute.
No secret reaches a log line. It remembers nothing that a restart of the triggerer could lose: the first look
after a start wakes the DAG if the slot lacks a transaction.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.infra.airflow.wake import WakeRule

LOOK_SECONDS = 1.0
_RETRY_SECONDS, _RETRY_SECONDS_MAX = 1.0, 30.0
_ANSWER_SECONDS_MAX = 30.0  # a server that has gone without a word
_RENEW_SECONDS = 60.0  # how old the list of published tables, and what the file said, may be


class _Place(NamedTuple):
    dsn: str
    slot: str
    publications: tuple[str, ...]


class SourceTrigger(BaseEventTrigger):  # type: ignore[misc]  # Airflow is not followed
    """Watches the source of one pipeline.

    Args:
        pipeline_file: its path, on the machine of the triggerer too.
    """

    def __init__(self, pipeline_file: str) -> None:
        super().__init__()
        self.pipeline_file = pipeline_file
        self._rule = WakeRule()
        self._retry_seconds = _RETRY_SECONDS
        self._trouble = ""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return what Airflow keeps of the trigger."""
        return "slotlake.infra.airflow.watcher.SourceTrigger", {"pipeline_file": self.pipeline_file}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield an event each time `cdc_sync` is to run."""
        while True:
            try:
                place = await asyncio.to_thread(_place, self.pipeline_file)
                async for event in self._watch(place):
                    yield event
            except (SlotlakeError, TimeoutError, OSError) as error:
                self._note_trouble(error)
            await asyncio.sleep(self._retry_seconds)
            self._retry_seconds = min(2 * self._retry_seconds, _RETRY_SECONDS_MAX)

    async def _watch(self, place: _Place) -> AsyncIterator[TriggerEvent]:
        """Look over one connection, until it fails or the pipeline file names another source."""
        from slotlake.decoder.server.source import connect_async, source_errors
        from slotlake.decoder.slots.activity import look, published_relations

        connection = await asyncio.wait_for(connect_async(place.dsn), _ANSWER_SECONDS_MAX)
        with source_errors(place.dsn, "looking for changes"):
            async with connection:
                relations: list[int] = []
                renewed = 0.0
                while True:
                    async with asyncio.timeout(_ANSWER_SECONDS_MAX):
                        if time.monotonic() - renewed >= _RENEW_SECONDS or not renewed:
                            if await asyncio.to_thread(_place, self.pipeline_file) != place:
                                return
                            relations = await published_relations(connection, place.publications)
                            renewed = time.monotonic()
                        seen = await look(connection, place.slot, relations)
                    self._note_reached()
                    reason = self._rule.wakes(seen, time.monotonic())
                    if reason is not None:
                        yield TriggerEvent({"reason": reason, "lsn": format_lsn(seen.wal)})
                    await asyncio.sleep(LOOK_SECONDS)

    def _note_trouble(self, error: Exception) -> None:
        """Log what is wrong once, not at each attempt."""
        text = str(error) if isinstance(error, SlotlakeError) else f"no answer ({type(error).__name__})"
        if text != self._trouble:
            self.log.warning("%s cannot be watched; tried again until it can: %s", self.pipeline_file, text)
        self._trouble = text

    def _note_reached(self) -> None:
        if self._trouble:
            self.log.info("%s is watched again", self.pipeline_file)
        self._trouble, self._retry_seconds = "", _RETRY_SECONDS


def _place(pipeline_file: str) -> _Place:
    """Return what is to be watched; in a thread: it reads a file, and may ask Airflow for a connection."""
    import slotlake.decoder.slots.activity  # loaded here, and not on the event loop
    from slotlake.infra.config.pipeline_file import load_pipeline

    assert slotlake.decoder.slots.activity
    file = load_pipeline(pipeline_file)
    return _Place(file.dsn(), file.source.slot, tuple(file.source.publications))
