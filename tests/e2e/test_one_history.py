"""One history of all machines: whoever works, every machine's metrics, report and page have it, once."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import ChangeLogError
from slotlake.infra.airflow.histories import Histories
from slotlake.infra.cli.main import main
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.infra.state.free_notes import StoredNotes
from slotlake.infra.state.recorded import Recorded
from slotlake.infra.state.segments import StoredJournal, forget
from slotlake.infra.state.shared_journal import SharedJournal
from slotlake.infra.state.stored_state import StoredState
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage.settings import StorageSettings
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import pipeline_file
from tests.e2e.test_workers import TABLES, _change, _state_objects, shared_file
from tests.prometheus import families
from tests.workers import Worker, needs_namespaces

pytestmark = [pytest.mark.timeout(900), pytest.mark.server]


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
    monkeypatch.setattr("slotlake.infra.config.pipeline_file._cache_folder", lambda: tmp_path / "cache")
    _tables(database)
    return shared_file(tmp_path / "files", database, catalog, object_store, tmp_path.name)


def _tables(database: Database) -> None:
    database.execute(
        "CREATE TABLE accounts (id int PRIMARY KEY, balance int NOT NULL);"
        "CREATE TABLE history (account int, delta int);"
        "INSERT INTO accounts SELECT g, 0 FROM generate_series(1, 3000) g"
    )


def _numbers(text: str) -> Counter[str]:
    """The counters that say what was done, as Prometheus reads them."""
    named = re.compile(r"slotlake_(batches|copies|failures|verifications|step_seconds_count)")
    samples = [sample for family in families(text).values() for sample in family.samples]
    return Counter(
        {
            f"{sample.name} {''.join(v for k, v in sample.labels.items() if k != 'pipeline')}": sample.value
            for sample in samples
            if named.match(sample.name)
        }
    )


@needs_namespaces
@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_three_machines_and_one_history(
    database: Database,
    shop: Path,
    connect: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment = {"SLOTLAKE_SPARK_REMOTE": connect}
    one, two, three = (Worker(shop, environment, name=name) for name in ("one", "two", "three"))
    one.step("bootstrap")
    _change(database, 1)
    batch = one.step("pull")["batch"]
    for worker, step in ((two, "apply"), (one, "publish"), (two, "confirm")):
        worker.step(step, batch)
    _change(database, 2)
    assert two.run("sync").returncode == 0
    assert one.run("verify").returncode == 0
    with Pipeline.open(shop, remote=connect) as here, pytest.raises(ChangeLogError, match="has no batch"):
        here.apply(f"{1:016X}-{2:016X}")
    _one_process_and_its_requests(database, shop, connect, monkeypatch)
    expected = {
        "slotlake_batches_total ": 3,
        "slotlake_copies_total ": 2,
        "slotlake_failures_total ChangeLogError": 1,
        "slotlake_verifications_total equal": 1,
        **{f"slotlake_step_seconds_count {step}": 3 for step in ("pull", "apply", "publish", "confirm")},
    }
    seen = three.run("metrics")  # on a machine that has no file of the pipeline
    assert seen.returncode == 0, seen.stderr
    assert expected.items() <= _numbers(seen.stdout).items()
    assert expected.items() <= _numbers(one.run("metrics").stdout).items()
    capsys.readouterr()
    report = tmp_path / "report.html"
    assert main(["report", str(shop), "-o", str(report)]) == 0
    text = report.read_text()
    assert text.count('<td data-label="queryable at">') == 3
    assert "equal" in text
    assert "the change log has no batch" in text
    file = load_pipeline(shop)
    page = _page(file)
    assert page is not None
    assert (page.totals["batches"], len(page.batches), page.unread) == (3, 3, "")
    assert sum(each["changes"] for each in page.over_time(3600, 0.0)[0]) == page.totals["changes"]
    _a_store_that_is_away(shop, tmp_path)
    with Pipeline.open(shop, remote=connect) as here:
        assert [name for name in _state_objects(here) if name.startswith("journal/")]
        here.drop(lake=True)
    with Pipeline.open(shop, remote=connect) as here:
        assert not [name for name in _state_objects(here) if name.startswith("journal/")]
    assert _page(file) is None  # the page does not show it any more
    assert three.run("metrics").returncode == 0
    with Pipeline.open(shop, remote=connect) as here:
        assert not [name for name in _state_objects(here) if name.startswith("journal/")]


def _one_process_and_its_requests(
    database: Database, shop: Path, connect: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole sync notes by one request."""
    asked: Counter[str] = Counter()
    for name in ("listed", "read", "replace", "write_new", "remove"):
        method = getattr(StoredNotes, name)

        def counting(notes: StoredNotes, *arguments: Any, name: str = name, method: Any = method) -> Any:
            asked[name] += 1
            return method(notes, *arguments)

        monkeypatch.setattr(StoredNotes, name, counting)
    _change(database, 3)
    with Pipeline.open(shop, remote=connect) as here:
        monkeypatch.setattr("slotlake.infra.state.shared_journal.PAUSE_SECONDS", 3600.0)
        assert here.sync().changes
    monkeypatch.undo()
    monkeypatch.setattr(
        "slotlake.infra.config.pipeline_file._cache_folder", lambda: shop.parent.parent / "cache"
    )
    assert asked == {"replace": 1}


