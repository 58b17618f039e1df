"""The pool of a pipeline is made where Airflow lacks it; one that is there stays as it is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.seconds
_FILE = """name: {name}
source: {{dsn: "postgresql://nobody", publications: [p], slot: {slot}}}
lake: {{uri: "sqlite:///lake.db", warehouse: lake, namespace: n}}
"""
# A real metadata database, with the plugin as Airflow loads it; a run as the scheduler starts it.
_SCRIPT = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
sys.argv = ["airflow", "db", "migrate"]
from airflow.__main__ import main
main()
from airflow.models.pool import Pool
from airflow.utils.session import create_session
def pools():
    with create_session() as session:
        return {pool.pool: pool.slots for pool in session.query(Pool) if pool.pool != "default_pool"}
with create_session() as session:
    session.add(Pool(pool="slotlake_wide", slots=3, description="a user's", include_deferred=False))
states = [pools()]
from airflow.jobs.job import Job
for part in ("triggerer", "scheduler"):
    sys.argv = ["airflow", part]
    Job()
    states.append(pools())

from datetime import UTC, datetime
from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import DagRunState
from sqlalchemy import text
with create_session() as session:
    session.execute(text("PRAGMA foreign_keys=OFF"))
    run = DagRun(dag_id="mine", run_id="r", run_type="manual", logical_date=datetime.now(UTC))
    run.state = DagRunState.RUNNING
    session.add(run)
    session.flush()
    for number, pool in enumerate(("slotlake_later", "slotlake_wide", "of_others", "default_pool")):
        session.execute(text(
            "INSERT INTO task_instance (id, task_id, dag_id, run_id, map_index, pool, pool_slots, try_number,"
            " max_tries, priority_weight) VALUES (:id, :id, 'mine', 'r', -1, :pool, 1, 0, 0, 1)"
        ), {"id": f"{number:032x}", "pool": pool})
    session.commit()
    run.notify_dagrun_state_changed(msg="started")
states.append(pools())
from slotlake.infra.airflow import pools as ours
logging.getLogger(ours.__name__).addHandler(logging.StreamHandler(sys.stderr))
def refuse(name): raise PermissionError("read-only")
ours._make = refuse
ours.make_missing(["slotlake_never"])
print(json.dumps(states))
"""


def test_pools_are_made_by_themselves(tmp_path: Path) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "plugins" / "slotlake_page.py").write_text(
        "from slotlake.infra.airflow.plugin import SlotlakePlugin\n"
    )
    for name, slot in (("shop", "shop"), ("wide", "wide")):
        (tmp_path / "pipelines" / f"{name}.yaml").write_text(_FILE.format(name=name, slot=slot))
    done = subprocess.run(
        [sys.executable, "-P", "-c", _SCRIPT],
        env={
            **os.environ,
            "AIRFLOW_HOME": str(tmp_path),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "CeleryExecutor",
            "SLOTLAKE_PIPELINES": str(tmp_path / "pipelines"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, triggerer, scheduler, run = json.loads(done.stdout.splitlines()[-1])
    assert before == triggerer == {"slotlake_wide": 3}
    assert scheduler == {"slotlake_wide": 3, "slotlake_shop": 1}
    assert run == {**scheduler, "slotlake_later": 1}
    assert "airflow pools set slotlake_never 1 'one place per replication slot'" in done.stderr
