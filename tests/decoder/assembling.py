"""A stream of any protocol version through the assembler, as the plain stream that comes out."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from slotlake.decoder.assembly.assembler import Assembler
from slotlake.decoder.assembly.prepared import PreparedStore
from slotlake.decoder.assembly.spool import SpoolRoom
from slotlake.decoder.columnar.buffer import MessageBuffer
from tests.decoder.agreement import Stream
from tests.decoder.reference import Result, Transaction


def assembled(
    stream: Stream,
    *,
    options: Mapping[str, Any],
    cuts: list[int] | None = None,
    memory_bytes: int = 1 << 20,
    folder: Path,
    persist: bool = True,
) -> Stream:
    """What the assembler makes of a stream (asked for with ``options``) in pieces that end at ``cuts``.

    At every cut a batch may end: what is prepared then goes to the store, unless told otherwise.
    """
    room = SpoolRoom(folder / "spool", memory_bytes)
    assembler = Assembler(room, PreparedStore(folder, {}), **options)
    found: Stream = []
    fed = 0
    for cut in sorted({*(cuts or []), len(stream)}):
        buffer = MessageBuffer()
        for lsn, payload in stream[fed:cut]:
            buffer.append(payload, lsn)
        fed = max(fed, cut)
        for piece in assembler.take(buffer):
            data, ends = piece.data.tobytes(), piece.ends.tolist()
            found += [(lsn, data[ends[i] : ends[i + 1]]) for i, lsn in enumerate(piece.lsns.tolist())]
        if persist:
            assembler.persist()
    assembler.close()
    return found


def without_names(results: list[Result]) -> list[Result]:
    """Plain transactions have no gid."""
    return [replace(each, gid=None) if isinstance(each, Transaction) else each for each in results]


def random_cuts(draw: random.Random, count: int) -> list[int]:
    return [draw.randrange(count + 1) for _ in range(draw.randrange(4))] if count else []


def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="assembly-")
