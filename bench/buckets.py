"""s3_vs_folder: the same pipeline with its lake in an S3 server of this machine, and in a folder.

Both are fed from one database, in turns, by one Spark.  The S3 server is S3Proxy, a Java program that keeps
objects in a folder too: what is compared is the protocol, the requests and their order, not a network.  The
requests of a sync of one row are counted on their way, by a forwarder that only looks for their heads.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Self

import psycopg

from slotlake.bench.figures import Figure, in_turns
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import DATABASE, bench_folder, bench_server, make_table, rows_asked, runs_asked
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

ROWS = 1_000_000
_ONE_ROW_PAIRS, _BATCH_PAIRS, _WARM_UPS = 9, 3, 5
_SHARE_WANTED, _ONE_ROW_WANTED = 0.7, 0.5
_CHUNK_BYTES = 1 << 16


@dataclass
class _Lakes:
    """The two pipelines, and the database that feeds both."""

    connection: psycopg.Connection[Any]
    s3: Pipeline
    folder: Pipeline
    requests: _Forwarder

    def one_row(self, pipeline: Pipeline) -> float:
        """Seconds of a sync of one row."""
        self.connection.execute("UPDATE small SET quantity = quantity + 1 WHERE id = 500")
        return _synced(pipeline)

    def batch(self, pipeline: Pipeline) -> float:
        """Seconds of a sync that changes every row."""
        self.connection.execute("UPDATE large SET quantity = quantity + 1")
        return _synced(pipeline)

    def copy(self, pipeline: Pipeline) -> float:
        """Seconds in which a table is copied again."""
        started = time.monotonic()
        pipeline.backfill("large")
        return time.monotonic() - started


def s3_vs_folder(progress: Progressing) -> list[Figure]:
    """One row, many changes, and a copy."""
    with _lakes(progress) as lakes:
        for i in range(runs_asked(_WARM_UPS)):
            progress("s3_vs_folder: warming up", i + 1, runs_asked(_WARM_UPS))
            lakes.one_row(lakes.s3)
            lakes.one_row(lakes.folder)
        counts = []
        pairs = []
        for i in range(runs_asked(_ONE_ROW_PAIRS)):
            progress("s3_vs_folder: one row", i + 1, runs_asked(_ONE_ROW_PAIRS))
            before = lakes.requests.count
            ours = lakes.one_row(lakes.s3)
            counts.append(lakes.requests.count - before)
            pairs.append((ours, lakes.one_row(lakes.folder)))
        rows = rows_asked(ROWS)
        figures = [_figure("warm sync() of one row", pairs, _ONE_ROW_WANTED, {"requests": median(counts)})]
        steps = {f"sync() of {rows:,} updates": lakes.batch, f"copy of {rows:,} rows": lakes.copy}
        for number, (what, run) in enumerate(steps.items(), 1):
            progress(f"s3_vs_folder: {what}", number, len(steps))
            pairs = in_turns(partial(run, lakes.s3), partial(run, lakes.folder), runs_asked(_BATCH_PAIRS))
            figures.append(_figure(what, pairs, _SHARE_WANTED, {}))
        return figures


def _figure(what: str, pairs: list[tuple[float, float]], wanted: float, parts: dict[str, float]) -> Figure:
    ours, theirs = zip(*pairs, strict=True)
    return Figure(
        what=f"{what}, lake in S3",
        peer="the same, lake in a folder",
        unit="s",
        ours=ours,
        theirs=theirs,
        better="less",
        wanted=wanted,
        parts=parts,
    )


@contextmanager
def _lakes(progress: Progressing) -> Iterator[_Lakes]:
    from slotlake.infra.local.java import find_java
    from slotlake.infra.local.object_store import LocalObjectStore

    with ExitStack() as stack:
        server, folder = stack.enter_context(bench_server()), stack.enter_context(bench_folder())
        connection = stack.enter_context(connect(server.dsn(DATABASE)))
        make_table(connection, "small", rows_asked(10_000))
        make_table(connection, "large", rows_asked(ROWS))
        store = stack.enter_context(LocalObjectStore(folder / "s3", find_java()))
        forwarder = stack.enter_context(_Forwarder(int(store.endpoint.rpartition(":")[2])))
        storage = {**store.storage, "endpoint": f"http://127.0.0.1:{forwarder.port}"}
        in_s3 = {"warehouse": store.warehouse, "storage": storage}
        tables = ("small", "large")
        # The one in S3 first: its jars must be there when Spark starts.
        s3 = bench_pipeline(server, folder, tables, progress, suffix="_s3", lake_more=in_s3)
        pipeline = stack.enter_context(s3)
        other = stack.enter_context(bench_pipeline(server, folder, tables, progress))
        yield _Lakes(connection, pipeline, other, forwarder)


def _synced(pipeline: Pipeline) -> float:
    started = time.monotonic()
    report = pipeline.sync()
    if not report.changes:
        raise SlotlakeError("the sync brought no changes")
    return time.monotonic() - started


class _Forwarder:
    """A TCP forwarder to a port of this machine that counts the heads of HTTP requests."""

    def __init__(self, target: int) -> None:
        self.count = 0
        self._target = target
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *failure: object) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target))
                for pair in ((client, server, True), (server, client, False)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, counts: bool) -> None:
        with suppress(OSError):
            while content := source.recv(_CHUNK_BYTES):
                if counts:
                    self.count += content.lower().count(b"\r\nhost:")
                target.sendall(content)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
                each.close()
