"""The commands of docs/airflow.md that keep Airflow's database and its logs small, run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from slotlake.infra.launch.folders import CHECKOUT
from tests.e2e.airflow_stack import Stack


def check_clean_up(stack: Stack) -> None:
    """Run them, and see that nothing old is left, and that micro-batches go on."""
    dag = stack.dag("sync")
    stack.until(lambda: _paused_between_runs(stack, dag), "no run is left")
    old = {run["dag_run_id"] for run in stack.client.runs(dag)}
    assert len(old) > 5
    _clean_up(stack)
    left = {run["dag_run_id"] for run in stack.client.runs(dag)}
    assert len(left & old) <= 1  # Airflow keeps the newest scheduled one, by which it makes the next
    assert not list((stack.airflow.folder / "logs").glob(f"dag_id={dag}/run_id=*/**/*.log"))
    stack.client.pause(dag, False)
    stack.carried("INSERT INTO orders VALUES (99000, 'after the clean-up')")
    assert stack.equal()


def _paused_between_runs(stack: Stack, dag: str) -> bool:
    """Airflow starts no task of a paused DAG, so a run that is in the middle then stays there."""
    stack.client.pause(dag, True)
    if not [run for run in stack.client.runs(dag) if run["state"] in {"running", "queued"}]:
        return True
    stack.client.pause(dag, False)
    return False


def _clean_up(stack: Stack) -> None:
    """The commands, for what is old at once instead of after days."""
    text = (CHECKOUT / "docs" / "airflow.md").read_text()
    commands = re.findall(r"^       (airflow db clean.*\n.*|find .*)$", text, re.MULTILINE)
    assert len(commands) == 2
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**stack.airflow._environment(), "PATH": path}
    for command in commands:
        at_once = command.replace("7 days ago", "now").replace("-mtime +7", "-mtime -1")
        subprocess.run(at_once, shell=True, check=True, env=environment, timeout=300)
