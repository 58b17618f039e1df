"""two_workers_vs_one, verify_by_executors: what a second worker, and executors at all, gain.

The cluster is Spark's standalone one on this machine: a master and two workers, each on a core of its own.
They share its folders.  An application that may have one core (`spark.cores.max`) gets one worker, one with
two cores both.  PostgreSQL, slotlake and Spark's driver work on the same cores; the figures tell their part.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import yaml

from slotlake.bench.figures import PAIRS, Figure
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
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.shapes import Compared
from slotlake.expectations.source_side import Sums
from slotlake.infra.advance.steps import apply_named, publish_named
from slotlake.infra.local.process import free_port
from slotlake.infra.local.runtime import pyspark_folder, spark_runtime
from slotlake.infra.pipeline import Pipeline
from slotlake.spark.read.executors import ClusterReadPoint
from slotlake.spark.read.point import ReadPoint

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

T = TypeVar("T")
_ROWS = 5_000_000
_ADDRESS = "127.0.0.1"
_START_SECONDS_MAX = 60.0
_WANTED = 1 / 0.65


def two_workers_vs_one(progress: Progressing) -> list[Figure]:
    """The long MERGE, and the lake's side of verify, with two workers of one core and with one."""
    name, rows = "two_workers_vs_one", rows_asked(_ROWS)
    with ExitStack() as stack:
        server, folder = stack.enter_context(bench_server()), stack.enter_context(bench_folder())
        connection = stack.enter_context(connect(server.dsn(DATABASE)))
        progress(f"{name}: making the table", 0)
        make_table(connection, "orders", rows)
        with bench_pipeline(server, folder, ["orders"], progress):
            pass  # initialised by a Spark of its own
        cluster = stack.enter_context(_Cluster.running(folder))
        race = _Race(cluster, folder, connection, rows)
        pairs = []
        for number in range(runs_asked(PAIRS)):
            progress(f"{name}: pair", number + 1, runs_asked(PAIRS))
            pairs.append((race.timed(2), race.timed(1)))
    return [
        _figure(
            f"{race.changes:,} changes merged into {rows:,} rows", [(a.merge, b.merge) for a, b in pairs]
        ),
        _figure(f"verify's lake side of {rows:,} rows, hashed", [(a.verify, b.verify) for a, b in pairs]),
    ]


def verify_by_executors(progress: Progressing) -> list[Figure]:
    """The lake's side of verify on one machine: by slotlake itself, and by a local Spark with all cores.

    Raises:
        SlotlakeError: the two ways give other sums.
    """
    name, rows = "verify_by_executors", rows_asked(_ROWS)
    with (
        bench_server() as server,
        bench_folder() as folder,
        connect(server.dsn(DATABASE)) as connection,
    ):
        progress(f"{name}: making the table", 0)
        make_table(connection, "orders", rows)
        with bench_pipeline(server, folder, ["orders"], progress) as pipeline:
            _lake_sums(pipeline, by_executors=True)
            here, there = [], []
            for number in range(runs_asked(PAIRS)):
                progress(f"{name}: pair", number + 1, runs_asked(PAIRS))
                here.append(_measured(pipeline, by_executors=False))
                there.append(_measured(pipeline, by_executors=True))
                if here[-1].sums != there[-1].sums:
                    raise SlotlakeError("the two ways give other sums")
    return [
        Figure(
            what=f"verify's lake side of {rows:,} rows on one machine",
            peer="executors of a local Spark",
            unit="s",
            ours=tuple(each.seconds for each in here),
            theirs=tuple(each.seconds for each in there),
            better="less",
            parts={
                "s of CPU, read by slotlake": median(each.cpu_seconds for each in here),
                "s of CPU, by executors": median(each.cpu_seconds for each in there),
                "MiB, slotlake's peak, read by slotlake": median(each.peak_mib for each in here),
                "MiB, slotlake's peak, by executors": median(each.peak_mib for each in there),
            },
            note="executors: two Python processes beside Java; warm",
        )
    ]


@dataclass(frozen=True)
class _Reading:
    seconds: float
    cpu_seconds: float
    peak_mib: float
    sums: Sums


