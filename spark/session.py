"""Opens Spark, in this process or on a Spark Connect server, and points it at a lake.

All that concerns a lake is set while the session runs (``session.conf.set``), so that both kinds of
session are configured alike and no password ever stands on a command line.  Only what Spark fixes
at its start (memory, jars, the Iceberg extensions) differs: see :func:`static_conf`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession

from spark.lake import LakeSettings


def static_conf(jars: Sequence[str | Path], *, driver_memory: str = "1g") -> dict[str, str]:
    """What must be given when a Spark process starts: to a classic session, or to the Connect server."""
    raise NotImplementedError


def open_session(
    lake: LakeSettings | None = None,
    *,
    remote: str | None = None,
    jars: Sequence[str | Path] = (),
    driver_memory: str = "1g",
    cores: str = "*",
    java_home: str | None = None,
    app_name: str = "slotlake",
) -> SparkSession:
    """Open Spark and, if a lake is given, make its catalog known to the session.

    Args:
        remote: ``sc://host:port`` of a Spark Connect server; None starts Spark in this process.
        jars: Iceberg runtime and JDBC drivers; ignored for a remote session (its server has them).
        java_home: directory whose ``bin/java`` runs Spark; None takes JAVA_HOME or the PATH's java.

    Raises:
        SetupError: Java, or the jars, are missing; or the server does not answer.
        LakeError: this version does not serve such a lake.
    """
    raise NotImplementedError


def use_lake(session: SparkSession, lake: LakeSettings) -> None:
    """Make the lake's catalog known to a session that is open, and its current namespace the lake's."""
    raise NotImplementedError


def sibling(session: SparkSession) -> SparkSession:
    """Another session on the same Spark, with its own configuration and temporary views."""
    raise NotImplementedError
