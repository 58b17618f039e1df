"""Stages several tables of a batch at the same time, each in a Spark session of its own.

Spark plans a small MERGE for longer than it executes it, and planning uses one core: so small tables overlap.
The properties of a snapshot are settings of a session, so two tables never share a session while they are
staged.  A large MERGE uses all cores, and its keys take heap (docs/adr/0018): large tables go one by one.
Most batches are staged without Spark (spark/direct/): a session is opened when the first statement needs it.

A table with floats has Spark for itself from the moment it needs it: its files may have no dictionary of
floats, and Parquet decides on dictionaries by one object for all writers of a process (docs/adr/0092).

Invariant: when `run_jobs` returns or raises, no statement runs any more.  What is staged of a table depends
on that table and the batch only, so the order does not matter.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from pyspark.sql import SparkSession

from slotlake.spark.lake import LakeSettings
from slotlake.spark.session import is_remote, sibling, use_lake
from slotlake.spark.session_errors import SPARK_ERRORS
from slotlake.spark.tables.shapes import BatchRelation, ChangeBatch

SMALL_ROWS_MAX = 20_000
_SMALL_BATCH_BYTES_MAX = 16 * 1024 * 1024
_WORKERS_MAX = 4
T = TypeVar("T")
Opened = Callable[[], SparkSession]


@dataclass(frozen=True)
class Job(Generic[T]):
    """The staging of one table.

    Attributes:
        run: stages the table; what it gets opens, or gives, the session for it.
        small: other tables may be staged at the same time.
        alone: but no other table may use Spark at the same time.
    """

    run: Callable[[Opened], T]
    small: bool
    alone: bool = False


class _Turns:
    """Who may use Spark now: one job alone, or any number of the others."""

    def __init__(self) -> None:
        self._changed, self._using, self._alone = threading.Condition(), 0, False

    @contextmanager
    def turn(self, alone: bool) -> Iterator[None]:
        """Wait for the turn of a job, and have it until the end of the block.

        Args:
            alone: no other job has its turn meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._alone and not (alone and self._using))
            self._using += 1
            self._alone = alone
        try:
            yield
        finally:
            with self._changed:
                self._using -= 1
                self._alone = False
                self._changed.notify_all()


class Engine:
    """A pipeline's Spark for the staging of tables, with additional sessions, and threads to use them.

    Attributes:
        pool: the threads; each that has used Java has a connection of its own to it, so they stay.

    Args:
        opened: gives the session; it opens Spark if nothing has needed it before.
    """

    def __init__(self, opened: Opened) -> None:
        self._opened, self._lock = opened, threading.RLock()
        self._session: SparkSession | None = None
        self._siblings: dict[tuple[str, ...], list[SparkSession]] = {}
        self.pool = ThreadPoolExecutor(workers_max(), "slotlake-apply")

    def session(self) -> SparkSession:
        """Return the session that large tables, or a single one, are staged in."""
        with self._lock:
            session = self._opened()
            if session is not self._session:  # it was opened again: the siblings of the other one are gone
                self._session, self._siblings = session, {}
            return session

    def sibling(self, lake: LakeSettings, number: int) -> SparkSession:
        """Return an additional session on the same Spark; it is reused, because a catalog opens slowly.

        Args:
            number: of the session, from 0.
        """
        with self._lock:
            session = self.session()
            siblings = self._siblings.setdefault((lake.catalog, lake.uri, lake.warehouse), [])
            while len(siblings) <= number:
                own = sibling(session)
                use_lake(own, lake)
                siblings.append(own)
            return siblings[number]

    def close(self) -> None:
        """End the threads and the additional sessions, before the session itself is ended."""
        self.pool.shutdown()
        for own in (each for siblings in self._siblings.values() for each in siblings):
            if is_remote(own):
                with suppress(*SPARK_ERRORS):
                    own.stop()
        self._siblings = {}


def workers_max() -> int:
    """Return how many tables may be staged at the same time; 1 if a test ends the process at a failpoint."""
    return 1 if os.environ.get("SLOTLAKE_FAILPOINT") else min(_WORKERS_MAX, os.cpu_count() or 1)


def is_small(batch: ChangeBatch, relations: Iterable[BatchRelation]) -> bool:
    """Return whether a table of a batch may be staged at the same time as others."""
    batch_bytes = sum(int(file["bytes"]) for file in batch.manifest.get("files", ()))
    return batch_bytes <= _SMALL_BATCH_BYTES_MAX and sum(each.rows for each in relations) <= SMALL_ROWS_MAX


def run_jobs(engine: Engine, lake: LakeSettings, jobs: Mapping[str, Job[T]]) -> dict[str, T]:
    """Run all jobs and return their results, in the order of the jobs.

    Raises:
        Exception: the first job that failed raised it; jobs that had not begun by then do not run.
    """
    small = [name for name, job in jobs.items() if job.small]
    count = min(len(small), workers_max())
    results: dict[str, T] = {}
    first = cache(engine.session)
    if count > 1:
        opened = [first, *(cache(partial(engine.sibling, lake, i)) for i in range(count - 1))]
        results = _run_at_once(engine.pool, opened, {name: jobs[name] for name in small})
    for name, job in jobs.items():
        if name not in results:
            results[name] = job.run(first)
    return {name: results[name] for name in jobs}


def _run_at_once(
    pool: ThreadPoolExecutor, sessions: Sequence[Opened], jobs: Mapping[str, Job[T]]
) -> dict[str, T]:
    free: SimpleQueue[Opened] = SimpleQueue()
    for each in sessions:
        free.put(each)
    turns = _Turns()

    def run(job: Job[T]) -> T:
        opened = free.get()
        with ExitStack() as turn:

            @cache
            def in_turn() -> SparkSession:
                turn.enter_context(turns.turn(job.alone))
                return opened()

            try:
                return job.run(in_turn)
            finally:
                free.put(opened)

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
