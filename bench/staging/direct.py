"""direct_vs_merge: batches staged without Spark against Spark's MERGE of such batches, beyond the limits too.

The same table takes a batch of each kind in turns; both change as many rows, spread in the same way.  What is
timed is `apply`, because pull and publication are the same for both.  The limits of `spark.direct` are lifted
here, so that it is seen where a MERGE becomes as fast (docs/adr/0064).
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

import psycopg

from slotlake.bench.figures import PAIRS, Figure, in_turns
from slotlake.bench.lakes import NAMESPACE, bench_pipeline
from slotlake.bench.workload import (
    DATABASE,
    IN_NO_ORDER,
    IN_ORDER,
    bench_folder,
    bench_server,
    make_table,
    rows_asked,
    runs_asked,
)
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect
from slotlake.infra.sync.batch_steps import BatchSteps

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

ROWS: Final = 1_000_000
_NO_LIMIT: Final = 1 << 60
_SWITCH: Final = "SLOTLAKE_DIRECT"
_DIRECTLY, _BY_MERGE = "always", "never"
_LIMITS: Final = (
    "choice.FILES_MAX",
    "positions.KEY_BYTES_MAX",
    "positions.ROWS_MAX",
    "rows.OLD_BYTES_MAX",
)


@dataclass(frozen=True)
class _Case:
    """A table, and batches of it.

    Attributes:
        millions: how many times the usual number of rows it has.
        parts: a batch changes one of so many rows; for each a figure.
        partition: a field of `partition_by`, or nothing.
    """

    table: str
    millions: int
    parts: tuple[int, ...]
    key: str = IN_ORDER
    partition: str = ""
    words: str = ""

    def __str__(self) -> str:
        return self.words


def direct_vs_merge(progress: Progressing) -> list[Figure]:
    """By the number of changes, by the keys that must be read, by the number of files."""
    million = rows_asked(ROWS)
    files = min(2_000, million // 10)
    cases = (
        _Case("in_order", 5, (10_000, 1_000, 100, 20, 5), words="keys in order"),
        _Case("no_order_1", 1, (10_000,), IN_NO_ORDER, words="keys in no order"),
        _Case("no_order_6", 6, (60_000,), IN_NO_ORDER, words="keys in no order"),
        _Case("near", 1, (10_000,), partition=f"truncate({million // files}, id)", words="ranges of keys"),
        _Case("far", 1, (10_000,), partition=f"bucket({files}, id)", words="keys in any partition"),
    )
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        for case in cases:
            progress(f"direct_vs_merge: making {case.table}", 0)
            make_table(connection, case.table, case.millions * million, case.key)
        keys = {case.table: {"partition_by": [case.partition]} for case in cases if case.partition}
        tables = [case.table for case in cases]
        with bench_pipeline(server, folder, tables, progress, table_keys=keys) as pipeline, _no_limits():
            race = _Race(pipeline, connection)
            return [
                _figure(race, case, case.millions * million, part, progress)
                for case in cases
                for part in case.parts
            ]


@contextmanager
def _no_limits() -> Iterator[None]:
    with ExitStack() as stack:
        for name in _LIMITS:
            stack.enter_context(patch(f"slotlake.spark.direct.{name}", _NO_LIMIT))
        yield


def _figure(race: _Race, case: _Case, count: int, part: int, progress: Progressing) -> Figure:
    changes = max(1, count // part)
    progress(f"direct_vs_merge: {case.table}, {changes:,} changes", 0)

    def taken(how: str) -> float:
        return race.applied(case, count, changes, how)

    in_turns(lambda: taken(_DIRECTLY), lambda: taken(_BY_MERGE), 1)  # Java is cold
    pairs = in_turns(lambda: taken(_DIRECTLY), lambda: taken(_BY_MERGE), runs_asked(PAIRS))
    return Figure(
        what=f"apply of {changes:,} updates to {count:,} rows in {race.files(case):,} files, {case}",
        peer="staged by MERGE",
        unit="s",
        ours=tuple(mine for mine, _ in pairs),
        theirs=tuple(other for _, other in pairs),
        better="less",
    )


class _Race:
    def __init__(self, pipeline: Pipeline, connection: psycopg.Connection[Any]) -> None:
        self._pipeline, self._connection = pipeline, connection
        self._round = 0

    def applied(self, case: _Case, count: int, changes: int, how: str) -> float:
        """Seconds of `apply` of the next batch."""
        self._round += 1
        key = case.key.format(f"(1 + (g::bigint * {count // changes} + {self._round * 7919}) % {count})")
        self._connection.execute(
            f"UPDATE {case.table} SET quantity = quantity + 1, note = note || '.' "
            f"WHERE id IN (SELECT {key} FROM generate_series(1, {changes}) g)".encode()
        )
        pulled = self._pipeline.pull()
        if pulled.batch is None or pulled.changes != changes:
            raise SlotlakeError(f"{pulled.changes} changes were pulled, not {changes}")
        with patch.dict(os.environ, {_SWITCH: how}):
            started = time.monotonic()
            BatchSteps(self._pipeline).apply_named(pulled.batch)
            seconds = time.monotonic() - started
        BatchSteps(self._pipeline).publish_named(pulled.batch)
        return seconds

    def files(self, case: _Case) -> int:
        """How many data files the table has."""
        query = f"SELECT count(*) FROM lake.{NAMESPACE}.{case.table}.files WHERE content = 0"
        [row] = self._pipeline.session.sql(query).collect()
        return int(row[0])
