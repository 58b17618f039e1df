"""tpcc_vs_merge: TPC-C at full speed, synced without a pause; staged without Spark against Spark's MERGE.

go-tpc writes, on the same cores.  What counts is what a CPU-second of slotlake and of its Java does, from
pull to confirmation, and how long a sync takes.  Each side has its own server, and is verified at its end.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from psycopg.conninfo import conninfo_to_dict

from slotlake.bench.figures import Figure
from slotlake.bench.go_programs import go_program
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import DATABASE, bench_folder, bench_server
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect

if TYPE_CHECKING:
    from slotlake.infra.local.postgres import EmbeddedPostgres
    from slotlake.infra.pipeline import Pipeline
    from slotlake.infra.progress import Progressing

SECONDS: Final = 80
_PROGRAM: Final = ("go-tpc", "github.com/pingcap/go-tpc/cmd/go-tpc", "v1.0.12")
_WAREHOUSES, _THREADS = 2, 4
_PAUSE_SECONDS: Final = 0.3
_TABLES: Final = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"


@dataclass(frozen=True)
class _Run:
    """What was measured; all syncs but idle ones.

    Attributes:
        cpu_seconds: of this process and its Java.
    """

    seconds: tuple[float, ...]
    changes: int
    cpu_seconds: float
    java_seconds: float


def tpcc_vs_merge(progress: Progressing) -> list[Figure]:
    """Changes per CPU-second, and the time of a sync."""
    program = go_program(*_PROGRAM)
    progress("tpcc_vs_merge: without Spark", 0, 2)
    ours = _run(program, "usually", progress)
    progress("tpcc_vs_merge: by MERGE", 1, 2)
    theirs = _run(program, "never", progress)
    what = f"TPC-C, {_WAREHOUSES} warehouses, {_THREADS} threads, {SECONDS} s"
    return [
        Figure(
            f"{what}: changes per CPU-second",
            "staged by MERGE",
            "changes/s",
            (ours.changes / ours.cpu_seconds,),
            (theirs.changes / theirs.cpu_seconds,),
            parts={"of Java": ours.java_seconds, "of Java, by MERGE": theirs.java_seconds},
        ),
        Figure(
            f"{what}: median sync",
            "staged by MERGE",
            "s",
            (median(ours.seconds),),
            (median(theirs.seconds),),
            better="less",
            parts={"longest": max(ours.seconds), "longest by MERGE": max(theirs.seconds)},
        ),
    ]


def _run(program: Path, how: str, progress: Progressing) -> _Run:
    with bench_server() as server, bench_folder() as folder, patch.dict(os.environ, {"SLOTLAKE_DIRECT": how}):
        with _writing(program, server, folder, "prepare", "--no-check") as writer:
            writer.wait()
        with connect(server.dsn(DATABASE)) as connection:
            tables = [name for (name,) in connection.execute(_TABLES)]
        with bench_pipeline(server, folder, tables, progress) as pipeline:
            with _writing(program, server, folder, "run", "--time", f"{SECONDS}s") as writer:
                measured = _synced(pipeline, writer)
            if not pipeline.verify().equal:
                raise SlotlakeError("the lake is not equal to the source after TPC-C")
            return measured


def _synced(pipeline: Pipeline, writer: subprocess.Popen[bytes]) -> _Run:
    seconds, changes = [], 0
    before, java_before = time.process_time(), _java_seconds()
    ended = False
    while not ended:
        ended = writer.poll() is not None  # and one sync after it
        began = time.monotonic()
        done = pipeline.sync().changes
        took = time.monotonic() - began
        if done:
            seconds.append(took)
            changes += done
        time.sleep(max(0.0, _PAUSE_SECONDS - took))
    java = _java_seconds() - java_before
    return _Run(tuple(seconds), changes, time.process_time() - before + java, java)


def _java_seconds() -> float:
    """CPU seconds of the Java that this process began (proc(5))."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            name, fields = (folder / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        except OSError:
            continue
        words = fields.split()
        if name == "java" and int(words[1]) == os.getpid():
            ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def _writing(
    program: Path, server: EmbeddedPostgres, folder: Path, what: str, *more: str
) -> Iterator[subprocess.Popen[bytes]]:
    at: dict[str, Any] = conninfo_to_dict(server.dsn(DATABASE))
    command = [
        str(program), "tpcc", what, "--warehouses", str(_WAREHOUSES), "-T", str(_THREADS), "-d", "postgres",
        "-D", DATABASE, "-U", at["user"], "-p", at["password"], "-H", at["host"], "-P", str(at["port"]),
        "--conn-params", "sslmode=disable", *more,
    ]  # fmt: skip
    log = folder / f"{what}.log"
    with log.open("ab") as output, subprocess.Popen(command, stdout=output, stderr=output) as writer:
        try:
            yield writer
        finally:
            writer.kill()
    if writer.returncode not in (0, -9):
        raise SlotlakeError(f"go-tpc {what} ended with {writer.returncode}: {log.read_text()[-500:]}")
