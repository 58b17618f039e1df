"""One journal of several machines: whole for each reader, counted once, bounded, and never worth a run."""

from __future__ import annotations

import json
import logging
import multiprocessing
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.airflow.histories import Histories
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.health.metrics import metrics_text
from slotlake.infra.health.model import all_series, health_from
from slotlake.infra.opened.own_state import identity, require_own_state
from slotlake.infra.state import batch_notes as notes
from slotlake.infra.state import events, segments
from slotlake.infra.state import shared_journal as shared
from slotlake.infra.state.journal import Journal
from slotlake.infra.state.notes import NoteSeen, share
from slotlake.infra.state.recorded import Recorded, recorded

NOW = 1_900_000_000.0


class Bucket:
    """Notes in memory, with the clock of a store; it counts requests, and can fail."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, float]] = {}
        self.requests: Counter[str] = Counter()
        self.clock, self.away = NOW, False
        self.failing: OSError | None = None
        self.happening: Callable[[str], None] = lambda request: None

    def _asked(self, request: str) -> None:
        self.requests[request] += 1
        self.happening(request)
        if self.failing is not None:
            raise self.failing

    def listed(self) -> dict[str, NoteSeen]:
        self._asked("list")
        return {name: NoteSeen(str(hash(c)), at) for name, (c, at) in self.objects.items()}

    def known(self) -> list[str]:
        return list(self.objects)

    def read(self, name: str) -> bytes | None:
        self._asked("get")
        return self.objects.get(name, (None, 0.0))[0]

    def replace(self, name: str, content: bytes) -> None:
        self._asked("put")
        self.objects[name] = content, self.clock

    def write_new(self, name: str, content: bytes) -> bool:
        self._asked("put")
        if name in self.objects:
            return False
        self.objects[name] = content, self.clock
        return True

    def remove(self, names: Sequence[str]) -> None:
        self._asked("delete")
        for name in names:
            self.objects.pop(name, None)


class Shared:
    """Of a state in a store, what a journal asks for."""

    def __init__(self, bucket: Bucket) -> None:
        self.free = bucket
        self.read = lambda name: bucket.objects.get(name, (None, 0.0))[0]

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class _Batch:
    """What the notes ask of a batch."""

    relations = ()

    def __init__(self, number: int, changes: int = 10) -> None:
        self.name = f"{number:016X}-{number + 1:016X}"
        self.transactions, self.changes, self.bytes = 1, changes, 100
        moment = "2026-11-24T05:00:00+00:00"
        self.manifest = {"first_commit_time": moment, "last_commit_time": moment}


@pytest.fixture
def bucket() -> Bucket:
    return Bucket()


@pytest.fixture
def machine(bucket: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Path]]:
    """Gives the state folder of a machine that was not there before."""
    monkeypatch.setattr(shared, "PAUSE_SECONDS", 3600.0)
    made: list[Path] = []

    def another() -> Path:
        made.append(tmp_path / f"machine-{len(made)}")
        share(made[-1], Shared(bucket))
        return made[-1]

    yield another
    for folder in made:
        share(folder, None)


def _one(machine: Path, number: int, changes: int = 10) -> None:
    batch: Any = _Batch(number, changes)
    notes.note_pulled(machine, batch.name, 0.5)
    notes.note_applied(machine, batch, 0.4, {"t": {"missing row": 2}})
    notes.note_published(machine, batch, 0.3)
    notes.note_confirmed(machine, 0.1)


def _verification(equal: bool) -> Any:
    return SimpleNamespace(
        tables={}, lsn="0/1", scope="full", equal=equal, suites=[], source_seconds=0.1, seconds=0.2
    )


def test_steps_on_four_machines_are_one_batch_for_a_fifth(
    machine: Callable[[], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch: Any = _Batch(1)
    steps: dict[str, Callable[[Path], None]] = {
        "pull": lambda at: notes.note_pulled(at, batch.name, 0.5),
        "apply": lambda at: notes.note_applied(at, batch, 0.4, {}),
        "publish": lambda at: notes.note_published(at, batch, 0.3),
        "confirm": lambda at: notes.note_confirmed(at, 0.1, batch.name),
    }
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "cdc_sync_shop")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", "scheduled__1")
    for step, note in steps.items():
        at = machine()
        monkeypatch.setenv("AIRFLOW_CTX_TASK_ID", step)
        note(at)
        shared.end_notes(at)
    known = recorded(machine())
    (line,) = known.batches
    assert {step: line["seconds"][step] for step in steps} == dict(
        zip(steps, (0.5, 0.4, 0.3, 0.1), strict=True)
    )
    assert line["tasks"] == {step: step for step in steps}
    assert (line["run"], line["changes"]) == (["cdc_sync_shop", "scheduled__1"], 10)
    assert known.totals["batches"] == known.totals["lag_seconds"][""]["count"] == 1


def test_a_batch_is_one_line_of_the_log(
    machine: Callable[[], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """By who confirms it; where others do, by who publishes it."""
    caplog.set_level(logging.INFO, logger="slotlake")
    _one(machine(), 1)
    batch: Any = _Batch(2)
    pulling, publishing, confirming = machine(), machine(), machine()
    notes.note_pulled(pulling, batch.name, 0.5)
    notes.note_published(publishing, batch, 0.3)
    notes.note_confirmed(confirming, 0.1, batch.name)
    lines = [record.fields for record in caplog.records if record.getMessage() == "batch published"]  # type: ignore[attr-defined]
    assert [line["batch"] for line in lines] == [_Batch(1).name, batch.name]
    assert lines[0]["seconds"].keys() == {"wait", "pull", "apply", "publish", "confirm"}


def test_each_reader_sees_all_machines_once(machine: Callable[[], Path], tmp_path: Path) -> None:
    one, two = machine(), machine()
    for number in range(3):
        _one(one, number)
        _one(two, 100 + number, changes=20)
    events.note_verification(one, _verification(equal=True))
    events.note_verification(two, _verification(equal=False))
    events.note_copies(two, ["a", "b"])
    for at in (one, two):
        shared.end_notes(at)
    file = load_pipeline(pipeline_file(tmp_path))
    for reader in (machine(), one, two):
        known = recorded(reader)
        assert (known.totals["batches"], known.totals["changes"], known.totals["copies"]) == (6, 90, 2)
        assert known.totals["conflicts"] == {"missing row": 12}
        assert known.totals["verifications"] == {"equal": 1, "different": 1}
        assert len({line["batch"] for line in known.batches}) == 6
        health = health_from(file, known)
        text = metrics_text([health], "1")
        assert 'slotlake_rows_total{pipeline="shop"} 90' in text
        assert 'slotlake_step_seconds_count{pipeline="shop",step="apply"} 6' in text
        for bins in all_series(health).values():
            assert sum(each.changes for each in bins) == 90
            of_a_batch = [each.steps["apply"] for each in bins if each.changes]
            assert of_a_batch == pytest.approx([0.4] * len(of_a_batch)), "on average"


def pipeline_file(folder: Path, name: str = "shop", place: str = "") -> Path:
    path = folder / f"{name}.yaml"
    more = f"changelog: {{path: '{place}'}}\nstate: {{path: '{place}'}}\n" if place else ""
    path.write_text(
        f"name: {name}\nsource: {{dsn: 'postgresql:///x', publications: [p], slot: s}}\n"
        f"lake: {{catalog: l, uri: 'sqlite:///l.db', warehouse: '{place or 'lake'}', namespace: p}}\n{more}"
    )
    return path


def test_many_batches_are_few_requests(machine: Callable[[], Path], bucket: Bucket) -> None:
    at = machine()
    for number in range(100):
        _one(at, number)
    journal = shared.shared_journal(at)
    assert journal is not None
    assert bucket.requests == {}
    journal._save()
    assert bucket.requests == {"put": 1}
    _one(at, 100)
    shared.end_notes(at)
    assert bucket.requests == {"put": 2, "delete": 1}  # the whole segment again, under its last name
    assert recorded(machine()).totals["batches"] == 101
    shared.end_notes(at)
    notes.note_confirmed(at, 0.1)  # a sync without changes confirms too
    shared.end_notes(at)
    assert bucket.requests["put"] == 2


def test_the_timer_writes_while_work_goes_on(
    machine: Callable[[], Path], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "PAUSE_SECONDS", 0.05)
    at = machine()
    _one(at, 1)
    deadline = time.monotonic() + 20
    while not bucket.objects and time.monotonic() < deadline:
        time.sleep(0.01)
    assert recorded(machine()).totals["batches"] == 1  # and a kill from here on takes nothing of it


def test_segments_are_bounded_and_compacted_without_counting_twice(
    machine: Callable[[], Path], bucket: Bucket
) -> None:
    for number in range(130):
        at = machine()
        _one(at, number)
        shared.end_notes(at)
        bucket.clock += 10
        assert len(bucket.objects) <= segments._COMPACTED_FROM + 1
        if number % 13 == 0:
            assert recorded(at).totals["batches"] == number + 1
    assert sum("base" in name for name in bucket.objects) == 1
    known = recorded(machine())
    assert (known.totals["batches"], known.totals["step_seconds"]["apply"]["count"]) == (130, 130)
    assert bucket.requests["put"] < 150


def test_steps_of_a_batch_before_and_after_a_compaction(machine: Callable[[], Path], bucket: Bucket) -> None:
    batch: Any = _Batch(1000)
    steps: list[Callable[[Path], None]] = [
        lambda at: notes.note_pulled(at, batch.name, 0.5),
        lambda at: notes.note_applied(at, batch, 0.4, {"t": {"missing row": 1}}),
        lambda at: notes.note_published(at, batch, 0.3),
        lambda at: notes.note_confirmed(at, 0.1, batch.name),
    ]
    for place, step in enumerate(steps):
        at = machine()
        step(at)
        shared.end_notes(at)
        bases = {name for name in bucket.objects if "base" in name}
        for number in range(segments._COMPACTED_FROM):
            other = machine()
            _one(other, 100 * place + number)
            shared.end_notes(other)
        assert {name for name in bucket.objects if "base" in name} != bases
        counted = recorded(machine()).totals
        published = place >= 2
        assert counted["batches"] == (place + 1) * segments._COMPACTED_FROM + published
        assert counted["step_seconds"]["pull"]["count"] == counted["batches"]
    lines = segments.StoredJournal().read(bucket).batches
    (line,) = [line for line in lines if line["batch"] == batch.name]
    assert line["seconds"] == line["seconds"] | {"pull": 0.5, "apply": 0.4, "publish": 0.3, "confirm": 0.1}


def test_a_compaction_that_was_killed_counts_nothing_twice(
    machine: Callable[[], Path], bucket: Bucket
) -> None:
    def killed(request: str) -> None:
        if request == "delete":
            raise OSError(5, "killed")

    for number in range(25):
        at = machine()
        _one(at, number)
        bucket.happening = killed
        shared.end_notes(at)
        bucket.happening = lambda request: None
        assert recorded(at).totals["batches"] == number + 1
    assert sum("base" in name for name in bucket.objects) >= 1
    at = machine()
    for number in range(25, 40):
        _one(at, number)
        shared.end_notes(at)
        assert recorded(at).totals["batches"] == number + 1
    assert len(bucket.objects) <= segments._COMPACTED_FROM + 1


def test_of_two_that_compact_the_late_one_does_nothing(machine: Callable[[], Path], bucket: Bucket) -> None:
    for number in range(segments._COMPACTED_FROM):
        at = machine()
        _one(at, number)
        journal = shared.shared_journal(at)
        assert journal is not None
        journal._save(done=True)

    def other(request: str) -> None:
        if request == "put":
            bucket.happening = lambda request: None
            assert segments.compact(bucket)

    bucket.happening = other
    assert not segments.compact(bucket)
    assert recorded(machine()).totals["batches"] == segments._COMPACTED_FROM


def test_a_reader_begins_again_when_objects_go(machine: Callable[[], Path], bucket: Bucket) -> None:
    for number in range(segments._COMPACTED_FROM):
        at = machine()
        _one(at, number)
        journal = shared.shared_journal(at)
        assert journal is not None
        journal._save(done=True)

    def compacted(request: str) -> None:
        if request == "get":
            bucket.happening = lambda request: None
            assert segments.compact(bucket)

    bucket.happening = compacted
    assert recorded(machine()).totals["batches"] == segments._COMPACTED_FROM


def test_a_segment_that_counts_as_ended_is_not_written_again(
    machine: Callable[[], Path], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that was asleep for an hour must not bring back what was compacted meanwhile."""
    clock = [0.0]
    monkeypatch.setattr(time, "clock_gettime", lambda which: clock[0])
    sleeper = machine()
    _one(sleeper, 1)
    journal = shared.shared_journal(sleeper)
    assert journal is not None
    journal._save()
    bucket.clock += 3600
    for number in range(2, 2 + segments._COMPACTED_FROM):
        at = machine()
        _one(at, number)
        shared.end_notes(at)
    clock[0] += 3600
    _one(sleeper, 100)
    shared.end_notes(sleeper)
    shared.end_notes(sleeper)
    assert recorded(machine()).totals["batches"] == segments._COMPACTED_FROM + 2


