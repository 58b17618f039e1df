"""s3_vs_folder: the same pipeline with its lake in an S3 server of this machine, and in a folder.

All are fed from one database, in turns, by one Spark.  The S3 server is S3Proxy, a Java program that keeps
objects in a folder too: what is compared is the protocol, the requests and their order, not a network.  The
requests of a sync of one row are counted on their way, with a latency that shows which of them wait for
others (bench/requests.py); times are taken without it.  A third pipeline has its change log in the store too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import psycopg

from slotlake.bench.figures import Figure, in_turns
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.requests import Forwarder, Request, counted, one_after_another
from slotlake.bench.workload import DATABASE, bench_folder, bench_server, make_table, rows_asked, runs_asked
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

ROWS = 1_000_000
_ONE_ROW_PAIRS, _BATCH_PAIRS, _WARM_UPS, _COUNTED = 9, 3, 5, 5
_SHARE_WANTED, _ONE_ROW_WANTED = 0.7, 0.5
_REQUESTS_WANTED, _CHAIN_WANTED = 25.0, 10.0
_LATENCY_SECONDS = 0.02


@dataclass
class _Lakes:
    """The pipelines, and the database that feeds them.

    Attributes:
        s3: its lake is in the store; ``stored_log``: its change log too; ``folder``: all in folders.
        way: to the store, of the first one.
        row: the row that was changed last.
    """

    connection: psycopg.Connection[Any]
    s3: Pipeline
    stored_log: Pipeline
    folder: Pipeline
    way: Forwarder
    row: int = field(default=0)

    def one_row(self, pipeline: Pipeline, row: int | None = None) -> float:
        """Seconds of a sync of one row; another row each time, if none is given."""
        pipeline.sync()  # all pipelines have one source: what it changed in the turns of the others
        return self._one_row(pipeline, row)

    def _one_row(self, pipeline: Pipeline, row: int | None) -> float:
        self.row += 1
        changed = self.row if row is None else row
        self.connection.execute("UPDATE small SET quantity = quantity + 1 WHERE id = %s", (changed,))
        return _synced(pipeline)

    def batch(self, pipeline: Pipeline) -> float:
        """Seconds of a sync that changes every row."""
        pipeline.sync()
        self.connection.execute("UPDATE large SET quantity = quantity + 1")
        return _synced(pipeline)

    def copy(self, pipeline: Pipeline) -> float:
        """Seconds in which a table is copied again."""
        started = time.monotonic()
        pipeline.backfill("large")
        return time.monotonic() - started

    def requests(self, row: int | None) -> list[Request]:
        """Return the requests of a sync of one row."""
        self.s3.sync()
        self.way.latency_seconds = _LATENCY_SECONDS
        self.way.take()
        self._one_row(self.s3, row)
        self.way.latency_seconds = 0.0
        return self.way.take()


def s3_vs_folder(progress: Progressing) -> list[Figure]:
    """One row, many changes, and a copy."""
    with _lakes(progress) as lakes:
        for i in range(runs_asked(_WARM_UPS)):
            progress("s3_vs_folder: warming up", i + 1, runs_asked(_WARM_UPS))
            for pipeline in (lakes.s3, lakes.folder, lakes.stored_log):
                lakes.one_row(pipeline)
        figures = [*_requests(lakes, progress), *_logs(lakes, progress)]
        rows = rows_asked(ROWS)
        steps = {
            "warm sync() of one row": (lakes.one_row, _ONE_ROW_PAIRS, _ONE_ROW_WANTED),
            f"sync() of {rows:,} updates": (lakes.batch, _BATCH_PAIRS, _SHARE_WANTED),
            f"copy of {rows:,} rows": (lakes.copy, _BATCH_PAIRS, _SHARE_WANTED),
        }
        for number, (what, (run, pairs, wanted)) in enumerate(steps.items(), 1):
            progress(f"s3_vs_folder: {what}", number, len(steps))
            taken = in_turns(partial(run, lakes.s3), partial(run, lakes.folder), runs_asked(pairs))
            peer = "the same, lake in a folder"
            figures.append(_figure(f"{what}, lake in S3", peer, taken, wanted))
        return figures


def _requests(lakes: _Lakes, progress: Progressing) -> list[Figure]:
    """How many requests a sync of one row makes: of another row each time, and of the same one."""
    progress("s3_vs_folder: requests", 1, 2)
    taken = [lakes.requests(None) for _ in range(runs_asked(_COUNTED))]
    progress("s3_vs_folder: requests", 2, 2)
    same = [lakes.requests(5) for _ in range(runs_asked(_COUNTED))]
    parts = {what: float(number) for what, number in sorted(counted(taken[-1]).items())}
    parts |= {"of a row that was changed just before": float(len(same[-1]))}
    counts = {
        "requests of a sync() of one row": (_REQUESTS_WANTED, [len(each) for each in taken], parts),
        "of these one after another": (_CHAIN_WANTED, [one_after_another(each) for each in taken], {}),
    }
    return [
        Figure(
            what=what,
            peer="at most",
            unit="requests",
            ours=tuple(map(float, ours)),
            theirs=(limit,) * len(ours),
            better="less",
            wanted=1.0,
            parts=shares,
        )
        for what, (limit, ours, shares) in counts.items()
    ]


def _logs(lakes: _Lakes, progress: Progressing) -> list[Figure]:
    """The change log in the store against a change log in a folder, both with their lakes in the store."""
    figures = []
    peer = "the same, change log in a folder"
    steps = {
        "sync() of one row": (lakes.one_row, _ONE_ROW_PAIRS),
        f"sync() of {rows_asked(ROWS):,} updates": (lakes.batch, _BATCH_PAIRS),
    }
    for number, (what, (run, pairs)) in enumerate(steps.items(), 1):
        progress("s3_vs_folder: change logs", number, len(steps))
        taken = in_turns(partial(run, lakes.stored_log), partial(run, lakes.s3), runs_asked(pairs))
        figures.append(_figure(f"{what}, change log in S3", peer, taken, None))
    return figures


def _figure(what: str, peer: str, pairs: list[tuple[float, float]], wanted: float | None) -> Figure:
    ours, theirs = zip(*pairs, strict=True)
    return Figure(what=what, peer=peer, unit="s", ours=ours, theirs=theirs, better="less", wanted=wanted)


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
        way = stack.enter_context(Forwarder(int(store.endpoint.rpartition(":")[2])))
        storage = {**store.storage, "endpoint": f"http://127.0.0.1:{way.port}"}

        def opened(suffix: str, lake: dict[str, Any], **sections: Any) -> Pipeline:
            tables = ("small", "large")
            pipeline = bench_pipeline(
                server, folder, tables, progress, suffix=suffix, lake_more=lake, **sections
            )
            return stack.enter_context(pipeline)

        # One in S3 first: its jars must be there when Spark starts.
        s3 = opened("_s3", {"warehouse": f"{store.warehouse}/s3", "storage": storage})
        log = {"path": f"s3://{store.bucket}/changelogs"}
        in_store = {"warehouse": f"{store.warehouse}/log", "storage": storage}
        stored_log = opened("_log", in_store, changelog=log)
        yield _Lakes(connection, s3, stored_log, opened("", {}), way)


def _synced(pipeline: Pipeline) -> float:
    started = time.monotonic()
    report = pipeline.sync()
    if not report.changes:
        raise SlotlakeError("the sync brought no changes")
    return time.monotonic() - started
