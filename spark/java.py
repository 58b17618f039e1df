"""Starts the Java of a Spark inside this process, and passes on what it says on standard error.

All but one line: Spark's launcher gives Java a module that is in incubation, Java announces that, and neither
has a switch for it.  What Spark and its libraries log is silenced where they are told what to log
(infra/local/spark_conf/log4j2.properties).
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakKeyDictionary

from pyspark import SparkContext, java_gateway

from slotlake.decoder.errors import SetupError

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
    from pyspark import SparkConf

_ANNOUNCEMENT = "WARNING: Using incubator modules:"
_JARS = "spark.jars"
_jars: WeakKeyDictionary[JavaGateway, frozenset[str]] = WeakKeyDictionary()  # of each Java begun here


def started_java(conf: SparkConf) -> JavaGateway:
    """Return the gateway to a new Java.

    Args:
        conf: Spark's settings; those of Java (memory, options) count from its start.

    Raises:
        PySparkException: it ended at once.
        OSError: there is none.
    """
    reading, writing = os.pipe()
    threading.Thread(target=_pass_on, args=(reading,), name="what Java says", daemon=True).start()
    try:
        launch = cast("Callable[..., Any]", java_gateway.launch_gateway)
        gateway = launch(conf, {"stderr": writing})
    finally:
        os.close(writing)
    _jars[gateway] = _named(conf.get(_JARS))
    return gateway


def end_java_without(jars: str | None) -> None:
    """End the Java of this process if it began without some of these jars: it takes no more later.

    A Java outlives the Spark that it was begun for, and the next Spark of the process runs in it.

    Args:
        jars: paths, separated by commas.

    Raises:
        SetupError: a Spark is still open in it.
    """
    gateway: Any = SparkContext._gateway  # noqa: SLF001 - there is no public question
    began_with = None if gateway is None else _jars.get(gateway)
    if began_with is None or _named(jars) <= began_with:
        return
    if SparkContext._active_spark_context is not None:  # noqa: SLF001
        raise SetupError(
            "the Spark that is open in this process cannot reach such a storage: it began without the jars",
            where=", ".join(sorted(Path(jar).name for jar in _named(jars) - began_with)),
            way_out="close the pipelines that are open, or open this one first, or use a process for each, "
            "or a Spark Connect server (spark.remote)",
        )
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
    SparkContext._gateway = SparkContext._jvm = None  # noqa: SLF001


def _named(jars: str | None) -> frozenset[str]:
    return frozenset(jars.split(",")) if jars else frozenset()


def _pass_on(reading: int) -> None:
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.startswith(_ANNOUNCEMENT):
                sys.stderr.write(line)
                sys.stderr.flush()
