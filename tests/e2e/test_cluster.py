"""Lakes in S3 by a Spark cluster whose machines see no file of slotlake's; its executors and machines die.

The long form runs the scenarios there, by a Connect server; `SLOTLAKE_TEST_SPARK=cluster` with
`SLOTLAKE_TEST_STORAGE=s3` puts the lakes of any test there, by a driver in the tests' own process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError
from slotlake.expectations.results import EXECUTORS
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.local.runtime import SparkRuntime
from slotlake.infra.status.spark_check import check_spark
from slotlake.spark.read import executors
from tests.catalogs import postgres_uri
from tests.cluster import CONF, SparkCluster, needs_namespaces
from tests.conftest import ROOT, Database, fresh_database
from tests.e2e.oracle import assert_equal, differences, pipeline_file
from tests.e2e.scenarios import SCENARIOS
from tests.storage import IN_S3, moved_to

pytestmark = [
    pytest.mark.timeout(900),
    needs_namespaces,
    pytest.mark.skipif("SLOTLAKE_TEST_SPARK" in os.environ, reason="it begins clusters by itself"),
]
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
_ROWS = 300_000


@pytest.fixture(scope="module")
def cluster(spark_runtime: SparkRuntime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with SparkCluster(tmp_path_factory.mktemp("cluster"), spark_runtime) as running:
        yield running


@pytest.fixture
def remote(cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    address, variables = cluster.connect()
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    yield address
    cluster.disconnect()


@pytest.fixture(autouse=True)
def small_tables_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors hash the lake's side of `verify` whatever a table's size is."""
    monkeypatch.setattr(executors, "ROWS_MIN", 0)


Opening = Callable[..., Pipeline]


@pytest.fixture
def opening(
    pg: Any, database: Database, object_store: LocalObjectStore, remote: str, tmp_path: Path
) -> Iterator[Opening]:
    """``opening(tables, extra=…)``: a pipeline with its catalog in PostgreSQL, on the cluster."""
    with ExitStack() as stack:

        def opened(tables: list[str], *, extra: str = "", source: str = "", folder: bool = False) -> Pipeline:
            uri = postgres_uri(stack.enter_context(fresh_database(pg)))
            file = pipeline_file(
                tmp_path / str(time.monotonic_ns()), database, tables, uri=uri, extra=extra, source=source
            )
            if not folder and not IN_S3:
                moved_to(object_store, file)
            return stack.enter_context(Pipeline.open(file, remote=remote))

        yield opened


