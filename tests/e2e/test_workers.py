"""Workers come and go: each step on a machine that has no file of the others; what they share, they find.

Source, catalog and object store are all that is shared.  The pipeline file is read-only.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import BusyError, PipelineFileError, SlotBusyError
from slotlake.decoder.failpoints import happening
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.opened.server_lock import LockLostError
from slotlake.infra.state.notes import NOTES
from slotlake.infra.state.stored_state import StoredState
from slotlake.spark import lake_files
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName
from slotlake.spark.storage.settings import StorageSettings
from tests.catalogs import postgres_uri
from tests.conftest import Database, fresh_database
from tests.e2e.joins import big
from tests.e2e.oracle import assert_equal, differences, pipeline_file
from tests.storage import moved_to
from tests.workers import Worker, needs_namespaces

pytestmark = [pytest.mark.timeout(900), pytest.mark.server]
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
TABLES = ["accounts", "history"]


@pytest.fixture
def catalog(pg: Any) -> Iterator[Database]:
    with fresh_database(pg) as made:
        yield made


@pytest.fixture
def shop(
    database: Database,
    catalog: Database,
    object_store: LocalObjectStore,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """A pipeline whose warehouse, change log and state are in a bucket, and its catalog in PostgreSQL."""
    monkeypatch.setattr("slotlake.infra.config.pipeline_file._cache_folder", lambda: tmp_path / "cache")
    database.execute(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL);"
        "CREATE TABLE history (account int, delta int);"
        "INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 3000) g"
    )
    return shared_file(tmp_path / "files", database, catalog, object_store, tmp_path.name)


def shared_file(
    folder: Path, database: Database, catalog: Database, store: LocalObjectStore, place: str, **options: Any
) -> Path:
    """A pipeline file whose warehouse, change log and state are in a bucket."""
    prefix = f"{store.warehouse}-state/{place}"
    shared = f"changelog: {{path: '{prefix}'}}\nstate: {{path: '{prefix}'}}\n"
    file = pipeline_file(
        folder,
        database,
        options.pop("tables", TABLES),
        uri=postgres_uri(catalog),
        extra=shared + options.pop("extra", ""),
        source="two_phase: true\n" + options.pop("source", ""),
        **options,
    )
    moved_to(store, file)
    return file


@pytest.fixture
def worker(shop: Path, connect: str) -> Worker:
    return Worker(shop, {"SLOTLAKE_SPARK_REMOTE": connect})


def _change(database: Database, seed: int) -> None:
    database.execute(
        f"UPDATE accounts SET balance = balance + {seed} WHERE id % 7 = {seed % 7};"
        f"INSERT INTO history SELECT id, {seed} FROM accounts WHERE id % 7 = {seed % 7};"
        f"UPDATE accounts SET id = id + 100000 WHERE id = {seed};"
        f"DELETE FROM accounts WHERE id = {1000 + seed}"
    )


def _state_objects(pipeline: Pipeline) -> set[str]:
    assert pipeline.state is not None
    root = pipeline.state.root
    return {file.location.removeprefix(f"{root}/") for file in lake_files.files(root)}


@needs_namespaces
def test_each_step_of_a_batch_on_a_worker_of_its_own(
    database: Database, shop: Path, worker: Worker, connect: str
) -> None:
    """And one that comes while another works learns who that is."""
    with Pipeline.open(shop, remote=connect) as here:
        here.init()
        assert {"made.json", "owner.json", "tables.json"} <= _state_objects(here)
        assert not [name for name in _state_objects(here) if name.startswith("changelog")]
        _change(database, 1)
        batch = here.pull().batch
        with here.exclusively(step="verify"):
            refused = worker.run("sync")
        assert refused.returncode == BusyError.exit_code, refused.stderr
        host = re.escape(socket.gethostname())
        who = rf"process {os.getpid()} on {host}, since [-\d]+ [:\d]+ UTC, step verify"
        assert re.search(who, " ".join(refused.stderr.split())), refused.stderr
        worker.step("apply", batch)
        here.publish(str(batch))
        here.confirm(batch)
        assert_equal(database, here, TABLES)
        assert [path.name for path in shop.parent.iterdir()] == [shop.name], "nothing next to the file"


@LONG
@needs_namespaces
def test_what_one_machine_noted_of_a_batch_another_knows(
    database: Database, shop: Path, worker: Worker, connect: str
) -> None:
    """Staged here and published there, refused by a gate there, recovered there as was planned elsewhere."""
    suite = {"type": "expect_column_values_to_be_between", "kwargs": {"column": "balance", "min_value": 0}}
    (shop.parent / "sums.json").write_text(json.dumps({"name": "sums", "expectations": [suite]}))
    chosen = "'accounts': {mode: history, expectations: [{suite: sums.json, gate: true}]}"
    shop.write_text(shop.read_text().replace("'accounts': {}", chosen))
    other = Worker(shop, {"SLOTLAKE_SPARK_REMOTE": connect}, name="other")
    with Pipeline.open(shop, remote=connect) as here:
        here.init()
        _change(database, 1)
        batch = str(here.pull().batch)
        worker.step("apply", batch)
        with open_catalog(here.lake) as opened:
            opened.drop([LakeName("shop", "accounts__history")])
    assert "accounts__history was dropped" in str(other.step("publish", batch)["warnings"])
    worker.step("confirm", batch)
    database.execute("UPDATE accounts SET balance = -1 WHERE id = 5")
    refused = worker.step("pull")["batch"]
    worker.step("apply", refused)
    with pytest.raises(AssertionError, match="GateError"):
        other.step("publish", refused)
    database.execute("UPDATE accounts SET balance = 1 WHERE id = 5")
    longer = worker.step("pull")["batch"]
    assert longer.partition("-")[0] == refused.partition("-")[0] != longer
    for step in ("apply", "publish", "confirm"):
        worker.step(step, longer)
    with Pipeline.open(shop, remote=connect) as here:
        assert_equal(database, here, TABLES)
        database.execute(f"SELECT pg_drop_replication_slot('{here.source.slot}')")
        _change(database, 2)
    plan = worker.step("plan_recovery")
    assert other.step("recover", plan["plan_name"])["carried_out"]
    with Pipeline.open(shop, remote=connect) as here:
        assert_equal(database, here, TABLES)


def test_every_note_moves_into_the_bucket(object_store: LocalObjectStore, tmp_path: Path) -> None:
    lake = LakeSettings("lake", "sqlite://", object_store.warehouse, "shop", storage=_storage(object_store))
    state = StoredState.of(lake, f"{object_store.warehouse}-state/{tmp_path.name}", "shop")
    names = [note.name for note in NOTES if note.moves]
    for name in names:
        (tmp_path / name).write_text(json.dumps({"note": name}))
    state.refresh()
    state.take_over(tmp_path)
    assert {name: state.read_now(name) for name in names} == {
        name: json.dumps({"note": name}).encode() for name in names
    }
    assert not [name for name in names if (tmp_path / name).exists()]


@LONG
@needs_namespaces
def test_each_step_killed_and_gone_on_with_elsewhere(
    database: Database, shop: Path, worker: Worker, connect: str
) -> None:
    worker.step("bootstrap")
    kills = {
        "pull": ("pull.mid", "pull.prepared", "changelog.stored"),
        "apply": ("apply.mid_merge", "apply.between_tables"),
        "publish": ("publish.before_swap", "publish.after_swap"),
    }
    with Pipeline.open(shop, remote=connect) as here:
        for seed in range(1, 4):
            _change(database, seed)
            held_back = f"UPDATE accounts SET balance = -{seed} WHERE id = {2000 + seed}"
            database.execute(f"BEGIN; {held_back}; PREPARE TRANSACTION 'p{seed}'")
            batch: list[str] = []
            for step, failpoints in kills.items():
                if seed <= len(failpoints):
                    worker.step(step, *batch, failpoint=failpoints[seed - 1])
                report = worker.step(step, *batch)
                batch = [report["batch"]]
            worker.step("confirm", *batch)
            database.execute(f"COMMIT PREPARED 'p{seed}'")
            worker.run("sync")
            assert_equal(database, here, TABLES)
        assert worker.step("verify")["equal"]
        assert worker.step("maintain")["all_tables"]
    assert [path.name for path in shop.parent.iterdir()] == [shop.name]


def test_a_run_that_loses_its_lock_publishes_nothing(
    database: Database, catalog: Database, shop: Path, connect: str
) -> None:
    with Pipeline.open(shop, remote=connect) as here:
        here.init()
        _change(database, 1)
        before = here.position()
        lost_in_sync = pytest.raises(LockLostError, match="in the middle of sync")
        with happening("publish.before_swap", lambda: _end_locks(catalog)), lost_in_sync as lost:
            here.sync()
        assert lost.value.retryable
        assert here.position() == before
        here.sync()
        _change(database, 2)
        with happening("pull.renamed", lambda: _end_locks(catalog)), pytest.raises(LockLostError):
            here.pull()  # not even the batch is brought to the store
        assert here.stored is not None
        stored = here.stored.sizes()[0]
        here.sync()
        assert here.stored.sizes()[0] == stored + 1
        assert_equal(database, here, TABLES)


def _end_locks(catalog: Database) -> None:
    [(ended,)] = catalog.execute(
        "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity "
        "WHERE application_name = 'slotlake lock' AND datname = current_database()"
    )
    assert ended == 1


@LONG
@needs_namespaces
def test_two_machines_run_and_one_stands_by(
    database: Database, catalog: Database, shop: Path, connect: str, tmp_path: Path
) -> None:
    """It says whom it waits for, and goes on when that one is killed; or when the lock's session is lost."""
    environment = {"SLOTLAKE_SPARK_REMOTE": connect}
    one, two = (Worker(shop, environment, name=name) for name in ("one", "two"))
    assert one.run("init").returncode == 0
    logs = [tmp_path / "one.log", tmp_path / "two.log"]
    with Pipeline.open(shop, remote=connect) as here, ExitStack() as machines:
        first = machines.enter_context(_running(one, logs[0]))
        _change(database, 1)
        _until(lambda: not differences(database, here, TABLES), "the first machine syncs", logs)
        second = machines.enter_context(_running(two, logs[1]))
        _until(lambda: "this run stands by" in logs[1].read_text(), "the second stands by", logs)
        assert re.search(r"\(process \d+ on one, since .*\): this run stands by", logs[1].read_text())
        _change(database, 2)
        _until(lambda: not differences(database, here, TABLES), "the first machine goes on", logs)
        with pytest.raises(SlotBusyError, match="the slot is in use") as busy:
            here.verify()
        assert "the standing puller is process" in busy.value.where
        first.kill()
        began = time.monotonic()
        _change(database, 3)
        _until(lambda: not differences(database, here, TABLES), "the second takes over", logs)
        assert time.monotonic() - began < 30
        assert "this run goes on" in logs[1].read_text()
        machines.enter_context(_running(one, tmp_path / "again.log"))
        _until(lambda: "stands by" in (tmp_path / "again.log").read_text(), "the first one is back", logs)
        ended = (
            "SELECT count(pg_terminate_backend(pid, 10000)) FROM pg_stat_activity WHERE application_name ="
        )
        assert catalog.execute(f"{ended} 'slotlake lock' AND datname = current_database()")[0][0] >= 1
        for seed in range(4, 7):
            _change(database, seed)
            _until(lambda: not differences(database, here, TABLES), "one of them goes on", logs)
        assert second.poll() is None
    with Pipeline.open(shop, remote=connect) as here:
        assert here.verify().equal


