"""Several machines make one initial copy: each range once, whoever is killed, and the lake is the source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.copy.reading import take_snapshot
from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.failpoints import happening
from slotlake.infra.copy.claims import APPLICATION_NAME
from slotlake.infra.copy.record import CopyRecord
from slotlake.infra.copy.worker import NoCopyError
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.reports import CopyWorkerReport
from slotlake.spark import lake_files
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.test_init_resumed import COMMAND, PART_BYTES, TABLES, Killed, fill
from tests.e2e.test_workers import shared_file
from tests.spark.rest_catalog import LocalRestCatalog
from tests.storage import IN_NESSIE, IN_S3, ON_REST, files_folder, moved_to
from tests.workers import Worker, ended, needs_namespaces

pytestmark = [pytest.mark.timeout(900), pytest.mark.server]
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")


def _killed_helper(file: Path, failpoint: str) -> int:
    """The process id of one that helped, as another machine would that mounts the same folders."""
    code = f"import sys; sys.argv[1:] = ['copy-worker', {str(file)!r}, '--wait', '120']; {COMMAND}"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "SLOTLAKE_FAILPOINT": failpoint},
        stderr=subprocess.PIPE,
        text=True,
    )
    _, errors = process.communicate(timeout=180)
    assert process.returncode == -9, errors
    return process.pid


def _help(file: Path) -> CopyWorkerReport:
    with Pipeline.open(file) as pipeline:
        return pipeline.help_copy()


def test_a_helper_is_killed_and_another_goes_on(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed one has brought the files of a range and not noted it: nobody names them, and they go."""
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, t text); ALTER TABLE big ALTER t SET STORAGE EXTERNAL;"
        "INSERT INTO big SELECT i, repeat(md5(i::text), 8) FROM generate_series(1, 6000) i;"
        "CREATE TABLE log (at int, what text);"
        "INSERT INTO log SELECT i, 'line ' || i FROM generate_series(1, 5000) i"
    )
    shared = f"state: {{path: '{tmp_path}/shared'}}\n"
    file = pipeline_file(tmp_path / "files", database, ["big", "log"], extra=shared, source="copy_workers: 1")
    pids: list[int] = []
    left_by_killed: list[str] = []

    def others_first() -> None:
        pids.append(_killed_helper(file, "copy_worker.delivered:3"))
        left_by_killed.extend(_files(tmp_path, f"-{pids[0]:x}-"))
        helped.append(pool.submit(_help, file))
        record = CopyRecord(tmp_path / "shared" / "shop" / "copying", shared=True)
        deadline = time.monotonic() + 180
        while sum(len(table.files) for table in record.tables.values()) < 8:
            assert time.monotonic() < deadline
            time.sleep(0.05)

    helped: list[Future[CopyWorkerReport]] = []
    with ThreadPoolExecutor() as pool, Pipeline.open(file, remote=connect) as pipeline:
        with pytest.raises(NoCopyError, match="no initial copy of pipeline 'shop' is under way"):
            pipeline.help_copy(wait_seconds=0)
        with happening("init.part_done", others_first):
            report = pipeline.init()
        assert helped[0].result().ranges >= 4, helped
        assert sum(report.machines.values()) == sum(table.ranges for table in report.tables) > 20, report
        assert len(left_by_killed) == 3
        assert len(_files(tmp_path, f"-{pids[0]:x}-")) == 2, "the third range is another machine's"
        ranges = Counter((path.parent, path.name[:10]) for path in _paths(tmp_path))
        assert set(ranges.values()) == {1}, "no range twice"
        assert_equal(database, pipeline, ["big", "log"])
        assert not list((tmp_path / "shared" / "shop").glob("copying/**/*"))
        assert pipeline.help_copy(wait_seconds=0).already


