"""The interface of a reader of an output plugin: it reads one message and returns the callbacks that are due.

A reader is pure: no sockets, no clocks.  It checks the messages against the plugin's grammar; a message that
the grammar does not allow is a `ProtocolError` with the plugin, the position, the transaction and the byte
offset.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import ClassVar, Protocol

from slotlake.decoder.errors import DAMAGED, ProtocolError
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
        """The events of one message; ``lsn`` is the position with which it was sent (XLogData's start).

        Raises:
            ProtocolError: it is not a message of this plugin, or it may not come here.
        """


class ReaderBase:
    """The base of readers: makes errors with their context.

    Attributes:
        any_bytes: values that are not UTF-8 become text with surrogate escapes, for a consumer that checks
            them itself (``takes_any_bytes``); else they are errors.
    """

    plugin: ClassVar[str] = ""
    any_bytes = False

    def __init__(self) -> None:
        self.lsn = 0
        self.xid: int | None = None

    def error(self, what: str, offset: int = 0, kind: str = "", way_out: str = DAMAGED) -> ProtocolError:
        """The error with the plugin, message, offset, transaction and position.

        Args:
            kind: of the message, "" if the plugin has no kinds.
        """
        where = f"{self.plugin} message {kind!r}, byte offset {offset}" if kind else f"{self.plugin} message"
        where += f", byte offset {offset}" if not kind else ""
        where += "" if self.xid is None else f", transaction {self.xid}"
        where += f", at {format_lsn(self.lsn)}"
        return ProtocolError(what, message_type=kind, offset=offset, where=where, way_out=way_out)


def microseconds(text: str) -> int | None:
    """Microseconds since 1970 from PostgreSQL's text of a timestamptz; None if the text is not one."""
    if not _TIME.match(text):
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return (moment - _EPOCH) // timedelta(microseconds=1)
