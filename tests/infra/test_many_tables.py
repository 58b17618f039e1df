"""What is said of ten thousand tables stays short, and the ones that need somebody come first."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from slotlake.bench.workload import CATALOG_VARIABLE, TABLES_VARIABLE, catalog_asked, tables_asked
from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.memory import Memory
from slotlake.expectations.results import Report, TableResult
from slotlake.infra.airflow import backfill, scheduling
from slotlake.infra.cli.texts import look, work
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.reports import Alarm, InitReport, StatusReport, SyncReport, TableCopy, TableStatus
from slotlake.infra.selection import known_tables, pending
from slotlake.infra.state.notes import TABLES
from slotlake.spark.catalog.listing import listing_of_rows
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, LakeName

_MANY = 10_000
_LINES_MAX = 130
_FILE = """name: shop
source: {dsn: "postgresql://u@h/d", publications: [shop], slot: s}
lake: {catalog: lake, uri: "sqlite:///lake.db", warehouse: "warehouse", namespace: shop}
tables:
"""


@pytest.fixture
def console() -> Console:
    return Console(file=io.StringIO(), width=200, highlight=False, soft_wrap=True)


def _lines(console: Console) -> list[str]:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def _status(tables: list[TableStatus], warnings: list[str]) -> StatusReport:
    names = ("last_consistent_lsn", "last_commit_time", "published_at", "source_lsn", "lag_bytes", "slot")
    unknown: dict[str, Any] = dict.fromkeys([*names, "retained_wal_bytes", "wal_status", "safe_wal_size"])
    return StatusReport(
        pipeline="p", state="ready", changelog_batches=0, changelog_bytes=0, tables=tables,
        warnings=warnings, **unknown,
    )  # fmt: skip


def test_a_status_begins_with_the_tables_that_need_somebody(console: Console) -> None:
    tables = [TableStatus(f"public.t{i}", f"shop.t{i}", "ready", 1, ["id"]) for i in range(_MANY)]
    tables[7000] = TableStatus("public.odd", "shop.odd", "set aside since 0/1", 1, ["id"])
    tables[8000] = TableStatus("public.met", "shop.met", "ready", 1, ["id"], conflicts={"insert": 2})
    report = _status(tables, [f"warning {i}" for i in range(_MANY)])
    look.status_text(report, console)
    lines = _lines(console)
    assert len(lines) < _LINES_MAX
    rows = [line for line in lines if "public." in line]
    assert "public.odd" in rows[0]
    assert "public.met" in rows[1]
    assert len(rows) == 3
    assert any("9,999 ready, 1 set aside" in line for line in lines)
    assert any("and 9,950 more warnings" in line for line in lines)
    everything = Console(file=io.StringIO(), width=200)
    look.status_text(_status(tables[7000:7100], report.warnings[:60]), everything, all_facts=True)
    assert len([line for line in _lines(everything) if "public.t" in line]) == 99
    assert len([line for line in _lines(everything) if "warning:" in line]) == 60


def test_a_status_answers_first(console: Console) -> None:
    """Is it right, how far behind, what to do: in the first lines; the rest only with --all."""
    alarm = Alarm("wal", "the slot retains 11 GB", "run slotlake sync")
    ready = replace(
        _status([], [str(alarm), "other"]), lag_seconds=4.2, lag_bytes=1 << 20, slot={"active": False}
    )
    fresh = replace(_status([], []), state="not initialised")
    reports = [ready, replace(ready, alarms=[alarm]), replace(ready, lag_seconds=0.0), fresh]
    answers = []
    for report in reports:
        with console.capture() as shown:
            look.status_text(report, console, file="shop.yaml")
        answers.append(shown.get().splitlines())
        assert not any(line.endswith((" -", "None")) for line in answers[-1])
        assert not any("slot: " in line for line in answers[-1])
    assert answers[0][0] == "p: ready; the lake is 1.0 MB, 4 s behind the source"
    assert answers[1][:3] == [
        "p: an alarm needs somebody; the lake is 1.0 MB, 4 s behind the source",
        "alarm: the slot retains 11 GB",
        "  what to do: run slotlake sync",
    ]
    assert [line for line in answers[1] if line.startswith("warning")] == ["warning: other"]
    assert answers[2][0] == "p: ready; the lake is not behind the source"
    assert answers[3][0] == "p: not initialised: run slotlake init shop.yaml"
    with console.capture() as shown:
        look.status_text(ready, console, all_facts=True)
    assert "slot: active" in shown.get()


def test_the_other_commands_say_how_many_more_tables_there_are(console: Console) -> None:
    sync = SyncReport("b", "0/1", "0/2", 1, _MANY, {f"t{i}": 1 for i in range(_MANY)}, 1.0)
    work.sync_text(sync, console)
    copies = [TableCopy(f"t{i}", f"n.t{i}", 2, 1) for i in range(_MANY)]
    work.init_text(InitReport("p", already=False, lsn="0/1", slot="s", tables=copies), console)
    results = {f"t{i}": TableResult(f"t{i}", 1, 1) for i in range(_MANY)}
    results["t9000"] = TableResult("t9000", 1, 0, {"missing in lake": 1})
    work.verify_text(Report("0/2", results), console)
    text = "\n".join(_lines(console))
    assert text.count("\n") < 3 * _LINES_MAX
    assert "and 9,950 more tables; --json has all of them" in text
    assert "and 9,950 more tables" in text
    assert "t9000" in text
    assert "9,950 more tables, 0 of them not equal" in text


def test_an_xcom_has_no_more_than_a_hundred_entries_of_a_kind() -> None:
    few = {"batch": "b", "tables": {"a": 1}, "warnings": []}
    assert scheduling.shortened(few) == few
    report = {"batch": "b", "tables": {f"t{i}": i for i in range(_MANY)}, "left": list(range(101))}
    short = scheduling.shortened(report)
    assert short["more"] == {"tables": 9_900, "left": 1}
    assert len(short["tables"]) == len(short["left"]) == 100
    assert len(json.dumps(short)) < 3000


def test_a_form_offers_no_list_of_thousands(tmp_path: Path) -> None:
    path = tmp_path / "shop.yaml"
    path.write_text(_FILE + "".join(f"  public.t{i}: {{mode: history}}\n" for i in range(_MANY)))
    file = load_pipeline(path)
    assert len(file.tables) == _MANY
    assert file.tables["public.t9999"].mode == ("history",)
    assert backfill.table_names(file) == []
    path.write_text(_FILE + "  public.a: {}\n")
    TABLES.of(tmp_path / ".slotlake" / "shop").write(["public.b"])
    assert backfill.table_names(load_pipeline(path)) == ["public.a", "public.b"]


def test_the_note_for_the_form_is_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow reads it each time it parses a DAG file."""
    tables = [SimpleNamespace(source_name=f"public.t{i}") for i in range(_MANY)]
    monkeypatch.setattr(
        "slotlake.spark.read.point.ReadPoint.latest", lambda lake: SimpleNamespace(tables=lambda: tables)
    )
    path = tmp_path / "shop.yaml"
    path.write_text(_FILE + "  public.t1: {}\n")
    pipeline: Any = SimpleNamespace(file=load_pipeline(path), lake=None)
    known_tables.write_note(pipeline.file.state_dir, pipeline.lake)
    assert len(known_tables.read_note(pipeline.file)) == known_tables.OFFERED_MAX + 1
    assert backfill.table_names(pipeline.file) == []