@pytest.fixture(params=["rest", "nessie"])
def other_catalog(
    request: pytest.FixtureRequest, database: Database, object_store: LocalObjectStore, tmp_path: Path
) -> Iterator[Path]:
    """A pipeline file whose lake is on a REST server and in a store; machines share its state."""
    folder, name, slow = tmp_path / "files", f"n{database.name}", "copy_workers: 1\n"
    if request.param == "nessie":  # its `staging` is a file, so its state is a folder
        uri = request.getfixturevalue("nessie").branch(f"b{database.name}")
        shared = f"state: {{path: '{tmp_path}/shared'}}\n"
        file = pipeline_file(folder, database, ["big"], extra=shared, uri=uri, name=name, source=slow)
        moved_to(object_store, file)
        file.write_text(file.read_text().replace("lake:\n", "lake:\n  staging: local\n  format: 2\n", 1))
        yield file
        return
    prefix = f"{object_store.warehouse}-state/{database.name}"
    shared = f"changelog: {{path: '{prefix}'}}\nstate: {{path: '{prefix}'}}\n"
    with LocalRestCatalog(tmp_path / "rest", store=object_store) as server:
        file = pipeline_file(folder, database, ["big"], extra=shared, uri=server.uri, name=name, source=slow)
        moved_to(object_store, file)
        yield file


@LONG
@pytest.mark.skipif(IN_S3 or IN_NESSIE or ON_REST, reason="it chooses the catalog by itself")
def test_on_a_catalog_of_another_kind(
    database: Database, connect: str, other_catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two machines help, and one of them is killed."""
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, t text); ALTER TABLE big ALTER t SET STORAGE EXTERNAL;"
        "INSERT INTO big SELECT i, repeat(md5(i::text), 8) FROM generate_series(1, 6000) i"
    )
    code = f"{PAUSES}import sys; sys.argv[1:] = ['copy-worker', {str(other_catalog)!r}, '--json']; {COMMAND}"
    helped: list[Future[Any]] = []

    def others_first() -> None:
        _killed_helper(other_catalog, "copy_worker.delivered:3")
        helped.append(
            pool.submit(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
        )
        time.sleep(5)

    with ThreadPoolExecutor() as pool, Pipeline.open(other_catalog, remote=connect) as pipeline:
        with happening("init.part_done", others_first):
            report = pipeline.init()
        assert json.loads(helped[0].result().stdout)["ranges"] > 0, helped[0].result()
        assert sum(report.machines.values()) == report.tables[0].ranges > 10, report
        assert_equal(database, pipeline, ["big"])
        database.execute("UPDATE big SET t = 'changed' WHERE id < 10")
        assert pipeline.sync().changes == 9
        assert_equal(database, pipeline, ["big"])


PAUSES = (
    "import time, slotlake.decoder.copy.table as t; taken = t.take_snapshot; "
    "t.take_snapshot = lambda *a: taken(*a) or time.sleep(0.1); "
)
MACHINES = (  # that have claimed a range
    "SELECT count(DISTINCT pid) FROM pg_stat_activity JOIN pg_locks USING (pid) WHERE locktype = 'advisory' "
    f"AND datname = current_database() AND application_name = '{APPLICATION_NAME}'"
)
READING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() "
    "AND (query LIKE 'COPY%' OR query = 'SET LOCAL row_security = off')"
)


@LONG
def test_all_machines_together_have_so_many_connections(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both want four connections for ranges, and they have three."""
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)
    waiting = partial(_take_snapshot_once_the_helper_is_here, database, Event())
    monkeypatch.setattr("slotlake.decoder.copy.table.take_snapshot", waiting)
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, t text); ALTER TABLE big ALTER t SET STORAGE EXTERNAL;"
        "INSERT INTO big SELECT i, repeat(md5(i::text), 8) FROM generate_series(1, 6000) i"
    )
    shared, limits = f"state: {{path: '{tmp_path}/shared'}}\n", "copy_workers: 4\ncopy_connections: 3\n"
    file = pipeline_file(tmp_path / "files", database, ["big"], extra=shared, source=limits)
    code = f"{PAUSES}import sys; sys.argv[1:] = ['copy-worker', {str(file)!r}, '--json']; {COMMAND}"
    counts: list[int] = []
    with ThreadPoolExecutor() as pool, Pipeline.open(file, remote=connect) as pipeline:
        helper = pool.submit(subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True)
        made = pool.submit(pipeline.init)
        with database.connect() as connection:
            while not made.done():
                counts += [row[0] for row in connection.execute(READING.encode())]
                time.sleep(0.01)
        report, helped = made.result(), json.loads(helper.result().stdout)
        assert helped["ranges"] > 0, "both have copied"
        assert len(report.machines) <= 1 < report.tables[0].ranges
        assert max(counts) == 3, Counter(counts)
        assert_equal(database, pipeline, ["big"])


