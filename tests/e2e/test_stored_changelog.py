"""A change log in a bucket: the steps of a batch on different machines, kills in between, removal."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import ChangeLogError, PipelineFileError
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.state.stored_changelog import StoredChangeLog
from slotlake.spark import lake_files
from slotlake.spark.storage import uploads
from slotlake.spark.storage.base import StoreUnavailableError
from slotlake.spark.storage.location import Location
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.e2e.test_crash import run_cli
from tests.storage import moved_to

pytestmark = [pytest.mark.timeout(900), pytest.mark.server]
TABLES = ["accounts", "history"]
Machines = Callable[[str], Pipeline]


@pytest.fixture
def machine(
    database: Database, object_store: LocalObjectStore, connect: str, tmp_path: Path
) -> Callable[[str], Path]:
    """The pipeline file on a machine, which shares source, catalog and bucket with others, no more."""
    database.execute(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL);"
        "CREATE TABLE history (account int, delta int);"
        "INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 3000) g"
    )
    first = tmp_path / "a"
    more = f"changelog: {{path: '{object_store.warehouse}-log/{tmp_path.name}'}}\n"
    file = pipeline_file(first, database, TABLES, extra=more, source="two_phase: true")
    moved_to(object_store, file)

    def on(name: str) -> Path:
        other = tmp_path / name / file.name
        other.parent.mkdir(exist_ok=True)
        if other != file:
            shutil.copy(file, other)
        return other

    return on


def _change(database: Database, seed: int) -> None:
    database.execute(
        f"UPDATE accounts SET balance = balance + {seed} WHERE id % 7 = {seed % 7};"
        f"INSERT INTO history SELECT id, {seed} FROM accounts WHERE id % 7 = {seed % 7};"
        f"UPDATE accounts SET id = id + 100000 WHERE id = {seed};"
        f"DELETE FROM accounts WHERE id = {1000 + seed}"
    )


def _stored_root(pipeline: Pipeline) -> Location:
    assert pipeline.stored is not None
    return pipeline.stored.root


def _objects(pipeline: Pipeline) -> set[str]:
    root = _stored_root(pipeline)
    return {file.location.removeprefix(f"{root}/") for file in lake_files.files(root)}


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_each_step_on_a_machine_of_its_own(
    database: Database, machine: Callable[[str], Path], connect: str
) -> None:
    with (
        Pipeline.open(machine("a"), remote=connect) as a,
        Pipeline.open(machine("b"), remote=connect) as b,
        Pipeline.open(machine("c"), remote=connect) as c,
    ):
        a.init()
        for seed in range(1, 4):
            _change(database, seed)
            if seed == 2:  # prepared on one machine, committed on another, with other columns in between
                database.execute("BEGIN; UPDATE accounts SET balance = -1 WHERE id = 77; "
                                 "PREPARE TRANSACTION 'stored'")  # fmt: skip
                database.execute("ALTER TABLE history ADD COLUMN note text")
                database.execute("INSERT INTO history VALUES (1, 2, 'new')")
            if seed == 3:
                database.execute("COMMIT PREPARED 'stored'")
            pulled = (a, b, c)[seed % 3].pull()
            assert pulled.batch is not None
            (b, c, a)[seed % 3].apply(pulled.batch)
            (c, a, b)[seed % 3].publish(pulled.batch)
            (b, b, a)[seed % 3].confirm(pulled.batch)
            if seed != 2:
                assert_equal(database, c, TABLES)
        assert b.verify().equal
        replayed = c.replay("again")  # what other machines have pulled
        assert replayed.archived >= 3
        status = c.status()
        assert status.changelog_batches >= 3
        assert status.changelog_bytes > 1000
        assert not [name for name in _objects(a) if name.startswith("prepared/")]
        c.drop(lake=True)
        assert _objects(a) == set()


KILLED_AT = ["pull.mid", "pull.prepared", "pull.renamed", "changelog.uploaded", "changelog.stored",
             "apply.mid_merge", "publish.before_swap", "publish.after_swap"]  # fmt: skip


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_killed_on_one_machine_and_gone_on_with_on_another(
    database: Database, machine: Callable[[str], Path], connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotlake.infra.state.stored_changelog._ARCHIVE_BYTES", 2000)

    def synced(name: str) -> None:  # each in a process of its own would keep no connection to the slot, too
        with Pipeline.open(machine(name), remote=connect) as pipeline:
            pipeline.sync()

    with Pipeline.open(machine("a"), remote=connect) as a:
        a.init()
    for seed, failpoint in enumerate(KILLED_AT, 1):
        _change(database, seed)
        database.execute(
            f"BEGIN; UPDATE accounts SET balance = -{seed} WHERE id = {2000 + seed};"
            f"PREPARE TRANSACTION 'p{seed}'"
        )
        killed = run_cli(connect, ["sync", str(machine("a" if seed % 2 else "b"))], failpoint)
        assert killed.returncode == -9, (failpoint, killed.stderr)
        _change(database, seed + 20)
        synced("b" if seed % 2 else "a")
        database.execute(f"COMMIT PREPARED 'p{seed}'")
        synced("a" if seed % 3 else "b")
        with Pipeline.open(machine("c"), remote=connect) as c:
            assert_equal(database, c, TABLES)
            assert seed > 1 or any(name.startswith("batch-files/") for name in _objects(c))
    with Pipeline.open(machine("a"), remote=connect) as a:
        assert a.verify().equal


def test_old_batches_leave_the_bucket_and_damaged_ones_are_pulled_again(
    database: Database,
    machine: Callable[[str], Path],
    connect: str,
    object_store: LocalObjectStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = machine("a")
    with Pipeline.open(file, remote=connect) as a:
        a.init()
        _change(database, 1)
        a.sync()
        lake_files.write_new(_stored_root(a) / "batch-files" / "0123" / "killed.parquet", b"1")
        _change(database, 2)
        pulled = a.pull()
        folder = Path(object_store.folder / "objects" / "lake")
        [stored] = folder.rglob(f"batches/{pulled.batch}")
        stored.write_bytes(b"damaged")
    with Pipeline.open(machine("b"), remote=connect) as b:
        with pytest.raises(ChangeLogError, match="damaged"):
            b.sync()
        b.recover(carry_out=True)
        b.sync()
        assert_equal(database, b, TABLES)
    settings, root = a.lake.storage, a.lake.root
    signer = uploads._signer(root, settings)
    assert signer is not None
    signer.ask("POST", f"{root.key}/shop/accounts/data/killed", {"uploads": ""})
    with Pipeline.open(file, remote=connect) as a:
        assert a.maintain().ended_uploads == 0
        later = SimpleNamespace(time=lambda: time.time() + 90_000, monotonic=time.monotonic)
        monkeypatch.setattr("slotlake.infra.maintain.maintenance.time", later)
        assert a.maintain().ended_uploads == 1
    text = file.read_text()
    file.write_text(text.replace("changelog: {", "changelog: {keep_days: 0, "))
    with Pipeline.open(file, remote=connect) as a:
        _change(database, 3)
        a.sync()
        a.sync()
        assert len([name for name in _objects(a) if name.startswith("batches/")]) <= 1
        assert not [name for name in _objects(a) if name.startswith("batch-files/")]
        assert_equal(database, a, TABLES)


def test_a_change_log_in_a_folder_moves_into_the_bucket(
    database: Database, machine: Callable[[str], Path], connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = machine("a")
    text = file.read_text()
    [line] = [line for line in text.splitlines(keepends=True) if line.startswith("changelog:")]
    file.write_text(text.replace(line, ""))
    with Pipeline.open(file, remote=connect) as a:
        a.init()
        database.execute("BEGIN; UPDATE accounts SET balance = -1 WHERE id = 77; PREPARE TRANSACTION 'moved'")
        a.sync()
    file.write_text(text)
    with Pipeline.open(file, remote=connect) as a:
        a.sync()
    with Pipeline.open(machine("b"), remote=connect) as b:
        b.replay("again")
        database.execute("COMMIT PREPARED 'moved'")
        b.sync()
        assert_equal(database, b, TABLES)
    file.write_text(text.replace(line, ""))  # and back again
    database.execute("BEGIN; UPDATE accounts SET balance = -2 WHERE id = 78; PREPARE TRANSACTION 'back'")
    with Pipeline.open(file, remote=connect) as a:
        a.sync()
    file.write_text(text)
    with Pipeline.open(file, remote=connect) as a:
        a.sync()
        away = StoreUnavailableError("the object store is away")
        monkeypatch.setattr(StoredChangeLog, "sizes", MagicMock(side_effect=away))
        assert a.status().changelog_batches > 0
    with Pipeline.open(machine("b"), remote=connect) as b:
        database.execute("COMMIT PREPARED 'back'")
        b.sync()
        assert_equal(database, b, TABLES)


def test_a_change_log_in_a_bucket_needs_a_warehouse_in_one(database: Database, tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, database, TABLES, extra="changelog: {path: 's3://lake/log'}\n")
    with pytest.raises(PipelineFileError, match="warehouse"):
        Pipeline.open(file)
