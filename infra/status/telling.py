"""Who is notified how the steps of an open pipeline end, and what its looks find (infra/notify/).

Without receivers in the pipeline file, only looks are made.  Invariant: neither a receiver nor the note about
what it was notified can fail a step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.infra.opened.open_pipeline import OpenPipeline
from slotlake.infra.reports import Report

if TYPE_CHECKING:
    from slotlake.infra.notify.notifier import Notifier
    from slotlake.infra.reports import Alarm


@dataclass(frozen=True)
class TellReport(Report):
    """Who was notified: receiver's name → why it did not take the message, empty if it did.

    ``alarms``: how many the look has found; None if nobody looked.
    """

    pipeline: str
    receivers: dict[str, str] = field(default_factory=dict)
    alarms: int | None = None


class Telling(OpenPipeline):
    """A pipeline that tells."""

    @property
    def tells(self) -> bool:
        """Whether the pipeline file names somebody to tell."""
        return bool(self.file.notify.to)

    @cached_property
    def notifier(self) -> Notifier:
        """Who tells them."""
        from slotlake.infra.notify.notifier import Notifier

        return Notifier(self.file)

    def close(self) -> None:
        """Wait until all is notified, for some seconds at most, and close the pipeline."""
        if "notifier" in vars(self):
            self.notifier.close()
        super().close()

    def look(self, more: Callable[[Mapping[str, Any]], Sequence[Alarm]] | None = None) -> dict[str, Any]:
        """Look at both sides, note and tell what was seen, and return it; see `infra.status.noted.look`.

        Args:
            more: finds alarms that only its caller knows of, from the status report.
        """
        from slotlake.infra.notify.news import Looked
        from slotlake.infra.status.noted import look

        seen = look(self)
        alarms = None if more is None else more(seen["status"])
        if self.tells:
            self.notifier.tell(Looked(seen["status"], alarms))
        return seen

    def tell(self, *, test: bool = False) -> TellReport:
        """Look once, and wait until the receivers are notified, or do not answer in time.

        Args:
            test: send each of them a message that this is a test, and look at nothing.

        Raises:
            PipelineFileError: the pipeline file names no receiver.
        """
        if not self.tells:
            raise PipelineFileError(
                "the pipeline file names nobody to tell",
                where=f"{self.file.path.name}, notify",
                way_out="write notify: {to: [env:NAME]}, where the variable has an address (docs/notify.md)",
            )
        if test:
            return TellReport(self.name, self.notifier.test())
        seen = self.look()
        self.notifier.close()
        return TellReport(self.name, dict(self.notifier.outcomes), len(seen["status"]["alarms"]))

    def look_again(self, *, repaired: bool = False, aside: Collection[str] | None = None) -> None:
        """Look again where the last look may not be true any more: a page shows it, and receivers hear of it.

        Args:
            repaired: something was repaired.
            aside: the tables that are set aside now; None: not known.
        """
        from slotlake.infra.notify.news import Looked
        from slotlake.infra.status.noted import look_again

        seen = look_again(self, repaired=repaired, tells=self.tells, aside=aside)
        if self.tells:
            self.notifier.tell(*([] if seen is None else [Looked(seen["status"])]))

    @contextmanager
    def reporting(self, step: str) -> Iterator[None]:
        """Tell receivers if this step fails, by itself or again and again, and when it works again.

        Raises:
            SlotlakeError: the step's own.
        """
        try:
            yield
        except SlotlakeError as error:
            self.step_failed(step, error)
            raise
        self.step_worked(step)

    def step_failed(self, step: str, error: SlotlakeError) -> None:
        """Count a failure; look what is wrong, if waiting does not mend it."""
        if self.tells:
            from slotlake.infra.notify.news import Stepped

            self.notifier.note(Stepped(step, error))
            if error.retryable:
                self.notifier.tell()
            else:
                self.look_again(repaired=True)

    def step_worked(self, step: str) -> None:
        """Note that a step does its work; receivers hear of it with the next look, or at the end."""
        if self.tells:
            from slotlake.infra.notify.news import Stepped

            self.notifier.note(Stepped(step))

    def repaired(self, done: Sequence[str]) -> None:
        """Tell receivers that `recover` has repaired the pipeline.

        Args:
            done: what it did, a line each.
        """
        if self.tells:
            from slotlake.infra.notify.news import Recovered

            self.notifier.note(Recovered(done))
