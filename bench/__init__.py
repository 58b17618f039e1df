"""`slotlake bench`: how fast, as ratios against a peer or a limit, taken in turns in one run.

Programs, not tests: a figure hangs on its machine, so none fails a build.  Each benchmark starts its
own server and Spark, checks that both sides did the same work, and leaves nothing behind, also when it
is interrupted.
"""

from __future__ import annotations

import difflib
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, cast

from slotlake.decoder.errors import PipelineFileError

if TYPE_CHECKING:
    from slotlake.bench.figures import Figure
    from slotlake.infra.progress import Progressing

# Imported when run: each brings in Spark, numba or both.
BENCHES = {
    "pull_vs_pg_recvlogical": "slotlake.bench.pull",
    "decode_rows_per_s": "slotlake.bench.decode",
    "decode_vs_python_reader": "slotlake.bench.peer",
    "decode_shapes": "slotlake.bench.shapes",
    "latency_ms": "slotlake.bench.waiting",
    "idle_cpu_percent": "slotlake.bench.waiting",
    "start_s": "slotlake.bench.waiting",
    "first_pipeline_s": "slotlake.bench.typed.tutorial",
    "query_s": "slotlake.bench.typed.queries",
    "copy_vs_copy_binary": "slotlake.bench.copy",
    "fold_vs_spark_window": "slotlake.bench.fold",
    "merge_1m_vs_plain_merge": "slotlake.bench.merge",
    "merge_100k_vs_plain_merge": "slotlake.bench.merge",
    "merge_1k_vs_plain_merge": "slotlake.bench.merge",
    "merge_unclustered_vs_plain_merge": "slotlake.bench.merge",
    "direct_vs_merge": "slotlake.bench.staging.direct",
    "tpcc_vs_merge": "slotlake.bench.staging.tpcc",
    "one_transaction_mib": "slotlake.bench.large",
    "one_row_sync_s": "slotlake.bench.sync",
    "lag_s": "slotlake.bench.sync",
    "lag_scheduled_s": "slotlake.bench.lag.scheduled",
    "verify_load_percent": "slotlake.bench.verifying.load",
    "verify_connections": "slotlake.bench.verifying.connections",
    "ten_of_a_thousand_vs_ten": "slotlake.bench.tables.placed",
    "many_tables": "slotlake.bench.tables.sizes",
    "dag_parse_s": "slotlake.bench.tables.parsing",
    "ten_thousand_points_vs_few": "slotlake.bench.points",
    "upkept_vs_fresh": "slotlake.bench.upkeep",
    "last_update_vs_first": "slotlake.bench.updates",
    "s3_vs_folder": "slotlake.bench.buckets",
    "verify_by_executors": "slotlake.bench.cluster.executors",
    "two_workers_vs_one": "slotlake.bench.cluster.workers",
}


def run(
    names: list[str], json_file: Path | None, progress: Progressing, *, tables: str = "", catalog: str = ""
) -> int:
    """Run benchmarks; print a table, and write JSON if asked.

    Args:
        names: of benchmarks; empty for all.
        json_file: where to write the document; None: nowhere.
        progress: called before each step.
        tables: for `many_tables`, how many tables its pipelines have; empty: as the environment says.
        catalog: for `many_tables`, the kind of catalog, or its address.

    Returns:
        The exit code, 0: a ratio below what is wanted is marked, not punished.

    Raises:
        PipelineFileError: there is no such benchmark, or the JSON file cannot be written.
    """
    chosen = _chosen(names)
    from slotlake.bench.workload import CATALOG_VARIABLE, TABLES_VARIABLE

    asked = {TABLES_VARIABLE: tables, CATALOG_VARIABLE: catalog}
    os.environ.update({variable: text for variable, text in asked.items() if text})
    if json_file is not None:
        _write(json_file, "")  # rather now than after minutes
    from slotlake.bench.machine import Machine
    from slotlake.bench.show import document, print_table

    machine = Machine.this()
    figures: dict[str, list[Figure]] = {}
    try:
        with _ended_politely():
            for name in chosen:
                figures[name] = _bench(name)(progress)
    finally:  # what was measured before a failure is not lost
        if figures:
            print_table(machine, figures)
        if figures and json_file is not None:
            _write(json_file, json.dumps(document(machine, figures), indent=2) + "\n")
    return 0


def _chosen(names: list[str]) -> list[str]:
    for name in names:
        if name not in BENCHES:
            close = difflib.get_close_matches(name, BENCHES, n=1)
            raise PipelineFileError(
                f"there is no benchmark {name!r}" + (f" (did you mean {close[0]}?)" if close else ""),
                where="slotlake bench",
                way_out=f"the benchmarks are: {', '.join(BENCHES)}",
            )
    return [name for name in BENCHES if name in names] if names else list(BENCHES)


def _bench(name: str) -> Callable[[Progressing], list[Figure]]:
    return cast("Callable[[Progressing], list[Figure]]", getattr(import_module(BENCHES[name]), name))


def _write(file: Path, text: str) -> None:
    try:
        file.write_text(text)
    except OSError as error:
        raise PipelineFileError(
            f"the figures cannot be written: {error.strerror}", where=str(file), way_out="name another file"
        ) from None


@contextmanager
def _ended_politely() -> Iterator[None]:
    """A request to end is an interruption: servers are stopped and folders removed on the way out."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