def _measured(pipeline: Pipeline, *, by_executors: bool) -> _Reading:
    """Hash the lake's rows once; the CPU time is that of this process and of all that it started."""
    _peak_mib()
    before = _cpu_seconds({os.getpid()})
    seconds, sums = _timed(lambda: _lake_sums(pipeline, by_executors=by_executors))
    return _Reading(seconds, _cpu_seconds({os.getpid()}) - before, _peak_mib(), sums)


@dataclass(frozen=True)
class _Work:
    """One piece of work: its time, and the CPU time of the executors and of everybody else, in seconds."""

    seconds: float
    executors: float
    others: float


@dataclass(frozen=True)
class _Both:
    merge: _Work
    verify: _Work


def _figure(what: str, pairs: list[tuple[_Work, _Work]]) -> Figure:
    def parts(words: str, works: list[_Work]) -> dict[str, float]:
        seconds, cores = median(work.seconds for work in works), os.cpu_count() or 1
        return {
            f"s, CPU of executors, {words}": median(work.executors for work in works),
            f"s, CPU of all others, {words}": median(work.others for work in works),
            f"share of all CPU that others took, {words}": median(work.others for work in works)
            / seconds
            / cores,
        }

    return Figure(
        what=what,
        peer="one worker of one core",
        unit="s",
        ours=tuple(two.seconds for two, _ in pairs),
        theirs=tuple(one.seconds for _, one in pairs),
        better="less",
        wanted=_WANTED,
        parts={
            **parts("two workers", [two for two, _ in pairs]),
            **parts("one worker", [one for _, one in pairs]),
        },
        note=f"{os.cpu_count()} cores for the workers, Spark's driver, slotlake and PostgreSQL together",
    )


