"""Opens Spark, in this process or on a Spark Connect server, and points it at a lake.

All that concerns a lake is set while the session runs (``session.conf.set``), so that both kinds of
session are configured alike and no password ever stands on a command line.  Only what Spark fixes
at its start (memory, jars, the Iceberg extensions) differs: see :func:`static_conf`.

Spark keeps a catalog as it was when first used, so each lake gets a session of its own; sessions in
one process share one Spark.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from slotlake.decoder.errors import SetupError
from slotlake.spark.java import started_java
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import quote
from slotlake.spark.session_errors import SPARK_ERRORS, reason

_CONNECT_PORT = 15002
_CONNECT_SECONDS = 5
_RETRIES, _RETRY_MS_MAX = 8, 10_000  # about 45 s in all
# A MERGE of a micro-batch is small: each further partition costs a task, and adaptive execution
# splits what is large.
_SHUFFLE_PARTITIONS = 4
# Of every session, analysts' and those beside others too.  Spark would else put variables and the process's
# environment in place of ${…}, within literals and quoted names as well, before it reads a statement.
_AS_WRITTEN = {"spark.sql.variable.substitute": "false"}
SENSITIVE_PROPERTIES = (
    "(?i)secret|password|passphrase|token|credential|authorization|access[.-]?key|api[.-]?key"
)
_RUNTIME = {
    **_AS_WRITTEN,
    "spark.sql.caseSensitive": "true",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.shuffle.partitions": str(_SHUFFLE_PARTITIONS),
    "spark.sql.adaptive.enabled": "true",
    # A batch is small beside its table: hashing it spares sorting the table (a third of a MERGE's CPU).
    "spark.sql.join.preferSortMergeJoin": "false",
    # A catalog's properties hold what a REST server asks for; Spark knows passwords and tokens by itself.
    "spark.sql.redaction.options.regex": f"{SENSITIVE_PROPERTIES}|(?i)url",
    # Wide tables: a plan in an error message or log must not grow with the number of columns.
    "spark.sql.maxMetadataStringLength": "100",
}
# A Spark inside this process lives for a command or a few.  Java's second compiler would take more than
# half of its CPU time, from everyone on the machine, and not live to pay it back (docs/benchmarks.md);
# a Connect server does.  SPARK_SUBMIT_OPTS may say otherwise.
# With one compiler Java sets 48 MB aside for compiled code: some hundred batches fill it, and from then on
# the process only interprets.  Address space that is not used costs nothing.
FIRST_COMPILER_ONLY = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m"
# PySpark writes each failed statement, with the values in it, to standard error; the error says what matters.
_TALKATIVE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
# A Connect server that is frozen, or out of reach without a word, is noticed by HTTP/2's own pings.  A server
# bears with one in five minutes.
_PING_SECONDS, _PONG_SECONDS = 310, 30
STATEMENT_SECONDS_MAX = 6 * 3600.0
_INTERRUPT_SECONDS = 2.0
_remotes: WeakKeyDictionary[SparkSession, str] = WeakKeyDictionary()


def static_conf(
    jars: Sequence[str | Path], *, driver_memory: str = "1g", umask: str = "077"
) -> dict[str, str]:
    """What must be given when a Spark process starts: to a classic session, or to the Connect server.

    Args:
        umask: of the files that it writes; Hadoop gives each its mode, whatever the process's umask is.
    """
    return {
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.jars": ",".join(str(jar) for jar in jars),
        "spark.driver.memory": driver_memory,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.hadoop.fs.permissions.umask-mode": umask,
        "spark.redaction.regex": SENSITIVE_PROPERTIES,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.debug.maxToStringFields": "25",
        **_AS_WRITTEN,
    }


def open_session(
    lake: LakeSettings | None = None,
    *,
    remote: str | None = None,
    jars: Sequence[str | Path] = (),
    driver_memory: str = "1g",
    cores: str = "*",
    java_home: str | None = None,
    umask: str = "077",
    app_name: str = "slotlake",
) -> SparkSession:
    """Open Spark and, if a lake is given, make its catalog known to the session.

    Args:
        remote: ``sc://host:port`` of a Spark Connect server; None starts Spark in this process.
        jars: Iceberg runtime and JDBC drivers; ignored for a remote session (its server has them).
        umask: of the files that a Spark in this process writes.
        java_home: directory whose ``bin/java`` runs Spark; None takes JAVA_HOME or the PATH's java.

    Raises:
        SetupError: Java, or the jars, are missing; or the server does not answer.
        LakeError: this version does not serve such a lake.
    """
    for name in _TALKATIVE:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", message="The SQL config ")  # a Connect server says it of some of ours
    if remote is not None:
        session = _connect(remote)
    else:
        session = _classic(
            static_conf(jars, driver_memory=driver_memory, umask=umask), cores, java_home, app_name
        ).newSession()
    _configure(session, _RUNTIME)
    if lake is not None:
        use_lake(session, lake)
    return session


def use_lake(session: SparkSession, lake: LakeSettings) -> None:
    """Make the lake's catalog known to a session that has not used one of that name yet."""
    _configure(session, _RUNTIME)
    define_catalog(session, lake.catalog, lake.spark_properties())


def define_catalog(session: SparkSession, name: str, properties: Mapping[str, str]) -> None:
    """Define an Iceberg catalog, and make it the default one.

    Args:
        session: the session.
        name: the catalog's name in Spark.
        properties: its properties, without the prefix ``spark.sql.catalog.<name>``.
    """
    prefix = f"spark.sql.catalog.{name}"
    _configure(session, {prefix: "org.apache.iceberg.spark.SparkCatalog"})
    _configure(session, {f"{prefix}.{key}": value for key, value in properties.items()})
    _configure(session, {"spark.sql.defaultCatalog": name})


