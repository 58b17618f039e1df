"""Spark's own parser, wherever the session runs: what it makes of an SQL text, nothing being executed.

A session in this process brings its Java along.  A Spark Connect server parses nothing without analysing it,
which already opens files; so for it a small Java beside this process parses, with the same classes.
Parsing looks up no table, calls no function and substitutes no ``${…}``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pyspark
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway  # type: ignore[import-untyped]
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.sql import SparkSession

from slotlake.decoder.errors import SetupError
from slotlake.spark.session import is_remote
from slotlake.spark.session_errors import SPARK_ERRORS

# What decides where words and strings end; the session that runs the text is given the same.
LEXING = {
    "spark.sql.variable.substitute": "false",
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.legacy.consecutiveStringLiterals.enabled": "false",
}
# Looked through first; Java takes its time to look through all of Spark's jars.
_FIRST_JARS = (
    "spark-catalyst_*",
    "spark-sql-api_*",
    "spark-common-utils_*",
    "scala-library-*",
    "antlr4-runtime-*",
)
_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]


def path_java() -> str:
    """The ``java`` of JAVA_HOME, or of the PATH."""
    home = os.environ.get("JAVA_HOME")
    return str(Path(home) / "bin" / "java") if home else shutil.which("java") or "java"


def java_view(session: SparkSession, java: Callable[[], str] = path_java) -> Any:
    """The Java in which a session's statements can be parsed: a py4j view.

    Args:
        java: finds the ``java`` to start for a remote session.

    Raises:
        SetupError: the session is remote, and no Java is here.
    """
    return _local_java(java()).jvm if is_remote(session) else session._jvm  # noqa: SLF001 - Spark's own parser


def parse(java: Any, sql: str) -> Any:
    """Spark's unresolved plan of one statement.

    Raises:
        One of SPARK_ERRORS: it is none that Spark knows; the message is its common parser's.
    """
    parser = getattr(java.org.apache.spark.sql.catalyst.parser, "CatalystSqlParser$")
    try:
        return parser.__getattr__("MODULE$").parsePlan(sql)
    except SPARK_ERRORS:
        plan = _parsed_for_running(java, sql)
        if plan is None:
            raise
        return plan


def _parsed_for_running(java: Any, sql: str) -> Any:
    """What the parser that runs statements makes of one that the common one cannot read; None if nothing.

    It knows more (``DISTRIBUTE BY``, commands), and puts variables in place of ``${…}``: no such text for it.
    """
    if "${" in sql:
        return None
    try:
        return java.org.apache.spark.sql.execution.SparkSqlParser().parsePlan(sql)
    except SPARK_ERRORS:
        return None


@cache  # it takes seconds to begin, and knows no lake
def _local_java(java: str) -> JavaGateway:
    """A Java of our own on loopback, asked with a secret; it ends with this process."""
    folder = Path(pyspark.__file__).parent / "jars"
    first = [str(path) for pattern in _FIRST_JARS for path in folder.glob(f"{pattern}.jar")]
    try:
        port, token = launch_gateway(
            jarpath=str(next(folder.glob("py4j-*.jar"))),
            classpath=os.pathsep.join([*first, str(folder / "*")]),
            javaopts=_OPTIONS,
            java_path=java,
            die_on_exit=True,
            enable_auth=True,
        )
    except (OSError, ValueError, Py4JError, Py4JNetworkError) as error:
        raise SetupError(
            "a query must be parsed before a Spark Connect server may run it, but there is no Java here",
            where=f"{java}: {type(error).__name__}",
            way_out="set JAVA_HOME to a Java 17 or 21",
        ) from None
    return JavaGateway(gateway_parameters=GatewayParameters(port=port, auth_token=token))
