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
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark import SparkConf, SparkContext
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from slotlake.decoder.errors import SetupError
from slotlake.spark.java import JAVA_OPTIONS, end_java_without, sigint_as_before, started_java
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import quote
from slotlake.spark.properties import (
    AS_WRITTEN,
    MACHINE_PROPERTY,
    NEEDED,
    NEEDED_AT_START,
    TUNED,
    SparkChoices,
    require_answering,
    this_machine,
)
from slotlake.spark.session_errors import SPARK_ERRORS, reason

_CONNECT_PORT = 15002
_CONNECT_SECONDS = 5
_RETRIES, _RETRY_MS_MAX = 8, 10_000  # about 45 s in all
# PySpark writes each failed statement, with the values in it, to standard error; the error says what matters.
_TALKATIVE = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
# A Connect server that is frozen, or out of reach without a word, is noticed by HTTP/2's own pings.  A server
# bears with one in five minutes.
_PING_SECONDS, _PONG_SECONDS = 310, 30
STATEMENT_SECONDS_MAX = 6 * 3600.0
_INTERRUPT_SECONDS = 2.0
_NO_CHOICES = SparkChoices()


@dataclass
class Known:
    """What is known of a session."""

    remote: str | None = None  # the Connect server's address; None: Spark is in this process
    given: Mapping[str, str] = field(default_factory=dict)  # a user's properties
    shares_files: bool | None = None  # None: it was not asked yet
    cores: tuple[float, int] = 0.0, 0  # when it was asked (monotonic, in seconds), and the answer


# The sessions are PySpark's, and have no place for it; it ends with them.
_known: WeakKeyDictionary[SparkSession, Known] = WeakKeyDictionary()


def known_of(session: SparkSession) -> Known:
    """Return what is known of a session, for as long as it lives."""
    return _known.setdefault(session, Known())


def static_conf(
    jars: Sequence[str | Path],
    *,
    driver_memory: str = "1g",
    umask: str = "077",
    on_cluster: bool = False,
) -> dict[str, str]:
    """What must be given when a Spark process starts: to a classic session, or to the Connect server.

    Args:
        umask: of the files that it writes; Hadoop gives each its mode, whatever the process's umask is.
    """
    own_machine = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        MACHINE_PROPERTY: this_machine(),
    }
    return {
        **({"spark.jars": ",".join(str(jar) for jar in jars)} if jars else {}),
        **({} if on_cluster else own_machine),
        "spark.driver.memory": driver_memory,
        "spark.hadoop.fs.permissions.umask-mode": umask,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.debug.maxToStringFields": "25",
        **NEEDED_AT_START,
    }


def open_session(
    lake: LakeSettings | None = None,
    *,
    remote: str | None = None,
    jars: Sequence[str | Path] = (),
    driver_memory: str = "1g",
    cores: str = "*",
    umask: str = "077",
    app_name: str = "slotlake",
    choices: SparkChoices = _NO_CHOICES,
) -> SparkSession:
    """Open Spark and, if a lake is given, make its catalog known to the session.

    Args:
        remote: ``sc://host:port`` of a Spark Connect server; None starts Spark in this process.
        jars: Iceberg runtime and JDBC drivers; ignored for a remote session (its server has them).
        umask: of the files that a Spark in this process writes.
        cores: threads of a Spark that is all in this process.

    Raises:
        SetupError: Java, or the jars, are missing; the server or the cluster does not answer; or it refuses
            a property.
        LakeError: this version does not serve such a lake.
    """
    for name in _TALKATIVE:
        PySparkLogger.getLogger(name).setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", message="The SQL config ")  # a Connect server says it of some of ours
    if remote is not None:
        session = _connect(remote)
        _set_given(session, choices.conf)
        known_of(session).given = dict(choices.conf)
    else:
        on_cluster = choices.cluster is not None
        started = static_conf(jars, driver_memory=driver_memory, umask=umask, on_cluster=on_cluster)
        master = choices.cluster or f"local[{cores}]"
        session = _classic(
            {"spark.master": master, "spark.app.name": app_name, **started, **choices.conf}, choices
        ).newSession()
        known_of(session).given = {n: value for n, value in choices.conf.items() if n in TUNED}
    _configure(session, {**TUNED, **known_of(session).given, **NEEDED})
    if lake is not None:
        use_lake(session, lake)
    return session