def test_a_store_that_is_away_ends_no_run_and_loses_nothing(
    machine: Callable[[], Path], bucket: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    at = machine()
    bucket.failing = OSError(5, "the store does not answer")
    _one(at, 1)
    shared.end_notes(at)
    _one(at, 2)
    shared.end_notes(at)
    assert len([each for each in caplog.records if "cannot be written" in each.getMessage()]) == 1
    known = recorded(machine())
    assert "does not answer" in known.unread
    file = load_pipeline(pipeline_file(at.parent))
    text = metrics_text([health_from(file, known)], "1")
    assert "slotlake_batches_total" not in text  # not known, so not 0
    assert "slotlake_up" not in text
    bucket.failing = None
    _one(at, 3)
    shared.end_notes(at)
    assert recorded(machine()).totals["batches"] == 3


def test_a_store_that_hangs_holds_up_no_command(
    machine: Callable[[], Path], bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared, "_END_SECONDS_MAX", 0.2)
    released = threading.Event()

    def hang(request: str) -> None:
        released.wait(60)

    bucket.happening = hang
    at = machine()
    _one(at, 1)
    began = time.monotonic()
    shared.end_notes(at)
    assert time.monotonic() - began < 5
    released.set()


def test_a_forked_process_notes_its_own(machine: Callable[[], Path]) -> None:
    at = machine()
    _one(at, 1)
    context = multiprocessing.get_context("fork")
    child = context.Process(target=shared.end_notes, args=(at,))
    child.start()
    child.join()
    assert child.exitcode == 0
    shared.end_notes(at)
    assert recorded(machine()).totals["batches"] == 1


def test_a_look_is_noted_once_in_half_a_minute(machine: Callable[[], Path], bucket: Bucket) -> None:
    at = machine()
    status = {"state": "ready", "alarms": [], "retained_wal_bytes": 7}
    for second in range(3):
        events.note_look(at, {"time": time.time() + second, "status": status})
        shared.end_notes(at)
    assert bucket.requests["put"] == 2
    known = recorded(machine())
    assert known.look["status"] == status
    assert [each["retained_wal_bytes"] for each in known.over_time(3600, 0.0)[1]] == [7]
    events.note_look(machine(), {"time": NOW, "status": {"state": "dropped", "alarms": []}})
    assert bucket.requests["put"] == 2


def test_the_journal_of_a_folder_is_brought(machine: Callable[[], Path], tmp_path: Path) -> None:
    folder = tmp_path / "before"
    for number in range(3):
        _one(folder, number)
    events.note_verification(folder, _verification(equal=True))
    at = machine()
    shared.bring_journal(folder, at)
    shared.bring_journal(folder, at)
    _one(at, 10)
    shared.end_notes(at)
    assert not Journal(folder).folder.exists()
    known = recorded(machine())
    assert (known.totals["batches"], len(known.batches), len(known.verifications)) == (4, 4, 1)
    assert sum(each["changes"] for each in known.over_time(86400, 0.0)[0]) == 40


def test_a_journal_is_not_brought_into_the_state_of_another_pipeline(bucket: Bucket, tmp_path: Path) -> None:
    file = load_pipeline(pipeline_file(tmp_path, place=f"s3://{tmp_path.name}/x"))
    share(file.state_dir, Shared(bucket))
    try:
        _one(tmp_path / "folder", 1)
        (tmp_path / "folder" / "journal").rename(_made(file.state_dir) / "journal")
        bucket.objects["owner.json"] = b'{"slot": "another"}', NOW
        with pytest.raises(PipelineFileError, match="the state of another pipeline"):
            require_own_state(file, None)
        assert (file.state_dir / "journal").is_dir()
        bucket.objects["owner.json"] = json.dumps(identity(file)).encode(), NOW
        require_own_state(file, None)
        shared.end_notes(file.state_dir)
        assert not (file.state_dir / "journal").exists()
        assert recorded(file.state_dir).totals["batches"] == 1
    finally:
        share(file.state_dir, None)
        shutil.rmtree(file.state_dir)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder


def test_a_dropped_pipeline_leaves_nothing(machine: Callable[[], Path], bucket: Bucket) -> None:
    at = machine()
    _one(at, 1)
    shared.end_notes(at)
    _one(at, 2)
    shared.forget_journal(at)
    shared.end_notes(at)
    assert bucket.objects == {}


def test_damaged_records_spoil_no_others(machine: Callable[[], Path], bucket: Bucket) -> None:
    at = machine()
    _one(at, 1)
    shared.end_notes(at)
    bad = (
        b'{"kind": "part", "noted": 1, "line": {"batch": "x", "time": 1, "steps": {}}}\n[]\n{"kind": 7\nnull'
    )
    bucket.objects["journal/0-x.jsonl"] = bad, NOW
    bucket.objects["journal/look.json"] = b"[1", NOW
    assert recorded(machine()).totals["batches"] == 1


# -- the page ------------------------------------------------------------------------------------------


@pytest.fixture
def stored(tmp_path: Path) -> list[Any]:
    """Pipelines of two places."""
    return [
        load_pipeline(pipeline_file(tmp_path, f"p{number}", f"s3://{'ab'[number % 2]}/x"))
        for number in range(10)
    ]


def test_a_page_never_waits_for_a_store(stored: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    released = threading.Event()

    def read(known: Any) -> Recorded:
        if "/a/" in known.file.state_bucket.replace("s3:/", ""):
            released.wait(60)
        return Recorded(batches=[{"batch": known.file.name}])

    monkeypatch.setattr("slotlake.infra.airflow.histories._read", read)
    histories = Histories()
    histories.recorded(stored[1::2], 20.0)  # the other store answers
    began = time.monotonic()
    known = histories.recorded(stored, 0.1)
    assert time.monotonic() - began < 2
    for number, each in enumerate(known):
        assert each is not None
        assert bool(each.batches) == bool(number % 2)
        assert ("being read" in each.unread) == (not number % 2)
    released.set()
    assert all(each and each.batches for each in histories.recorded(stored, 20.0))


def test_a_page_shows_what_was_known_when_a_store_fails(
    stored: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotlake.infra.airflow.histories._FRESH_SECONDS", 0.0)
    answers: list[Any] = [Recorded(totals={"batches": 1}), OSError("no answer"), Recorded()]

    def read(known: Any) -> Recorded:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        known.journal.dropped = not answers
        return Recorded(totals=answer.totals)

    monkeypatch.setattr("slotlake.infra.airflow.histories._read", read)
    histories = Histories()
    (first,) = histories.recorded(stored[:1], 20.0)
    (second,) = histories.recorded(stored[:1], 20.0)
    assert first is not None
    assert second is not None
    assert first.unread == ""
    assert second.totals == {"batches": 1}
    assert second.unread.startswith("no answer; this was read 0.")
    assert histories.recorded(stored[:1], 20.0) == [None]  # it was dropped
