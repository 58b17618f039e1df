"""What a reader of an output plugin's messages is: one message in, the callbacks that are due out.

A reader is pure: no sockets, no clocks.  It holds the messages to the plugin's grammar; anything that it
does not allow is a `ProtocolError` with the plugin, the position, the transaction and the byte offset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Protocol

from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.plugins.model import Event

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(r"^\d{4,}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?[+-]\d\d(:\d\d)?$")


class Reader(Protocol):
    """Reads one stream of one plugin.

    Attributes:
        plugin: the plugin's name.
        open: a transaction has begun and not ended.
    """

    plugin: ClassVar[str]

    @property
    def open(self) -> bool: ...

    def read(self, payload: bytes, lsn: int) -> Iterator[Event]:
        """The events of one message; ``lsn`` is the position it was sent with (XLogData's start).

        Raises:
            ProtocolError: not a message of this plugin, or not one that may come here.
        """


class ReaderBase:
    """What readers share: the error with its context.

    Attributes:
        any_bytes: values that are not UTF-8 come as text with surrogate escapes, for a consumer that judges
            them itself (``takes_any_bytes``); else they are errors.
    """

    plugin: ClassVar[str] = ""
    any_bytes = False

    def __init__(self) -> None:
        self.lsn = 0
        self.xid: int | None = None

    def error(self, what: str, offset: int = 0, kind: str = "") -> ProtocolError:
        """Make an error that names plugin, message, offset, transaction and position.

        Args:
            what: what is wrong.
            offset: byte within the message.
            kind: of the message, "" where the plugin has no kinds.
        """
        where = f"{self.plugin} message {kind!r}, byte offset {offset}" if kind else f"{self.plugin} message"
        where += f", byte offset {offset}" if not kind else ""
        where += "" if self.xid is None else f", transaction {self.xid}"
        where += f", at {format_lsn(self.lsn)}"
        return ProtocolError(what, message_type=kind, offset=offset, where=where)


def microseconds(text: str) -> int | None:
    """A timestamptz as PostgreSQL prints it, as microseconds since 1970; None when it is not one."""
    if not _TIME.match(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(microseconds=1)
