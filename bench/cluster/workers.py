"""two_workers_vs_one: the long MERGE, the lake's side of verify, and the initial copy, by one more machine.

The cluster is Spark's standalone one on this machine: a master and two workers with one core each.  They
share its folders.  An application that may have one core (`spark.cores.max`) gets one worker, one with two
cores both.  slotlake and Spark's driver are a third machine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import yaml

from slotlake.bench.cluster.copies import copy_figure
from slotlake.bench.cluster.executors import lake_sums, timed
from slotlake.bench.cluster.machines import ADDRESS, Cluster, Machine, cpu_seconds, note, share_of
from slotlake.bench.figures import Figure
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import (
    DATABASE,
    bench_folder,
    bench_server,
    insert_rows,
    make_table,
    rows_asked,
    runs_asked,
)
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.pipeline import Pipeline
from slotlake.infra.sync.batch_steps import BatchSteps

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

T = TypeVar("T")
_ROWS, _LARGE_TIMES, _PAIRS = 5_000_000, 40, 2
# Java's compilers come to rest only after many statements; a batch of few changes reads the same files.
_WARM_UPS, _LIGHT_WARM_UPS, _PLACES = 3, 15, 100
_EACH = 300  # one of so many rows of the large table changes
_ORDERS, _LARGE = "orders", "large"
_WANTED = 1 / 0.65


def two_workers_vs_one(progress: Progressing) -> list[Figure]:
    """MERGE, the lake's side of verify, and the initial copy, with two machines and with one."""
    rows = {_ORDERS: rows_asked(_ROWS), _LARGE: _LARGE_TIMES * rows_asked(_ROWS)}
    with bench_server() as server:
        progress("two_workers_vs_one: making the tables", 0)
        with connect(server.dsn(DATABASE)) as connection:
            for table, count in rows.items():
                make_table(connection, table, count)
                # It would begin with the updates, and take a core while they are merged.
                connection.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)".encode())
        with bench_folder() as folder:
            figures = _spark_figures(server, folder, rows, progress)
        with bench_folder() as folder:
            return [*figures, copy_figure(server, folder, _LARGE, _WANTED, progress)]


def _spark_figures(
    server: EmbeddedPostgres, folder: Path, rows: Mapping[str, int], progress: Progressing
) -> list[Figure]:
    share, pairs = share_of(3), []
    with ExitStack() as stack:
        connection = stack.enter_context(connect(server.dsn(DATABASE)))
        machines = [stack.enter_context(Machine(each, share)) for each in ("driver", "one", "two")]
        machines[0].takes(os.getpid())
        with bench_pipeline(server, folder, list(rows), progress):
            pass  # initialised by a Spark of its own
        cluster = stack.enter_context(Cluster.running(folder, machines[1:]))
        race = _Race(cluster, folder, connection, rows)
        for number in range(runs_asked(_PAIRS)):
            progress("two_workers_vs_one: pair", number + 1, runs_asked(_PAIRS))
            first, second = (1, 2) if number % 2 else (2, 1)  # the tables grow meanwhile
            done = {first: race.timed(first), second: race.timed(second)}
            pairs.append((done[2], done[1]))
        how = note(machines, share, "PostgreSQL; one machine is slotlake with Spark's driver")
    return [
        _figure(what, wanted, [(two[place], one[place]) for two, one in pairs], how)
        for place, (what, wanted) in enumerate(race.works)
    ]


@dataclass(frozen=True)
class _Work:
    """One piece of work: its time, and the CPU time of the executors and of the driver, in seconds."""

    seconds: float
    executors: float
    driver: float


def _figure(what: str, wanted: float | None, pairs: list[tuple[_Work, _Work]], how: str) -> Figure:
    def parts(words: str, works: list[_Work]) -> dict[str, float]:
        return {
            f"s, {words}": median(work.seconds for work in works),
            f"s, CPU of executors, {words}": median(work.executors for work in works),
            f"s, CPU of slotlake and Spark's driver, {words}": median(work.driver for work in works),
        }

    return Figure(
        what=what,
        peer="one worker of one core",
        unit="s",
        ours=tuple(two.seconds for two, _ in pairs),
        theirs=tuple(one.seconds for _, one in pairs),
        better="less",
        wanted=wanted,
        parts={
            **parts("two workers", [two for two, _ in pairs]),
            **parts("one worker", [one for _, one in pairs]),
        },
        note=how,
    )