class _Race:
    """The same work with one worker and with two, each time on changes of its own."""

    def __init__(
        self, cluster: _Cluster, folder: Path, connection: psycopg.Connection[Any], rows: int
    ) -> None:
        self._cluster, self._folder, self._connection = cluster, folder, connection
        self._rows, self._next, self._round = rows, rows + 1, 0
        self.changes = max(10, rows // 5)

    def timed(self, workers: int) -> _Both:
        """Apply a batch, and hash the lake, with so many workers.

        Args:
            workers: one or two.
        """
        with Pipeline.open(self._file(workers)) as pipeline:
            self._merged(pipeline)  # the executors have started, and Java has compiled what they need
            _lake_sums(pipeline, by_executors=True)
            merge = self._merged(pipeline)
            verify, sums = self._work(lambda: _lake_sums(pipeline, by_executors=True))
            if sum(rows for rows, _ in sums.values()) != self._lake_rows:
                raise SlotlakeError("the lake has other rows than the source")
        return _Both(merge, verify)

    def _merged(self, pipeline: Pipeline) -> _Work:
        """Change the source, and carry the changes to the lake; what is timed is their MERGE."""
        self._change()
        pulled = pipeline.pull()
        if pulled.batch is None:
            raise SlotlakeError("nothing was pulled")
        merge, _ = self._work(lambda: apply_named(pipeline, str(pulled.batch)))
        publish_named(pipeline, pulled.batch)
        return merge

    def _file(self, workers: int) -> Path:
        contents = yaml.safe_load((self._folder / "bench.yaml").read_text())
        contents["spark"] = {
            "master": self._cluster.master,
            "conf": {
                "spark.cores.max": workers,
                "spark.executor.cores": 1,
                "spark.executor.memory": "1g",
                "spark.driver.host": _ADDRESS,
                "spark.driver.bindAddress": _ADDRESS,
            },
        }
        file = self._folder / f"bench{workers}.yaml"
        file.write_text(yaml.safe_dump(contents))
        file.chmod(0o600)
        return file

    def _change(self) -> None:
        """Half inserts, half updates all over the table, of rows that this round alone has."""
        half = self.changes // 2
        insert_rows(self._connection, "orders", self._next, self._next + half - 1)
        self._next += half
        step = self._rows // half
        self._connection.execute(
            f"UPDATE orders SET quantity = quantity + 1, note = note || '.' "
            f"WHERE id <= {self._rows} AND id % {step} = {self._round % step}".encode()
        )
        self._round += 1

    @property
    def _lake_rows(self) -> int:
        return self._next - 1

    def _work(self, work: Callable[[], T]) -> tuple[_Work, T]:
        busy, executors = _busy_seconds(), self._cluster.cpu_seconds()
        seconds, done = _timed(work)
        executors = self._cluster.cpu_seconds() - executors
        return _Work(seconds, executors, _busy_seconds() - busy - executors), done


class _Cluster:
    """A master and two workers of one core each; all see the files of this machine."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """The value of ``spark.master``."""
        return f"spark://{_ADDRESS}:{self._port}"

    @classmethod
    @contextmanager
    def running(cls, folder: Path) -> Iterator[_Cluster]:
        """Start it, and end it with the block.

        Args:
            folder: for logs and the executors' files.
        """
        cluster = cls(folder)
        try:
            place = ["--host", _ADDRESS, "--port", str(cluster._port), "--webui-port", str(free_port())]
            cluster._start("master", ["org.apache.spark.deploy.master.Master", *place])
            cluster._wait_for("master", "I have been elected leader")
            cores = sorted(os.sched_getaffinity(0))
            for number in (1, 2):
                own = ["--cores", "1", "--memory", "2g", "--work-dir", str(folder / f"work{number}")]
                place = ["--host", _ADDRESS, "--webui-port", str(free_port()), *own, cluster.master]
                worker = cluster._start(f"worker{number}", ["org.apache.spark.deploy.worker.Worker", *place])
                # One core each: an executor with one task at a time is two processes, Java and Python, and
                # takes 1.4 cores where it can.
                os.sched_setaffinity(worker, {cores[number % len(cores)]})
            for number in (1, 2):
                cluster._wait_for(f"worker{number}", "Successfully registered with master")
            yield cluster
        finally:
            for process in reversed(cluster._processes):
                process.terminate()
            for process in cluster._processes:
                process.wait()

    def _start(self, name: str, arguments: list[str]) -> int:
        """Start a process of Spark; its identifier."""
        environment = {**os.environ, **spark_runtime().environment(), "SPARK_DAEMON_MEMORY": "256m"}
        environment.pop("SPARK_CONF_DIR", None)  # with its own settings it logs what is waited for
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(pyspark_folder() / "bin" / "spark-class"), *arguments]
            self._processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
        return self._processes[-1].pid

    def _wait_for(self, name: str, line: str) -> None:
        log, give_up = self._folder / f"{name}.log", time.monotonic() + _START_SECONDS_MAX
        while line not in log.read_text(errors="replace"):
            if time.monotonic() > give_up:
                raise SlotlakeError(f"Spark's {name} did not start", where=log.read_text()[-500:])
            time.sleep(0.1)

    def cpu_seconds(self) -> float:
        """CPU time of the workers and of all that they started."""
        return _cpu_seconds({process.pid for process in self._processes[1:]})


def _cpu_seconds(roots: set[int]) -> float:
    """CPU time of some processes and of all that they started."""
    times, parents = {}, {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = sum(map(int, fields[11:15]))

    def is_below(pid: int) -> bool:
        while pid in parents and pid not in roots:
            pid = parents[pid]
        return pid in roots

    return sum(ticks for pid, ticks in times.items() if is_below(pid)) / os.sysconf("SC_CLK_TCK")


def _lake_sums(pipeline: Pipeline, *, by_executors: bool) -> Sums:
    point = ReadPoint.latest(pipeline.lake)
    (shape,) = point.tables()
    key = tuple((column.name, column.type_oid) for column in shape.live if column.name in shape.key)
    values = tuple((column.name, column.type_oid) for column in shape.live if column.name not in shape.key)
    table = Compared(shape.source_name, key, values, (), None)
    if not by_executors:
        return LakeTable(point, table).sums()
    cluster = ClusterReadPoint(point, pipeline.session, rows_min=0)
    sums = LakeTable(cluster, table).sums()
    if cluster.given_up:
        raise SlotlakeError("the executors failed")
    return sums


def _busy_seconds() -> float:
    """CPU time of all processes of this machine."""
    fields = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    user, nice, system, _, _, *interrupts = map(int, fields)
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _peak_mib() -> float:
    """The most memory that this process had since it was asked last."""
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak / 1024


def _timed(work: Callable[[], T]) -> tuple[float, T]:
    started = time.monotonic()
    done = work()
    return time.monotonic() - started, done