def _take_snapshot_once_the_helper_is_here(database: Database, here: Event, *arguments: Any) -> None:
    take_snapshot(*arguments)
    give_up = time.monotonic() + 120
    while not here.is_set():
        assert time.monotonic() < give_up
        if database.execute(MACHINES) == [(2,)]:
            here.set()
        time.sleep(0.2)
    time.sleep(0.2)


SLOW = (
    "import time, slotlake.decoder.copy.parts as parts; from slotlake.decoder.copy.table import CopyCrew; "
    "parts.PART_BYTES = 20000; copied = CopyCrew._copy; "
    "CopyCrew._copy = lambda crew, job: time.sleep(0.3) or copied(crew, job)"
)


PARTITIONED = "partition_by: ['bucket(4, id)']"


@LONG
@needs_namespaces
def test_machines_without_a_shared_disk(
    database: Database,
    pg: Any,
    object_store: LocalObjectStore,
    connect: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One helper and the machine that runs `init` are killed in the middle, while applications write."""
    monkeypatch.setattr("slotlake.infra.config.pipeline_file._cache_folder", lambda: tmp_path / "cache")
    fill(database)
    with fresh_database(pg) as catalog:
        place = (database, catalog, object_store, tmp_path.name)
        file = shared_file(tmp_path / "files", *place, tables=[], source="copy_workers: 1")
        file.write_text(file.read_text().replace("tables:\n", f"tables:\n  public.big: {{{PARTITIONED}}}\n"))
        one, two, three, four = (
            Worker(file, {"SLOTLAKE_SPARK_REMOTE": connect}, SLOW, name)
            for name in ("one", "two", "three", "four")
        )
        killed = two.begin("copy-worker", "--wait", "200", failpoint="init.mid_copy:3")
        helper = three.begin("copy-worker", "--wait", "200", "--json")
        assert one.run("init", failpoint="init.part_done:12").returncode == -9
        assert ended(killed).returncode == -9
        _write(database, 1)
        seen = four.step("status")
        assert seen["state"] == "initial copy unfinished", seen
        with Pipeline.open(file, remote=connect) as here:
            record = CopyRecord(here.file.state_dir / "copying", shared=True)
            noted = sum(len(table.files) for table in record.tables.values())
        again = four.begin("init", "--json")
        for number in range(2, 5):
            time.sleep(1)
            _write(database, number)
        made, helped = ended(again), ended(helper)
        assert (made.returncode, helped.returncode) == (0, 0), (made.stderr, helped.stderr)
        report = json.loads(made.stdout)
        assert set(report["machines"]) == {"three", "four"}, report
        kept = sum(table["ranges_kept"] for table in report["tables"])
        assert kept >= noted >= 12, (kept, noted)
        assert json.loads(helped.stdout)["ranges"] > report["machines"]["three"] > 0
        with Pipeline.open(file, remote=connect) as here:
            here.sync()
            assert_equal(database, here, TABLES)
            assert here.verify().equal
            assert here.state is not None
            assert not [each for each in lake_files.files(here.state.root) if "copying" in each.location]
            _require_no_spare_files(here)
            here.drop(lake=True)


@LONG
def test_in_a_store_with_a_partitioned_table(
    database: Database,
    object_store: LocalObjectStore,
    pg: Any,
    connect: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The machine that runs `init` ends in the middle; the next one keeps the ranges of the helper too."""
    monkeypatch.setattr("slotlake.infra.config.pipeline_file._cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)
    database.execute(
        "CREATE TABLE big (id int PRIMARY KEY, v int, t text);"
        "INSERT INTO big SELECT i, i, repeat(md5(i::text), 4) FROM generate_series(1, 9000) i"
    )

    def ends_after_others() -> None:
        helped.append(pool.submit(_help, file))
        record = CopyRecord(first.file.state_dir / "copying", shared=True)
        deadline = time.monotonic() + 180
        while sum(len(table.files) for table in record.tables.values()) < 5:
            assert time.monotonic() < deadline
            time.sleep(0.2)
        database.execute("UPDATE big SET v = -v, id = id + 50000 WHERE id % 100 = 7")
        raise Killed

    helped: list[Future[CopyWorkerReport]] = []
    with fresh_database(pg) as catalog, ThreadPoolExecutor() as pool:
        place = (database, catalog, object_store, tmp_path.name)
        file = shared_file(tmp_path / "files", *place, tables=["big"], source="copy_workers: 1")
        file.write_text(file.read_text().replace("  'big': {}", f"  'big': {{{PARTITIONED}}}"))
        killed = pytest.raises(Killed)
        with (
            Pipeline.open(file, remote=connect) as first,
            happening("init.part_done", ends_after_others),
            killed,
        ):
            first.init()
        with Pipeline.open(file, remote=connect) as second:
            [big] = second.init().tables
            assert big.ranges > 8
            assert big.ranges_kept >= 5, big
            assert helped[0].result().ranges >= 4
            assert_equal(database, second, ["big"])
            stored = [file.location for file in lake_files.files(second.lake.root)]
            assert [each for each in stored if "/big/data/" in each and "id_bucket" not in each]
            assert not [each for each in stored if "/big/ranges/" in each or "/big/data-again/" in each]
            second.drop(lake=True)


def _write(database: Database, number: int) -> None:
    """Few rows, so that no table is copied again: changed, moved, with another key, gone, and new ones."""
    database.execute(
        f"UPDATE big SET v = v + 1, t = 'short' WHERE id % 97 = {number};"
        f"UPDATE big SET id = id + 100000 WHERE id % 1009 = {number};"
        f"DELETE FROM big WHERE id % 211 = {number};"
        f"INSERT INTO big SELECT {10000 * number} + i, -{number}, 'new' FROM generate_series(0, 30) i;"
        f"UPDATE odd SET t = 'changed {number}' WHERE n > 399 AND n < 399 + {number};"
        f"UPDATE parts SET id = id + 5000 WHERE id BETWEEN {100 * number} AND {100 * number + 20};"
        f"INSERT INTO log VALUES ({number}, 'late')"
    )


def _require_no_spare_files(pipeline: Pipeline) -> None:
    """Each range that was copied is in one file of the table's folder."""
    stored = [file.location for file in lake_files.files(pipeline.lake.root)]
    copied = [each for each in stored if each.name.startswith("copy-")]
    ranges = Counter((each.parent, each.name[:10]) for each in copied)
    assert ranges
    assert not [each for each in stored if "/big/ranges/" in each or "/big/data-again/" in each]
    assert set(ranges.values()) == {1}, ranges


def _paths(folder: Path) -> list[Path]:
    return sorted(files_folder(folder / "files").rglob("data/copy-*.parquet"))


def _files(folder: Path, part: str) -> list[str]:
    return [path.name for path in _paths(folder) if part in path.name]


def test_a_pipeline_of_one_machine_has_no_helpers(database: Database, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, database, ["t"])
    with Pipeline.open(file) as pipeline, pytest.raises(PipelineFileError, match="a folder of one machine"):
        pipeline.help_copy(wait_seconds=0)
