"""Tables of a batch that are staged at the same time, each in a Spark session of its own.

A small MERGE is planned longer than it works, and planning keeps one core busy: so small ones overlap.  The
properties of a snapshot are settings of a session, so no two tables share one while they are staged.  A large
MERGE uses all cores, and its keys take heap (docs/adr/0018): these are taken one after the other.

Invariant: when this returns, or raises, nothing is at work any more.  What is staged of a table depends on
that table and the batch alone, so the order does not matter.
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
_HANDS_MAX = 4
T = TypeVar("T")


@dataclass(frozen=True)
class Job(Generic[T]):
    """A table to be staged in the session that is given; ``small``: others may be at the same time."""

    run: Callable[[SparkSession], T]
    small: bool


@dataclass
class _Hands:
    """The sessions beside one session, on the same Spark and lake, and threads that keep to Java."""

    siblings: list[SparkSession] = field(default_factory=list)
    pool: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(hands_max(), "slotlake-apply")
    )


_beside: WeakKeyDictionary[SparkSession, dict[tuple[str, ...], _Hands]] = WeakKeyDictionary()


def hands_max() -> int:
    """How many tables are staged at the same time; a test that dies at a place wants one after the other."""
    return 1 if os.environ.get("SLOTLAKE_FAILPOINT") else min(_HANDS_MAX, os.cpu_count() or 1)


def is_small(batch: ChangeBatch, relations: Iterable[BatchRelation]) -> bool:
    """May a table of a batch be staged beside others?"""
    whole = sum(int(file["bytes"]) for file in batch.manifest.get("files", ()))
    return whole <= _SMALL_BATCH_BYTES_MAX and sum(each.rows for each in relations) <= SMALL_ROWS_MAX


def done(session: SparkSession, lake: LakeSettings, jobs: Mapping[str, Job[T]]) -> dict[str, T]:
    """What all jobs return, in their order.

    Raises:
        Exception: of the job that failed; those not begun by then were not done.
    """
    small = [name for name, job in jobs.items() if job.small]
    count = min(len(small), hands_max())
    found: dict[str, T] = {}
    if count > 1:
        found = _at_once(_sessions(session, lake, count), {name: jobs[name] for name in small})
    for name, job in jobs.items():
        if name not in found:
            found[name] = job.run(session)
    return {name: found[name] for name in jobs}


def _at_once(
    given: tuple[ThreadPoolExecutor, Sequence[SparkSession]], jobs: Mapping[str, Job[T]]
) -> dict[str, T]:
    pool, sessions = given
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
    """The session itself and others on the same Spark; a catalog takes long to open, so they are kept."""
    by_lake = _beside.setdefault(session, {})
    hands = by_lake.setdefault((lake.catalog, lake.uri, lake.warehouse), _Hands())
    while len(hands.siblings) < count - 1:
        own = sibling(session)
        use_lake(own, lake)
        hands.siblings.append(own)
    return hands.pool, [session, *hands.siblings[: count - 1]]


def let_go(session: SparkSession) -> None:
    """End what was begun beside a session, before it ends itself."""
    for hands in _beside.pop(session, {}).values():
        hands.pool.shutdown()
        for own in hands.siblings:
            if is_remote(own):
                with suppress(*SPARK_ERRORS):
                    own.stop()