def test_only_tables_that_a_batch_changed_are_compared_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[set[str] | None] = []
    wrong = {"t3", "t4"}

    def others(point: Any, only: Any = None) -> dict[LakeName, tuple[int, int]]:
        looked.append(None if only is None else {name.table for name in only})
        return {n: (2, 3) for n in point.mirrors() if n.table in wrong and (only is None or n in only)}

    asked = pending.Asked("format", "Iceberg format", "has", others)
    monkeypatch.setattr(pending, "_ASKED", (asked,))
    mirrors = [LakeName("shop", f"t{i}") for i in range(1000)]
    names = [*mirrors, LakeName("shop", "t0__history"), LakeName("shop", COMMITS)]
    memory, lake = Memory(), LakeSettings("lake", f"sqlite:///{tmp_path}/x.db", "file:///x", "shop")

    def note(**changed: str) -> list[str]:
        listing = listing_of_rows(lake, [(*name, changed.get(name.table, "0")) for name in names])
        pending.note_pending(memory, MagicMock(listing=listing, mirrors=lambda: dict.fromkeys(mirrors)))
        return pending.noted_pending(memory)

    (both,) = note()
    assert "shop.t3" in both
    assert "shop.t4" in both
    assert note(**{COMMITS: "1"}) == [both]
    wrong.remove("t3")
    (one,) = note(t3="1", t5="1")
    assert "shop.t3" not in one
    assert "shop.t4" in one
    wrong.add("t9")
    (two,) = note(t3="1", t5="1", t0__history="1")
    assert "shop.t9" in two
    wrong.clear()
    assert note(t0="2") == []
    assert looked == [None, {"t3", "t5"}, None, None]


def test_the_sizes_of_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TABLES_VARIABLE, raising=False)
    assert tables_asked((10, 100)) == [10, 100]
    monkeypatch.setenv(TABLES_VARIABLE, "200, 20")
    assert tables_asked((10, 100)) == [20, 200]
    monkeypatch.setenv(CATALOG_VARIABLE, "postgresql")
    assert catalog_asked() == "postgresql"
    for variable, text, ask in (
        (TABLES_VARIABLE, "5", lambda: tables_asked((10,))),
        (CATALOG_VARIABLE, "x", catalog_asked),
    ):
        monkeypatch.setenv(variable, text)
        with pytest.raises(PipelineFileError, match=variable):
            ask()