def _page(file: PipelineFile) -> Recorded | None:
    """What the page in the API server knows, which has no file of the pipeline either."""
    (known,) = Histories().recorded([file], 30.0)
    return known


def _a_store_that_is_away(shop: Path, folder: Path) -> None:
    """The page says it, at once."""
    text = re.sub(r'("endpoint": )"[^"]*"', r'\1"http://127.0.0.1:9"', shop.read_text())
    (folder / "away").mkdir()
    file = folder / "away" / shop.name
    file.write_text(text)
    histories, began = Histories(), time.monotonic()
    (known,) = histories.recorded([load_pipeline(file)], 0.1)
    assert time.monotonic() - began < 1
    assert known is not None
    assert known.unread


def test_many_machines_in_a_real_store(object_store: LocalObjectStore, tmp_path: Path) -> None:
    """Segments become a base, by two that do it at once, and each reader counts each batch once."""
    lake = LakeSettings(
        "lake",
        "sqlite://",
        object_store.warehouse,
        "shop",
        storage=StorageSettings(**object_store.storage),
    )
    place = f"{object_store.warehouse}-state/{tmp_path.name}"

    def notes() -> StoredNotes:
        return StoredState.of(lake, place, "shop").free

    reader, moment = StoredJournal(), time.time()
    for number in range(60):
        one = notes()
        one.known = lambda: list(notes().listed())  # type: ignore[method-assign]
        journal = SharedJournal(one)
        facts = {"transactions": 1, "changes": 5, "bytes": 9, "last_commit": moment, "tables": {}}
        part = {"batch": f"b-{number}", "steps": {"pull": 0.5, "confirm": 0.1}, "first_commit": moment}
        journal.add_part({**facts, **part, "time": moment + number})
        if number == 40:
            with ThreadPoolExecutor(2) as pool:
                list(pool.map(lambda journal: journal.end(), [journal, SharedJournal(one)]))
        journal.end()
        if number % 10 == 9:
            assert reader.read(notes()).totals["batches"] == number + 1
    assert StoredJournal().read(notes()).totals["batches"] == 60
    names = [name for name in notes().listed() if name.startswith("journal/")]
    assert sum("base" in name for name in names) == 1
    assert len(names) < 25
    forget(notes())
    assert not notes().listed()


def test_machines_that_share_a_folder(
    database: Database, session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As NFS does: the state folder is the same one, and so is the journal."""
    _tables(database)
    shared = f"state: {{path: '{tmp_path}/shared'}}\n"
    first = pipeline_file(tmp_path / "one", database, TABLES, extra=shared)
    files = [first]
    for name in ("two", "three"):
        (tmp_path / name).mkdir()
        files.append(tmp_path / name / first.name)
        files[-1].write_text(first.read_text())
    with Pipeline.open(files[0]) as one, Pipeline.open(files[1]) as two:
        one.init()
        _change(database, 1)
        batch = str(one.pull().batch)
        two.apply(batch)
        one.publish(batch)
        two.confirm(batch)
        _change(database, 2)
        two.sync()
        assert one.verify().equal
    capsys.readouterr()
    assert main(["metrics", str(files[2])]) == 0
    numbers = _numbers(capsys.readouterr().out)
    assert numbers["slotlake_batches_total "] == 2
    assert numbers["slotlake_step_seconds_count apply"] == 2
    assert numbers["slotlake_verifications_total equal"] == 1