@contextmanager
def _running(worker: Worker, log: Path) -> Iterator[subprocess.Popen[str]]:
    code = "import sys; from slotlake.infra.cli.main import main; sys.exit(main())"
    program = [sys.executable, "-P", "-u", "-c", code, "run", str(worker.file)]
    with worker.popen(program, {}, log) as process:
        try:
            yield process
        finally:
            process.kill()


def _until(true: Callable[[], bool], what: str, logs: Sequence[Path]) -> None:
    deadline = time.monotonic() + 120
    while not true():
        if time.monotonic() > deadline:
            said = [log.read_text()[-3000:] for log in logs if log.exists()]
            pytest.fail("\n".join([f"not reached: {what}", *said]))
        time.sleep(0.1)


SMALL_PARTS = "import slotlake.decoder.copy.parts as parts; parts.PART_BYTES = 50000"


@LONG
@needs_namespaces
def test_copies_go_on_on_other_workers(
    database: Database,
    catalog: Database,
    object_store: LocalObjectStore,
    connect: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The initial copy, that of a table that joins over several syncs, and a drop."""
    monkeypatch.setattr("slotlake.infra.config.pipeline_file._cache_folder", lambda: tmp_path / "cache")
    database.execute(
        "CREATE TABLE first (id int PRIMARY KEY, t text); ALTER TABLE first ALTER t SET STORAGE EXTERNAL;"
        "INSERT INTO first SELECT g, repeat(md5(g::text), 10) FROM generate_series(1, 4000) g"
    )
    slow = "copy_seconds_per_sync: 0.001\ncopy_workers: 1\n"
    file = shared_file(
        tmp_path / "files", database, catalog, object_store, tmp_path.name, tables=["first"], source=slow
    )
    worker = Worker(file, {"SLOTLAKE_SPARK_REMOTE": connect}, SMALL_PARTS)
    assert worker.run("init", failpoint="init.part_done:4").returncode == -9
    seen = worker.step("status")
    assert seen["state"] == "initial copy unfinished", seen
    assert seen["copy"]["process"] is None
    [first] = worker.step("bootstrap")["tables"]
    assert first["ranges_kept"] >= 3, first
    big(database, rows=4000)
    kept = 0
    for number, failpoint in enumerate(["init.part_done", "join.noted", "", "publish.after_swap", "", ""], 1):
        assert worker.run("sync", failpoint=failpoint).returncode == (-9 if failpoint else 0)
        database.execute(
            f"UPDATE big SET v = v + 1 WHERE id % 40 = {number}; DELETE FROM big WHERE id = {number}"
        )
        states = {table["table"]: table for table in worker.step("status")["tables"]}
        ranges = int((states["public.big"]["copied"] or {"ranges_done": 0})["ranges_done"])
        assert ranges >= kept
        kept = ranges
    assert kept >= 3
    with Pipeline.open(file, remote=connect) as here:
        assert any(name.startswith("joining/ranges.jsonl/") for name in _state_objects(here))
        for _ in range(60):
            if "public.big" in here.sync().added_tables:
                break
        assert_equal(database, here, ["first", "big"])
        assert not any(name.startswith("joining/") for name in _state_objects(here))
    assert worker.run("drop", "--lake", "--yes", failpoint="drop.source").returncode == -9
    done = worker.run("drop", "--lake", "--yes")
    assert done.returncode == 0, done.stderr
    assert not database.execute("SELECT 1 FROM pg_publication")
    assert not database.execute("SELECT 1 FROM pg_replication_slots WHERE database = current_database()")


def test_a_late_run_cannot_add_to_a_record(object_store: LocalObjectStore, tmp_path: Path) -> None:
    """And what a killed run has left of a record is no part of the next one."""
    lake = LakeSettings("lake", "sqlite://", object_store.warehouse, "shop", storage=_storage(object_store))
    path = f"{object_store.warehouse}-state/{tmp_path.name}"
    late, other = (StoredState.of(lake, path, "shop") for _ in range(2))
    late.append("copying/ranges.jsonl", b"1\n")
    other.append("copying/ranges.jsonl", b"2\n")
    other.write("copying/keys", b"k")
    with pytest.raises(BusyError, match="another machine goes on with this copy"):
        late.append("copying/ranges.jsonl", b"3\n")
    late.refresh()
    assert late.lines("copying/ranges.jsonl") == b"1\n2\n"
    late.read("copying/keys")
    other.write("copying/keys", b"other")
    late.refresh()
    assert late.read("copying/keys") == b"other"
    lake_files.remove([late.root / "copying/ranges.jsonl/00000000"])  # a killed run came as far as that
    late.refresh()
    assert late.lines("copying/ranges.jsonl") == b""
    late.append("copying/ranges.jsonl", b"4\n")
    other.refresh()
    assert other.lines("copying/ranges.jsonl") == b"4\n"
    other.remove_folder("copying")
    late.refresh()
    assert late.lines("copying/ranges.jsonl") == b""
    assert late.read("copying/keys") is None


def _storage(store: LocalObjectStore) -> StorageSettings:
    return StorageSettings(**store.storage)


@LONG
def test_state_of_a_folder_moves_into_the_bucket(database: Database, shop: Path, connect: str) -> None:
    text = shop.read_text()
    [line] = [line for line in text.splitlines(keepends=True) if line.startswith("state:")]
    [log] = [line for line in text.splitlines(keepends=True) if line.startswith("changelog:")]
    shop.write_text(text.replace(line, "").replace(log, ""))
    with Pipeline.open(shop, remote=connect) as before:
        before.init()
        database.execute("BEGIN; UPDATE accounts SET balance = -1 WHERE id = 77; PREPARE TRANSACTION 'moved'")
        before.sync()
        assert (before.file.state_dir / "made.json").is_file()
    shop.write_text(text.replace(line, f"state: {{path: {shop.parent}/shared}}\n").replace(log, ""))
    with (
        Pipeline.open(shop, remote=connect) as folder,
        pytest.raises(PipelineFileError, match="is next to the pipeline file still"),
    ):
        folder.sync()
    shop.write_text(text)
    with Pipeline.open(shop, remote=connect) as here:
        _change(database, 1)
        here.sync()
        database.execute("COMMIT PREPARED 'moved'")
        here.sync()
        assert_equal(database, here, TABLES)
        assert {"made.json", "owner.json"} <= _state_objects(here)
        assert not (here.file.local_state_dir / "made.json").exists()
        here.drop()
    assert not database.execute("SELECT 1 FROM pg_publication"), "it knows that it made the publication"


@LONG
def test_another_pipeline_of_the_name_is_refused(
    database: Database,
    catalog: Database,
    shop: Path,
    connect: str,
    object_store: LocalObjectStore,
    tmp_path: Path,
) -> None:
    other = shared_file(tmp_path / "other", database, catalog, object_store, tmp_path.name)
    other.write_text(other.read_text().replace("slot: slotlake_", "slot: other_"))
    with Pipeline.open(shop, remote=connect) as here, Pipeline.open(other, remote=connect) as there:
        here.init()
        with pytest.raises(PipelineFileError, match="the state of another pipeline of the name 'shop': slot"):
            there.init()
        here.drop(lake=True)
        there.init()
        assert there.verify().equal
        there.drop(lake=True)


@pytest.mark.timeout(60)
def test_notes_that_another_machine_wrote_are_read_without_a_look_before(
    object_store: LocalObjectStore, tmp_path: Path
) -> None:
    """The threads that read them do not wait for the one that waits for them."""
    lake = LakeSettings("lake", "sqlite://", object_store.warehouse, "shop", storage=_storage(object_store))
    path = f"{object_store.warehouse}-state/{tmp_path.name}"
    assert StoredState.of(lake, path, "shop").write_once("copying/done/a/00000000", b"1")
    assert StoredState.of(lake, path, "shop").read_several(["copying/done/a/00000000"]) == [b"1"]
