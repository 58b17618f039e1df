"""The process that is a local Airflow: it migrates the metadata, then forks three parts, or four.

The fourth is a triggerer.

``python -m slotlake.infra.local.airflow_serve FOLDER`` with AIRFLOW_HOME set to the same folder.  Airflow's
imports take four seconds of a core; done once here and inherited by fork, all parts are ready in half the
time that four separate commands need, and share their memory.  Each part then runs Airflow's own command,
unchanged.

Invariant: the parts live and die together.  When one ends, or on SIGTERM or SIGINT, all are ended and this
process with them, so that a dead scheduler is never hidden behind a working UI.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slotlake.infra.local import airflow_session

_PARTS = {
    "api-server": ["api-server"],
    "scheduler": ["scheduler", "--skip-serve-logs"],
    "dag-processor": ["dag-processor"],
}
_TRIGGERER = {"triggerer": ["triggerer", "--skip-serve-logs"]}
_GRACE_SECONDS = 8.0


def main(arguments: list[str] | None = None) -> int:
    """Serve until told to end; 0 after a signal, 1 after a part has ended by itself."""
    parser = argparse.ArgumentParser(prog="python -m slotlake.infra.local.airflow_serve")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pool", action="append", default=[], metavar="NAME=PLACES")
    parser.add_argument("--triggerer", action="store_true")
    options = parser.parse_args(arguments)
    os.umask(0o077)
    airflow = _import_airflow()
    _migrate(airflow, dict(pool.rsplit("=", 1) for pool in options.pool))
    parts = {
        _fork(airflow, options.folder, name, command): name
        for name, command in {**_PARTS, **(_TRIGGERER if options.triggerer else {})}.items()
    }
    return _wait(parts)


def _import_airflow() -> Callable[[], None]:
    """Airflow's command, with what all three parts import anyway."""
    airflow: Callable[[], None] = importlib.import_module("airflow.__main__").main
    for module in (
        "airflow.utils.db",
        "airflow.jobs.scheduler_job_runner",
        "airflow.jobs.dag_processor_job_runner",
    ):
        importlib.import_module(module)
    return airflow


def _migrate(airflow: Callable[[], None], pools: dict[str, str]) -> None:
    sys.argv = ["airflow", "db", "migrate"]
    airflow()
    from airflow.models.pool import Pool

    for name, places in pools.items():
        Pool.create_or_update_pool(
            name, int(places), "one place per replication slot", include_deferred=False
        )
    from airflow import settings

    # A database connection must not be shared over a fork.
    settings.dispose_orm()


def _fork(airflow: Callable[[], None], folder: Path, name: str, command: list[str]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        _end_with_parent(signal.SIGTERM)
        _log_to(folder / f"{name}.log")
        if name == "scheduler":
            _keep_task_logs_apart()
        from airflow import settings

        settings.configure_orm()
        sys.argv = ["airflow", *command]
        airflow()
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - a forked child must never return
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _keep_task_logs_apart() -> None:
    """A LocalExecutor repeats what tasks log in the scheduler's log, and masks no secret there."""
    from airflow.executors.base_executor import BaseExecutor

    run = BaseExecutor.run_workload

    def run_quietly(*workload: Any, **options: Any) -> Any:
        return run(*workload, **{**options, "subprocess_logs_to_stdout": False})

    BaseExecutor.run_workload = staticmethod(run_quietly)


def _log_to(log: Path) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)


def _wait(parts: dict[int, str]) -> int:
    """Wait for the first part that ends or for a signal, then end the others."""
    stop_requested = False

    def request_stop(signal_number: int, frame: object) -> None:
        nonlocal stop_requested
        stop_requested = True

    signal.signal(signal.SIGTERM, request_stop)
    signal.signal(signal.SIGINT, request_stop)
    running = set(parts)
    while not stop_requested and running == set(parts):
        running -= _ended(running)
        time.sleep(0.1)
    if not stop_requested:
        ended = ", ".join(parts[pid] for pid in set(parts) - running)
        sys.stderr.write(f"{ended} ended; its log tells why; ending the rest\n")
    _end({pid: parts[pid] for pid in running})
    # What a scheduler that had to be killed leaves behind: its workers and their tasks.
    airflow_session.kill_all(os.getsid(0), but=os.getpid())
    return 0 if stop_requested else 1


def _end(left: dict[int, str]) -> None:
    """The API server last: a task that ends needs it to say so."""
    _ask({pid for pid, name in left.items() if name != "api-server"}, _GRACE_SECONDS)
    _ask({pid for pid, name in left.items() if name == "api-server"}, 3.0)


def _ask(left: set[int], seconds_max: float) -> None:
    give_up = time.monotonic() + seconds_max
    for pid in left:
        os.kill(pid, signal.SIGTERM)
    while left and time.monotonic() < give_up:
        left = left - _ended(left)
        time.sleep(0.05)
    for pid in left:
        os.kill(pid, signal.SIGKILL)


def _ended(left: set[int]) -> set[int]:
    return {pid for pid in left if os.waitpid(pid, os.WNOHANG)[0] == pid}


def _end_with_parent(signal_number: int) -> None:
    """Ask the kernel for a signal when the parent ends, however it ends (prctl(2), PR_SET_PDEATHSIG)."""
    ctypes.CDLL(None, use_errno=True).prctl(1, signal_number)


if __name__ == "__main__":
    sys.exit(main())
