"""verify_by_executors: the lake's side of `verify` on one machine, by slotlake and by a local Spark."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from slotlake.bench.cluster.machines import cpu_seconds
from slotlake.bench.figures import PAIRS, Figure
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import (
    DATABASE,
    bench_folder,
    bench_server,
    make_table,
    rows_asked,
    runs_asked,
)
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.shapes import Compared
from slotlake.expectations.source_side import Sums
from slotlake.infra.pipeline import Pipeline
from slotlake.spark.read.executors import ClusterReadPoint
from slotlake.spark.read.point import ReadPoint

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

T = TypeVar("T")
_ROWS, _TABLE = 5_000_000, "orders"


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
        make_table(connection, _TABLE, rows)
        with bench_pipeline(server, folder, [_TABLE], progress) as pipeline:
            lake_sums(pipeline, _TABLE, by_executors=True)
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
    before = cpu_seconds({os.getpid()})
    seconds, sums = timed(lambda: lake_sums(pipeline, _TABLE, by_executors=by_executors))
    return _Reading(seconds, cpu_seconds({os.getpid()}) - before, _peak_mib(), sums)


def lake_sums(pipeline: Pipeline, name: str, *, by_executors: bool) -> Sums:
    """Return the lake's side of a comparison of one table.

    Args:
        by_executors: whether Spark's executors read the rows, or slotlake itself.

    Raises:
        SlotlakeError: the executors failed.
    """
    point = ReadPoint.latest(pipeline.lake)
    shape = next(each for each in point.tables() if each.table == name)
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


def _peak_mib() -> float:
    """The most memory that this process had since it was asked last."""
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return peak / 1024


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Return how many seconds a piece of work takes, and what it gives."""
    started = time.monotonic()
    done = work()
    return time.monotonic() - started, done
