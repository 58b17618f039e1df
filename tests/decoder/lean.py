"""Many small streams, quickly: small buffers, and each message read once.

A buffer of the real first size costs more than what a small stream takes to read, and never grows; here it
is small and does.  Mutants of one stream share most of their messages, and reading one message is a function
of its bytes: what it gives is kept.  What it refuses is not.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import lru_cache
from typing import Any
from unittest import mock

from slotlake.decoder.assembly import messages as assembly_messages
from slotlake.decoder.columnar import buffer
from slotlake.decoder.columnar import control_messages as rare
from slotlake.decoder.protocol import reader
from slotlake.decoder.protocol.wire import read_message

_KEPT = 1 << 13
_SIZES = {"_FIRST_BYTES": 512, "_FIRST_MESSAGES": 8, "_NEXT_BYTES": 1024, "_NEXT_MESSAGES": 16}


@contextmanager
def lean() -> Iterator[None]:
    """Until the end of the block."""
    kept: Any = lru_cache(_KEPT)(read_message)
    with ExitStack() as stack:
        for name, size in _SIZES.items():
            stack.enter_context(mock.patch.object(buffer, name, size))
        for module in (assembly_messages, rare, reader):
            stack.enter_context(mock.patch.object(module, "read_message", kept))
        yield
