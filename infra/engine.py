"""Spark for a pipeline: the Connect server it names, or one inside this process."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.spark.lake import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_engine(
    file: PipelineFile, lake: LakeSettings, remote: str | None, closing: ExitStack
) -> SparkSession:
    """Open a session; what is started here is put on ``closing``.

    Raises:
        SetupError: no Java, no jars, or the Connect server does not answer.
    """
    from slotlake.spark.session import open_session

    if remote:
        session = open_session(lake, remote=remote)
        closing.callback(_stop, session)
        return session
    return _in_process(file, lake, closing)


def _stop(session: SparkSession) -> None:
    """End it; a server that is gone, or was started anew, has ended it already."""
    from slotlake.spark.session_errors import SPARK_ERRORS

    with suppress(*SPARK_ERRORS, OSError):
        session.stop()


def _in_process(file: PipelineFile, lake: LakeSettings, closing: ExitStack) -> SparkSession:
    from pyspark import SparkContext

    from slotlake.infra.config.private_files import umask_of
    from slotlake.infra.local.runtime import spark_runtime
    from slotlake.spark.session import open_session

    # A session of the program's own is not ours to stop.
    running = SparkContext._active_spark_context is not None  # noqa: SLF001 - there is no public question
    runtime = spark_runtime()
    os.environ.update(runtime.environment())
    session = open_session(
        lake,
        jars=runtime.jar_paths,
        driver_memory=file.spark.driver_memory,
        cores=file.spark.cores,
        umask=umask_of(file),
    )
    if not running:
        closing.callback(_stop, session)
    return session
