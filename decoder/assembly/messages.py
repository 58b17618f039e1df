"""Single messages of a buffer or a piece, for assembler.py: their tags, bytes, places and errors.

Invariant: every error names the message's type, the byte and the WAL position.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from slotlake.decoder.assembly.spool import Piece
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.errors import DAMAGED, ProtocolError
from slotlake.decoder.protocol.messages import Message, Truncate
from slotlake.decoder.protocol.wire import read_message

TOO_SHORT = "the message ends too early"
Flags = npt.NDArray[np.bool_]


def append_piece(out: MessageBuffer, piece: Piece, live: Flags, sent_relations: dict[int, bytes]) -> None:
    """Append the live messages of a piece, and note the relations that they describe.

    Args:
        live: bool[messages], true for each message to append.
        sent_relations: relation messages appended so far, by OID; changed.
    """
    out.extend(piece.data, *piece.only(live))
    tags = piece.data[piece.ends[:-1]]
    for i in np.flatnonzero((tags == ord("R")) & live).tolist():
        note_relation(sent_relations, piece.data[piece.ends[i] : piece.ends[i + 1]].tobytes())


def note_relation(sent_relations: dict[int, bytes], payload: bytes) -> None:
    """Note a relation message, by the relation's id; ignore any other message."""
    if payload[:1] == b"R":
        sent_relations[int.from_bytes(payload[1:5], "big")] = payload


def truncated_by(piece: Piece) -> Iterator[int]:
    """The relations that a piece truncates."""
    tags = piece.data[piece.ends[:-1]]
    for i in np.flatnonzero(tags == ord("T")).tolist():
        message = read_message(piece.data[piece.ends[i] : piece.ends[i + 1]].tobytes())
        if isinstance(message, Truncate):
            yield from message.relation_ids


def relation_id_at(piece: Piece, i: int) -> int:
    """The relation that message ``i`` names, a row or relation message."""
    begin = int(piece.ends[i]) + 1
    return int.from_bytes(piece.data[begin : begin + 4].tobytes(), "big")


def changed_tables(piece: Piece, tags: npt.NDArray[np.uint8], live: Flags, first: int, end: int) -> set[int]:
    """Return the relations that the live messages of a range change or truncate.

    Args:
        tags: uint8[messages], the first byte of each message.
        live: bool[messages], whether each message counts.
        first, end: the range; ``end`` is not in it.
    """
    part = tags[first:end]
    rows = np.flatnonzero(np.isin(part, list(b"IUD")) & live[first:end]) + first
    numbers = piece.data[piece.ends[rows][:, None] + np.arange(1, 5)].astype(np.int64)
    relation_ids = set(np.unique(numbers @ (1 << np.arange(24, -8, -8))).tolist())
    for i in (np.flatnonzero((part == ord("T")) & live[first:end]) + first).tolist():
        message = read_message(piece.data[piece.ends[i] : piece.ends[i + 1]].tobytes())
        relation_ids.update(message.relation_ids if isinstance(message, Truncate) else ())
    return relation_ids


def tags_of(buffer: MessageBuffer) -> npt.NDArray[np.uint8]:
    """Return the first byte of every message, as uint8[messages].

    Raises:
        ProtocolError: a message is empty.
    """
    if buffer.count == 0:
        return np.empty(0, np.uint8)
    empty = np.flatnonzero(np.diff(buffer.ends) <= 0)
    if len(empty):
        raise fault(buffer, int(empty[0]), TOO_SHORT)
    return buffer.data[buffer.ends[:-1]]


def payload_of(buffer: MessageBuffer, at: int) -> bytes:
    """One message's bytes."""
    return buffer.data[buffer.ends[at] : buffer.ends[at + 1]].tobytes()


def fault(
    buffer: MessageBuffer, at: int, what: str, offset: int = 0, way_out: str = DAMAGED
) -> ProtocolError:
    """The error that says what is wrong with a message, and where it is."""
    tag = payload_of(buffer, at)[:1].decode("latin-1")
    return ProtocolError(what, message_type=tag, offset=offset, lsn=int(buffer.lsns[at]), way_out=way_out)


def read_at(
    buffer: MessageBuffer,
    at: int,
    *,
    in_stream: bool,
    parallel: bool,
    binary: bool = False,
    any_bytes: bool = False,
) -> Message:
    """Read one message with the plain reader.

    Args:
        in_stream: it is in a stream block, so content begins with a transaction id.
        parallel: aborts have position and time (streaming 'parallel').
        binary: the stream may contain binary values.
        any_bytes: values need not be UTF-8.

    Raises:
        ProtocolError: the message breaks the grammar; the error names its place.
    """
    try:
        payload = payload_of(buffer, at)
        return read_message(
            payload, in_stream=in_stream, parallel=parallel, binary=binary, any_bytes=any_bytes
        )
    except ProtocolError as error:
        raise fault(buffer, at, error.what, error.offset, error.way_out) from None
