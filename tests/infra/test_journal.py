"""The journal's files: bounded, safe to write by several processes, and readable after a kill."""

from __future__ import annotations

import json
import logging
import multiprocessing
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.health.model import BINS, all_series, health_of
from slotlake.infra.state import batch_notes as notes
from slotlake.infra.state.journal import Journal
from slotlake.infra.state.json_log import JsonFormatter, at_work
from slotlake.infra.state.line_files import Lines
from slotlake.infra.state.totals import SECONDS, add, add_labelled, changed_totals, observe, read_totals

NOW = 1_900_000_000.0


class _Batch:
    """What the notes ask of a batch."""

    relations = ()

    def __init__(self, name: str, first: str | None = "2030-03-17T17:46:30+00:00") -> None:
        self.name, self.transactions, self.changes, self.bytes = name, 2, 30, 400
        self.manifest = {"first_commit_time": first, "last_commit_time": first}


def _add_many(folder: Path, count: int) -> None:
    for _ in range(count):
        with changed_totals(folder) as totals:
            add(totals, "batches", 1)


def test_lines_are_bounded_and_read_from_both_ends(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "x.jsonl", bytes_max=2000)
    for second in range(500):
        lines.append({"time": NOW + second, "text": "é" * 10})
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 4200
    last = lines.newest(3)
    assert [each["time"] - NOW for each in last] == [497, 498, 499]
    assert len(lines.newest(40)) == 40 or len(lines.newest(40)) == len(lines.since(0))
    assert [each["time"] - NOW for each in lines.since(NOW + 495)] == [495, 496, 497, 498, 499]
    assert Lines(tmp_path / "nowhere.jsonl").newest() == []


def test_a_line_that_a_kill_left_unfinished_spoils_no_other(tmp_path: Path) -> None:
    lines = Lines(tmp_path / "x.jsonl")
    lines.append({"time": 1})
    with lines.path.open("a") as file:
        file.write('\n{"time": 2, "batch": "00')
    lines.append({"time": 3})
    with lines.path.open("a") as file:
        file.write('\n[]\n{"time": "no"}\nnot json')
    assert [each["time"] for each in lines.since(0)] == [1, 3]


def test_counters_are_exact_with_several_processes(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=_add_many, args=(tmp_path, 50)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert read_totals(tmp_path)["batches"] == 150


def test_damaged_counters_begin_again(tmp_path: Path) -> None:
    (tmp_path / "totals.json").write_text('{"batches": "many", "step_seconds": {"pull": {"counts": [1]}}}')
    with changed_totals(tmp_path) as totals:
        add(totals, "batches", 1)
        observe(totals, "step_seconds", "pull", 0.3)
        observe(totals, "step_seconds", "pull", 5000.0)
        add_labelled(totals, "failures", {"SlotError": 1})
    totals = read_totals(tmp_path)
    histogram = totals["step_seconds"]["pull"]
    assert (totals["batches"], totals["failures"], histogram["count"]) == (1, {"SlotError": 1}, 2)
    assert [index for index, count in enumerate(histogram["counts"]) if count] == [3, len(SECONDS)]


def test_the_steps_of_a_batch_become_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotlake.infra.state.batch_notes.time.time", lambda: NOW)
    monkeypatch.setenv("AIRFLOW_CTX_DAG_ID", "cdc_sync_shop")
    monkeypatch.setenv("AIRFLOW_CTX_DAG_RUN_ID", "scheduled__1")
    first: Any = _Batch("a")
    notes.note_pulled(tmp_path, "a", 1.0)
    notes.note_applied(tmp_path, first, 2.0, {"t": {"missing row": 3}})
    notes.note_applied(tmp_path, first, 0.5, {"t": {"missing row": 3}})  # cleared, and run again
    notes.note_published(tmp_path, first, 0.25)
    notes.note_confirmed(tmp_path, 0.125)
    notes.note_confirmed(tmp_path, 0.125)  # a sync without changes confirms too
    (line,) = Journal(tmp_path).batches.since(0)
    # 2030-03-17 17:46:30 is 10 s before NOW; the pull began 1 s before NOW.
    assert line["seconds"] == {"pull": 1.0, "apply": 2.5, "publish": 0.25, "confirm": 0.125, "wait": 9.0}
    assert (line["lag"], line["changes"], line["run"]) == (10.0, 30, ["cdc_sync_shop", "scheduled__1"])
    totals = Journal(tmp_path).totals
    assert (totals["batches"], totals["conflicts"]) == (1, {"missing row": 3})


def test_a_batch_is_a_line_of_the_json_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="slotlake")
    batch: Any = _Batch("0000000000000010-0000000000000020")
    at_work(pipeline="shop", lsn="0/20")
    notes.note_pulled(tmp_path, batch.name, 1.0)
    notes.note_published(tmp_path, batch, 1.0)
    notes.note_confirmed(tmp_path, 1.0)
    (line,) = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert (line["event"], line["level"], line["pipeline"]) == ("batch published", "info", "shop")
    assert (line["lsn"], line["batch"], line["changes"]) == ("0/20", batch.name, 30)
    error = ValueError("a row value")
    record = logging.LogRecord("x", logging.ERROR, "", 1, "it failed", (), (ValueError, error, None))
    assert "a row value" not in JsonFormatter().format(record)