def sibling(session: SparkSession) -> SparkSession:
    """Another session on the same Spark, with its own configuration, catalogs and temporary views."""
    remote = _remotes.get(session)
    if remote is not None:
        return _connect(remote)
    own = session.newSession()
    _configure(own, _AS_WRITTEN)
    return own


def is_alive(session: SparkSession) -> bool:
    """Return whether the session can still be used; a restarted Connect server does not know it."""
    remote = _remotes.get(session)
    try:
        if remote is None:
            return not session.sparkContext._jsc.sc().isStopped()  # noqa: SLF001 - no public question
        place = urlsplit(remote)  # before PySpark's client tries again and again
        where = place.hostname or "localhost", place.port or _CONNECT_PORT
        socket.create_connection(where, _CONNECT_SECONDS).close()
        session.conf.get("spark.sql.session.timeZone")
    except (*SPARK_ERRORS, OSError, AttributeError):
        return False
    return True


@contextmanager
def bounded(session: SparkSession) -> Iterator[list[float]]:
    """Statements within are interrupted after :data:`STATEMENT_SECONDS_MAX`; what comes out tells."""
    interrupted: list[float] = []
    over = threading.Event()

    def interrupt() -> None:
        seconds = STATEMENT_SECONDS_MAX
        while not over.wait(seconds):  # what is between two jobs is not met by one interruption
            interrupted.append(STATEMENT_SECONDS_MAX)
            with suppress(*SPARK_ERRORS):
                session.interruptAll()
            seconds = _INTERRUPT_SECONDS

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        yield interrupted
    finally:
        over.set()


def is_remote(session: SparkSession) -> bool:
    """Return whether this session runs on a Spark Connect server."""
    return session in _remotes


def use_namespace(session: SparkSession, catalog: str, namespace: str) -> None:
    """Make names without a namespace mean this one.

    Args:
        session: the session.
        catalog: the catalog's name in Spark.
        namespace: the namespace.
    """
    session.sql(f"USE {quote(catalog)}.{quote(namespace)}").collect()


def _configure(session: SparkSession, settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        session.conf.set(key, value)


def _classic(conf: Mapping[str, str], cores: str, java_home: str | None, app_name: str) -> SparkSession:
    if java_home is not None:
        os.environ["JAVA_HOME"] = java_home
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # PySpark's mark of a process that has used a Connect session; with it no Spark would start here.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    settings = {"spark.master": f"local[{cores}]", "spark.app.name": app_name, **conf}
    if "TieredStopAtLevel" not in os.environ.get("SPARK_SUBMIT_OPTS", ""):
        settings["spark.driver.extraJavaOptions"] = FIRST_COMPILER_ONLY
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        if SparkContext._gateway is None:  # noqa: SLF001 - no Java yet; there is no public question
            started = SparkConf(loadDefaults=False).setAll(list(settings.items()))
            SparkContext(conf=started, gateway=started_java(started))
        return builder.getOrCreate()
    except (*SPARK_ERRORS, OSError) as error:
        java = java_home or os.environ.get("JAVA_HOME") or "PATH"
        raise SetupError(
            "Spark cannot be started",
            where=f"Java at {java}: {str(error).strip().splitlines()[0]}",
            way_out="Spark 4.1 needs Java 17 or 21: set JAVA_HOME to one",
        ) from error


def _connect(remote: str) -> SparkSession:
    place = urlsplit(remote)
    host, port = place.hostname or "localhost", place.port or _CONNECT_PORT
    try:
        socket.create_connection((host, port), _CONNECT_SECONDS).close()
    except OSError as error:
        raise SetupError(
            f"the Spark Connect server does not answer: {error.strerror or error}",
            where=f"{host}:{port}",
            way_out="start it, or leave the remote out to run Spark in this process",
        ) from error
    from pyspark.sql.connect.client import DefaultChannelBuilder
    from pyspark.sql.connect.client.retries import DefaultPolicy
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    # Not SparkSession.builder.remote: it marks the whole process (SPARK_CONNECT_MODE_ENABLED), in which
    # then no session of the other kind can be opened.
    options = [
        ("grpc.keepalive_time_ms", _PING_SECONDS * 1000),
        ("grpc.keepalive_timeout_ms", _PONG_SECONDS * 1000),
    ]
    channel = DefaultChannelBuilder(remote, channelOptions=options)
    builder: Any = RemoteSession.builder  # a property of the class, which mypy does not know
    session = builder.channelBuilder(channel).create()
    session.__class__ = _session_class()
    # By default Spark's client tries again for ten minutes before it says that its server is gone.
    session.client.set_retry_policies([DefaultPolicy(max_retries=_RETRIES, max_backoff=_RETRY_MS_MAX)])
    try:
        _configure(session, _AS_WRITTEN)
    except SPARK_ERRORS as error:
        raise SetupError(
            f"the Spark Connect server refuses this client: {reason(error)}",
            where=f"{host}:{port}",
            way_out="give the server's token in spark.remote (sc://host:port/;token=…) or in the variable "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN, and see that its version is Spark 4.1",
        ) from None
    _remotes[session] = remote
    return cast("SparkSession", session)


@cache
def _session_class() -> type[object]:
    """Remote sessions of which the garbage collector ends nothing.

    Spark's own are closed once more when they are collected, stopped or not, by the thread that happens to
    collect them: that ends the threads by which all sessions of the process release what they have received,
    and waits for them.  If the thread was reading an answer just then, it holds the lock that they wait for,
    and a sync stands still for ever.
    """
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    class StoppableSession(RemoteSession):
        def __del__(self) -> None:
            pass

    return StoppableSession
