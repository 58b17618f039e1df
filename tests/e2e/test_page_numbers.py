"""Every number on the page is what the journal, the server or the lake says, also after the last look."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from slotlake import Pipeline
from slotlake.decoder.lsn import parse_lsn
from slotlake.infra.health.html import document
from slotlake.infra.health.model import Health, all_series, health_of
from slotlake.infra.health.words import rows_rate, size, spent
from slotlake.infra.state.journal import Journal
from slotlake.infra.status.noted import look
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file

_RETAINED = (
    "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), restart_lsn)::bigint FROM pg_replication_slots"
)
_A_RECORD = 1 << 16  # what a server that nobody uses writes meanwhile


def _texts(html: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)).split())


def _tiles(html: str) -> dict[str, list[str]]:
    """Label → what a tile shows below it."""
    (tiles,) = re.findall(r'<div class="tiles">(.*?)</div>\s*<h3>', html, re.DOTALL)
    parts = [re.sub(r"<[^>]*>", "|", each) for each in re.findall(r"<div>(.*?)</div>", tiles, re.DOTALL)]
    shown = [[" ".join(text.split()) for text in each.split("|") if text.strip()] for each in parts]
    return {each[0]: each[1:] for each in shown}


def _charts(html: str) -> list[str]:
    """The captions and axes of the newest hour: what a person reads of each chart."""
    pane = html.partition('<div class="pane">')[2].partition('<div class="pane">')[0]
    return [_texts(each) for each in re.findall(r"<figure>(.*?)</figure>", pane, re.DOTALL)]


def _page(file: Any, now: float | None = None) -> tuple[Health, str]:
    health = health_of(file, now)
    return health, document([], [(health, file)], version="1")


def test_every_number_is_true_after_a_batch(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT generate_series(1, 50), 'a'"
    )
    with Pipeline.open(pipeline_file(tmp_path, database, ["t"])) as pipeline:
        pipeline.init()
        database.execute("UPDATE t SET v = 'b'; SELECT pg_switch_wal()")
        look(pipeline)  # a lag, and WAL that the slot retains: what the page said for minutes after
        assert health_of(pipeline.file).status["retained_wal_bytes"] > 1 << 20
        for _ in range(2):
            time.sleep(5.1)  # a sample is noted each five seconds
            database.execute("UPDATE t SET v = v || 'c'; CHECKPOINT")
            pipeline.sync()
        health, html = _page(pipeline.file)
        ((retained,),) = database.execute(_RETAINED)
        ((source,),) = database.execute("SELECT pg_current_wal_insert_lsn()")
        position = pipeline.position()
        file = pipeline.file
    batches = Journal(file.state_dir).batches.since(0.0)
    tiles, charts, newest = _tiles(html), _charts(html), batches[-1]
    assert abs(health.status["retained_wal_bytes"] - retained) < _A_RECORD
    assert tiles["the slot retains"][0] == size(health.status["retained_wal_bytes"])
    assert parse_lsn(tiles["position"][0]) == position
    assert (
        abs(parse_lsn(tiles["position"][1].removeprefix("the source is at ")) - parse_lsn(source)) < _A_RECORD
    )
    assert health.status["lag_bytes"] < _A_RECORD
    assert health.status["lag_seconds"] < 60
    assert tiles["lag"] == [spent(health.status["lag_seconds"]), f"{size(health.status['lag_bytes'])} of WAL"]
    assert tiles["lag of the last batch"][0] == spent(newest["lag"])
    begin, changes = min(each["time"] - each["lag"] for each in batches), sum(b["changes"] for b in batches)
    assert changes == 150
    total = f"in the hour before the last batch; {changes} in all"
    assert tiles["rows"] == [rows_rate(changes / (newest["time"] - begin)), total]
    slowest = max(sum(v for step, v in each["seconds"].items() if step != "wait") for each in batches)
    lags = [spent(max(each["lag"] for each in batches)), "0"]
    assert [word for word in lags if word not in charts[0].split("queryable")[1]] == []
    shown_steps = [
        sum(s for step, s in each.steps.items() if step != "wait") for each in all_series(health)["hour"]
    ]
    assert max(shown_steps) <= slowest + 0.001
    assert spent(max(shown_steps)) in charts[2]
    assert (
        size(max(each["retained_wal_bytes"] for each in Journal(file.state_dir).samples.since(0.0)))
        in charts[3]
    )
    for line in batches:
        assert f"{line['transactions']} {line['changes']} {spent(line['lag'])}" in _texts(html)
    assert _tiles(_page(file, time.time() + 1800)[1])["rows"] == tiles["rows"], "it is a rate of what came"
    assert "no batch in this time" in _charts(_page(file, time.time() + 8000)[1])[0]


def test_a_plan_says_how_much_it_copies(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    database.execute("INSERT INTO t SELECT generate_series(1, 500); ANALYZE t")
    with Pipeline.open(pipeline_file(tmp_path, database, ["t"])) as pipeline:
        pipeline.init()
        for file in pipeline.lake.warehouse_path.rglob("t/data/**/*.parquet"):
            file.unlink()
        plan = pipeline.recover()
        done = pipeline.recover(carry_out=True)
        assert pipeline.verify().equal
    assert (plan.rows, plan.written, plan.bytes > 0) == (500, 1, True)
    assert (done.rows, done.written) == (500, 1)


def test_an_alarm_ends_with_its_cause(database: Database, tmp_path: Path) -> None:
    """Not at the next look of the monitor, five minutes later."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t SELECT generate_series(1, 500); ANALYZE t"
    )
    with Pipeline.open(pipeline_file(tmp_path, database, ["t"])) as pipeline:
        pipeline.init()
        database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.source.slot])
        look(pipeline)
        assert "cdc_recover" not in _page(pipeline.file)[1], "outside of Airflow there is no such DAG"
        assert [each["kind"] for each in health_of(pipeline.file).alarms] == ["slot missing"]
        pipeline.recover()
        assert health_of(pipeline.file).alarms, "a plan repairs nothing"
        pipeline.recover(carry_out=True)
        health, html = _page(pipeline.file)
    assert health.alarms == []
    assert health.level == "well"
    assert "✓ ready" in _texts(html)
