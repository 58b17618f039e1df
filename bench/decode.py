"""decode_rows_per_s: a captured stream to typed Arrow columns, rows a second of one core's CPU time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING

import pyarrow as pa

from slotlake.bench.figures import Figure
from slotlake.bench.workload import (
    DATABASE,
    PUBLICATION,
    SLOT,
    Backlog,
    bench_server,
    make_backlog,
    rows_asked,
    runs_asked,
)
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import connect
from slotlake.decoder.stream.puller import CHUNK_BYTES

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

INSERTS = 500_000
ROWS_PER_SECOND_MIN = 3_000_000
_RUNS = 7


def decode_rows_per_s(progress: Progressing) -> list[Figure]:
    """In the chunks that a pull decodes; typed Arrow tables come out and are dropped."""
    with bench_server() as server:
        progress("decode_rows_per_s: making the backlog", 0)
        backlog = make_backlog(server, rows_asked(INSERTS))
        progress("decode_rows_per_s: capturing the stream", 0)
        kinds = {
            kind: captured(server.dsn(DATABASE), backlog, binary=kind == "binary")
            for kind in ("text", "binary")
        }
    with one_core():
        firsts = {kind: _decode(chunks, backlog.changes, kind)[0] for kind, chunks in kinds.items()}
        runs: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        count = runs_asked(_RUNS)
        for i in range(count):
            progress("decode_rows_per_s: run", i + 1, count)
            for kind, chunks in kinds.items():
                runs[kind].append(_decode(chunks, backlog.changes, kind))
    return [_figure(kind, backlog, kinds[kind], firsts[kind], runs[kind]) for kind in kinds]


def _figure(
    kind: str,
    backlog: Backlog,
    chunks: list[MessageBuffer],
    first: float,
    runs: list[tuple[float, float]],
) -> Figure:
    return Figure(
        what=f"decoding of {backlog.changes:,} changes, six columns in {kind}, to typed Arrow",
        peer="limit",
        unit="rows/s",
        ours=tuple(backlog.changes / cpu for _, cpu in runs),
        theirs=(float(ROWS_PER_SECOND_MIN),) * len(runs),
        wanted=1.0,
        parts={
            "s of CPU time": median(cpu for _, cpu in runs),
            "s": median(seconds for seconds, _ in runs),
            "s, first run (compiled code loaded)": first,
        },
        note=f"{backlog.transactions:,} transactions, {sum(each.size_bytes for each in chunks):,} bytes",
    )


def captured(dsn: str, backlog: Backlog, *, binary: bool = False) -> list[MessageBuffer]:
    """Return the backlog's messages as the server sends them, in buffers of the size that a pull decodes.

    Args:
        backlog: positions and counts of what is read.
        binary: ask for values in binary.
    """
    chunks = [MessageBuffer()]
    with connect(dsn) as connection, connection.transaction():
        cursor = connection.cursor("captured", binary=True)
        cursor.itersize = 20_000
        cursor.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s, NULL, "
            "'proto_version', '4', 'publication_names', %s, 'binary', %s)",
            (SLOT, format_lsn(backlog.until), PUBLICATION, str(binary)),
        )
        for (message,) in cursor:
            if chunks[-1].full(CHUNK_BYTES):
                chunks.append(MessageBuffer())
            chunks[-1].append(message, backlog.start)
    return chunks


def _decode(chunks: list[MessageBuffer], changes: int, kind: str) -> tuple[float, float]:
    """Seconds, and seconds of this thread's CPU time: they differ on a busy machine."""
    decoder = Decoder(binary=kind == "binary")
    seq = txn = decoded_changes = 0
    started, cpu = time.perf_counter(), time.thread_time()
    for chunk in chunks:
        decoded = decoder.decode(chunk, first_seq=seq, first_txn=txn, partial=True)
        seq, txn = decoded.next_seq, decoded.next_txn
        decoded_changes += sum(table.num_rows for table in decoded.rows.values())
    seconds, cpu = time.perf_counter() - started, time.thread_time() - cpu
    if decoded_changes != changes:
        raise SlotlakeError(f"{decoded_changes} changes were decoded, not {changes}")
    return seconds, cpu


@contextmanager
def one_core() -> Iterator[None]:
    """This thread on one core, and Arrow with one thread."""
    threads, cores = pa.cpu_count(), set[int]()
    if hasattr(os, "sched_setaffinity"):
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(cores)})
    pa.set_cpu_count(1)
    try:
        yield
    finally:
        pa.set_cpu_count(threads)
        if cores:
            os.sched_setaffinity(0, cores)
