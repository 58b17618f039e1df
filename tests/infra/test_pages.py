"""The pages and the metrics from a journal that a test wrote: escaped, masked, offline, worst first."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from slotlake.infra.cli.main import main
from slotlake.infra.cli.texts.top import fleet_table, screen
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline
from slotlake.infra.health.html import document
from slotlake.infra.health.metrics import escaped, metrics_text, number
from slotlake.infra.health.model import all_series, health_of
from slotlake.infra.health.words import batch_end, key_text, run_text, size, spent
from slotlake.infra.state.journal import Journal
from slotlake.infra.state.totals import changed_totals, observe

NOW = 1_900_000_000.0
EVIL = '<script>alert("x")</script>&\'"'
VOID = {"meta", "path", "rect", "br", "input"}


class Tags(HTMLParser):
    """Every element must be closed; the tags, addresses and texts that there are."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.addresses: list[str] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.addresses += [value or "" for name, value in attrs if name in {"href", "src", "action"}]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def pipeline(folder: Path, name: str) -> PipelineFile:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(
        f"name: {name}\nsource: {{dsn: 'postgresql:///x', publications: [p], slot: s}}\n"
        f"lake: {{catalog: lake, uri: 'sqlite:///lake.db', warehouse: lake, namespace: {name}}}\n"
    )
    return load_pipeline(path)


def noted(
    file: PipelineFile, *, lag: float = 3.0, equal: bool = True, state: str = "ready", now: float = NOW
) -> None:
    """Write a journal as runs do."""
    journal = Journal(file.state_dir)
    for number_ in range(20):
        journal.batches.append(
            {
                "time": now - 3000 + number_ * 150,
                "batch": f"{16 * number_:016X}-{16 * number_ + 16:016X}",
                "transactions": 4,
                "changes": 100,
                "bytes": 2000,
                "lag": 2.5,
                "last_commit": now,
                "seconds": {"pull": 0.5, "apply": 1.0, "publish": 0.3, "confirm": 0.1, "wait": 0.6},
                "tables": {},
                "conflicts": {},
                "run": ["cdc_sync_shop", "scheduled__2030"],
                "tasks": {"pull": "pull", "apply": "apply", "publish": "publish", "confirm": "confirm"},
            }
        )
        journal.samples.append({"time": now - 3000 + number_ * 150, "retained_wal_bytes": 1 << 20})
    keys = [{"kind": "different", "key": {"id": "4711", "n": None}, "columns": ["v"]}]
    different = {} if equal else {EVIL: {"kinds": {"different": 2}, "keys": keys}}
    verification = {
        "time": now - 600,
        "lsn": "0/1A2B",
        "equal": equal,
        "seconds": 1.5,
        "tables": 2,
        "rows": 9,
    }
    journal.verifications.append({**verification, "differences": 0 if equal else 2, "different": different})
    journal.failures.append({"time": now - 50, "error": "SlotError", "what": EVIL, "way_out": "wait"})
    with changed_totals(journal.folder) as totals:
        totals |= {"batches": 20, "changes": 2000, "failures": {EVIL + "\n\\": 1}}
        observe(totals, "lag_seconds", "", 2.5)
        observe(totals, "lag_seconds", "", 9000.0)
    journal.look.write(_look(lag, state, now))


def _look(lag: float, state: str, now: float) -> dict[str, Any]:
    table: dict[str, Any] = {"table": EVIL, "state": "ready", "conflicts": {}, "copied": None}
    copying = {**table, "table": "public.big", "state": "copying", "copied": {"ranges": 8, "ranges_done": 3}}
    left = {**table, "table": "public.old", "state": "not published any more", "life": "left"}
    facts = {"rows": 5, "bytes": 4000, "files": 1, "delete_files": 0, "last_change": now - 5}
    slot = {"lag_seconds": lag, "lag_bytes": 99, "retained_wal_bytes": 1 << 20, "wal_status": "reserved"}
    status = {
        **slot,
        "state": state,
        "alarms": []
        if state == "ready"
        else [{"kind": state, "what": "the slot", "way_out": "slotlake recover"}],
        "warnings": [],
        "tables": [table, copying, left],
        "source_lsn": "0/2",
        "last_consistent_lsn": "0/1",
        "last_commit_time": None,
        "published_at": "2030-03-17T17:46:30+00:00",
    }
    point = {
        "lsn": "0/1",
        "committed": now,
        "published": now,
        "kind": "batch",
        "transactions": 1,
        "changes": 2,
    }
    tables = {EVIL: {**facts, "schema_changes": 0, "exact_texts": None}}
    return {"time": now - 10, "status": status, "tables": tables, "points": [point], "points_kept": 1}