def test_a_batch_that_was_published_and_not_confirmed_is_a_line_too(tmp_path: Path) -> None:
    notes.note_pulled(tmp_path, "a", 1.0)
    published: Any = _Batch("a", first=None)
    notes.note_published(tmp_path, published, 1.0)
    assert Journal(tmp_path).batches.newest() == []  # the run was killed here
    notes.note_pulled(tmp_path, None, 0.1)
    notes.note_pulled(tmp_path, "b", 0.1)
    (line,) = Journal(tmp_path).batches.newest()
    assert (line["batch"], line["lag"]) == ("a", None)
    assert "confirm" not in line["seconds"]
    assert Journal(tmp_path).open_batch.mapping()["batch"] == "b"


def test_a_full_disk_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "journal").write_text("a file where the folder should be")
    published: Any = _Batch("a")
    notes.note_pulled(tmp_path, "a", 1.0)
    notes.note_published(tmp_path, published, 1.0)
    notes.note_confirmed(tmp_path, 1.0)
    assert Journal(tmp_path).batches.newest() == []


@pytest.mark.parametrize("note", ['{"time": 1, "batch": "a", "steps": 7}', '{"time": "x"}', "[]", "not json"])
def test_a_damaged_note_ends_no_run(tmp_path: Path, note: str) -> None:
    journal = Journal(tmp_path)
    journal.folder.mkdir()
    journal.open_batch.path.write_text(note)
    notes.note_confirmed(tmp_path, 0.1)
    notes.note_pulled(tmp_path, "b", 0.1)
    notes.note_pulled(tmp_path, "b", 0.1)
    assert journal.open_batch.mapping()["steps"] == {"pull": 0.2}


def test_a_week_is_known_though_its_lines_are_gone(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(
        "name: p\nsource: {dsn: 'postgresql:///x', publications: [p], slot: s}\n"
        "lake: {catalog: lake, uri: 'sqlite:///lake.db', warehouse: lake, namespace: p}\n"
    )
    file = load_pipeline(path)
    journal = Journal(file.state_dir)
    journal.batches._bytes_max = 20_000
    minutes = 4 * 24 * 60
    for minute in range(minutes):
        at = NOW - (minutes - minute) * 60
        line = {
            "time": at,
            "transactions": 1,
            "changes": 10,
            "bytes": 1,
            "lag": 2.0,
            "seconds": {"pull": 0.5},
        }
        journal.batches.append(line)
    known = all_series(health_of(file, NOW))
    week = known["week"]
    assert sum(each.changes for each in week) == minutes * 10
    assert {each.steps["pull"] for each in week if each.changes} == {0.5}, "of a batch, on average"
    assert max(each.lag or 0 for each in week) == 2.0
    assert len(week) <= BINS + 1
    assert sum(each.changes for each in known["hour"]) == pytest.approx(600, abs=10)
    assert json.loads((journal.folder / "quarters.json").read_text())[0]["batches"] <= 15
    health = health_of(file, NOW)
    assert (health.level, len(health.batches)) == ("unknown", 30)
