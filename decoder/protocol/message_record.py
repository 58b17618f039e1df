"""The start of a logical message's WAL record, from the record's end, which the protocol sends.

The server decides by a record's start what it sends again (logicalmsg_decode, SnapBuildXactNeedsSkip), so a
batch that ends within such a record must contain the message.  The record's length follows from its content
(xlogrecord.h, message.h: xl_logical_message), rounded up to 8, and from the page headers in between
(xlog_internal.h), with the server's usual sizes of pages and segments.
"""

from __future__ import annotations

from slotlake.decoder.compiled.jit import inlined

_PAGE, _SEGMENT = 8192, 16 << 20
_SHORT_HEADER, _LONG_HEADER = 24, 40
_RECORD_HEADER, _MESSAGE_HEADER = 24, 24


def record_start(end: int, content_bytes: int) -> int:
    """The position of a message's record.

    Args:
        end: where the record ends; if no record can end there, it is returned.
        content_bytes: bytes of the prefix, with its zero byte, and of the content.
    """
    if end % 8 != 0:
        return end
    data = _MESSAGE_HEADER + content_bytes
    remaining = _RECORD_HEADER + (2 if data <= 255 else 5) + data
    remaining += (8 - remaining % 8) % 8
    at = end
    while remaining > 0:
        page = (at - 1) - (at - 1) % _PAGE
        header = _LONG_HEADER if page % _SEGMENT == 0 else _SHORT_HEADER
        on_page = min(remaining, at - page - header)
        if on_page <= 0:
            at = page
            continue
        remaining -= on_page
        at = at - on_page if remaining == 0 else page
    return at


message_start = inlined(record_start)