def shown(*files: PipelineFile, keys: bool = False) -> tuple[str, Tags]:
    known = [health_of(file, NOW) for file in files]
    text = document(known, list(zip(known, files, strict=True)), version="1", show_keys=keys)
    tags = Tags()
    tags.feed(text)
    tags.close()
    return text, tags


def test_a_page_is_escaped_offline_and_without_a_script(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "shop")
    noted(file, equal=False)
    text, tags = shown(file)
    assert not tags.open
    assert not tags.tags & {"script", "link", "img", "iframe"}
    assert tags.handlers == []
    assert all(address.startswith("#") for address in tags.addresses)
    assert "http" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    assert "url(" not in text
    assert text.count("&lt;script&gt;alert(") >= 3  # the table, the failure, the difference
    for words in (
        "2 rows differ",
        "37.5 % copied",
        ">left<",
        "0/1A2B",
        "scheduled__2030",
        "<code>slotlake backfill</code>",
    ):
        assert words in text


def test_keys_are_masked_unless_they_are_asked_for(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "shop")
    noted(file, equal=False)
    text, _ = shown(file)
    assert "id=•••, n=•••" in text
    assert "4711" not in text
    text, _ = shown(file, keys=True)
    assert "id=4711, n=NULL" in text


def test_the_worst_pipeline_comes_first(tmp_path: Path) -> None:
    files = [pipeline(tmp_path / name, name) for name in ("well", "slow", "differs", "lost", "silent")]
    noted(files[0], lag=1)
    noted(files[1], lag=500)
    noted(files[2], equal=False)
    noted(files[3], lag=9000, state="slot lost")
    text, _ = shown(*files)
    order = re.findall(r'<td data-label="pipeline"><a href="#(\w+)">', text)
    assert order == ["lost", "differs", "silent", "slow", "well"]
    assert "make a new slot" in text
    assert "nobody has looked yet" in text


def test_metrics_escape_labels_and_count_buckets(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "shop")
    noted(file)
    text = metrics_text([health_of(file, NOW)], "1")
    assert 'error="<script>alert(\\"x\\")</script>&\'\\"\\n\\\\"' in text
    buckets = re.findall(r'slotlake_batch_lag_seconds_bucket\{pipeline="shop",le="([^"]+)"\} (\d+)', text)
    assert buckets[5:7] == [("2.5", "1"), ("5", "1")]
    assert buckets[-1] == ("+Inf", "2")
    assert 'slotlake_batch_lag_seconds_count{pipeline="shop"} 2' in text
    assert re.findall("^slotlake_table_lives.*", text, re.MULTILINE) == [
        'slotlake_table_lives{pipeline="shop",life="left"} 1'  # earlier versions noted no life of the others
    ]
    for family in re.findall(r"^# TYPE (\S+)", text, re.MULTILINE):
        assert text.count(f"# HELP {family} ") == text.count(f"# TYPE {family} ") == 1
    assert (escaped('a"b\\\n'), number(2.0), number(0.1), number(float("inf"))) == (
        'a\\"b\\\\\\n',
        "2",
        "0.1",
        "+Inf",
    )


def test_kinds_are_labels(tmp_path: Path) -> None:
    """A label of the name of an argument: no kind was there, and with a conflict no metrics at all."""
    file = pipeline(tmp_path, "shop")
    noted(file, state="slot lost")
    with changed_totals(Journal(file.state_dir).folder) as totals:
        totals["conflicts"] = {"missing row": 3}
    text = metrics_text([health_of(file, NOW)], "1")
    assert 'slotlake_alarms{pipeline="shop",kind="slot lost"} 1' in text
    assert 'slotlake_conflicts_total{pipeline="shop",kind="missing row"} 3' in text
    kinds = re.findall(r"^# TYPE slotlake_(?:alarms|conflicts_total) (\w+)$", text, re.MULTILINE)
    assert sorted(kinds) == ["counter", "gauge"]


def test_a_journal_without_a_look_has_metrics_and_a_page(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "new")
    assert 'slotlake_up{pipeline="new"} 0' in metrics_text([health_of(file, NOW)], "1")
    text, tags = shown(file)
    assert not tags.open
    assert "not looked at yet" in text


