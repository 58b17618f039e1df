"""The files of a pipeline's journal, and how they are written: a failure to write never ends a run.

The folder ``journal`` in the state folder has JSON lines about batches, samples (what a look at the source
measured), verifications and failures, the counters, the last look as a whole, and quarters of an hour of
batches whose lines were too many. Invariant: the journal is derived and never needed; no step reads it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from slotlake.infra.state.line_files import Lines
from slotlake.infra.state.notes import LOOK, OPEN_BATCH
from slotlake.infra.state.quarters import add_quarters, read_quarters
from slotlake.infra.state.totals import Totals, read_totals

_log = logging.getLogger(__name__)


class Journal:
    """The journal in a pipeline's state folder.

    Args:
        state_dir: the state folder; without it, nothing is written.
    """

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.folder = state_dir / "journal"
        self.batches = Lines(self.folder / "batches.jsonl", leaving=self._summarize)
        self.samples = Lines(self.folder / "samples.jsonl")
        self.verifications = Lines(self.folder / "verifications.jsonl", bytes_max=1 << 20)
        self.failures = Lines(self.folder / "failures.jsonl", bytes_max=1 << 18)
        self.look = LOOK.of(self.folder)
        self.open_batch = OPEN_BATCH.of(self.folder)

    @property
    def totals(self) -> Totals:
        """The counters as they are now."""
        return read_totals(self.folder)

    def quarters(self) -> list[dict[str, Any]]:
        """Quarters of an hour of older batches, the oldest first."""
        return read_quarters(self.folder)

    def _summarize(self, path: Path) -> None:
        add_quarters(self.folder, path)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let what is inside fail without an error: neither a full disk nor a damaged note must end a run."""
        try:
            yield
        except OSError as error:
            _log.warning("the journal of the pipeline cannot be written: %s", error.strerror)
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            _log.warning("a note of the pipeline's journal is damaged (%s)", type(error).__name__)
            with suppress(OSError):
                self.open_batch.remove()
