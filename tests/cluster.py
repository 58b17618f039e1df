"""A Spark cluster on this machine whose machines share no disk: standalone, of the driver's own package.

Each machine is a mount namespace of its own with a loopback address of its own.  It sees none of the driver's
files: not /tmp, not the checkout, not the cached jars.  Two machines on one address would read each other's
shuffle files from "their" disk, and fail.
"""

from __future__ import annotations

import os
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from slotlake.infra.launch.folders import home
from slotlake.infra.local import process
from slotlake.infra.local.process import command_line, end_group, free_port
from slotlake.infra.local.runtime import SparkRuntime, pyspark_folder
from slotlake.spark.session import static_conf

ROOT: Final = Path(__file__).resolve().parents[1]
MASTER_ADDRESS: Final = "127.0.0.1"
WORKER_ADDRESSES: Final = ("127.0.0.2", "127.0.0.3")
CONNECT_ADDRESS: Final = "127.0.0.4"
_START_SECONDS_MAX: Final = 120.0
_JARS: Final = Path("/mnt")  # where a machine that starts drivers has the jars
# An executor's folder has the jars, 133 MB of them.
_HIDDEN: Final = "mount -t tmpfs -o size=3g none {}"
_EXECUTOR: Final = "CoarseGrainedExecutorBackend"
# Small executors that are given up early: a test waits for both.
CONF: Final = {
    "spark.executor.memory": "640m",
    "spark.executor.cores": "1",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@cache
def why_not() -> str:
    """Return why this machine can make no such cluster; empty: it can."""
    if os.geteuid() != 0:
        return "mount namespaces need root"
    command = ["unshare", "-m", "--propagation", "private", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        made = subprocess.run(command, capture_output=True, check=False)
    except OSError as error:
        return f"no unshare: {error}"
    return "" if made.returncode == 0 else "no mount namespace can be made here"


needs_namespaces = pytest.mark.skipif(bool(why_not()), reason=why_not() or "there are namespaces")


class Machine:
    """A program in a mount namespace of its own.

    Args:
        name: of its log.
        address: the loopback address that it listens on.
        command: the program; its class and arguments follow `spark-class` or `spark-submit`.
        environment: variables of its own.
        has_jars: it sees the cached jars, in another folder.
    """

    def __init__(
        self,
        name: str,
        address: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        *,
        folder: Path,
        has_jars: bool = False,
    ) -> None:
        self.name, self.address = name, address
        self.log = folder / f"{name}.log"
        temporary = Path(tempfile.gettempdir())
        hidden = [temporary, ROOT, home() / "jars", *([] if folder.is_relative_to(temporary) else [folder])]
        lines = [f"mount --bind {shlex.quote(str(home() / 'jars'))} {_JARS}"] if has_jars else []
        lines += [_HIDDEN.format(shlex.quote(str(path))) for path in hidden if path.exists()]
        lines += ["cd /", f"exec {shlex.join(command)}"]
        script = " && ".join(lines)
        self._process = process.start(
            ["/usr/bin/env", "unshare", "-m", "--propagation", "private", "sh", "-c", script],
            self.log,
            environment={**environment, "SPARK_LOCAL_IP": address, "SPARK_CONF_DIR": "/nonexistent"},
            at_parents_end=signal.SIGTERM,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ended(self) -> bool:
        """Return whether the program has ended."""
        return self._process.poll() is not None

    def executors(self) -> list[int]:
        """The process ids of this worker's executors."""
        return [pid for pid in _children(self.pid) if any(_EXECUTOR in part for part in command_line(pid))]

    def said(self) -> str:
        """The end of its log."""
        return self._log()[-3000:]

    def has_said(self, text: str) -> bool:
        """Return whether this is in its log, wherever."""
        return text in self._log()

    def _log(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def kill(self) -> None:
        """End it as a machine ends whose power fails: the program and all that it started."""
        for pid in (*_children(self.pid), self.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()

    def stop(self) -> None:
        """End it."""
        children = _children(self.pid)
        end_group(self.pid)
        for pid in children:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


class SparkCluster:
    """A master and workers; a context manager.

    Args:
        folder: for logs.
        runtime: the Java.
        workers: how many; each has one core.
        python: what a Connect server has executors run; this environment has numpy and
            pyarrow, but no slotlake: they do not see the checkout.
    """

    def __init__(
        self, folder: Path, runtime: SparkRuntime, *, workers: int = 2, python: str = sys.executable
    ) -> None:
        self.folder, self._runtime, self._python = folder, runtime, python
        self._count = workers
        self._port = free_port()
        self.master_machine: Machine | None = None
        self.workers: list[Machine] = []
        self._connect: list[Machine] = []

    @property
    def master(self) -> str:
        """The value of ``spark.master``."""
        return f"spark://{MASTER_ADDRESS}:{self._port}"

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        command = ["org.apache.spark.deploy.master.Master", "--host", MASTER_ADDRESS]
        arguments = ["--port", str(self._port), "--webui-port", str(free_port())]
        self.master_machine = self._machine("master", MASTER_ADDRESS, [*command, *arguments])
        _wait_for(MASTER_ADDRESS, self._port, self.master_machine)
        self.workers = [self._worker(number) for number in range(self._count)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for machine in (*self._connect, *self.workers, self.master_machine):
            if machine is not None:
                machine.stop()

    def wait_for_workers(self) -> None:
        """Wait until the master knows all of them."""
        give_up = time.monotonic() + _START_SECONDS_MAX
        while time.monotonic() < give_up:
            if all(worker.has_said("Successfully registered with master") for worker in self.workers):
                return
            if any(worker.ended() for worker in self.workers):
                break
            time.sleep(0.1)
        raise AssertionError("\n".join(worker.said() for worker in self.workers))

    def kill_worker(self, number: int) -> None:
        """A worker's machine goes, and a new one comes in its place."""
        self.workers[number].kill()
        self.workers[number] = self._worker(number)

    def kill_executor(self, number: int) -> bool:
        """Kill a worker's executors; False if it has none.

        Their folders go too: the worker would keep them while its application lives, until its disk is full
        and no executor can start any more.
        """
        executors = self.workers[number].executors()
        for pid in executors:
            with suppress(OSError):
                folder = Path(f"/proc/{pid}/cwd").readlink()
                os.kill(pid, signal.SIGKILL)
                shutil.rmtree(f"/proc/{self.workers[number].pid}/root{folder}", ignore_errors=True)
        return bool(executors)

    @contextmanager
    def losing(self, kill: Callable[[], object], *, busy_seconds: float = 0.3) -> Iterator[None]:
        """Inside the block, kill once, as soon as the executors have worked for so long since it began.

        Args:
            kill: kills an executor or a worker.
            busy_seconds: of CPU time, of all executors together; 0: at once.

        Raises:
            AssertionError: they did not work so much, and nothing was killed.
        """
        over, killed = threading.Event(), threading.Event()
        before = self._cpu_seconds()

        def wait_and_kill() -> None:
            while not over.is_set():
                if self._cpu_seconds() - before >= busy_seconds:
                    kill()
                    killed.set()
                    return
                time.sleep(0.02)

        thread = threading.Thread(target=wait_and_kill)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        assert killed.is_set()

    def _cpu_seconds(self) -> float:
        ticks = 0
        for worker in self.workers:
            for pid in worker.executors():
                with suppress(OSError):
                    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                    ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def connect(self, conf: Mapping[str, str] = CONF) -> tuple[str, dict[str, str]]:
        """Start a Spark Connect server on a machine of its own; its address, and the client's environment."""
        port, token = free_port(), secrets.token_hex(16)
        settings = {
            **static_conf([_JARS / each.name for each in self._runtime.jar_paths], on_cluster=True),
            **conf,
            "spark.driver.host": CONNECT_ADDRESS,
            "spark.driver.bindAddress": CONNECT_ADDRESS,
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": str(port),
            "spark.sql.catalogImplementation": "in-memory",
            "spark.connect.session.planCache.enabled": "false",
        }
        options = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
        main = ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer", "spark-internal"]
        submit = str(pyspark_folder() / "bin" / "spark-submit")
        variables = {"SPARK_CONNECT_AUTHENTICATE_TOKEN": token}
        machine = Machine(
            "connect",
            CONNECT_ADDRESS,
            [submit, "--master", self.master, *options, *main],
            {**self._environment(), **variables},
            folder=self.folder,
            has_jars=True,
        )
        self._connect.append(machine)
        _wait_for("127.0.0.1", port, machine)
        self.wait_for_workers()
        return f"sc://localhost:{port}", variables

    def disconnect(self) -> None:
        """End the Connect servers: each has all cores of the cluster while it lives."""
        while self._connect:
            self._connect.pop().kill()

    def _worker(self, number: int) -> Machine:
        address = WORKER_ADDRESSES[number]
        command = ["org.apache.spark.deploy.worker.Worker", "--host", address, "--cores", "1"]
        arguments = [
            "--memory",
            "1g",
            "--work-dir",
            f"{tempfile.gettempdir()}/work",
            "--webui-port",
            str(free_port()),
        ]
        (self.folder / f"worker-{number}.log").unlink(missing_ok=True)
        return self._machine(f"worker-{number}", address, [*command, *arguments, self.master])

    def _machine(self, name: str, address: str, arguments: Sequence[str]) -> Machine:
        command = [str(pyspark_folder() / "bin" / "spark-class"), *arguments]
        environment = {**self._environment(), "SPARK_DAEMON_MEMORY": "256m"}
        return Machine(name, address, command, environment, folder=self.folder)

    def _environment(self) -> dict[str, str]:
        unwanted = ("SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED", "PYSPARK_SUBMIT_ARGS")
        inherited = {name: value for name, value in os.environ.items() if name not in unwanted}
        return {**inherited, **self._runtime.environment(), "PYSPARK_PYTHON": self._python}


def _wait_for(address: str, port: int, machine: Machine) -> None:
    give_up = time.monotonic() + _START_SECONDS_MAX
    while time.monotonic() < give_up and not machine.ended():
        with suppress(OSError):
            socket.create_connection((address, port), timeout=1.0).close()
            return
        time.sleep(0.1)
    raise AssertionError(machine.said())


def _children(pid: int) -> list[int]:
    """All processes that a process started, and those that they started."""
    return list(_descendants(pid, _parents()))


def _parents() -> dict[int, int]:
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, IndexError, ValueError):
                after_name = entry.joinpath("stat").read_text().rpartition(")")[2]
                parents[int(entry.name)] = int(after_name.split()[1])
    return parents


def _descendants(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    for child, parent in parents.items():
        if parent == pid:
            yield child
            yield from _descendants(child, parents)