def test_top_shows_the_same(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "shop")
    noted(file, equal=False)
    console = Console(width=140, record=True, file=io.StringIO())
    health = health_of(file, NOW)
    console.print(screen([health], {"shop": all_series(health)["hour"]}, console.width))
    text = console.export_text()
    for words in ("shop", "2 rows differ", "public.big: copying", "lag 2.5 s", "█"):
        assert words in text


def test_top_is_readable_at_sixty_columns(tmp_path: Path) -> None:
    file = pipeline(tmp_path, "shop")
    noted(file, equal=False)
    console = Console(width=60, record=True, file=io.StringIO())
    console.print(fleet_table([health_of(file, NOW)], console.width))
    header, first = [
        line for line in console.export_text().splitlines() if "─" not in line and "━" not in line
    ][:2]
    assert [cell.strip() for cell in header.strip("┃").split("┃")] == [
        "pipeline", "state", "lag", "retained WAL", "alarms",
    ]  # fmt: skip
    assert first.strip("│").split("│")[0].strip() == "shop"


def test_a_report_needs_each_pipeline_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(pipeline(tmp_path, "shop").path)
    assert main(["report", path, path, "-o", str(tmp_path / "report.html")]) == 2
    assert "is named twice" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()


def test_words() -> None:
    assert [size(n) for n in (None, 0, 2048, 3 << 30)] == ["–", "0 B", "2 kB", "3.0 GB"]
    assert [spent(s) for s in (None, 0.44, 59.6, 600, 7200.0, 2e5)] == [
        "–",
        "0.4 s",
        "60 s",
        "10 min",
        "2.0 h",
        "2.3 days",
    ]
    assert key_text({"a": "1", "b": None}, shown=True) == "a=1, b=NULL"
    assert batch_end("0000000001000028-00000001A2B3C4D5") == "1/A2B3C4D5"
    assert batch_end("copy-x") == "copy-x"
    assert run_text("scheduled__2026-11-27T22:06:44.5+00:00") == "scheduled 22:06:44"
    assert run_text("by hand") == "by hand"
    assert run_text("m" * 40) == "m" * 24 + "…"


def _many(file: PipelineFile, tables: int) -> None:
    """A pipeline of which every table is set aside, and was found different."""
    noted(file, equal=False, state="stopped")
    journal = Journal(file.state_dir)
    names = [f"public.table_{number:05}" for number in range(tables)]
    look = _look(3.0, "stopped", NOW)
    facts = next(iter(look["tables"].values()))
    trouble = "a value cannot be read; its content stays that of 0/1A2B3C4D"
    status = {
        **look["status"],
        "alarms": [{"kind": "set aside", "what": f"{n}: {trouble}", "way_out": "mend it"} for n in names],
        "warnings": [f"{name} has another format" for name in names],
        "tables": [
            {"table": n, "state": "set aside", "conflicts": {"insert": 2}, "copied": None} for n in names
        ],
    }
    journal.look.write({**look, "status": status, "tables": dict.fromkeys(names, facts)})
    journal.verifications.append(
        {
            "time": NOW - 60, "lsn": "0/1A2B", "equal": False, "seconds": 1.5, "tables": tables, "rows": 9,
            "differences": tables, "different": {}, "unresolved": names,
        }
    )  # fmt: skip


def test_of_ten_thousand_tables_pages_and_metrics_are_no_longer_than_of_a_thousand(tmp_path: Path) -> None:
    sizes = []
    for tables in (1_000, 10_000):
        file = pipeline(tmp_path / str(tables), "shop")
        _many(file, tables)
        text, tags = shown(file)
        assert "table_00000: a value cannot be read" in text
        assert f"and {tables - 100:,} more" in text
        assert not tags.open
        console = Console(file=io.StringIO(), width=200)
        health = health_of(file, NOW)
        console.print(screen([health], {"shop": all_series(health)["hour"]}, 200))
        assert isinstance(console.file, io.StringIO)
        sizes.append((len(text), len(metrics_text([health], "1")), len(console.file.getvalue())))
    for size_of_many, size_of_few in zip(sizes[1], sizes[0], strict=True):
        assert size_of_many < 1.01 * size_of_few
    assert sizes[1][0] < 600_000
    assert sizes[1][1] < 700_000
    assert sizes[1][2] < 10_000
