"""merge_…_vs_plain_merge: a batch applied and published, against a MERGE of rows folded beforehand.

Two tables over the very same data files, in one catalog and one Spark session; both take the same
batches in the same order.  Ours is all that `sync` does after pulling: verify and read the batch, fold
it, write the folded rows, MERGE into the branch, publish with `commits`.  The peer is one MERGE of rows
that lie folded on disk.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg
import pyarrow.parquet as pq

from slotlake.bench.figures import PAIRS, Figure
from slotlake.bench.lakes import NAMESPACE, bench_pipeline
from slotlake.bench.workload import (
    COLUMNS,
    DATABASE,
    IN_NO_ORDER,
    IN_ORDER,
    bench_folder,
    bench_server,
    insert_rows,
    make_table,
    rows_asked,
    runs_asked,
)
from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect
from slotlake.infra.sync.batch_steps import BatchSteps, batch_named
from slotlake.spark.fold.batch import ACTIONS, fold

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

ROWS = 5_000_000
_OURS, _THEIRS = f"lake.{NAMESPACE}.orders", f"lake.{NAMESPACE}_peer.orders"
_NAMES = [column.split()[0] for column in COLUMNS.split(", ")]


def merge_1m_vs_plain_merge(progress: Progressing) -> list[Figure]:
    """A fifth of the table's size in changes."""
    return _merges("merge_1m_vs_plain_merge", progress, [(5, False)])


def merge_100k_vs_plain_merge(progress: Progressing) -> list[Figure]:
    """A fiftieth."""
    return _merges("merge_100k_vs_plain_merge", progress, [(50, False)])


def merge_1k_vs_plain_merge(progress: Progressing) -> list[Figure]:
    """One in five thousand, all over the table, and among its newest rows."""
    return _merges("merge_1k_vs_plain_merge", progress, [(5_000, False), (5_000, True)])


def merge_unclustered_vs_plain_merge(progress: Progressing) -> list[Figure]:
    """All three sizes, where no file can be left out: the keys come in no order."""
    kinds = [(5, False), (50, False), (5_000, False)]
    return _merges("merge_unclustered_vs_plain_merge", progress, kinds, IN_NO_ORDER)


def _merges(
    name: str, progress: Progressing, kinds: Sequence[tuple[int, bool]], key: str = IN_ORDER
) -> list[Figure]:
    rows = rows_asked(ROWS)
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        progress(f"{name}: making the table", 0)
        make_table(connection, "orders", rows, key)
        with bench_pipeline(server, folder, ["orders"], progress) as pipeline:
            race = _Race(pipeline, connection, folder, rows, key)
            figures = [_figure(name, race, part, newest, progress) for part, newest in kinds]
            race.require_equal()
    return figures


