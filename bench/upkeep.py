"""upkept_vs_fresh: a table after 500 micro-batches with maintenance in between, against one freshly written.

Each batch is a `sync` of a thousand changes, half of them inserts, spread over the table; after every
fiftieth comes `maintain`.  Snapshots are let go of at once here (``unused_minutes: 0``), because the batches
come in seconds what they come in hours elsewhere; the kept points are the usual hundred.  At the end the same
rows are written to a new table, and both are read whole in turns.
"""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import psycopg

from slotlake.bench.figures import Figure, in_turns
from slotlake.bench.lakes import NAMESPACE, bench_pipeline
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

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

ROWS = 5_000_000
_BATCHES, _BATCHES_SHORT = 500, 6
_ROUNDS = 10  # of maintenance
_ROUNDS_SHORT = 2
_READS = 5
_SCAN_WANTED, _STORAGE_WANTED = 1 / 1.2, 1 / 2
_OURS, _FRESH = f"lake.{NAMESPACE}.orders", f"lake.{NAMESPACE}_fresh.orders"


def upkept_vs_fresh(progress: Progressing) -> list[Figure]:
    """Time of a full scan, and bytes on disk."""
    rows = rows_asked(ROWS)
    batches, rounds = (_BATCHES, _ROUNDS) if rows == ROWS else (_BATCHES_SHORT, _ROUNDS_SHORT)
    with bench_server() as server, bench_folder() as folder, connect(server.dsn(DATABASE)) as connection:
        progress("upkept_vs_fresh: making the table", 0)
        make_table(connection, "orders", rows)
        upkeep = {"unused_minutes": 0}
        with bench_pipeline(server, folder, ["orders"], progress, maintenance=upkeep) as pipeline:
            life = _Life(pipeline, connection, rows)
            copied = _megabytes(folder / "warehouse" / NAMESPACE / "orders")
            for i in range(1, batches + 1):
                progress("upkept_vs_fresh: batch", i, batches)
                life.batch()
                if i % (batches // rounds) == 0:
                    life.maintain()
            what = f"{batches} batches of {life.changes:,} changes on {rows:,} rows"
            return life.figures(folder, what, copied)


class _Life:
    def __init__(self, pipeline: Pipeline, connection: psycopg.Connection[Any], rows: int) -> None:
        self._pipeline, self._connection, self._rows = pipeline, connection, rows
        self._number = 0
        self._maintained: list[float] = []
        self.changes = max(10, min(1000, rows // 1000))

    def batch(self) -> None:
        """Half inserts, four tenths updates, one tenth deletes of rows that no other batch touches."""
        inserts, deletes = self.changes // 2, self.changes // 10
        updates = self.changes - inserts - deletes
        first = self._rows + 1 + self._number * inserts
        insert_rows(self._connection, "orders", first, first + inserts - 1)
        step = self._rows // (updates + deletes)
        keys = f"SELECT g * {step} + {self._number % step} + 1 FROM generate_series({{}}, {{}}) g"
        for command, low, high in (
            ("UPDATE orders SET quantity = quantity + 1, note = note || '.'", 0, updates - 1),
            ("DELETE FROM orders", updates, updates + deletes - 1),
        ):
            self._connection.execute(f"{command} WHERE id IN ({keys.format(low, high)})".encode())
        self._number += 1
        if self._pipeline.sync().changes != self.changes:
            raise SlotlakeError("a batch brought another number of changes")

    def maintain(self) -> None:
        """A run of maintenance, timed."""
        started = time.monotonic()
        self._pipeline.maintain()
        self._maintained.append(time.monotonic() - started)

    def figures(self, folder: Path, what: str, copied: float) -> list[Figure]:
        """Write the same rows anew, compare, and read both.

        Args:
            copied: megabytes of the table as `init` wrote it.
        """
        session = self._pipeline.session
        properties = [
            f"'{row.key}' = '{row.value}'"
            for row in session.sql(f"SHOW TBLPROPERTIES {_OURS}").collect()
            if row.key.startswith("write.") or row.key == "format-version"
        ]
        session.sql(f"CREATE NAMESPACE lake.{NAMESPACE}_fresh").collect()
        session.sql(
            f"CREATE TABLE {_FRESH} USING iceberg TBLPROPERTIES ({', '.join(properties)}) "
            f"AS SELECT * FROM {_OURS}"
        ).collect()
        if self._read(_OURS)[1] != self._read(_FRESH)[1]:
            raise SlotlakeError("the two tables differ")
        reads = in_turns(lambda: self._read(_OURS)[0], lambda: self._read(_FRESH)[0], runs_asked(_READS))
        sizes = [
            _megabytes(folder / "warehouse" / name / "orders") for name in (NAMESPACE, f"{NAMESPACE}_fresh")
        ]
        return [
            Figure(
                what=f"full scan after {what}, with maintenance",
                peer="the same rows, freshly written",
                unit="s",
                ours=tuple(mine for mine, _ in reads),
                theirs=tuple(other for _, other in reads),
                better="less",
                wanted=_SCAN_WANTED,
                parts={"s, a run of maintenance": median(self._maintained)},
            ),
            Figure(
                what=f"bytes on disk after {what}, with maintenance, a hundred points kept",
                peer="the same rows, freshly written",
                unit="MB",
                ours=(sizes[0],),
                theirs=(sizes[1],),
                better="less",
                wanted=_STORAGE_WANTED,
                parts={"MB, as init wrote the rows that were there": copied},
            ),
        ]

    def _read(self, table: str) -> tuple[float, Any]:
        columns = "count(*), sum(id), sum(quantity), sum(price), max(note), sum(length(note)), max(changed)"
        started = time.monotonic()
        [row] = self._pipeline.session.sql(f"SELECT {columns}, count_if(paid) FROM {table}").collect()
        return time.monotonic() - started, row


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6
