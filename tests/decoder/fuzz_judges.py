"""How a damaged stream is read in every way, and what may come of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, TypeVar

from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.errors import ChangeLogError, ProtocolError
from slotlake.decoder.protocol.relations import Relation
from tests.decoder import fuzz_frames, fuzz_plugins
from tests.decoder.agreement import Stream, columnar, plain
from tests.decoder.assembling import assembled, scratch, without_names
from tests.decoder.fuzz_cases import Asked, Copied, CopiedChanges, Framed
from tests.decoder.histories import Options
from tests.decoder.reference import Result, Transaction, reference_transactions

T = TypeVar("T")
_NOT_HERE = re.compile("the file with its changes is missing")


class FindError(AssertionError):
    """The readers disagree, or one broke."""


def judge(asked: Asked, stream: Stream) -> str:
    """Read a stream in every way; returns why it is refused, "" if it is taken.

    Raises:
        FindError: the ways differ, or one fails otherwise than it may.
    """
    if isinstance(asked, Framed):
        return fuzz_frames.judge_framed(asked, stream)
    if isinstance(asked, Copied):
        return fuzz_frames.judge_copied(asked, stream)
    if isinstance(asked, CopiedChanges):
        return fuzz_frames.judge_copied_changes(asked, stream)
    if not isinstance(asked, Options):
        return fuzz_plugins.judge_plugged(asked, stream)
    if asked.streaming == "off" and not asked.two_phase:
        return _judge_plain(stream, binary=asked.binary)
    return _judge_assembled(asked, stream)


def refusal(read: Callable[[], T]) -> tuple[str, T | None]:
    """Why it is refused, or "" and what is read."""
    try:
        return "", read()
    except ProtocolError as error:
        return f"{error.message_type}: {error.what}", None


def upto(stream: Stream, read: Callable[[Any], T]) -> tuple[str, T | None, Stream]:
    """Why it is refused, what is read, and the stream up to the message at fault."""
    given = 0

    def through() -> Iterator[tuple[int, bytes]]:
        nonlocal given
        for given, message in enumerate(stream, 1):  # noqa: B007
            yield message

    refused, found = refusal(lambda: read(through()))
    return refused, found, stream[:given] if refused else stream


def decoded(stream: Stream, *, binary: bool) -> None:
    """Read by the columnar reader, to the end."""
    buffer = MessageBuffer()
    for lsn, payload in stream:
        buffer.append(payload, lsn)
    Decoder(binary=binary).decode(buffer, first_seq=0, first_txn=0, partial=True)


def _judge_plain(stream: Stream, *, binary: bool) -> str:
    refused, meaning, stream = upto(stream, lambda part: plain(part, binary=binary))
    other, found = refusal(lambda: columnar(stream, binary=binary))
    if bool(refused) != bool(other):
        raise FindError(f"plain: {refused or 'taken'}, columnar: {other or 'taken'}")
    if meaning != found:
        raise FindError("plain and columnar read other values")
    return refused


def _judge_assembled(options: Options, stream: Stream) -> str:
    """Why the reference refuses the stream; also if every message is the last of a batch."""
    refused, short, whole = comes_out(options, stream)
    comes_out(options, stream, list(range(len(short))))
    _judge_plain(whole or [], binary=options.binary)
    return refused


def comes_out(
    options: Options, stream: Stream, cuts: list[int] | None = None
) -> tuple[str, Stream, Stream | None]:
    """Why the reference refuses it, the stream up to there, and what the assembler makes of it.

    Args:
        cuts: where batches end; then what waits goes to disk, also for want of memory.
    """
    refused, meaning, stream = upto(
        stream, lambda part: _nameless(reference_transactions(part, **options.reader()))
    )
    other, whole = refusal(lambda: _through(options, stream, cuts))
    if cuts and other and _NOT_HERE.search(other):  # of a position before its own PREPARE's
        return refused, stream, None
    if other and not refused:
        raise FindError(f"the plain reader takes it, the assembler does not: {other}")
    if refused and whole is not None:  # plain transactions pass through: the reader behind has to refuse them
        other, whole = refusal(partial(decoded, whole, binary=options.binary))[0], None
    if refused and not other:
        raise FindError(f"the assembler takes what the plain reader does not: {refused}")
    if whole is not None and _nameless(reference_transactions(whole, binary=options.binary)) != meaning:
        raise FindError("the plain reader and the assembler read other values")
    return refused, stream, whole


def _through(options: Options, stream: Stream, cuts: list[int] | None) -> Stream:
    try:
        if not cuts:
            return assembled(stream, options=options.reader(), folder=_NOWHERE, persist=False)
        with scratch() as folder:
            return assembled(
                stream, options=options.reader(), folder=Path(folder), cuts=cuts, memory_bytes=200
            )
    except ChangeLogError as error:  # an outcome of what was prepared in another life
        raise ProtocolError(error.what, message_type="K") from None


_NOWHERE = Path("/nowhere")  # a stream in one piece, within its memory, writes nothing


def _nameless(results: Iterable[Result]) -> list[Result]:
    """Without the names of transactions, which plain ones lack, and of user types.

    A type is named before it is used by a server, which a damaged stream need not keep to.
    """
    found: list[Result] = []
    for result in without_names(list(results)):
        if isinstance(result, Transaction):
            changes = (replace(c, relations=tuple(map(_untyped, c.relations))) for c in result.changes)
            result = replace(result, changes=tuple(changes))  # noqa: PLW2901
        found.append(result)
    return found


@lru_cache(1 << 12)
def _untyped(relation: Relation) -> Relation:
    return replace(relation, columns=tuple(replace(c, type_name="") for c in relation.columns))
