"""fold_vs_spark_window: a batch folded to one image per key, against a window function in Spark.

Both read the change log's Parquet and write folded Parquet.  Ours has one core; Spark has all.
The batch has no key changes and no unchanged values: with these a window function alone is not enough.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from slotlake.bench.decode import one_core
from slotlake.bench.figures import Figure, in_turns, rates
from slotlake.bench.workload import (
    DATABASE,
    SLOT,
    bench_folder,
    bench_server,
    make_backlog,
    rows_asked,
    runs_asked,
    source_of,
)
from slotlake.decoder.changelog.batches import Batch, BatchRelation
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.stream.pull import pull
from slotlake.spark.fold.batch import fold

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from slotlake.infra.progress import Progressing

INSERTS = 500_000


def fold_vs_spark_window(progress: Progressing) -> list[Figure]:
    """The backlog's 1.1 M changes of one table, 500 k keys."""
    with bench_server() as server, bench_folder() as folder, ExitStack() as closing:
        progress("fold_vs_spark_window: making the batch", 0)
        backlog = make_backlog(server, rows_asked(INSERTS))
        source = source_of(server.dsn(DATABASE), SLOT)
        batch = pull(source, "bench", folder / "changelog", start=backlog.start, until=backlog.until)
        session = _session(closing)
        race = _Race(batch, folder, session)
        progress("fold_vs_spark_window: pairs", 0)
        in_turns(race.ours, race.window, 1)
        seconds = in_turns(race.ours, race.window, runs_asked(5))
    ours, theirs = rates(backlog.changes, seconds)
    return [
        Figure(
            what=f"fold of {backlog.changes:,} changes of six columns, Parquet to Parquet, one core",
            peer="window function in Spark, all cores",
            unit="changes/s",
            ours=ours,
            theirs=theirs,
            parts={
                "s, ours": median(mine for mine, _ in seconds),
                "s, the fold alone": median(race.alone),
                "s, Spark": median(other for _, other in seconds),
            },
        )
    ]


def _session(closing: ExitStack) -> SparkSession:
    from slotlake.infra.local.runtime import spark_runtime
    from slotlake.spark.session import open_session

    runtime = spark_runtime()
    os.environ.update(runtime.environment())
    session = open_session(jars=runtime.jar_paths, driver_memory="2g")
    closing.callback(session.stop)
    return session


@dataclass
class _Race:
    batch: Batch
    folder: Path
    session: SparkSession

    def __post_init__(self) -> None:
        self.alone: list[float] = []
        self._rows: set[int] = set()

    @property
    def _relation(self) -> BatchRelation:
        [relation] = [relation for relation in self.batch.relations if relation.rows]
        return relation

    def ours(self) -> float:
        """Seconds from Parquet to Parquet."""
        with one_core():
            started = time.monotonic()
            table = self.batch.relation_table(self._relation)
            read = time.monotonic()
            [folded] = fold([(self._relation, table)])
            self.alone.append(time.monotonic() - read)
            pq.write_table(folded.rows, self.folder / "folded.parquet", compression="zstd")
            seconds = time.monotonic() - started
        self._require_same(folded.rows.num_rows)
        return seconds

    def window(self) -> float:
        """The same by row_number() over the keys, newest first."""
        written = self.folder / "window"
        started = time.monotonic()
        files = [(self.batch.path / name).as_uri() for name in self._relation.files]
        # Only the parts that hold deletes have old keys.
        changes = self.session.read.option("mergeSchema", "true").parquet(*files)
        changes.createOrReplaceTempView("changes")
        key = "coalesce(o0, n0)" if "o0" in changes.columns else "n0"
        self.session.sql(
            f"SELECT op AS action, {key} AS n0, n1, n2, n3, n4, n5 FROM (SELECT *, row_number() OVER "
            f"(PARTITION BY {key} ORDER BY seq DESC) AS newest FROM changes) WHERE newest = 1"
        ).write.parquet(written.as_uri(), compression="zstd")
        seconds = time.monotonic() - started
        self._require_same(pq.read_table(written, columns=["action"]).num_rows)
        shutil.rmtree(written)
        return seconds

    def _require_same(self, rows: int) -> None:
        self._rows.add(rows)
        if len(self._rows) > 1:
            raise SlotlakeError("the two folds differ", where=f"{sorted(self._rows)} keys")
