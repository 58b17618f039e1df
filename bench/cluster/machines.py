"""Several machines on one: each is a group of processes that gets no more than its share of a core.

With fewer cores than machines, machines that run unlimited take the time from each other, and nobody sees
what one more is worth.  So each is slowed to the same part of a core (control groups, version 1, which need
root): times are longer then, and their ratios are those of machines with a core each.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.local.process import free_port
from slotlake.infra.local.runtime import pyspark_folder, spark_runtime

ADDRESS = "127.0.0.1"
_GROUPS = Path("/sys/fs/cgroup/cpu")
_PERIOD_US = 20_000
_START_SECONDS_MAX, _END_SECONDS_MAX = 60.0, 10.0


class Machine:
    """Processes that together get a share of a core; a context manager.

    Args:
        name: of the group.
        share: of one core, at most 1.
    """

    def __init__(self, name: str, share: float) -> None:
        self._group = _GROUPS / f"slotlake-bench-{os.getpid()}-{name}"
        self._share = share
        self.slowed = False

    def __enter__(self) -> Self:
        with suppress(OSError):
            self._group.mkdir()
            (self._group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (self._group / "cpu.cfs_quota_us").write_text(str(int(_PERIOD_US * self._share)))
            self.slowed = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        give_up = time.monotonic() + _END_SECONDS_MAX  # what ends is in the group until then
        while self._group.exists() and time.monotonic() < give_up:
            with suppress(OSError):
                for pid in (self._group / "cgroup.procs").read_text().split():
                    with suppress(OSError):
                        (_GROUPS / "cgroup.procs").write_text(pid)
                self._group.rmdir()
                return
            time.sleep(0.1)

    def takes(self, pid: int) -> None:
        """Make a process one of this machine's, and with it what it starts from now on."""
        if self.slowed:
            (self._group / "cgroup.procs").write_text(str(pid))


def share_of(machines: int) -> float:
    """Return which share of a core each machine gets, so that a tenth of all cores is left.

    Args:
        machines: how many are busy at once; each has one core at most.
    """
    return min(1.0, 0.9 * len(os.sched_getaffinity(0)) / machines)


def note(machines: list[Machine], share: float, others: str) -> str:
    """Return what a reader must know of the machines.

    Args:
        machines: all.
        share: of each.
        others: who works besides them.
    """
    cores = len(os.sched_getaffinity(0))
    if not all(machine.slowed for machine in machines):
        return f"{cores} cores for all; machines are not slowed, which needs root and control groups (v1)"
    return f"each machine is slowed to {share:.2f} of a core; {cores} cores for them and {others}"


class Cluster:
    """A standalone master and two workers; all see the files of this machine."""

    def __init__(self, folder: Path, workers: list[Machine]) -> None:
        self._folder, self._port, self._machines = folder, free_port(), workers
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def master(self) -> str:
        """The value of ``spark.master``."""
        return f"spark://{ADDRESS}:{self._port}"

    @classmethod
    @contextmanager
    def running(cls, folder: Path, workers: list[Machine]) -> Iterator[Cluster]:
        """Start it, and end it with the block.

        Args:
            folder: for logs and the executors' files.
            workers: a machine for each.
        """
        cluster = cls(folder, workers)
        with ExitStack() as stack:
            stack.callback(cluster._stop)
            place = ["--host", ADDRESS, "--port", str(cluster._port), "--webui-port", str(free_port())]
            cluster._start("master", ["org.apache.spark.deploy.master.Master", *place])
            cluster._wait_for("master", "I have been elected leader")
            for number, machine in enumerate(workers):
                own = ["--cores", "1", "--memory", "2g", "--work-dir", str(folder / f"work{number}")]
                place = ["--host", ADDRESS, "--webui-port", str(free_port()), *own, cluster.master]
                machine.takes(
                    cluster._start(f"worker{number}", ["org.apache.spark.deploy.worker.Worker", *place])
                )
            for number in range(len(workers)):
                cluster._wait_for(f"worker{number}", "Successfully registered with master")
            yield cluster

    def _start(self, name: str, arguments: list[str]) -> int:
        """Start a process of Spark; its identifier."""
        environment = {**os.environ, **spark_runtime().environment(), "SPARK_DAEMON_MEMORY": "256m"}
        environment.pop("SPARK_CONF_DIR", None)  # with its own settings it logs what is waited for
        with (self._folder / f"{name}.log").open("wb") as log:
            command = [str(pyspark_folder() / "bin" / "spark-class"), *arguments]
            self._processes.append(
                subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
            )
        return self._processes[-1].pid

    def _wait_for(self, name: str, line: str) -> None:
        log, give_up = self._folder / f"{name}.log", time.monotonic() + _START_SECONDS_MAX
        while line not in log.read_text(errors="replace"):
            if time.monotonic() > give_up:
                raise SlotlakeError(f"Spark's {name} did not start", where=log.read_text()[-500:])
            time.sleep(0.1)

    def _stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            process.wait()

    def cpu_seconds(self) -> float:
        """CPU time of the workers and of all that they started."""
        return cpu_seconds({process.pid for process in self._processes[1:]})


def cpu_seconds(roots: set[int]) -> float:
    """CPU time of some processes and of all that they started."""
    times, parents = {}, {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
            times[int(entry.name)] = sum(map(int, fields[11:15]))

    def is_below(pid: int) -> bool:
        while pid in parents and pid not in roots:
            pid = parents[pid]
        return pid in roots

    return sum(ticks for pid, ticks in times.items() if is_below(pid)) / os.sysconf("SC_CLK_TCK")
