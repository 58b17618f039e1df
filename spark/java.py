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
from typing import TYPE_CHECKING, Any, cast

from pyspark import java_gateway

if TYPE_CHECKING:
    from py4j.java_gateway import JavaGateway  # type: ignore[import-untyped]
    from pyspark import SparkConf

_ANNOUNCEMENT = "WARNING: Using incubator modules:"


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
        return launch(conf, {"stderr": writing})
    finally:
        os.close(writing)


def _pass_on(reading: int) -> None:
    with os.fdopen(reading, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if not line.startswith(_ANNOUNCEMENT):
                sys.stderr.write(line)
                sys.stderr.flush()
