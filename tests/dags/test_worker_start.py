"""Workers that start warm: when Airflow's scheduler warms them, what a cold one is told."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from slotlake.infra.airflow import words

pytestmark = pytest.mark.seconds
_REPORT = """
import json, sys
started = []
from slotlake.infra.airflow import worker_start
worker_start._start_compiling = lambda: started.append("kernels")
def report():
    print(json.dumps(["slotlake.infra.airflow.warm" in sys.modules, started]))
"""
_SCHEDULER = f"""{_REPORT}
sys.argv = ["airflow", "scheduler"]
from airflow.jobs.job import Job
Job()
report()
"""
_OTHERS = f"""{_REPORT}
import os
class Job: ...
class TaskRunnerMarker: ...
def starts(component, command="scheduler", **variables):
    before, sys.argv = dict(os.environ), ["airflow", command]
    os.environ |= variables
    worker_start.on_starting(component)
    os.environ.clear()
    os.environ |= before
starts(TaskRunnerMarker())
starts(Job(), "triggerer")
starts(Job(), AIRFLOW__CORE__EXECUTOR="airflow.providers.celery.executors.celery_executor.CeleryExecutor")
starts(Job(), SLOTLAKE_PIPELINES="")
starts(Job(), SLOTLAKE_WARM_WORKERS="never")
report()
starts(Job())
report()
"""


def _reports(folder: Path, script: str) -> list[object]:
    """What a process of Airflow prints that loads the plugin: has it imported, has it compiled."""
    (folder / "plugins").mkdir()
    plugin = "from slotlake.infra.airflow.plugin import SlotlakePlugin\n"
    (folder / "plugins" / "slotlake_page.py").write_text(plugin)
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env={
            **os.environ,
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
            "SLOTLAKE_PIPELINES": str(folder),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("[")]


def test_a_scheduler_that_forks_its_workers_warms_them(tmp_path: Path) -> None:
    assert _reports(tmp_path, _SCHEDULER) == [[True, ["kernels"]]]


def test_no_other_process_pays_for_it(tmp_path: Path) -> None:
    assert _reports(tmp_path, _OTHERS) == [[False, []], [True, ["kernels"]]]


def test_a_task_that_had_to_compile_says_how_to_avoid_that(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loops = {name: SimpleNamespace(stats=SimpleNamespace(cache_misses={})) for name in ("scan", "fold")}
    monkeypatch.setitem(sys.modules, "slotlake.decoder.compiled.jit", SimpleNamespace(kernels=loops))
    before = words.compiled_loops()
    words.log_compiled(before)
    assert caplog.records == []
    loops["fold"].stats.cache_misses = {"a signature": 1}
    words.log_compiled(before)
    (record,) = caplog.records
    assert "compiled 1 loops" in record.getMessage()
    assert "python -m slotlake.infra.kernels" in record.getMessage()
    words.log_compiled(words.compiled_loops())  # what the worker had compiled before is no news
    assert len(caplog.records) == 1