class _Race:
    """The same work with one worker and with two, each time on changes of its own."""

    def __init__(
        self, cluster: Cluster, folder: Path, connection: psycopg.Connection[Any], rows: Mapping[str, int]
    ) -> None:
        self._cluster, self._folder, self._connection = cluster, folder, connection
        self._rows, self._next, self._round = rows, rows[_ORDERS] + 1, 0
        self._changes = max(10, rows[_ORDERS] // 5)

    @property
    def works(self) -> Sequence[tuple[str, float | None]]:
        """What is timed, and the least ratio asked for.

        The first MERGE is short: of that, what the driver does is no small part, so no ratio is asked for.
        """
        changed, rows = self._rows[_LARGE] // _EACH, self._rows
        return (
            (f"{self._changes:,} changes merged into {rows[_ORDERS]:,} rows", None),
            (f"{changed:,} updates, one of each {_EACH} rows, merged into {rows[_LARGE]:,} rows", _WANTED),
            (f"verify's lake side of {rows[_ORDERS]:,} rows, hashed", _WANTED),
        )

    def timed(self, workers: int) -> tuple[_Work, ...]:
        """Apply batches, and hash the lake, with so many workers.

        Args:
            workers: one or two.
        """
        with Pipeline.open(self._file(workers)) as pipeline:
            # The executors start, and each compiles for itself what it needs, by how often it was needed:
            # each of two has had half of the work so far.  What verify runs makes them compile again.
            for _ in range(_WARM_UPS):
                self._merged(pipeline, self._change_orders)
                self._merged(pipeline, self._change_large)
                self._hashed(pipeline)
            for _ in range(_LIGHT_WARM_UPS):
                self._merged(pipeline, self._change_few)
            return (
                self._merged(pipeline, self._change_orders),
                self._merged(pipeline, self._change_large),
                self._hashed(pipeline),
            )

    def _merged(self, pipeline: Pipeline, change: Callable[[], None]) -> _Work:
        """Change the source, and carry the changes to the lake; what is timed is their MERGE."""
        change()
        pulled = pipeline.pull()
        if pulled.batch is None:
            raise SlotlakeError("nothing was pulled")
        merge, _ = self._work(lambda: BatchSteps(pipeline).apply_named(str(pulled.batch)))
        BatchSteps(pipeline).publish_named(pulled.batch)
        return merge

    def _hashed(self, pipeline: Pipeline) -> _Work:
        verify, sums = self._work(lambda: lake_sums(pipeline, _ORDERS, by_executors=True))
        if sum(rows for rows, _ in sums.values()) != self._next - 1:
            raise SlotlakeError("the lake has other rows than the source")
        return verify

    def _file(self, workers: int) -> Path:
        contents = yaml.safe_load((self._folder / "bench.yaml").read_text())
        contents["spark"] = {
            "master": self._cluster.master,
            "conf": {
                "spark.cores.max": workers,
                "spark.executor.cores": 1,
                "spark.executor.memory": "1g",
                "spark.driver.host": ADDRESS,
                "spark.driver.bindAddress": ADDRESS,
            },
        }
        file = self._folder / f"bench{workers}.yaml"
        file.write_text(yaml.safe_dump(contents))
        file.chmod(0o600)
        return file

    def _change_orders(self) -> None:
        """Half inserts, half updates all over the table, of rows that this round alone has."""
        half = self._changes // 2
        insert_rows(self._connection, _ORDERS, self._next, self._next + half - 1)
        self._next += half
        self._update(_ORDERS, self._rows[_ORDERS] // half)

    def _change_large(self) -> None:
        self._update(_LARGE, _EACH)

    def _change_few(self) -> None:
        """Few updates of each table: in places all over it, and close there, so that keys go as bits too."""
        for table, rows in self._rows.items():
            ids = (
                f"SELECT place * {rows // _PLACES} + row * {_EACH // 3} + 1 "
                f"FROM generate_series(0, {_PLACES - 1}) place, generate_series(0, {2 * _PLACES - 1}) row"
            )
            self._connection.execute(
                f"UPDATE {table} SET quantity = quantity + 1 WHERE id IN ({ids})".encode()
            )

    def _update(self, table: str, step: int) -> None:
        self._round += 1
        self._connection.execute(
            f"UPDATE {table} SET quantity = quantity + 1, note = note || '.' "
            f"WHERE id <= {self._rows[table]} AND id % {step} = {self._round % step}".encode()
        )

    def _work(self, work: Callable[[], T]) -> tuple[_Work, T]:
        everybody, executors = cpu_seconds({os.getpid()}), self._cluster.cpu_seconds()
        seconds, done = timed(work)
        executors = self._cluster.cpu_seconds() - executors
        return _Work(seconds, executors, cpu_seconds({os.getpid()}) - everybody - executors), done
