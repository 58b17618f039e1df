"""Reads a DAGs folder as Airflow does, in a Python of its own: the DAGs, their files, and what is wrong."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

_READ = """
import json, sys
from pathlib import Path
try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:  # Airflow 3.1
    from airflow.models.dagbag import DagBag
bag = DagBag(Path(sys.argv[1]))
dags = {dag.dag_id: [dag.fileloc, *dag.task_ids] for dag in bag.dags.values()}
pools = {dag.dag_id: {task.task_id: task.pool for task in dag.tasks} for dag in bag.dags.values()}
forms = {
    dag.dag_id: {name: dag.params.get_param(name).description for name in dag.params}
    for dag in bag.dags.values()
}
errors = {str(k): v for k, v in bag.import_errors.items()}
print(json.dumps({"dags": dags, "pools": pools, "forms": forms, "errors": errors}))
"""


def read_dags(python: Path, folder: Path, pipelines: Path, home: Path, path: str = "") -> dict[str, Any]:
    """What Airflow's DagBag makes of a folder.

    Args:
        pipelines: the value of ``SLOTLAKE_PIPELINES``.
        home: Airflow makes its files there.
        path: the value of ``PYTHONPATH``; none for an installed slotlake.

    Returns:
        ``dags``: per DAG the file it is from and its tasks; ``pools``: per DAG and task its pool; ``forms``:
        per DAG the hint of each field; ``errors``: per file what is wrong.
    """
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    home.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [str(python), "-P", "-c", _READ, str(folder)],
        cwd=home,
        env={
            **variables,
            **({"PYTHONPATH": path} if path else {}),
            "AIRFLOW_HOME": str(home),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "SLOTLAKE_PIPELINES": str(pipelines),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    read: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return read
