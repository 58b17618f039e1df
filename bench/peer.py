"""decode_vs_python_reader: a stream decoded to typed Arrow, against pure Python on the same bytes.

The peer is the decoding module of pypgoutput, where that package is installed (its reader's dependencies
are not needed); else our own plain reader, which checks more.  Neither gives typed values: it yields a
message object with the values' text.
"""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotlake.bench.decode import captured, one_core
from slotlake.bench.figures import PAIRS, Figure, in_turns
from slotlake.bench.workload import DATABASE, bench_server, make_backlog, rows_asked, runs_asked
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.protocol.reader import StreamReader

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

INSERTS = 100_000
WANTED = 20.0
_PEER_CLASSES = ("Begin", "Commit", "Relation", "Insert", "Update", "Delete")

Reader = Callable[[bytes], Any]


def decode_vs_python_reader(progress: Progressing) -> list[Figure]:
    """Changes a second of CPU time, both on one core."""
    with bench_server() as server:
        progress("decode_vs_python_reader: making the backlog", 0)
        backlog = make_backlog(server, rows_asked(INSERTS))
        chunks = captured(server.dsn(DATABASE), backlog)
    payloads = [payload for chunk in chunks for payload in _payloads(chunk)]
    name, new_reader = _peer()
    with one_core():
        _ours(chunks, backlog.changes)
        progress("decode_vs_python_reader: pairs", 0)
        seconds = in_turns(
            lambda: _ours(chunks, backlog.changes),
            lambda: _theirs(new_reader(), payloads, backlog.changes),
            runs_asked(PAIRS),
        )
    return [
        Figure(
            what=f"decoding of {backlog.changes:,} changes, six columns in text",
            peer=name,
            unit="rows/s",
            ours=tuple(backlog.changes / mine for mine, _ in seconds),
            theirs=tuple(backlog.changes / other for _, other in seconds),
            wanted=WANTED,
            note="of CPU time; ours to typed Arrow columns, theirs to an object a message, values as text",
        )
    ]


def _payloads(chunk: MessageBuffer) -> list[bytes]:
    ends = chunk.ends.tolist()
    return [chunk.data[ends[i] : ends[i + 1]].tobytes() for i in range(chunk.count)]


def _ours(chunks: list[MessageBuffer], changes: int) -> float:
    decoder, decoded_changes, seq, txn = Decoder(), 0, 0, 0
    started = time.thread_time()
    for chunk in chunks:
        decoded = decoder.decode(chunk, first_seq=seq, first_txn=txn, partial=True)
        seq, txn, decoded_changes = (
            decoded.next_seq,
            decoded.next_txn,
            decoded_changes + decoded.counts.changes,
        )
    seconds = time.thread_time() - started
    if decoded_changes != changes:
        raise SlotlakeError(f"{decoded_changes} changes were decoded, not {changes}")
    return seconds


def _theirs(read: Reader, payloads: list[bytes], changes: int) -> float:
    read_changes = 0
    started = time.thread_time()
    for payload in payloads:
        read(payload)
        read_changes += payload[0] in b"IUD"
    seconds = time.thread_time() - started
    if read_changes != changes:
        raise SlotlakeError(f"the peer read {read_changes} changes, not {changes}")
    return seconds


def _peer() -> tuple[str, Callable[[], Reader]]:
    package = importlib.util.find_spec("pypgoutput")
    if package is None or not package.submodule_search_locations:
        return "our own plain reader (pypgoutput is not installed)", lambda: StreamReader().read
    # The module alone: the package itself asks for a database driver, which decoding does not need.
    file = Path(package.submodule_search_locations[0]) / "decoders.py"
    specification = importlib.util.spec_from_file_location("slotlake_bench_pypgoutput", file)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = module  # its dataclasses look themselves up
    specification.loader.exec_module(module)
    classes = {name[0].encode(): getattr(module, name) for name in _PEER_CLASSES}
    return "pypgoutput, pure Python", lambda: lambda payload: classes[payload[:1]](payload)
