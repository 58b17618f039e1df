"""Stages several tables of a batch at the same time, each in a Spark session of its own.

Spark plans a small MERGE for longer than it executes it, and planning uses one core: so small tables overlap.
The properties of a snapshot are settings of a session, so two tables never share a session while they are
staged.  A large MERGE uses all cores, and its keys take heap (docs/adr/0018): large tables go one by one.

Invariant: when `run_jobs` returns or raises, no statement runs any more.  What is staged of a table depends
on that table and the batch only, so the order does not matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Generic, TypeVar
from weakref import WeakKeyDictionary

from pyspark.sql import SparkSession

from slotlake.spark.lake import LakeSettings
from slotlake.spark.session import is_remote, sibling, use_lake
from slotlake.spark.session_errors import SPARK_ERRORS
from slotlake.spark.tables.shapes import BatchRelation, ChangeBatch

SMALL_ROWS_MAX = 20_000
_SMALL_BATCH_BYTES_MAX = 16 * 1024 * 1024
_WORKERS_MAX = 4
T = TypeVar("T")


@dataclass(frozen=True)
class Job(Generic[T]):
    """The staging of one table.

    Attributes:
        run: stages the table in the session that it gets.
        small: other tables may be staged at the same time.
    """

    run: Callable[[SparkSession], T]
    small: bool


@dataclass
class _Workers:
    """The additional sessions of one session, on the same Spark and lake.

    Attributes:
        siblings: the sessions.
        pool: the threads; Java needs the same thread for the same session.
    """

    siblings: list[SparkSession] = field(default_factory=list)
    pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(workers_max(), "slotlake-apply")
    )


_workers: WeakKeyDictionary[SparkSession, dict[tuple[str, ...], _Workers]] = WeakKeyDictionary()


def workers_max() -> int:
    """Return how many tables may be staged at the same time; 1 if a test ends the process at a failpoint."""
    return 1 if os.environ.get("SLOTLAKE_FAILPOINT") else min(_WORKERS_MAX, os.cpu_count() or 1)


def is_small(batch: ChangeBatch, relations: Iterable[BatchRelation]) -> bool:
    """Return whether a table of a batch may be staged at the same time as others."""
    batch_bytes = sum(int(file["bytes"]) for file in batch.manifest.get("files", ()))
    return batch_bytes <= _SMALL_BATCH_BYTES_MAX and sum(each.rows for each in relations) <= SMALL_ROWS_MAX


def run_jobs(session: SparkSession, lake: LakeSettings, jobs: Mapping[str, Job[T]]) -> dict[str, T]:
    """Run all jobs and return their results, in the order of the jobs.

    Args:
        session: the session that large tables, or a single one, are staged in.
        lake: the lake; each additional session opens it.
        jobs: name → job.

    Raises:
        Exception: the first job that failed raised it; jobs that had not begun by then do not run.
    """
    small = [name for name, job in jobs.items() if job.small]
    count = min(len(small), workers_max())
    results: dict[str, T] = {}
    if count > 1:
        results = _run_at_once(_sessions(session, lake, count), {name: jobs[name] for name in small})
    for name, job in jobs.items():
        if name not in results:
            results[name] = job.run(session)
    return {name: results[name] for name in jobs}


def _run_at_once(
    workers: tuple[ThreadPoolExecutor, Sequence[SparkSession]], jobs: Mapping[str, Job[T]]
) -> dict[str, T]:
    pool, sessions = workers
    free: SimpleQueue[SparkSession] = SimpleQueue()
    for each in sessions:
        free.put(each)

    def run(job: Job[T]) -> T:
        session = free.get()
        try:
            return job.run(session)
        finally:
            free.put(session)

    futures: dict[str, Future[T]] = {name: pool.submit(run, job) for name, job in jobs.items()}
    try:
        wait(futures.values(), return_when=FIRST_EXCEPTION)
    finally:
        for future in futures.values():
            future.cancel()
        wait([future for future in futures.values() if not future.cancelled()])
    failed = [f for f in futures.values() if not f.cancelled() and f.exception() is not None]
    for future in failed:
        future.result()
    return {name: future.result() for name, future in futures.items()}


def _sessions(
    session: SparkSession, lake: LakeSettings, count: int
) -> tuple[ThreadPoolExecutor, Sequence[SparkSession]]:
    """Return the pool, the session itself and additional ones, which are reused: a catalog opens slowly."""
    by_lake = _workers.setdefault(session, {})
    workers = by_lake.setdefault((lake.catalog, lake.uri, lake.warehouse), _Workers())
    while len(workers.siblings) < count - 1:
        own = sibling(session)
        use_lake(own, lake)
        workers.siblings.append(own)
    return workers.pool, [session, *workers.siblings[: count - 1]]


def close_workers(session: SparkSession) -> None:
    """Close the additional sessions of a session, before it is closed itself."""
    for workers in _workers.pop(session, {}).values():
        workers.pool.shutdown()
        for own in workers.siblings:
            if is_remote(own):
                with suppress(*SPARK_ERRORS):
                    own.stop()