def _set_given(session: SparkSession, conf: Mapping[str, str]) -> None:
    """Set a user's properties on a Connect server, which refuses those that only count at its start."""
    for name, value in conf.items():
        try:
            session.conf.set(name, value)
        except SPARK_ERRORS as error:
            raise SetupError(
                f"the Spark Connect server does not take the property {name}: {reason(error)}",
                where=f"spark.conf.{name}",
                way_out="a property that only counts when Spark starts must be given to the server at its "
                "start; remove it from spark.conf",
            ) from None


def use_lake(session: SparkSession, lake: LakeSettings) -> None:
    """Make the lake's catalog known to a session that has not used one of that name yet."""
    _configure(session, {**TUNED, **known_of(session).given, **NEEDED})
    if lake.is_glue and "access_key" in lake.glue:
        _give_keys(session, lake.glue)
    define_catalog(session, lake.catalog, lake.spark_properties())


def _give_keys(session: SparkSession, glue: Mapping[str, str]) -> None:
    """Set the keys for AWS Glue in Spark's process; no command line and no property of Spark has them."""
    if is_remote(session):
        raise SetupError(
            "keys for AWS Glue cannot be given to a Spark that runs elsewhere",
            where="lake.glue.access_key, and spark.remote",
            way_out="start that Spark with the keys in its environment (AWS_ACCESS_KEY_ID, …) or a role, "
            "set them up here in the same way, and remove them from lake.glue",
        )
    java: Any = session._jvm  # noqa: SLF001  there is no public way to Java's own properties
    names = {
        "access_key": "aws.accessKeyId",
        "secret_key": "aws.secretAccessKey",
        "session_token": "aws.sessionToken",
    }
    for name, java_name in names.items():
        if name in glue:
            java.java.lang.System.setProperty(java_name, glue[name])
        else:
            java.java.lang.System.clearProperty(java_name)


def define_catalog(session: SparkSession, name: str, properties: Mapping[str, str]) -> None:
    """Define an Iceberg catalog, and make it the default one.

    Args:
        properties: its properties, without the prefix ``spark.sql.catalog.<name>``.
    """
    prefix = f"spark.sql.catalog.{name}"
    _configure(session, {prefix: "org.apache.iceberg.spark.SparkCatalog"})
    _configure(session, {f"{prefix}.{key}": value for key, value in properties.items()})
    _configure(session, {"spark.sql.defaultCatalog": name})


def sibling(session: SparkSession) -> SparkSession:
    """Another session on the same Spark, with its own configuration, catalogs and temporary views."""
    known = known_of(session)
    own = session.newSession() if known.remote is None else _connect(known.remote)
    if known.remote is not None:
        _configure(own, known.given)
    known_of(own).given = known.given
    _configure(own, AS_WRITTEN)
    return own


def is_alive(session: SparkSession) -> bool:
    """Return whether the session can still be used; a restarted Connect server does not know it."""
    remote = known_of(session).remote
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
def bounded(session: SparkSession, seconds_max: float | None = None) -> Iterator[list[float]]:
    """Statements within are interrupted after a time; what comes out tells.

    Args:
        seconds_max: the time; :data:`STATEMENT_SECONDS_MAX` when not given.
    """
    limit = STATEMENT_SECONDS_MAX if seconds_max is None else seconds_max
    interrupted: list[float] = []
    over = threading.Event()

    def interrupt() -> None:
        seconds = limit
        while not over.wait(seconds):  # what is between two jobs is not met by one interruption
            interrupted.append(limit)
            with suppress(*SPARK_ERRORS):
                session.interruptAll()
            seconds = _INTERRUPT_SECONDS

    threading.Thread(target=interrupt, daemon=True).start()
    try:
        yield interrupted
    finally:
        over.set()


