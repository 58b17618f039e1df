"""dag_parse_s: what Airflow's DAG processor does again and again, with few tables and with very many.

Both pipelines have been initialised with a publication, so their tables stand in the note of `init`.  A
Python of its own, with all imports done, as the DAG processor's, reads the DAG files and makes of each DAG
what Airflow's database and web server get.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import yaml

from slotlake.bench.figures import Figure
from slotlake.bench.workload import PUBLICATION, SLOT, bench_folder, runs_asked, tables_asked
from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.launch.folders import CHECKOUT
from slotlake.infra.progress import Progressing
from slotlake.infra.selection.known_tables import OFFERED_MAX
from slotlake.infra.state.notes import TABLES

SIZES = (10, 10_000)
_RUNS = 9
_SLOWER_MAX = 1.1
_DAGS = ("backfill", "bootstrap", "maintenance", "monitor", "recover", "sync", "verify")
_READ = """
import json, os, sys, time
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
folder, runs, files = sys.argv[1], int(sys.argv[2]), sys.argv[3:]
def read(file):
    os.environ["SLOTLAKE_PIPELINES"] = file
    started = time.perf_counter()
    bag = DagBag(folder)
    size = sum(len(json.dumps(DagSerialization.to_dict(dag))) for dag in bag.dags.values())
    return time.perf_counter() - started, size, sorted(bag.dags), sorted(bag.import_errors.values())
for file in files:
    read(file)
print(json.dumps([[read(file) for file in files] for _ in range(runs)]))
"""


def dag_parse_s(progress: Progressing) -> list[Figure]:
    """Seconds and bytes of a pipeline's DAGs: very many tables against few.

    Raises:
        SlotlakeError: not all DAGs were read, or one with an error.
    """
    sizes = tables_asked(SIZES)
    with bench_folder() as folder:
        files = [_pipeline(folder, size) for size in sizes]
        progress("dag_parse_s: reading the DAG files", 0)
        runs = _read(folder, files, runs_asked(_RUNS))
    for row in runs:
        for size, (_, _, dags, errors) in zip(sizes, row, strict=True):
            expected = [f"cdc_{kind}_bench_{size}" for kind in _DAGS]
            if errors or not set(expected) <= set(dags):
                raise SlotlakeError(f"of {size} tables these DAGs were read: {dags}; errors: {errors}")
    seconds = [[each[0] for each in row] for row in runs]
    sizes_kib = [[each[1] / 1024 for each in row] for row in runs]
    return [
        Figure(
            what=f"{what} of the DAGs of a pipeline of {size:,} tables",
            peer=f"of {sizes[0]:,} tables",
            unit=unit,
            ours=tuple(row[place] for row in values),
            theirs=tuple(row[0] for row in values),
            better="less",
            wanted=1 / _SLOWER_MAX,
        )
        for place, size in list(enumerate(sizes))[1:]
        for what, unit, values in (("parse", "s", seconds), ("serialized size", "KiB", sizes_kib))
    ]


def _pipeline(folder: Path, size: int) -> Path:
    """A pipeline file as after `init`."""
    contents = {
        "name": f"bench_{size}",
        "source": {
            "dsn": "postgresql://bench@127.0.0.1:1/bench",
            "publications": [PUBLICATION],
            "slot": f"{SLOT}_{size}",
        },
        "lake": {
            "catalog": "lake",
            "uri": f"sqlite:///{folder}/catalog.db",
            "warehouse": f"file://{folder}/warehouse",
            "namespace": f"bench_{size}",
        },
    }
    file = folder / f"bench_{size}.yaml"
    file.write_text(yaml.safe_dump(contents))
    file.chmod(0o600)
    names = [f"public.table_{i}" for i in range(min(size, OFFERED_MAX + 1))]
    TABLES.of(load_pipeline(file).state_dir).write(names)
    return file


def _read(folder: Path, files: list[Path], runs: int) -> list[list[tuple[float, int, list[str], list[str]]]]:
    """Per run and file: seconds, bytes, the DAGs, what was wrong."""
    dags = CHECKOUT / "dags"
    done = subprocess.run(
        [sys.executable, "-P", "-c", _READ, str(dags), str(runs), *map(str, files)],
        cwd=folder,
        env={**os.environ, "AIRFLOW_HOME": str(folder), "AIRFLOW__CORE__LOAD_EXAMPLES": "False"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SlotlakeError(f"the DAG files could not be read: {done.stderr[-2000:]}")
    return [[tuple(each) for each in row] for row in json.loads(done.stdout.splitlines()[-1])]