def _figure(name: str, race: _Race, part: int, newest: bool, progress: Progressing) -> Figure:
    race.changes, race.newest = max(10, race.rows // part), newest
    progress(f"{name}: warming up", 0)
    race.pair()
    count = runs_asked(PAIRS)
    pairs = []
    for i in range(count):
        progress(f"{name}: pair", i + 1, count)
        pairs.append(race.pair())
    ours = [dict(mine) for mine, _ in pairs]
    where = " among the newest" if newest else ", keys in no order," if race.key != IN_ORDER else ""
    return Figure(
        what=f"{race.changes:,} changes{where} applied to {race.rows:,} rows and published",
        peer="plain MERGE of folded rows",
        unit="s",
        ours=tuple(sum(each.values()) for each in ours),
        theirs=tuple(other for _, other in pairs),
        better="less",
        wanted=1 / 1.3,
        parts={f"s, {step}": median(each[step] for each in ours) for step in ours[0]},
    )


class _Race:
    def __init__(
        self, pipeline: Pipeline, connection: psycopg.Connection[Any], folder: Path, rows: int, key: str
    ) -> None:
        self._pipeline, self._connection, self._folder = pipeline, connection, folder
        self.rows, self.key = rows, key
        self._round = 0
        self._next = rows + 1
        self.changes, self.newest = 0, False
        self._twin()

    def _twin(self) -> None:
        """The peer's table: same shape, same properties, same data files."""
        session = self._pipeline.session
        properties = [
            f"'{row.key}' = '{row.value}'"
            for row in session.sql(f"SHOW TBLPROPERTIES {_OURS}").collect()
            if row.key.startswith("write.") or row.key == "format-version"
        ]
        data = self._folder / "warehouse" / NAMESPACE / "orders" / "data"
        for statement in (
            f"CREATE NAMESPACE lake.{NAMESPACE}_peer",
            (
                f"CREATE TABLE {_THEIRS} USING iceberg TBLPROPERTIES ({', '.join(properties)}) "
                f"AS SELECT * FROM {_OURS} WHERE false"
            ),
            (
                f"CALL lake.system.add_files(table => '{_THEIRS}', source_table => '`parquet`.`{data}`', "
                "check_duplicate_files => false)"
            ),
        ):
            session.sql(statement).collect()

    def pair(self) -> tuple[dict[str, float], float]:
        """The next batch by both; ours by step."""
        self._change()
        pulled = self._pipeline.pull()
        if pulled.batch is None or pulled.changes != self.changes:
            raise SlotlakeError(f"{pulled.changes} changes were pulled, not {self.changes}")
        started = time.monotonic()
        BatchSteps(self._pipeline).apply_named(pulled.batch)
        applied = time.monotonic()
        BatchSteps(self._pipeline).publish_named(pulled.batch)
        ours = {"apply": applied - started, "publish": time.monotonic() - applied}
        return ours, self._plain(batch_named(self._pipeline.file, pulled.batch))

    def _change(self) -> None:
        """Half inserts, four tenths updates, one tenth deletes, of keys that this round alone has."""
        inserts, deletes = self.changes // 2, self.changes // 10
        updates = self.changes - inserts - deletes
        insert_rows(self._connection, "orders", self._next, self._next + inserts - 1, self.key)
        self._next += inserts
        for keys, command in zip(
            self._newest(updates, deletes) if self.newest else self._spread(updates, deletes),
            ("UPDATE orders SET quantity = quantity + 1, note = note || '.'", "DELETE FROM orders"),
            strict=True,
        ):
            self._connection.execute(f"{command} WHERE id IN ({keys})".encode())
        self._round += 1

    def _spread(self, *counts: int) -> Iterator[str]:
        for i, count in enumerate(counts):
            place = 2 * self._round + i + 1
            row = self.key.format(f"(g::bigint * {self.rows // count} + {place})")
            yield f"SELECT {row} FROM generate_series(0, {count - 1}) g"

    def _newest(self, *counts: int) -> Iterator[str]:
        """Of the table's own last rows, a stretch a round; none of them is at a place of ``_spread``'s."""
        last = self.rows - self._round * 4 * sum(counts)
        for i, count in enumerate(counts):
            row = self.key.format(f"({last} - g::bigint * 4 - {2 * i})")
            yield f"SELECT {row} FROM generate_series(0, {count - 1}) g"

    def _plain(self, batch: Batch) -> float:
        file = self._folder / f"folded-{self._round}.parquet"
        [relation] = [relation for relation in batch.relations if relation.rows]
        [folded] = fold([(relation, batch.relation_table(relation))])
        pq.write_table(folded.rows, file, compression="zstd", row_group_size=128 * 1024)
        session = self._pipeline.session
        started = time.monotonic()
        session.read.parquet(file.as_uri()).createOrReplaceTempView("folded")
        session.sql(_plain_merge()).collect()
        return time.monotonic() - started

    def require_equal(self) -> None:
        """Both must have done the same work."""
        sums = [
            self._pipeline.session.sql(
                f"SELECT count(*), sum(CAST(xxhash64({', '.join(_NAMES)}) AS DECIMAL(38, 0))) FROM {table}"
            ).collect()[0]
            for table in (_OURS, _THEIRS)
        ]
        if sums[0] != sums[1]:
            raise SlotlakeError("the two tables differ", where=f"{sums[0][0]} and {sums[1][0]} rows")


def _plain_merge() -> str:
    values = [f"s.n{i}" for i in range(len(_NAMES))]
    assigned = ", ".join(f"t.{name} = {value}" for name, value in zip(_NAMES, values, strict=True))
    return (
        f"MERGE INTO {_THEIRS} AS t USING folded AS s ON t.id = s.n0 "
        f"WHEN MATCHED AND s.action = {ACTIONS['delete']} THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {assigned} "
        f"WHEN NOT MATCHED AND s.action = {ACTIONS['whole']} "
        f"THEN INSERT ({', '.join(_NAMES)}) VALUES ({', '.join(values)})"
    )
