"""Ctrl-C in real processes: one line, exit code 130, no Java left, and the next run goes on."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.local.java import find_java
from slotlake.infra.local.process import command_line
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.test_quiet import NOISE
from tests.sources import ROOT

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
LINE = "slotlake: interrupted; you can safely run the same command again"
_OF_THIS_PROCESS = ("SPARK_CONF_DIR", "SPARK_HOME", "SPARK_SUBMIT_OPTS", "SPARK_LOCAL_IP")


class Terminal:
    """Commands in process groups of their own, as a shell starts them."""

    def __init__(self, folder: Path, file: Path) -> None:
        self._folder, self._file = folder, file
        self.mark = f"-Dslotlake.test={folder}"

    @contextmanager
    def running(self, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
        outside = {name: value for name, value in os.environ.items() if name not in _OF_THIS_PROCESS}
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "slotlake", arguments[0], str(self._file), *arguments[1:]],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**outside, "SPARK_SUBMIT_OPTS": self.mark, "SLOTLAKE_DIRECT": "never", **variables},
            start_new_session=True,
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def ended(self, *arguments: str, **variables: str) -> None:
        """Run a command that gets SIGINT at a place; check how it ends."""
        with self.running(*arguments, **variables) as process:
            said = process.communicate(timeout=90)[1]
            self.require_interrupted(process, said, (arguments, variables))

    def require_interrupted(self, process: subprocess.Popen[str], said: str, what: Any) -> None:
        assert process.returncode == 130, (what, said)
        assert said.rstrip().splitlines()[-1] == LINE, (what, said)
        assert said.count("slotlake:") == 1, (what, said)
        assert not NOISE.search(said), (what, said)
        self.require_no_java()

    def require_no_java(self) -> None:
        deadline = time.monotonic() + 3
        while left := [each for each in Path("/proc").glob("[0-9]*") if self._is_ours(int(each.name))]:
            assert time.monotonic() < deadline, left
            time.sleep(0.1)

    def _is_ours(self, pid: int) -> bool:
        return self.mark in command_line(pid)

    def java_that_interrupts(self, times: int) -> Path:
        """A JAVA_HOME whose Java sends SIGINT to all of its process group when Spark is started."""
        folder = self._folder / f"java-{times}"
        program = folder / "bin" / "java"
        program.parent.mkdir(parents=True)
        signals = "; sleep 0.2; ".join(["kill -INT 0"] * times)
        program.write_text(
            f'#!/bin/sh\ncase "$*" in *SparkSubmit*) (sleep 0.5; {signals}) & ;; esac\n'
            f'exec {shlex.quote(find_java().program)} "$@"\n'
        )
        program.chmod(0o755)
        return folder


AT = ["pull.mid", "apply.mid_merge", "publish.before_swap", "publish.after_swap"]


def test_interrupted_before_python_has_begun() -> None:
    """The launcher blocks SIGINT until there is somebody to answer it."""
    blocked = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [2]); os.kill(os.getpid(), 2)"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"{blocked}; os.execv(sys.executable, ['python', '-Pm', 'slotlake', '--help'])",
        ],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", f"{LINE}\n")


def test_interrupted_anywhere_and_gone_on(database: Database, tmp_path: Path, session: Any) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT g, 'v' FROM generate_series(1,9) g"
    )
    file = pipeline_file(tmp_path, database, ["t"])
    terminal = Terminal(tmp_path, file)
    once, twice = (str(terminal.java_that_interrupts(times)) for times in (1, 2))
    if LONG:
        for place in "init.slot_made", "init.mid_copy", "init.registered", "init.before_publish":
            terminal.ended("init", SLOTLAKE_FAILPOINT=place, SLOTLAKE_FAILPOINT_SIGNAL="INT")
    terminal.ended("init", JAVA_HOME=once)
    with Pipeline.open(file) as pipeline:
        pipeline.init()
    database.execute("UPDATE t SET v = v || '.'; INSERT INTO t VALUES (10, 'new')")
    terminal.ended("sync", JAVA_HOME=twice)
    for arguments in (
        (("query", "SELECT 1", "--engine", "spark"), ("backfill", "--table", "t")) if LONG else ()
    ):
        terminal.ended(*arguments, JAVA_HOME=once)
    for place in AT if LONG else AT[1:2]:
        database.execute("UPDATE t SET v = v || '.'")
        terminal.ended("sync", SLOTLAKE_FAILPOINT=place, SLOTLAKE_FAILPOINT_SIGNAL="INT")
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        assert_equal(database, pipeline, ["t"])


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_run_ends_after_the_batch_at_hand_and_at_once_by_a_second_signal(
    database: Database, tmp_path: Path, session: Any
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'one')")
    file = pipeline_file(tmp_path, database, ["t"])
    with Pipeline.open(file) as pipeline:
        pipeline.init()
    terminal = Terminal(tmp_path, file)
    for number in signal.SIGINT, signal.SIGTERM:
        with terminal.running("run") as process:
            database.execute("UPDATE t SET v = v || '.'")
            assert process.stdout is not None
            assert re.search("t 1", process.stdout.readline()), "Spark has started, and a batch is there"
            os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
            said = process.communicate(timeout=60)[1]
            assert process.returncode == 0, said
            assert not NOISE.search(said), said
        terminal.require_no_java()
    with terminal.running(
        "run", SLOTLAKE_FAILPOINT="apply.mid_merge", SLOTLAKE_FAILPOINT_SIGNAL="INT"
    ) as process:
        database.execute("UPDATE t SET v = v || '.'")
        assert process.stdout is not None
        assert process.stdout.readline(), "the batch at hand is finished"
        said = process.communicate(timeout=60)[1]
        assert process.returncode == 0, said
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        assert_equal(database, pipeline, ["t"])