@LONG
def test_a_batch_by_executors_that_see_no_file(database: Database, opening: Opening) -> None:
    """And a warehouse on private disks is refused, before anything is written there."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text, n numeric(8,2), t timestamptz DEFAULT now());"
        "INSERT INTO a SELECT g, 'a', g FROM generate_series(1, 100) g"
    )
    refused = opening(["a"], folder=True)
    if not IN_S3:
        with pytest.raises(LakeError, match="do not share the warehouse") as raised:
            refused.init()
        assert "spark://" in raised.value.where or "sc://" in raised.value.where
        assert not database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()")
    pipeline = opening(["a"])
    pipeline.init()
    database.execute(
        "UPDATE a SET v = 'b' WHERE id < 9; UPDATE a SET id = 500 WHERE id = 9; DELETE FROM a WHERE id = 10;"
        "INSERT INTO a VALUES (1000, NULL, -1)"
    )
    pipeline.sync()
    assert_equal(database, pipeline, ["a"])
    assert "and hash rows for verify" in check_spark(pipeline)
    report = pipeline.verify()
    assert report.equal
    assert {table.lake_read_by for table in report.tables.values()} == {EXECUTORS}
    answer = pipeline.query("SELECT count(*), sum(id) FROM public.a", engine="spark")
    expected = database.execute("SELECT count(*)::text, sum(id)::text FROM a")
    assert [tuple(row) for row in answer.rows] == expected
    pipeline.session.sql("UPDATE lake.shop.a SET v = 'wrong' WHERE id IN (5, 6)").collect()
    assert pipeline.backfill("a", where="id < 50").taken == 2
    assert_equal(database, pipeline, ["a"])


@LONG
def test_scenarios(database: Database, opening: Opening) -> None:
    """Every scenario, step by step."""
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    for scenario in SCENARIOS.values():
        database.execute(scenario.setup)
    tables = [table for scenario in SCENARIOS.values() for table in scenario.tables]
    pipeline = opening(tables, source="two_phase: true")
    pipeline.init()
    wrong: dict[str, Any] = {"after init": differences(database, pipeline, tables)}
    for step in range(max(len(scenario.steps) for scenario in SCENARIOS.values())):
        with database.connect() as connection:
            for scenario in SCENARIOS.values():
                for transaction in scenario.steps[step] if step < len(scenario.steps) else []:
                    connection.execute(transaction)
        pipeline.sync()
        wrong[f"after step {step}"] = differences(database, pipeline, tables)
    assert {when: tables for when, tables in wrong.items() if tables} == {}
    assert pipeline.verify().equal


@LONG
def test_executors_and_machines_die(database: Database, opening: Opening, cluster: SparkCluster) -> None:
    """In the middle of apply, copies, maintenance and verify; afterwards lake and source are equal."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text, t text); CREATE TABLE b (v text, n int);"
        "ALTER TABLE b REPLICA IDENTITY FULL;"
        f"INSERT INTO a SELECT g, md5(g::text), repeat('x', 40) FROM generate_series(1, {_ROWS}) g;"
        "INSERT INTO b SELECT md5(g::text), g % 7 FROM generate_series(1, 20000) g"
    )
    pipeline = opening(["a", "b"], extra="mode: [mirror, history, append]\n")
    kills = [lambda: cluster.kill_executor(0), lambda: cluster.kill_worker(1)]
    with cluster.losing(kills[0], busy_seconds=0.0):
        pipeline.init()
    assert_equal(database, pipeline, ["a", "b"])
    for number, kill in enumerate(kills):
        database.execute(
            f"UPDATE a SET v = v || '{number}' WHERE id % 3 = {number};"
            f"DELETE FROM a WHERE id % 50 = {number};"
            f"UPDATE b SET n = n + 10 WHERE n = {number}; INSERT INTO b VALUES ('{number}', NULL)"
        )
        with cluster.losing(kill):
            pipeline.sync()
        assert_equal(database, pipeline, ["a", "b"])
        with cluster.losing(kill):
            pipeline.backfill("a")
        assert_equal(database, pipeline, ["a", "b"])
        with cluster.losing(kill):
            pipeline.maintain()
        assert_equal(database, pipeline, ["a", "b"])
        database.execute(f"UPDATE a SET t = '{number}' WHERE id % 2 = 0")
        with cluster.losing(kill):
            report = pipeline.verify()
        assert report.equal
        assert {table.lake_read_by for table in report.tables.values()} == {EXECUTORS}


