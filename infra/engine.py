"""Spark for a pipeline: the Connect server it names, or one inside this process."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING

from infra.model import PipelineFile
from spark.lake import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_engine(
    file: PipelineFile, lake: LakeSettings, remote: str | None, closing: ExitStack
) -> SparkSession:
    """Open a session; what is started here is put on ``closing``.

    Raises:
        SetupError: no Java, no jars, or the Connect server does not answer.
    """
    from spark.session import open_session

    if remote:
        session = open_session(lake, remote=remote)
        closing.callback(session.stop)
        return session
    return _in_process(file, lake, closing)


def _in_process(file: PipelineFile, lake: LakeSettings, closing: ExitStack) -> SparkSession:
    from pyspark import SparkContext

    from infra.local.runtime import spark_runtime
    from spark.session import open_session

    running = SparkContext._active_spark_context is not None  # one of the program's own is not ours to stop
    runtime = spark_runtime()
    os.environ.update(runtime.environment())
    session = open_session(lake, jars=runtime.jar_paths, driver_memory=file.spark.driver_memory)
    if not running:
        closing.callback(session.stop)
    return session
