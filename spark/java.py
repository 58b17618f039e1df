"""Starts the Java of a Spark inside this process, and passes on what it says on standard error.

All but one line: Spark's launcher gives Java a module that is in incubation, Java announces that, and neither
has a switch for it.  What Spark and its libraries log is silenced where they are told what to log
(infra/local/spark_conf/log4j2.properties).
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

import py4j.java_gateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkContext, java_gateway
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from slotlake.decoder.errors import ApplyError, LakeError, SetupError, SlotlakeError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway
    from pyspark import SparkConf

# A Spark inside this process lives for a command or a few.  Java's second compiler would take more than
# half of its CPU time, from everyone on the machine, and not live to pay it back (docs/benchmarks.md);
# a Connect server does.  SPARK_SUBMIT_OPTS may say otherwise.
# With one compiler Java sets 48 MB aside for compiled code: some hundred batches fill it, and from then on
# the process only interprets.  Address space that is not used costs nothing.
FIRST_COMPILER_ONLY = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
# One that goes on without memory may leave a statement without an answer for ever.
JAVA_OPTIONS = f"{FIRST_COMPILER_ONLY} -XX:+ExitOnOutOfMemoryError"
# What the JVM itself says of its options, and of its end, which `java_ended` reports.
_UNSAID = ("WARNING: Using incubator modules:", "Terminating due to java.lang.OutOfMemoryError")
_JARS, _MEMORY = "spark.jars", "spark.driver.memory"
_EXIT_SECONDS = 5.0
# The exit codes of a JVM with -XX:+ExitOnOutOfMemoryError, and of Spark's own handler.
_OUT_OF_MEMORY = (3, 52)
_KILLED = -9


@dataclass(frozen=True)
class _Begun:
    """A Java begun here: its jars and its heap."""

    jars: frozenset[str]
    memory: str


# The gateway is PySpark's, which has one for the process, and no place for this.
_begun: WeakKeyDictionary[JavaGateway, _Begun] = WeakKeyDictionary()
_starting: list[subprocess.Popen[bytes]] = []  # for the handler of signals


class JavaEndedError(LakeError):
    """The Java of this process has ended, or has no memory left; the next statement starts another one."""

    retryable = True

    def lasting(self) -> SlotlakeError:
        """Return the same as an error of its table, if it is one's: another Java ended in the same way."""
        if self.table is None:
            return self
        return ApplyError(self.what, where=self.where, way_out=self.way_out).of(*self.table)


def started_java(conf: SparkConf) -> JavaGateway:
    """Return the gateway to a new Java.

    Args:
        conf: Spark's settings; those of Java (memory, options) count from its start.

    Raises:
        PySparkException: it ended at once.
        OSError: there is none.
    """
    # py4j writes a traceback to the root logger for each connection that fails; the error says what matters.
    py4j.java_gateway.logging = logging.getLogger("py4j")
    py4j.java_gateway.logging.setLevel(logging.CRITICAL + 1)
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="what Java says", daemon=True).start()
    try:
        launch = cast("Callable[..., Any]", java_gateway.launch_gateway)
        with _starting_java():
            gateway = launch(conf, {"stdout": writing, "stderr": writing})
    finally:
        os.close(writing)
    _begun[gateway] = _Begun(_named(conf.get(_JARS)), str(conf.get(_MEMORY, "")))
    return gateway


@contextmanager
def _starting_java() -> Iterator[None]:
    """Kill a Java whose start is interrupted: without the folder that it looks for, it would never end."""

    def begun(*arguments: Any, **more: Any) -> subprocess.Popen[bytes]:
        _starting.append(original(*arguments, **more))
        return _starting[-1]

    pyspark: Any = java_gateway
    original, pyspark.Popen = pyspark.Popen, begun
    try:
        yield
    except BaseException:
        for process in _starting:
            process.kill()
        raise
    finally:
        pyspark.Popen = original
        _starting.clear()


