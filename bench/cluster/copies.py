"""The initial copy by one machine with one connection, and by two: `init`, and `copy-worker` beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from slotlake.bench.cluster.machines import Machine, note, share_of
from slotlake.bench.figures import Figure
from slotlake.bench.lakes import bench_pipeline
from slotlake.bench.workload import DATABASE, runs_asked
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.source import connect
from slotlake.infra.local.postgres import EmbeddedPostgres
from slotlake.infra.pipeline import Pipeline
from slotlake.infra.progress import Progressing

# A backend of the source takes half as much again as the machine that reads from it (docs/scale.md).
_SHARES = 5
_PAIRS, _RANGES_TO_SHARE, _HELPER_SECONDS_MAX = 2, 8, 120
_HELP = """
import sys
from slotlake import Pipeline
with Pipeline.open(sys.argv[1]) as pipeline:
    print("ready", flush=True)
    print(pipeline.help_copy().ranges)
"""


def copy_figure(
    server: EmbeddedPostgres, folder: Path, table: str, wanted: float, progress: Progressing
) -> Figure:
    """Copy one table by one machine and by two, in turns.

    Args:
        folder: for the lake, and what the machines share.
        wanted: the least ratio asked for.
        progress: called before each step.

    Raises:
        SlotlakeError: a copy does not hold all rows, or the helper did nothing.
    """
    with connect(server.dsn(DATABASE)) as connection:
        connection.execute(f"VACUUM (ANALYZE) {table}".encode())
        (rows,) = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone() or (0,)
    share, seconds = share_of(_SHARES), []
    with ExitStack() as stack:
        machines = [stack.enter_context(Machine(f"copy{number}", share)) for number in (1, 2)]
        pipeline = stack.enter_context(
            bench_pipeline(
                server,
                folder,
                [table],
                progress,
                suffix="_copy",
                source_more={"copy_workers": 1},
                state={"path": str(folder / "shared")},
            )
        )
        machines[0].takes(os.getpid())
        for number in range(runs_asked(_PAIRS)):
            progress("initial copy: pair", number + 1, runs_asked(_PAIRS))
            alone, _ = _copied(pipeline, rows)
            with _helper(pipeline, machines[1]) as helper:
                together, ranges = _copied(pipeline, rows)
            if not helper and ranges >= _RANGES_TO_SHARE:
                raise SlotlakeError("the second machine copied nothing")
            seconds.append((together, alone))
        how = note(machines, share, "PostgreSQL")
    return Figure(
        what=f"initial copy of {rows:,} rows, two machines of one connection each",
        peer="one machine of one connection",
        unit="s",
        ours=tuple(two for two, _ in seconds),
        theirs=tuple(one for _, one in seconds),
        better="less",
        wanted=wanted,
        parts={
            "s, two machines": median(two for two, _ in seconds),
            "s, one machine": median(one for _, one in seconds),
        },
        note=f"{how}; the second one is at most two seconds late",
    )


def _copied(pipeline: Pipeline, rows: int) -> tuple[float, int]:
    """Copy the table; return how many seconds that took, and how many ranges there were."""
    pipeline.drop(lake=True)
    started = time.monotonic()
    report = pipeline.init()
    seconds = time.monotonic() - started
    if report.rows != rows:
        raise SlotlakeError("the copy does not hold all rows")
    return seconds, sum(table.ranges for table in report.tables)


@contextmanager
def _helper(pipeline: Pipeline, machine: Machine) -> Iterator[list[int]]:
    """Have another process wait for the copy, and help it; what it gives has the ranges, if it copied any."""
    pipeline.drop(lake=True)  # else it has nothing to wait for
    ranges: list[int] = []
    command = [sys.executable, "-c", _HELP, str(pipeline.file.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            machine.takes(process.pid)
            yield ranges
            said, _ = process.communicate(timeout=_HELPER_SECONDS_MAX)
        finally:
            process.kill()
    if process.returncode:
        raise SlotlakeError("the second machine failed")
    ranges += [int(said)] if int(said) else []