@LONG
def test_replay_other_types_and_recover(
    database: Database, opening: Opening, cluster: SparkCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An executor dies while each of them is at work."""
    database.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v int, t text);"
        f"INSERT INTO a SELECT g, g, repeat(md5(g::text), 2) FROM generate_series(1, {_ROWS // 3}) g"
    )
    pipeline = opening(["a"], extra="mode: [mirror, history]\n")
    pipeline.init()
    for number in range(2):
        database.execute(f"UPDATE a SET v = v + 1 WHERE id % 4 = {number}; DELETE FROM a WHERE id = {number}")
        pipeline.sync()

    def kill() -> bool:
        return cluster.kill_executor(0) or cluster.kill_executor(1)

    with cluster.losing(kill, busy_seconds=0.1):
        replayed = pipeline.replay("again")
    assert (replayed.batches, replayed.copied_meanwhile) == (2, [])
    for table in ("a", "a__history"):
        rows = [f"SELECT * FROM lake.{namespace}.{table}" for namespace in ("shop", "again")]
        for first, second in (rows, rows[::-1]):
            assert pipeline.session.sql(f"{first} EXCEPT ALL {second}").count() == 0
    # Every row of the lake equals the source's, so the column is widened; then one that must be copied.
    database.execute("ALTER TABLE a ALTER v TYPE bigint; UPDATE a SET v = v + 5000000000 WHERE id % 3 = 0")
    with cluster.losing(kill, busy_seconds=0.1):
        pipeline.sync()
    assert_equal(database, pipeline, ["a"])
    database.execute("ALTER TABLE a ALTER t TYPE int USING length(t); UPDATE a SET t = id WHERE id < 1000")
    with cluster.losing(kill, busy_seconds=0.1):
        pipeline.sync()
    assert_equal(database, pipeline, ["a"])
    database.execute(f"SELECT pg_drop_replication_slot('{pipeline.source.slot}')")
    database.execute("UPDATE a SET v = -v WHERE id % 10 = 0; DELETE FROM a WHERE id % 1000 = 1")
    read: list[Any] = []
    mapped = executors.ExecutorRows.mapped

    def noted(rows: executors.ExecutorRows, *arguments: Any) -> Any:
        read.append(rows.name)
        return mapped(rows, *arguments)

    monkeypatch.setattr(executors.ExecutorRows, "mapped", noted)
    with cluster.losing(kill, busy_seconds=0.1):
        [repaired] = pipeline.recover(carry_out=True).tables
    assert repaired.how == "rows", repaired
    assert read, "executors hashed the lake's rows"
    assert_equal(database, pipeline, ["a"])
    assert pipeline.verify().equal


class _Elsewhere:
    """A pipeline open in a process of its own, which has Spark's driver in it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def does(self, expression: str) -> Any:
        """Return what an expression of ``pipeline`` gives there, as JSON has it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(expression, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        assert answer, "the process ended; see its errors above"
        return json.loads(answer)


_CHILD: Final = """
import json, sys
from slotlake import Pipeline
from slotlake.spark.read import executors
executors.ROWS_MIN = 0
with Pipeline.open(sys.argv[1]) as pipeline:
    for line in sys.stdin:
        print(json.dumps(eval(line), default=str), flush=True)
"""


@contextmanager
def _in_a_process(file: Path) -> Iterator[_Elsewhere]:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))},
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "PYSPARK_PYTHON": sys.executable,  # the executors' machines have it, and see no slotlake
    }
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _CHILD, str(file)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield _Elsewhere(process)
            assert process.stdin is not None
            process.stdin.close()
            assert process.wait(60) == 0
        finally:
            process.kill()


Both = Callable[[list[str]], tuple[_Elsewhere, Pipeline]]


@pytest.fixture
def both(
    pg: Any, database: Database, object_store: LocalObjectStore, cluster: SparkCluster, tmp_path: Path
) -> Iterator[Both]:
    """``both(tables)``: a pipeline with the cluster as `spark.master` in a process of its own, and here."""
    cluster.wait_for_workers()
    conf = "".join(f'    {name}: "{value}"\n' for name, value in CONF.items())
    section = f'spark:\n  master: "{cluster.master}"\n  conf:\n{conf}'
    with ExitStack() as stack:

        def opened(tables: list[str]) -> tuple[_Elsewhere, Pipeline]:
            uri = postgres_uri(stack.enter_context(fresh_database(pg)))
            file = pipeline_file(tmp_path, database, tables, uri=uri, extra=section, source="two_phase: true")
            if not IN_S3:
                moved_to(object_store, file)
            return stack.enter_context(_in_a_process(file)), stack.enter_context(Pipeline.open(file))

        yield opened


@LONG
def test_scenarios_with_the_driver_in_slotlakes_process(database: Database, both: Both) -> None:
    """`spark.master: spark://…`: every scenario, step by step."""
    for scenario in SCENARIOS.values():
        database.execute(scenario.setup)
    tables = [table for scenario in SCENARIOS.values() for table in scenario.tables]
    there, here = both(tables)
    there.does("pipeline.init() and None")
    wrong: dict[str, Any] = {"after init": differences(database, here, tables)}
    for step in range(max(len(scenario.steps) for scenario in SCENARIOS.values())):
        with database.connect() as connection:
            for scenario in SCENARIOS.values():
                for transaction in scenario.steps[step] if step < len(scenario.steps) else []:
                    connection.execute(transaction)
        there.does("pipeline.sync() and None")
        wrong[f"after step {step}"] = differences(database, here, tables)
    assert {when: each for when, each in wrong.items() if each} == {}
    assert there.does("pipeline.verify().equal")


@LONG
def test_executors_and_machines_die_under_a_driver_in_slotlakes_process(
    database: Database, both: Both, cluster: SparkCluster
) -> None:
    """An executor, then a whole machine, in the middle of a sync, maintenance and verify."""
    database.execute(
        "CREATE TABLE large (id int PRIMARY KEY, v text);"
        "INSERT INTO large SELECT g, md5(g::text) FROM generate_series(1, 100000) g"
    )
    there, here = both(["large"])
    there.does("pipeline.init() and None")
    kills = [lambda: cluster.kill_executor(0), lambda: cluster.kill_worker(1)]
    for number, kill in enumerate(kills):
        database.execute(f"UPDATE large SET v = v || '{number}' WHERE id % 3 = {number}")
        for work in ("sync", "maintain"):
            with cluster.losing(kill):
                there.does(f"pipeline.{work}() and None")
        with cluster.losing(kill, busy_seconds=0.1):
            report = there.does("pipeline.verify().as_dict()")
        assert report["equal"]
        assert report["tables"]["public.large"]["lake_read_by"] == EXECUTORS
    assert_equal(database, here, ["large"])
