"""Warms workers when they start: what a task needs is imported once, before the workers are forked.

A task is a fork of its worker. So it inherits what the worker has imported (`infra.airflow.warm`: four
seconds of a processor), and its first batch waits neither for imports nor for the compiler.

- LocalExecutor: the workers are forks of the scheduler. The plugin (`infra.airflow.plugin`) makes this module
  a listener of Airflow, and Airflow calls it when the scheduler starts.
- Celery: the setting ``celery_config_options`` names `infra.airflow.celery_config`.

Invariant: a worker that cannot be warmed starts all the same.  Where no pipeline file is named, nothing is
done.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence

from airflow.listeners import hookimpl

_PIPELINES = "SLOTLAKE_PIPELINES"
_SWITCH = "SLOTLAKE_WARM_WORKERS"  # `never`: for a scheduler that has no memory to spare
_NICENESS = 10
_log = logging.getLogger(__name__)


@hookimpl  # type: ignore[untyped-decorator]  # Airflow is not followed
def on_starting(component: object) -> None:
    """Warm the workers, if a scheduler starts that makes its workers by forks.

    Args:
        component: what starts: a job of Airflow, which does not say yet what it is, or a task.
    """
    from airflow.configuration import conf

    is_job = type(component).__name__ == "Job"  # importing the class takes a task a second
    if is_job and is_scheduler(sys.argv) and "LocalExecutor" in conf.get("core", "executor", fallback=""):
        warm_up()


def is_scheduler(command: Sequence[str]) -> bool:
    """Return whether a command line is ``airflow scheduler``, which ``airflow standalone`` starts too.

    Args:
        command: the program and its arguments.
    """
    return list(command[1:2]) == ["scheduler"]


def warm_up() -> bool:
    """Import what tasks need, and have the kernels compiled that are not; return whether that was wanted."""
    if not os.environ.get(_PIPELINES) or os.environ.get(_SWITCH) == "never":
        return False
    try:
        import slotlake.infra.airflow.warm  # noqa: F401 - what it imports is what counts
        from slotlake.decoder.compiled.cache import read_only

        if not read_only():
            _start_compiling()
    except Exception:  # noqa: BLE001 - whatever it is, the tasks will say it
        _log.exception("slotlake: workers cannot be warmed")
        return False
    _log.info("slotlake: workers start warm")
    return True


def _start_compiling() -> None:
    """Compile in another process: a minute on a new machine, else a second to see that all is there."""
    command = [sys.executable, "-P", "-m", "slotlake.infra.kernels"]
    nothing = subprocess.DEVNULL
    compiling = subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)
    os.setpriority(os.PRIO_PROCESS, compiling.pid, _NICENESS)