def end_java_without(jars: str | None) -> None:
    """End the Java of this process if it began without some of these jars: it takes no more later.

    A Java outlives the Spark that it was begun for, and the next Spark of the process runs in it.

    Args:
        jars: paths, separated by commas.

    Raises:
        SetupError: a Spark is still open in it.
    """
    forget_ended_java()
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no public question
    begun = None if gateway is None else _begun.get(gateway)
    if begun is None or _named(jars) <= begun.jars:
        return
    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        raise SetupError(
            "the Spark that is open in this process cannot reach such a storage: it began without the jars",
            where=", ".join(sorted(Path(jar).name for jar in _named(jars) - begun.jars)),
            way_out="close the pipelines that are open, or open this one first, or use a process for each, "
            "or a Spark Connect server (spark.remote)",
        )
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def java_ended(error: Exception) -> JavaEndedError | None:
    """Return what to say if an error came about because the Java of this process ended; None if it did not.

    Raises:
        KeyboardInterrupt: that is why it ended.
    """
    _raise_interruption(error)
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no public question
    if gateway is None or gateway not in _begun:
        return None
    without_memory = "OutOfMemoryError" in str(error)
    if without_memory or not isinstance(error, PySparkException | Py4JJavaError):  # a connection broke
        with suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(_EXIT_SECONDS)
    if gateway.proc.poll() is None:
        if not without_memory:
            return None
        end_java(_EXIT_SECONDS)  # it goes on with threads missing
    code = gateway.proc.wait()
    memory = _begun[gateway].memory
    why = "out of memory" if without_memory or code in _OUT_OF_MEMORY else f"exit code {code}"
    return JavaEndedError(
        f"Java ended: {'it was killed, as a machine without memory does it' if code == _KILLED else why}",
        where=f"Spark in this process, with spark.driver_memory {memory}",
        way_out="give it more: spark.driver_memory in the pipeline file. The next step starts another Java",
    )


def _raise_interruption(error: BaseException | None) -> None:
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            raise error
        error = error.__context__


def is_of_an_ended_java(session: SparkSession) -> bool:
    """Return whether the Java of a session in this process has ended; there may be another one since."""
    if not hasattr(session, "_jsparkSession"):  # on a Connect server
        return False
    java: Any = SparkContext._gateway  # noqa: SLF001
    client = session._jsparkSession._gateway_client  # noqa: SLF001
    return java is None or client is not java._gateway_client or java.proc.poll() is not None  # noqa: SLF001


def forget_ended_java() -> None:
    """Let the next Spark of this process begin a Java, if the one that there was has ended."""
    gateway: Any = SparkContext._gateway  # noqa: SLF001
    if gateway is None or gateway not in _begun or gateway.proc.poll() is None:
        return
    SparkContext._gateway = SparkContext._jvm = SparkContext._active_spark_context = None  # noqa: SLF001
    SparkSession._instantiatedSession = SparkSession._activeSession = None  # noqa: SLF001


@contextmanager
def sigint_as_before() -> Iterator[None]:
    """Keep what SIGINT does: PySpark's own handler first asks Java, which may not answer any more."""
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


def end_java(seconds: float | None) -> None:
    """Ask the Java of this process to end; what waits for it fails. A handler of signals may call this.

    Args:
        seconds: how long to wait for its end before it is killed; None: do not wait.
    """
    for process in _starting:
        process.kill()
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no public question
    if gateway is None:
        return
    gateway.proc.terminate()
    if seconds is not None:
        with suppress(subprocess.TimeoutExpired):
            gateway.proc.wait(seconds)
        gateway.proc.kill()


def _named(jars: str | None) -> frozenset[str]:
    return frozenset(jars.split(",")) if jars else frozenset()


def _pass_on(reading: int) -> None:
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.startswith(_UNSAID):
                sys.stderr.write(line)
                sys.stderr.flush()
