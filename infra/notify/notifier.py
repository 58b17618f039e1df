"""Tells receivers in a thread of its own: no failure here reaches the work, and the work does not wait.

Several processes and machines may look at a pipeline at once.  Who is to tell a receiver claims that in the
note first; a claim of a process that was killed ends after a minute.  Invariant: nothing is sent that is not
claimed, and what was not taken is notified at a later look.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from slotlake.infra.config.private_files import privately
from slotlake.infra.notify.airflow_address import airflow_address
from slotlake.infra.notify.news import (
    CLAIM_SECONDS,
    Fact,
    Message,
    Note,
    essence,
    message_for,
    noted,
    receiver_of,
    with_message,
)
from slotlake.infra.notify.notified import Notified
from slotlake.infra.notify.sending import SECONDS_MAX, Receiver, receivers, send

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile

_log = logging.getLogger(__name__)
_FACTS_MAX: Final = 100
_TRIES_MAX: Final = 5
_READ_AGAIN_SECONDS: Final = 60.0
Sent = tuple[Receiver, Message]


class Notifier:
    """Tells the receivers of one open pipeline.

    Args:
        file: names them.
    """

    def __init__(self, file: PipelineFile) -> None:
        self._file, self._receivers = file, receivers(file)
        self._airflow = airflow_address.get().rstrip("/")
        self._notified = Notified(file.state_dir)
        self._lock = threading.Lock()
        self._facts: list[Fact] = []
        self._working: threading.Thread | None = None
        self._known: tuple[float, Note] = (-_READ_AGAIN_SECONDS, {})
        self._warned = False
        self.outcomes: dict[str, str] = {}

    @property
    def page(self) -> str:
        """The address of the pipeline's page; empty if it is not known."""
        own = f"{self._airflow}/slotlake/pipeline/{self._file.name}" if self._airflow else ""
        return self._file.notify.page or own

    def note(self, fact: Fact) -> None:
        """Take a fact that is notified together with the next ones, or at the end."""
        with self._lock:
            self._facts = [*self._facts, fact][-_FACTS_MAX:]

    def tell(self, *facts: Fact) -> None:
        """Take facts, and return at once: what is to be notified of all facts so far is notified soon."""
        for fact in facts:
            self.note(fact)
        with self._lock:
            if self._facts and (self._working is None or not self._working.is_alive()):
                self._working = threading.Thread(target=self._work, daemon=True)
                self._working.start()

    def close(self) -> None:
        """Tell what is not notified yet; wait until it is, or the time for it is over."""
        self.tell()
        thread = self._working
        if thread is not None:
            thread.join(SECONDS_MAX + 2.0)

    def test(self) -> dict[str, str]:
        """Send each receiver a message, whatever levels and kinds it wants.

        Returns:
            Receiver's name → why it did not take the message; empty if it did.
        """
        text = "this is a test: what needs a person is notified here"
        message = self._with_addresses(Message(f"slotlake {self._file.name}: a test", [text], "well"))
        return send([(receiver, message) for receiver in self._receivers])

    # -- the thread ---------------------------------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._lock:
                facts, self._facts = self._facts, []
                if not facts:
                    self._working = None
                    return
            try:
                with privately(self._file):
                    self._tell(facts)
            except Exception as error:  # noqa: BLE001 - no note and no message is worth a run
                self._warn_once(error)
                with self._lock:
                    self._facts, self._working = [*facts, *self._facts][-_FACTS_MAX:], None
                return

    def _warn_once(self, error: Exception) -> None:
        if not self._warned:
            reason = getattr(error, "what", None) or getattr(error, "strerror", None) or type(error).__name__
            _log.warning("notify: nothing is notified, because what was notified cannot be noted: %s", reason)
        self._warned = True

    def _tell(self, facts: list[Fact]) -> None:
        now = time.time()
        read_at, known = self._known
        if time.monotonic() - read_at < _READ_AGAIN_SECONDS:
            changed, messages = self._claimed(known, facts, now)
            if not messages and essence(changed) == essence(known):
                return
        for _ in range(_TRIES_MAX):
            number, known = self._notified.read()
            changed, messages = self._claimed(known, facts, now)
            if essence(changed) == essence(known) or self._notified.replace(number, changed):
                break
        else:
            return  # others change it all the time: they tell
        self._known = time.monotonic(), changed
        if messages:
            self._send(messages)

    def _claimed(self, note: Note, facts: list[Fact], now: float) -> tuple[Note, list[Sent]]:
        """Return the note after the facts, with a claim for each receiver that is to hear of it, and what."""
        names = [receiver.name for receiver in self._receivers]
        for fact in facts:
            note = noted(note, fact, names, now)
        messages = []
        for receiver in self._receivers:
            message = message_for(
                note, receiver.name, receiver.section, self._file.name, self._file.notify.repeat, now
            )
            if message is not None:
                receiver_of(note, receiver.name)["claimed"] = now + CLAIM_SECONDS
                messages.append((receiver, self._with_addresses(message)))
        return note, messages

    def _with_addresses(self, message: Message) -> Message:
        lines = [*message.lines]
        if self._airflow and any("slotlake recover" in line for line in lines):
            recover = f"cdc_recover_{self._file.name}"
            lines.append(f"in Airflow: trigger {recover} ({self._airflow}/dags/{recover})")
        return replace(message, lines=[*lines, *([f"page: {self.page}"] if self.page else [])])

    def _send(self, messages: list[Sent]) -> None:
        known = self._known[1]
        sent = send(messages)
        for name, reason in sent.items():
            if reason and not receiver_of(known, name)["failed"]:
                _log.warning("%s was not notified; it is tried again at a later look: %s", name, reason)
        self.outcomes.update(sent)
        for _ in range(_TRIES_MAX):
            number, note = self._notified.read()
            for receiver, message in messages:
                taken = not sent[receiver.name]
                note = with_message(note, receiver.name, message, time.time(), taken=taken)
            if self._notified.replace(number, note):
                self._known = time.monotonic(), note
                return
