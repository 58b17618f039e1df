"""copy_vs_copy_binary: a table copied until Iceberg has it, against its COPY thrown away and other readers.

Ours is the whole of `init` with Spark warm: slot, ranges side by side under one snapshot, files registered
in place, the table published.  The peers end with files that no table knows: Spark's JDBC reader, in ranges
of the key; ADBC; connectorx, where that package is installed.
"""

from __future__ import annotations

import importlib.util
import subprocess
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from adbc_driver_postgresql import dbapi

from slotlake.bench.copy_jdbc import Reader
from slotlake.bench.figures import PAIRS, Figure, in_turns, rates
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import (
    DATABASE,
    PUBLICATION,
    bench_folder,
    bench_server,
    make_table,
    rows_asked,
    runs_asked,
)
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect
from slotlake.infra.local.postgres import EmbeddedPostgres

if TYPE_CHECKING:
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

ROWS = 5_000_000
_TABLE = "orders"
_ALL = f"SELECT * FROM {_TABLE}"


def copy_vs_copy_binary(progress: Progressing) -> list[Figure]:
    """`init` of one table of six columns, in turns with each peer."""
    rows = rows_asked(ROWS)
    with bench_server() as server, bench_folder() as folder:
        progress("copy_vs_copy_binary: making the table", 0)
        with connect(server.dsn(DATABASE)) as connection:
            make_table(connection, _TABLE, rows)
            connection.execute(f"VACUUM (ANALYZE) {_TABLE}".encode())
            connection.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE {_TABLE}".encode())
        with (
            bench_pipeline(server, folder, [_TABLE], progress) as pipeline,
            Reader(server.url(DATABASE), _TABLE, rows, folder) as jdbc,
        ):
            peers = _peers(server, folder, jdbc)
            return [
                _figure(pipeline, rows, name, peer, wanted, progress)
                for name, (peer, wanted) in peers.items()
            ]


def _peers(
    server: EmbeddedPostgres, folder: Path, jdbc: Reader
) -> dict[str, tuple[Callable[[], float], float]]:
    """What we are held against, each with the least ratio asked for."""
    file, url = folder / "peer.parquet", server.url(DATABASE)
    peers = {
        "COPY (FORMAT binary) thrown away": (lambda: _thrown_away(server), 0.3),
        "Spark's JDBC reader to Parquet": (jdbc.run, 2.0),
        "ADBC to Parquet": (lambda: _adbc(url, file), 1.3),
    }
    if importlib.util.find_spec("connectorx") is not None:
        peers["connectorx to Parquet"] = (lambda: _connectorx(url, file), 1.3)
    return peers


def _figure(
    pipeline: Pipeline,
    rows: int,
    name: str,
    peer: Callable[[], float],
    wanted: float,
    progress: Progressing,
) -> Figure:
    progress(f"copy_vs_copy_binary: {name}", 0)
    peer()
    seconds = in_turns(lambda: _ours(pipeline, rows), peer, runs_asked(PAIRS))
    ours, theirs = rates(rows, seconds)
    return Figure(
        what=f"initial copy of {rows:,} rows of six columns until Iceberg has them",
        peer=name,
        unit="rows/s",
        ours=ours,
        theirs=theirs,
        wanted=wanted,
        parts={
            "s, init": median(mine for mine, _ in seconds),
            f"s, {name}": median(other for _, other in seconds),
        },
    )


def _ours(pipeline: Pipeline, rows: int) -> float:
    pipeline.drop(lake=True)
    started = time.monotonic()
    report = pipeline.init()
    seconds = time.monotonic() - started
    if report.rows != rows:
        raise SlotlakeError("the copy does not hold all rows")
    return seconds


def _thrown_away(server: EmbeddedPostgres) -> float:
    started = time.monotonic()
    subprocess.run(
        [server.program("psql"), "--no-psqlrc", "--command", f"COPY {_TABLE} TO STDOUT (FORMAT binary)"],
        env=server.client_environment(DATABASE),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.monotonic() - started


def _adbc(url: str, file: Path) -> float:
    started = time.monotonic()
    with dbapi.connect(url) as connection, connection.cursor() as cursor:
        cursor.execute(_ALL)
        batches = cursor.fetch_record_batch()
        with pq.ParquetWriter(file, batches.schema, compression="zstd") as writer:
            for batch in batches:
                writer.write_batch(batch)
    return time.monotonic() - started


def _connectorx(url: str, file: Path) -> float:
    started = time.monotonic()
    reader: Any = import_module("connectorx")
    arguments = {"return_type": "arrow", "partition_on": "id", "partition_num": 2}
    pq.write_table(reader.read_sql(url, _ALL, **arguments), file, compression="zstd")
    return time.monotonic() - started
