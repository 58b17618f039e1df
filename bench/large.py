"""one_transaction_mib: the memory of slotlake's process for a transaction that does not fit into it.

Half inserts, half updates, in one transaction, on a table of a twentieth as many rows.  The command that
applies it is killed between two slices; the next run applies the same batch and publishes it once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

from slotlake.bench.figures import Figure
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import (
    DATABASE,
    bench_folder,
    bench_server,
    insert_rows,
    make_table,
    rows_asked,
)
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect

if TYPE_CHECKING:
    from slotlake.infra.progress import Progressing

CHANGES = 20_000_000
_UPDATED_TIMES = 10
_LIMIT_MIB = 1536.0
_MEMORY_MB, _WHOLE_MEMORY_FROM = 640, 4_000_000  # the default, and what needs several slices with it
_KILLED_AFTER, _KILLED = 2, -9
_SAMPLE_SECONDS = 0.05


@dataclass(frozen=True)
class _Run:
    code: int
    seconds: float
    peak_mib: float
    java_mib: float


def one_transaction_mib(progress: Progressing) -> list[Figure]:
    """The peak of a run that is killed between slices, and of the one after it.

    Raises:
        SlotlakeError: nothing was killed, half a transaction was seen, or lake and source differ.
    """
    changes = rows_asked(CHANGES)
    memory = max(1, min(_MEMORY_MB, _MEMORY_MB * changes // _WHOLE_MEMORY_FROM))
    with (
        bench_server() as server,
        bench_folder() as folder,
        connect(server.dsn(DATABASE)) as connection,
    ):
        progress("one_transaction_mib: making the transaction", 0)
        before = changes // (2 * _UPDATED_TIMES)
        make_table(connection, "orders", before)
        with bench_pipeline(server, folder, ["orders"], progress, spark={"memory_mb": memory}) as pipeline:
            _change(connection, before, changes)
            file = pipeline.file.path
            progress("one_transaction_mib: until it is killed", 0)
            killed = _run(file, "sync", f"apply.between_slices:{_KILLED_AFTER}")
            seen = pipeline.query("SELECT count(*), max(quantity) FROM orders").rows
            if killed.code != _KILLED or seen != [(str(before), "999")]:
                raise SlotlakeError("the run was not killed between slices, or readers see half of it")
            progress("one_transaction_mib: the run after it", 0)
            whole = _run(file, "sync")
            progress("one_transaction_mib: verify", 0)
            if whole.code or _run(file, "verify").code:
                raise SlotlakeError("lake and source differ after the run")
    return [_figure(changes, memory, killed, whole)]


def _figure(changes: int, memory: int, killed: _Run, whole: _Run) -> Figure:
    return Figure(
        what=f"peak memory of slotlake's process, one transaction of {changes:,} changes",
        peer="limit",
        unit="MiB",
        ours=(killed.peak_mib, whole.peak_mib),
        theirs=(_LIMIT_MIB,) * 2,
        better="less",
        wanted=1.0,
        parts={
            "s, pull and two slices, then killed": killed.seconds,
            "s, the run after it": whole.seconds,
            "MiB, Spark's Java, killed": killed.java_mib,
            "MiB, Spark's Java, the run after it": whole.java_mib,
        },
        note=f"spark.memory_mb: {memory}; the killed run, and the one after it; verify is equal afterwards",
    )


def _change(connection: psycopg.Connection[Any], rows: int, changes: int) -> None:
    with connection.transaction():
        for _ in range(_UPDATED_TIMES):
            connection.execute(f"UPDATE orders SET quantity = quantity + 1000 WHERE id <= {rows}".encode())
        insert_rows(connection, "orders", rows + 1, rows + changes // 2)


def _run(file: Path, command: str, failpoint: str = "") -> _Run:
    """Run a command of slotlake in a process of its own, and watch its memory and its Java's."""
    own = {**os.environ, "SLOTLAKE_FAILPOINT": failpoint}
    started, peak, java = time.monotonic(), 0.0, 0.0
    with subprocess.Popen(
        [sys.executable, "-m", "slotlake", command, str(file)], env=own, stdout=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            peak = max(peak, _peak_mib(process.pid))
            java = max(java, *map(_peak_mib, _children(process.pid)), 0.0)
            time.sleep(_SAMPLE_SECONDS)
    return _Run(process.returncode, time.monotonic() - started, peak, java)


def _peak_mib(pid: int) -> float:
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM"):
                return int(line.split()[1]) / 1024
    return 0.0


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        return [
            int(child)
            for each in Path(f"/proc/{pid}/task").iterdir()
            for child in (each / "children").read_text().split()
        ]
    return []
