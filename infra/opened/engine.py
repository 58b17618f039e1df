"""Spark for a pipeline: the Connect server of the file, or a Spark inside this process."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from slotlake.decoder.errors import LakeError
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.spark.lake import LakeSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def open_engine(
    file: PipelineFile, lake: LakeSettings, remote: str | None, closing: ExitStack
) -> SparkSession:
    """Open a Spark session.

    Args:
        file: the pipeline file, with Spark's memory and cores.
        lake: catalog and warehouse for the session.
        remote: address of a Spark Connect server; None: a Spark inside this process.
        closing: gets the callback that stops the session, unless the session existed before.

    Raises:
        SetupError: no Java, no jars, or the Connect server does not answer.
    """
    from slotlake.spark.properties import SparkChoices
    from slotlake.spark.session import open_session

    if remote:
        session = open_session(lake, remote=remote, choices=SparkChoices(conf=file.spark_conf()))
        closing.callback(_stop, session)
        return session
    return _in_process(file, lake, closing)


def _stop(session: SparkSession) -> None:
    """Stop a session; a server that has ended, or was started again, has ended the session already."""
    from slotlake.spark.java import is_of_an_ended_java
    from slotlake.spark.session_errors import SPARK_ERRORS

    if is_of_an_ended_java(session):
        return
    with suppress(*SPARK_ERRORS, OSError):
        session.stop()


def _in_process(file: PipelineFile, lake: LakeSettings, closing: ExitStack) -> SparkSession:
    from pyspark import SparkContext

    from slotlake.infra.config.private_files import umask_of
    from slotlake.infra.local.runtime import spark_runtime
    from slotlake.spark.java import forget_ended_java
    from slotlake.spark.properties import SparkChoices
    from slotlake.spark.session import open_session

    forget_ended_java()
    # If the program has a session of its own, slotlake must not stop it.
    running = SparkContext._active_spark_context is not None  # noqa: SLF001 - there is no public question
    section = file.spark
    # Iceberg's bundle for S3 has the client of AWS Glue, too.
    storage = "s3" if lake.is_glue else lake.root.scheme if lake.is_in_bucket else ""
    runtime = spark_runtime(storage, with_jars=section.packages is None)
    os.environ.update(runtime.environment(on_cluster=section.is_on_cluster))
    packages = ",".join(section.packages) if isinstance(section.packages, tuple) else ""
    conf = {**file.spark_conf(), **({"spark.jars.packages": packages} if packages else {})}
    session = open_session(
        lake,
        jars=runtime.jar_paths,
        driver_memory=section.driver_memory,
        cores=section.cores,
        umask=umask_of(file),
        choices=SparkChoices(section.master if section.is_on_cluster else None, conf),
    )
    if not running:
        closing.callback(_stop, session)
    return session


class SparkGoneError(LakeError):
    """Spark or its server failed outside of a statement."""

    retryable = True


@contextmanager
def spark_errors_as_ours() -> Iterator[None]:
    """Turn an error of Spark outside of our statements into one of ours: Java, or its server, may have ended.

    Raises:
        JavaEndedError: the Java of this process has ended.
        SparkGoneError: anything else.
    """
    try:
        yield
    except Exception as error:
        from_spark = type(error).__module__.startswith(("pyspark.", "py4j."))
        if not from_spark and not isinstance(error, ConnectionError):
            raise
        from slotlake.spark.java import java_ended
        from slotlake.spark.session_errors import reason

        if (ended := java_ended(error)) is not None:
            raise ended from error
        if not from_spark:
            raise
        raise SparkGoneError(
            f"Spark failed: {reason(error)}",
            where="the Spark session of this run",
            way_out="run the same command again: it opens a new session; if that fails too, read Spark's log",
        ) from error