def shares_files(session: SparkSession) -> bool:
    """Return whether all of a session's Spark runs on this machine, and so reads files of it.

    A Connect server must say so: `MACHINE_PROPERTY`.
    """
    known = known_of(session)
    if known.shares_files is None:
        if is_remote(session):
            known.shares_files = session.conf.get(MACHINE_PROPERTY, "") == this_machine()
        else:
            master = str(session.sparkContext.master)
            known.shares_files = master.startswith("local") and not master.startswith("local-cluster")
    return known.shares_files


def given(session: SparkSession, name: str) -> str | None:
    """Return the value that a user gave to a property (``spark.conf``); None: none."""
    return known_of(session).given.get(name)


def is_remote(session: SparkSession) -> bool:
    """Return whether this session runs on a Spark Connect server."""
    return known_of(session).remote is not None


def use_namespace(session: SparkSession, catalog: str, namespace: str) -> None:
    """Make names without a namespace mean this one."""
    session.sql(f"USE {quote(catalog)}.{quote(namespace)}").collect()


def _configure(session: SparkSession, settings: Mapping[str, str]) -> None:
    for key, value in settings.items():
        session.conf.set(key, value)


def _classic(conf: Mapping[str, str], choices: SparkChoices) -> SparkSession:
    if choices.cluster is None:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    elif "spark.pyspark.python" in choices.conf:  # only Spark's own scripts look at the property
        os.environ["PYSPARK_PYTHON"] = choices.conf["spark.pyspark.python"]
    # PySpark's mark of a process that has used a Connect session; with it no Spark would start here.
    os.environ.pop("SPARK_CONNECT_MODE_ENABLED", None)
    settings = dict(conf)
    if "TieredStopAtLevel" not in os.environ.get("SPARK_SUBMIT_OPTS", ""):
        settings.setdefault("spark.driver.extraJavaOptions", JAVA_OPTIONS)
    if choices.cluster is not None:
        require_answering(choices.cluster)
    end_java_without(settings.get("spark.jars"))
    builder = SparkSession.builder
    for key, value in settings.items():
        builder = builder.config(key, value)
    try:
        with sigint_as_before():
            if SparkContext._gateway is None:  # noqa: SLF001 - no Java yet; there is no public question
                started = SparkConf(loadDefaults=False).setAll(list(settings.items()))
                SparkContext(conf=started, gateway=started_java(started))
            return builder.getOrCreate()
    except (*SPARK_ERRORS, OSError) as error:
        java = os.environ.get("JAVA_HOME") or "PATH"
        way_out = "Spark 4.1 needs Java 17 or 21: set JAVA_HOME to one"
        raise SetupError(
            "Spark cannot be started",
            where=f"Java at {java}: {_first_line(error)}",
            way_out=way_out if choices.cluster is None else f"{way_out}; {choices.way_out}",
        ) from error


def _first_line(error: Exception) -> str:
    text = str(error.java_exception.getMessage()) if isinstance(error, Py4JJavaError) else str(error)
    return text.strip().splitlines()[0] if text.strip() else type(error).__name__


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
        _configure(session, AS_WRITTEN)
    except SPARK_ERRORS as error:
        raise SetupError(
            f"the Spark Connect server refuses this client: {reason(error)}",
            where=f"{host}:{port}",
            way_out="give the server's token in spark.remote (sc://host:port/;token=…) or in the variable "
            "SPARK_CONNECT_AUTHENTICATE_TOKEN, and see that its version is Spark 4.1",
        ) from None
    known_of(session).remote = remote
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
