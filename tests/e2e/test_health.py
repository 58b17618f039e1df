"""What is known of a real pipeline: metrics for Prometheus' own parser, also while the source is down."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.cli.main import main
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.infra.test_pages import Tags
from tests.prometheus import families

pytestmark = pytest.mark.timeout(600)
ODD = '<script>alert("1")</script>\\'


def test_metrics_report_and_top(
    database: Database,
    session: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    quoted = '"' + ODD.replace('"', '""') + '"'
    database.execute(
        f"CREATE TABLE t (id int PRIMARY KEY, v text); CREATE TABLE {quoted} (id int PRIMARY KEY)"
    )
    file = pipeline_file(tmp_path, database, ["t", quoted])
    before = _metrics(file, capsys)
    assert _value(before, "slotlake_state", state="not initialised") == 1
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("INSERT INTO t SELECT g, 'secret ' || g FROM generate_series(1, 7) g")
        database.execute(f"INSERT INTO {quoted} VALUES (1)")
        pipeline.sync()
        pipeline.verify()
    _numbers_are_right(_metrics(file, capsys))
    _a_file_is_written_whole(file, tmp_path, capsys)
    _a_report_is_one_file(file, tmp_path, capsys)
    _a_source_that_is_down(file, capsys)
    _errors_as_json(file)
    database.execute("INSERT INTO t VALUES (100, 'secret hundred')")
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
    assert _value(_metrics(file, capsys), "slotlake_table_rows", table="public.t") == 8


def _numbers_are_right(known: dict[str, Any]) -> None:
    assert _value(known, "slotlake_up") == 1
    assert _value(known, "slotlake_rows_total") == 8
    assert _value(known, "slotlake_transactions_total") == 2
    assert _value(known, "slotlake_batches_total") == 1
    assert _value(known, "slotlake_copies_total") == 2
    assert _value(known, "slotlake_verify_equal") == 1
    assert 0 <= _value(known, "slotlake_verify_age_seconds") < 60
    assert _value(known, "slotlake_verifications_total", result="equal") == 1
    assert _value(known, "slotlake_table_rows", table="public.t") == 7
    odd = [sample.labels["table"] for sample in known["slotlake_table_rows"].samples]
    assert [name for name in odd if ODD.replace('"', '""') in name]
    lag = _value(known, "slotlake_last_batch_lag_seconds")
    assert 0 < lag < 60
    assert _sample(known, "slotlake_batch_lag_seconds_sum") == pytest.approx(lag)
    steps = {sample.labels["step"] for sample in known["slotlake_step_seconds"].samples}
    assert steps == {"wait", "pull", "apply", "publish", "confirm"}
    kinds = {name: family.type for name, family in known.items()}
    assert kinds["slotlake_step_seconds"] == "histogram"
    assert kinds["slotlake_rows"] == "counter"
    assert all(family.documentation for family in known.values())


def _a_file_is_written_whole(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = folder / "slotlake.prom"
    target.write_text("what was there before")
    assert main(["metrics", str(file), "-o", str(target)]) == 0
    assert capsys.readouterr().out == ""
    assert "slotlake_up" in families(target.read_text())
    assert not [path for path in folder.iterdir() if path.name.endswith(".tmp")]
    assert main(["metrics", str(file), "-o", str(folder / "nowhere" / "x.prom")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def _a_report_is_one_file(file: Path, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = folder / "report.html"
    assert main(["report", str(file), "-o", str(target)]) == 0
    text = target.read_text()
    tags = Tags()
    tags.feed(text)
    assert tags.open == []
    assert "script" not in tags.tags
    assert "&lt;script&gt;" in text
    assert "secret " not in text
    assert text.count('class="pull"') >= 3
    assert main(["top", str(file), "--once"]) == 0
    shown = capsys.readouterr().out
    assert "equal at" in shown
    assert "8 rows" in shown


def _a_source_that_is_down(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = file.read_text()
    file.write_text(re.sub(r'dsn: ".*"', 'dsn: "host=127.0.0.1 port=1 connect_timeout=2"', text))
    known = _metrics(file, capsys)
    assert _value(known, "slotlake_source_reachable") == 0
    assert _value(known, "slotlake_lake_reachable") == 1
    assert _value(known, "slotlake_state", state="source unreachable") == 1
    assert _value(known, "slotlake_rows_total") == 8
    assert "slotlake_lag_bytes" not in known  # not known, so not 0
    file.write_text(text)


def _errors_as_json(file: Path) -> None:
    command = [sys.executable, "-m", "slotlake", "--log-format", "json", "sync", f"{file}.not"]
    failed = subprocess.run(command, check=False, capture_output=True, text=True)
    assert json.loads(failed.stderr)["exit_code"] == failed.returncode == 2


def _metrics(file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["metrics", str(file)]) == 0
    return families(capsys.readouterr().out)


def _value(known: dict[str, Any], name: str, **labels: str) -> float:
    family = known[name.removesuffix("_total")]
    (value,) = [
        sample.value
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    ]
    return float(value)


def _sample(known: dict[str, Any], name: str) -> float:
    family = known[name.rpartition("_")[0]]
    return float(next(sample.value for sample in family.samples if sample.name == name))
