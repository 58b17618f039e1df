"""What all tests share: a real PostgreSQL, a fresh database on it, a real Spark session.

Servers are embedded ones on free loopback ports; all are ended with the test run, also when it is killed.
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import settings
from psycopg import sql

from slotlake.infra.local.java import find_java
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.postgres import EmbeddedPostgres, Version, temporary_postgres
from slotlake.infra.local.postgres_archives import ARCHIVED_ONLY, is_fetched
from slotlake.infra.local.runtime import SparkRuntime
from slotlake.infra.local.runtime import spark_runtime as find_runtime
from tests import storage
from tests.debian_postgres import IN_DEBIAN_ONLY, debian_postgres
from tests.spark.nessie_catalog import NO_JAVA, LocalNessie, find_newer_java

ROOT = Path(__file__).resolve().parents[1]
_numbers = itertools.count(1)
# A whole run tries the same examples each time, so that it says something about the change at hand alone.
# SLOTLAKE_TEST_RANDOM=1 looks for new ones.
_RANDOM = bool(os.environ.get("SLOTLAKE_TEST_RANDOM"))
settings.register_profile("same", derandomize=True)
if not _RANDOM:
    settings.load_profile("same")
# py4j says at the very end that it closes, to handlers that pytest has closed before.
logging.getLogger("py4j").setLevel(logging.ERROR)


# What starts a server or Java.  A test that uses no such fixture, whose module imports no such name, and that
# has no mark that says otherwise, is ``fast``.
_SERVER_FIXTURES = {
    "pg",
    "database",
    "servers",
    "database_on",
    "session",
    "connect",
    "spark_runtime",
    "object_store",
    "nessie",
}
_SERVER_NAMES = {"temporary_postgres", "LocalSparkConnect", "LocalAirflow", "LocalObjectStore", "LocalNessie"}
_NOT_FAST = ("seconds", "slow", "server", "airflow")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as ``fast`` what `slotlake check` runs: tests that start no server and no Java."""
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        names = set(vars(getattr(item, "module", None) or object))
        marked = any(item.get_closest_marker(name) for name in _NOT_FAST)
        if not (marked or fixtures & _SERVER_FIXTURES or names & _SERVER_NAMES):
            item.add_marker("fast")


def seed_of_the_run() -> int:
    """For what draws by itself: always the same, a new one, or the one that SLOTLAKE_SEED names."""
    chosen = random.SystemRandom().randrange(1, 1 << 30) if _RANDOM else 1
    return int(os.environ.get("SLOTLAKE_SEED", "0")) or chosen


