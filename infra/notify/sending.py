"""Addresses of receivers, and messages to them, by the library apprise.

Invariants: no address, and no part of one but its scheme, is in an error, a log line or a result.  Sending
takes a bounded time, whatever the receiver does.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from slotlake.decoder.errors import PipelineFileError, SlotlakeError
from slotlake.infra.config.password import printed
from slotlake.infra.config.pipeline_file import resolve_secret

if TYPE_CHECKING:
    import apprise

    from slotlake.infra.config.notify import ReceiverSection
    from slotlake.infra.config.pipeline_file import PipelineFile
    from slotlake.infra.notify.news import Message

SECONDS_MAX: Final = 10.0
_SCHEME = re.compile(r"^([a-z][a-z0-9+]{1,20})://")
_ANSWERED = re.compile(r"error=(\d{3})\b")


@dataclass(frozen=True)
class Receiver:
    """One entry of ``notify.to``.

    Attributes:
        name: its place in the file, which messages and notes name it by.
    """

    name: str
    section: ReceiverSection
    file: PipelineFile

    def opened(self) -> apprise.Apprise:
        """Return what sends to it.

        Raises:
            PipelineFileError: a variable is missing, the program prints no address, or nothing can be sent to
                that address.
        """
        where = f"{self.file.path.name}, {self.name}"
        section = self.section
        try:
            url = (
                resolve_secret(section.url.get_secret_value(), where)
                if section.url is not None
                else printed(section.command or (), self.file.path.parent, where, "address")
            )
        except SlotlakeError as error:
            raise PipelineFileError(error.what, where=error.where, way_out=error.way_out) from None
        return _opened(url.strip(), where)


def receivers(file: PipelineFile) -> list[Receiver]:
    """Return the receivers of a pipeline."""
    return [Receiver(f"notify.to[{i}]", each, file) for i, each in enumerate(file.notify.to)]


def address_errors(file: PipelineFile) -> list[PipelineFileError]:
    """Return an error for each receiver that nothing can be sent to; nothing is sent."""
    errors = []
    for receiver in receivers(file):
        try:
            receiver.opened()
        except PipelineFileError as error:
            errors.append(error)
    return errors


def _opened(url: str, where: str) -> apprise.Apprise:
    import apprise  # here: with its plugins, a second

    _silence()
    # In this thread: the library's own are waited for when the process ends, however long that takes.
    own = apprise.AppriseAsset(
        async_mode=False,
        service_timeout=0,
        app_id="slotlake",
        app_desc="slotlake",
        image_url_mask="",
        image_url_logo="",
    )
    service = apprise.Apprise.instantiate(url, asset=own, suppress_exceptions=True) if url else None
    if service is None:
        scheme = _SCHEME.match(url)
        known = apprise.Apprise().details()["schemas"] if scheme else []
        kinds = [each[key] or () for each in known for key in ("protocols", "secure_protocols")]
        names = [str(name) for several in kinds for name in several]
        if scheme is None:
            what = "the address has no scheme, as slack:// has"
        elif scheme[1] in ("http", "https"):
            what = "no service is known by this https address (a webhook of your own: jsons://host/path)"
        elif scheme[1] in names:
            what = f"the address is not complete, or not one of {scheme[1]}://"
        else:
            near = get_close_matches(scheme[1], names, n=1)
            meant = f" (did you mean {near[0]}://?)" if near else ""
            what = f"nothing is known of addresses with {scheme[1]}://{meant}"
        raise PipelineFileError(
            f"{what}; the address is not shown, because it may hold a secret",
            where=where,
            way_out="write it as apprise describes it for this service (docs/notify.md)",
        )
    sender = apprise.Apprise(asset=own)
    sender.add(service)
    return sender


def send(messages: Sequence[tuple[Receiver, Message]]) -> dict[str, str]:
    """Send each receiver its message, to all at once.

    Returns:
        Receiver's name → why it did not take the message; empty if it did.
    """
    outcomes: dict[str, str] = {}
    threads = [
        threading.Thread(target=_send, args=(receiver, message, outcomes), daemon=True)
        for receiver, message in messages
    ]
    for thread in threads:
        thread.start()
    until = time.monotonic() + SECONDS_MAX
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    late = f"it has not answered within {SECONDS_MAX:g} s"
    return {receiver.name: outcomes.get(receiver.name, late) for receiver, _ in messages}


def _send(receiver: Receiver, message: Message, outcomes: dict[str, str]) -> None:
    _answers.begin()
    try:
        sender = receiver.opened()
        import apprise

        kinds: Mapping[str, apprise.NotifyType] = {
            "broken": apprise.NotifyType.FAILURE,
            "warning": apprise.NotifyType.WARNING,
            "well": apprise.NotifyType.SUCCESS,
        }
        taken = sender.notify(
            title=message.title,
            body="\n".join(message.lines),
            notify_type=kinds[message.level],
            body_format=apprise.NotifyFormat.TEXT,
        )
        outcomes[receiver.name] = "" if taken else _answers.reason
    except PipelineFileError as error:
        outcomes[receiver.name] = str(error)
    except Exception as error:  # noqa: BLE001 - of a library; its text may have the address
        outcomes[receiver.name] = f"the library that sends failed ({type(error).__name__})"


class _Answers(logging.Filter):
    """Lets no line of the library pass: addresses are in them. Keeps the code that a server answered with."""

    def __init__(self) -> None:
        super().__init__()
        self._here = threading.local()

    def begin(self) -> None:
        """Forget what this thread was answered."""
        self._here.reason = "it does not answer, or refuses the message"

    @property
    def reason(self) -> str:
        """Why the message of this thread was not taken."""
        return str(self._here.reason)

    def filter(self, record: logging.LogRecord) -> bool:
        """Look at a line, and drop it."""
        if code := _ANSWERED.search(record.getMessage()):
            self._here.reason = f"it answers with code {code[1]}"
        return False


_answers = _Answers()


def _silence() -> None:
    """Let nothing that the library logs reach a log."""
    library = logging.getLogger("apprise")
    library.addFilter(_answers)
    library.propagate = False
    library.setLevel(logging.WARNING)
    logging.getLogger("urllib3").setLevel(logging.WARNING)
