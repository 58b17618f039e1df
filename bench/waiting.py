"""latency_ms, idle_cpu_percent, start_s: how quick a reader is, and what it costs, with little to read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import psycopg

from slotlake.bench.figures import Figure
from slotlake.bench.workload import (
    COLUMNS,
    DATABASE,
    PUBLICATION,
    SLOT,
    bench_server,
    insert_rows,
    runs_asked,
    source_of,
)
from slotlake.decoder.columnar.buffer import MessageBuffer
from slotlake.decoder.columnar.decoder import Decoder
from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.server.source import connect
from slotlake.decoder.stream.framing import Bounds, Framing
from slotlake.decoder.stream.receive import Stream
from slotlake.infra.local.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

LATENCY_MS_MAX, IDLE_PERCENT_MAX, START_SECONDS_MAX = 50.0, 1.0, 1.5
_COMMITS = 60
_IDLE_SECONDS, _ROUNDS = 5.0, 3
_STARTS = 5
_DSN_VARIABLE = "SLOTLAKE_BENCH_DSN"


def latency_ms(progress: Progressing) -> list[Figure]:
    """From sending a one-row transaction, its commit included, to the typed row; one now and then."""
    figures = []
    with bench_server() as server:
        start = _slot(server)
        for number, unix_socket in enumerate((False, True)):
            way = "the Unix socket" if unix_socket else "TCP"
            progress(f"latency_ms: over {way}", number + 1, 2)
            measured = _latencies(server, unix_socket, start, 1 + number * 10_000)
            worst = max(measured)
            figures.append(
                Figure(
                    what=f"one row sent, committed and decoded over {way}, {_COMMITS} transactions",
                    peer="limit",
                    unit="ms",
                    ours=tuple(measured),
                    theirs=(LATENCY_MS_MAX,) * len(measured),
                    better="less",
                    wanted=1.0,
                    parts={"ms, the slowest": worst},
                )
            )
    return figures


def _slot(server: EmbeddedPostgres) -> int:
    with connect(server.dsn(DATABASE)) as connection:
        connection.execute(f"CREATE TABLE orders ({COLUMNS})".encode())
        connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE orders".encode())
        row = connection.execute(
            "SELECT lsn FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,)
        ).fetchone()
    assert row is not None
    return parse_lsn(str(row[0]))


def _latencies(server: EmbeddedPostgres, unix_socket: bool, start: int, first: int) -> list[float]:
    sent: list[float] = []
    writer = Thread(target=_commit_now_and_then, args=(server.dsn(DATABASE), first, sent))
    measured: list[float] = []
    with Stream(source_of(server.dsn(DATABASE, unix_socket=unix_socket), SLOT), start) as stream:
        framing, decoder, buffer = Framing(Bounds(start, 1 << 62)), Decoder(), MessageBuffer()
        seq = txn = 0
        writer.start()
        deadline = time.monotonic() + 60
        while len(measured) < _COMMITS and time.monotonic() < deadline:
            frames = stream.drain()
            framing.take(frames.data, frames.lengths, buffer)
            stream.report(framing.received_lsn, now=framing.asked_for_reply())
            if buffer.count:
                chunk = decoder.decode(buffer, first_seq=seq, first_txn=txn, partial=True)
                buffer.clear()
                seq, txn = chunk.next_seq, chunk.next_txn
                ids = [key for table in chunk.rows.values() for key in python_values(table["n0"])]
                now = time.monotonic()
                measured += [(now - sent[key - first]) * 1000 for key in ids if key >= first]
            stream.rest(1.0)
    writer.join()
    if len(measured) < _COMMITS:
        raise SlotlakeError(f"{len(measured)} of {_COMMITS} transactions came within a minute")
    return measured[5:]  # the first brings the compiled code in


def _commit_now_and_then(dsn: str, first: int, sent: list[float]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SET synchronous_commit = on")
        for i in range(_COMMITS):
            time.sleep(0.02 + 0.01 * (i % 7))
            sent.append(time.monotonic())
            insert_rows(connection, "orders", first + i, first + i)


def idle_cpu_percent(progress: Progressing) -> list[Figure]:
    """CPU time of a reader on a slot where nothing happens, of one core."""
    with bench_server() as server:
        start = _slot(server)
        measured = []
        with Stream(source_of(server.dsn(DATABASE), SLOT), start) as stream:
            framing, buffer = Framing(Bounds(start, 1 << 62)), MessageBuffer()
            rounds = 1 + runs_asked(_ROUNDS)
            for i in range(rounds):
                progress("idle_cpu_percent: stretch", i + 1, rounds)
                measured.append(_idle(stream, framing, buffer))
    return [
        Figure(
            what=f"reader of an idle slot, {_IDLE_SECONDS:.0f} s at a time",
            peer="limit",
            unit="% of a core",
            ours=tuple(measured[1:]),
            theirs=(IDLE_PERCENT_MAX,) * len(measured[1:]),
            better="less",
            wanted=1.0,
        )
    ]


def _idle(stream: Stream, framing: Framing, buffer: MessageBuffer) -> float:
    begun, cpu = time.monotonic(), time.process_time()
    while time.monotonic() - begun < _IDLE_SECONDS:
        frames = stream.drain()
        framing.take(frames.data, frames.lengths, buffer)
        stream.report(framing.received_lsn, now=framing.asked_for_reply())
        stream.rest(1.0)
    return max(100 * (time.process_time() - cpu) / (time.monotonic() - begun), 0.001)


def start_s(progress: Progressing) -> list[Figure]:
    """A pull of an idle slot as a process: interpreter, imports, compiled code from its cache, the pull."""
    with bench_server() as server, tempfile.TemporaryDirectory(prefix="slotlake-bench-") as folder:
        start = _slot(server)
        work = json.dumps([SLOT, folder, start])
        measured = []
        starts = 1 + runs_asked(_STARTS)
        for i in range(starts):
            progress("start_s: process", i + 1, starts)
            measured.append(_process(server, work))
    return [
        Figure(
            what="pull of an idle slot, as a process",
            peer="limit",
            unit="s",
            ours=tuple(measured[1:]),
            theirs=(START_SECONDS_MAX,) * (starts - 1),
            better="less",
            wanted=1.0,
            parts={"s, the first": measured[0]},
        )
    ]


def _process(server: EmbeddedPostgres, work: str) -> float:
    begun = time.monotonic()
    subprocess.run(
        [sys.executable, "-m", __name__, work],
        env={**os.environ, _DSN_VARIABLE: server.dsn(DATABASE)},
        cwd=Path(__file__).resolve().parents[1],
        check=True,
    )
    return time.monotonic() - begun


def _pull(work: Any) -> None:
    from slotlake.decoder.stream.pull import pull

    slot, folder, start = work
    pull(source_of(os.environ[_DSN_VARIABLE], slot), "bench", Path(folder), start=start)


if __name__ == "__main__":
    _pull(json.loads(sys.argv[1]))