@dataclass(frozen=True)
class Database:
    """A fresh database on the test server."""

    server: EmbeddedPostgres
    name: str

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.name)

    def connect(self, **options: Any) -> psycopg.Connection[tuple[Any, ...]]:
        """A new connection in autocommit mode; the test closes it."""
        return psycopg.connect(self.dsn, autocommit=True, **options)

    def execute(self, statement: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run SQL (several statements when there are no parameters); rows of the last result, if any."""
        with self.connect() as connection:
            cursor = connection.execute(statement, parameters)
            while cursor.nextset():
                pass
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def pg() -> Iterator[EmbeddedPostgres]:
    """A running PostgreSQL 18, or what SLOTLAKE_TEST_POSTGRES names, for the whole test run."""
    with temporary_postgres(
        version=18,
        conf={"max_wal_senders": "40", "max_replication_slots": "60", "max_prepared_transactions": "20"},
    ) as server:
        yield server


@pytest.fixture
def database(pg: EmbeddedPostgres) -> Iterator[Database]:
    """A database of its own for one test; its slots go with it."""
    with fresh_database(pg) as made:
        yield made


@contextmanager
def fresh_database(server: EmbeddedPostgres) -> Iterator[Database]:
    """A new database on that server, dropped with its slots and prepared transactions."""
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    made = Database(server, name)
    yield made
    for (gid,) in made.execute("SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"):
        made.execute(sql.SQL("ROLLBACK PREPARED {}").format(gid).as_string(None))
    drop_database(server, name)


LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
SERVER_VERSIONS: tuple[Version, ...] = (14, 15, 16, 17, 18, *IN_DEBIAN_ONLY * LONG)
# Little memory for decoding: a transaction of a few hundred rows is streamed while it is in progress.
_SERVER_CONF = {
    "shared_buffers": "16MB",
    "max_connections": "60",
    "max_prepared_transactions": "10",
    "logical_decoding_work_mem": "64kB",
    "max_wal_size": "256MB",
}


class Servers:
    """PostgreSQL of any version, each started when it is first asked for; 19 is one of Debian's packages."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._running: dict[int, EmbeddedPostgres] = {}

    def __call__(self, version: Version) -> EmbeddedPostgres:
        if version not in self._running:
            absent = version in ARCHIVED_ONLY and not is_fetched(version)
            if absent and os.environ.get("SLOTLAKE_OFFLINE"):
                pytest.skip(f"SLOTLAKE_OFFLINE is set, and PostgreSQL {version} has not been fetched")
            programs = debian_postgres(version) if version in IN_DEBIAN_ONLY else None
            running = temporary_postgres(version=version, conf=_SERVER_CONF, programs=programs)
            self._running[version] = self._stack.enter_context(running)
        return self._running[version]


@pytest.fixture(scope="session")
def servers() -> Iterator[Servers]:
    """Servers 14 to 19 with ``servers(version)``, alive until the test run ends."""
    with ExitStack() as stack:
        yield Servers(stack)


@pytest.fixture
def database_on(servers: Servers) -> Iterator[Callable[[Version], Database]]:
    """``database_on(version)``: a database of its own on a server of that version."""
    with ExitStack() as stack:
        yield lambda version: stack.enter_context(fresh_database(servers(version)))


def drop_database(server: EmbeddedPostgres, name: str) -> None:
    """Drop a database with its slots; a closed session lets go of its temporary slot a moment later."""
    last = time.monotonic() + 30
    while True:
        try:
            with psycopg.connect(server.dsn(), autocommit=True) as admin:
                _drop_slots(admin, name)
                admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))
            return
        except (psycopg.errors.ObjectInUse, psycopg.errors.UndefinedObject):
            if time.monotonic() > last:
                raise
            time.sleep(0.1)


def _drop_slots(admin: psycopg.Connection[tuple[Any, ...]], database: str) -> None:
    for slot, pid in admin.execute(
        "SELECT slot_name, active_pid FROM pg_replication_slots WHERE database = %s AND NOT temporary",
        [database],
    ).fetchall():
        if pid is not None:
            admin.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        admin.execute("SELECT pg_drop_replication_slot(%s)", [slot])


@pytest.fixture(scope="session")
def spark_runtime() -> SparkRuntime:
    """The Java and the jars, named in this process's environment too."""
    runtime = find_runtime("s3")
    os.environ.update(runtime.environment())
    return runtime


