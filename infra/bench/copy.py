"""copy_vs_copy_binary: a table copied to typed Parquet files, against its COPY thrown away."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from decoder.copy import copy_table
from decoder.errors import SlotlakeError
from decoder.publications import SourceTable, source_tables
from decoder.slots import create_slot
from decoder.source import connect
from infra.bench.figures import PAIRS, Figure, in_turns, rates
from infra.bench.workload import (
    DATABASE,
    PUBLICATION,
    bench_folder,
    bench_server,
    make_table,
    rows_asked,
    runs_asked,
    source_of,
)
from infra.local.postgres import EmbeddedPostgres
from spark.initial import CopyTarget

if TYPE_CHECKING:
    from infra.output import Progressing

ROWS = 2_000_000


def copy_vs_copy_binary(progress: Progressing) -> list[Figure]:
    """`decoder.copy.copy_table` and psql's COPY to nowhere, over the same TCP connection's kind."""
    rows = rows_asked(ROWS)
    with bench_server() as server, bench_folder() as folder:
        progress("copy_vs_copy_binary: making the table", 0)
        dsn = server.dsn(DATABASE)
        with connect(dsn) as connection:
            make_table(connection, "orders", rows)
            connection.execute("VACUUM (ANALYZE) orders")
            connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE orders".encode())
            [table] = source_tables(connection, (PUBLICATION,))
        with create_slot(source_of(dsn, "bench_copy"), temporary=True) as snapshot:
            place = _place(folder, table)
            _ours(dsn, snapshot.snapshot, table, place, rows)
            progress("copy_vs_copy_binary: pairs", 0)
            seconds = in_turns(
                lambda: _ours(dsn, snapshot.snapshot, table, place, rows),
                lambda: _thrown_away(server),
                runs_asked(PAIRS),
            )
    ours, theirs = rates(rows, seconds)
    return [
        Figure(
            what=f"copy of {rows:,} rows of six columns to typed Parquet on disk",
            peer="COPY (FORMAT binary) thrown away",
            unit="rows/s",
            ours=ours,
            theirs=theirs,
            aim=0.3,
            parts={
                "s, copy_table": median(mine for mine, _ in seconds),
                "s, COPY": median(other for _, other in seconds),
            },
        )
    ]


def _place(folder: Path, table: SourceTable) -> CopyTarget:
    names = {column.name: column.name for column in table.columns}
    ids = {name: i for i, name in enumerate(names, 1)}
    exact = {name: f"{name}__exact" for name in names}
    exact_ids = {name: i + len(ids) for name, i in ids.items()}
    return CopyTarget("bench.orders", folder / "data", names, ids, exact, exact_ids)


def _ours(dsn: str, snapshot: str, table: SourceTable, place: CopyTarget, rows: int) -> float:
    place.directory.mkdir()
    started = time.monotonic()
    files = copy_table(dsn, snapshot, table, place)
    seconds = time.monotonic() - started
    shutil.rmtree(place.directory)
    if sum(file.rows for file in files) != rows:
        raise SlotlakeError("the copy does not hold all rows")
    return seconds


def _thrown_away(server: EmbeddedPostgres) -> float:
    started = time.monotonic()
    subprocess.run(
        [server.program("psql"), "--no-psqlrc", "--command", "COPY orders TO STDOUT (FORMAT binary)"],
        env=server.client_environment(DATABASE),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - started
