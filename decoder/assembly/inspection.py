"""Checks the messages of streamed and prepared transactions when they arrive.

The readers after the assembler see only its output.  But a prepared transaction may wait for days, and its
PREPARE is confirmed to the server, which then never sends its changes again.  So an error in it must be found
while the server can still send it.  And an error in a transaction that is rolled back is an error too.

The compiled pass accepts messages that are certainly right.  The plain reader checks the others, and says
what is wrong.  Invariant: this module accepts exactly what the plain reader of the whole stream (reader.py)
accepts as content; with ``any_bytes`` also values that are not UTF-8, which it leaves to the decoder.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from slotlake.decoder.assembly.inspection_kernels import first_doubtful
from slotlake.decoder.assembly.messages import fault, read_at
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.compiled.jit import Ints, frozen
from slotlake.decoder.errors import ProtocolError
from slotlake.decoder.protocol import records
from slotlake.decoder.protocol.messages import (
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    RelationMessage,
    Streamed,
    Truncate,
    TypeMessage,
    Update,
)

_BY_KERNEL = np.isin(np.arange(256), list(b"IUDM"))
Describe = Callable[[int, Message], None]


class Widths:
    """The number of columns of each known table, by the table's id."""

    def __init__(self, widths: dict[int, int] | None = None) -> None:
        self._by_id = dict(widths or {})
        self._arrays: tuple[Ints, Ints] | None = None

    def get(self, relation_id: int) -> int | None:
        return self._by_id.get(relation_id)

    def set(self, relation_id: int, width: int) -> None:
        if self._by_id.get(relation_id) != width:
            self._by_id[relation_id] = width
            self._arrays = None

    @property
    def arrays(self) -> tuple[Ints, Ints]:
        """The ids in order, and their widths."""
        if self._arrays is None:
            ids = sorted(self._by_id)
            widths = [self._by_id[each] for each in ids]
            self._arrays = (frozen(np.array(ids, np.int64)), frozen(np.array(widths, np.int64)))
        return self._arrays


def inspect(
    buffer: MessageBuffer,
    tags: npt.NDArray[np.uint8],
    first: int,
    widths: Callable[[], Widths],
    described: Describe,
    *,
    streamed: bool,
    binary: bool,
    any_bytes: bool,
) -> None:
    """Check the content messages from ``first`` on.

    Args:
        described: called with the place of each relation and type message, and the message.
        streamed: they are in a stream block, and begin with a transaction id.
        binary: the stream may contain binary values.
        any_bytes: values that are not UTF-8 are left to the decoder, which knows their table.

    Raises:
        ProtocolError: with message, byte offset and position.
    """
    judge = partial(_judge, streamed=streamed, binary=binary, any_bytes=any_bytes)
    at, end = first, first + len(tags)
    for special in [*(np.flatnonzero(~_BY_KERNEL[tags]) + first).tolist(), end]:
        while at < special:
            ends = frozen(buffer.ends[at : special + 1])
            doubtful = first_doubtful(
                frozen(buffer.data), ends, 5 if streamed else 1, *widths().arrays, binary
            )
            if doubtful < 0:
                break
            judge(buffer, at + doubtful, widths(), described)
            at += doubtful + 1
        if special < end:
            judge(buffer, special, widths(), described)
        at = special + 1


def _judge(
    buffer: MessageBuffer,
    at: int,
    widths: Widths,
    described: Describe,
    *,
    streamed: bool,
    binary: bool,
    any_bytes: bool,
) -> None:
    message = read_at(buffer, at, in_stream=streamed, parallel=False, binary=binary, any_bytes=any_bytes)
    content = message.message if isinstance(message, Streamed) else message
    offset = 5 if streamed else 1
    loose = isinstance(content, LogicalMessage) and not content.transactional
    if isinstance(content, Begin | Commit) or loose:
        where = "in a stream block" if streamed else "in a transaction that will be prepared"
        raise fault(buffer, at, f"the message may not come {where}")
    if isinstance(content, RelationMessage | TypeMessage):
        described(at, message)
    elif isinstance(content, Truncate):
        for relation_id in content.relation_ids:
            _width(buffer, at, widths, relation_id, offset)
    elif isinstance(content, Insert | Update | Delete):
        width = _width(buffer, at, widths, content.relation_id, offset)
        old = None if isinstance(content, Insert) else content.old
        new = None if isinstance(content, Delete) else content.new
        if any(values is not None and len(values) != width for values in (old, new)):
            raise fault(buffer, at, records.OTHER_WIDTH, offset + 4)


def _width(buffer: MessageBuffer, at: int, widths: Widths, relation_id: int, offset: int) -> int:
    width = widths.get(relation_id)
    if width is None:
        raise fault(buffer, at, f"relation {relation_id} was not described", offset)
    return width


def with_place(buffer: MessageBuffer, at: int, check: Callable[[], None]) -> None:
    """Run a check of one message; its error then names the message's place.

    Args:
        check: raises ProtocolError when the message is wrong.

    Raises:
        ProtocolError: what the check raised, with message type, byte offset and WAL position.
    """
    try:
        check()
    except ProtocolError as error:
        raise fault(buffer, at, error.what, error.offset) from None