@pytest.fixture(scope="session")
def session(spark_runtime: SparkRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A classic local[2] Spark session with the Iceberg runtime; catalogs are configured by the test.

    With ``SLOTLAKE_TEST_SPARK=cluster`` its executors are those of a cluster that sees none of our files.
    """
    from slotlake.spark.properties import SparkChoices
    from slotlake.spark.session import open_session

    _end_java_of_other_tests()
    with ExitStack() as stack:
        choices = SparkChoices()
        if os.environ.get("SLOTLAKE_TEST_SPARK") == "cluster":
            from tests.cluster import CONF, SparkCluster

            folder = tmp_path_factory.mktemp("cluster")
            cluster = stack.enter_context(SparkCluster(folder, spark_runtime))
            choices = SparkChoices(cluster.master, CONF)
        running = open_session(
            jars=spark_runtime.jar_paths,
            cores="2",
            driver_memory="1g",
            app_name="slotlake tests",
            choices=choices,
        )
        yield running
        running.stop()


@pytest.fixture(autouse=True)
def _java_lives_on() -> Iterator[None]:
    """Name the test that ends the Java of this process: hundreds would fail after it, and none say why."""
    before = _running_java()
    yield
    if before is not None and before.poll() is not None and before is _java():
        pytest.fail(f"this test ended the Java that the tests share; its exit code is {before.poll()}")


def _java() -> Any:
    pyspark = sys.modules.get("pyspark")
    return pyspark and getattr(pyspark.SparkContext._gateway, "proc", None)


def _running_java() -> Any:
    java = _java()
    return java if java is not None and java.poll() is None else None


def _end_java_of_other_tests() -> None:
    """One that a command of an earlier test began has the jars of that lake alone, and takes no more."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    gateway: Any = SparkContext._gateway
    if gateway is not None:
        if (left := SparkSession._instantiatedSession) is not None:
            left.stop()
        elif (context := SparkContext._active_spark_context) is not None:
            context.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait()
        SparkContext._gateway = SparkContext._jvm = None


@pytest.fixture(scope="session")
def connect(spark_runtime: SparkRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a warm Spark Connect server; its token is in this process's environment.

    Tests give Java's second compiler ever new plans to compile: half of the CPU time of these minutes.
    """
    from slotlake.infra.local.spark_connect import LocalSparkConnect
    from slotlake.spark.java import FIRST_COMPILER_ONLY

    folder = tmp_path_factory.mktemp("connect")
    given = os.environ.get("SPARK_SUBMIT_OPTS", "")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("SPARK_SUBMIT_OPTS", f"{given} {FIRST_COMPILER_ONLY}".strip())
            own = LocalSparkConnect(folder, spark_runtime, cores=2, dies_with_parent=True)
            server = stack.enter_context(own)
        token = {name: value for name, value in server.client_environment().items() if "TOKEN" in name}
        os.environ.update(token)
        yield server.remote
        for name in token:
            del os.environ[name]


@pytest.fixture(scope="session")
def object_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalObjectStore]:
    """An S3 server on this machine."""
    with LocalObjectStore(tmp_path_factory.mktemp("s3"), find_java()) as store:
        yield store


@pytest.fixture(scope="session", autouse=storage.IN_S3)
def _all_lakes_in_s3(object_store: LocalObjectStore) -> None:
    """Put the lakes of all tests into that server, if the run is to show that they can be there."""
    storage.use(object_store)


@pytest.fixture(scope="module", autouse=storage.ON_REST)
def _catalogs_of_one_module() -> Iterator[None]:
    """End the REST servers of a module's tests, in a run that is to show that lakes can be there."""
    yield
    storage.end_catalogs()


@pytest.fixture(scope="session")
def nessie(object_store: LocalObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalNessie]:
    """A real Nessie server on the object store."""
    if find_newer_java() is None:
        pytest.skip(NO_JAVA)
    with LocalNessie(tmp_path_factory.mktemp("nessie"), object_store) as server:
        yield server


@pytest.fixture(scope="session", autouse=storage.IN_NESSIE)
def _all_catalogs_in_nessie(nessie: LocalNessie) -> None:
    """Put the catalogs of all tests into that server, if the run is to show that they can be there."""
    storage.use_nessie(nessie.uri)


@pytest.fixture(scope="session")
def rest(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an Iceberg REST catalog."""
    from tests.spark.rest_catalog import LocalRestCatalog

    store = request.getfixturevalue("object_store") if storage.IN_S3 else None
    with LocalRestCatalog(tmp_path_factory.mktemp("rest"), store=store) as server:
        yield server.uri


@pytest.fixture(scope="session")
def hive(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a Hive Metastore."""
    from tests.spark.hive_metastore import LocalHiveMetastore

    store = request.getfixturevalue("object_store") if storage.IN_S3 else None
    with LocalHiveMetastore(tmp_path_factory.mktemp("hive"), store=store) as server:
        yield server.uri


@pytest.fixture(scope="session")
def glue(session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of what plays AWS Glue; this process and its Java have keys for it."""
    from tests.spark.glue_server import KEYS, LocalGlue

    with LocalGlue(tmp_path_factory.mktemp("glue")) as server, pytest.MonkeyPatch.context() as patch:
        for name, text in KEYS.items():
            patch.setenv(name, text)
        java = session._jvm.java.lang.System
        java.setProperty("aws.accessKeyId", KEYS["AWS_ACCESS_KEY_ID"])
        java.setProperty("aws.secretAccessKey", KEYS["AWS_SECRET_ACCESS_KEY"])
        yield server.endpoint
        java.clearProperty("aws.accessKeyId")
        java.clearProperty("aws.secretAccessKey")
