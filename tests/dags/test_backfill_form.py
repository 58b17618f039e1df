"""What the form of a backfill offers, and what a logical date of `cdc_sync` stands for."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotlake.infra.airflow import backfill as form
from slotlake.infra.config.pipeline_file import PipelineFile, load_pipeline

FILE = """name: shop
source: {{dsn: "postgresql://u@h/d", publications: [shop], slot: s}}
lake: {{catalog: lake, uri: "sqlite:///lake.db", warehouse: "warehouse", namespace: shop}}
airflow: {{schedule: {schedule}}}
tables: {{public.orders: {{}}}}
"""
NOON = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _airflow_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing Airflow makes files there."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow-home"))


def _file(folder: Path, schedule: str = "60") -> PipelineFile:
    path = folder / "shop.yaml"
    path.write_text(FILE.format(schedule=schedule))
    return load_pipeline(path)


def _run(start: datetime | None, end: datetime | None, kind: str = "backfill") -> Any:
    return SimpleNamespace(
        data_interval_start=start, data_interval_end=end, logical_date=NOON, run_after=NOON, run_type=kind
    )


@pytest.mark.parametrize(
    ("schedule", "end"),
    [
        ("90", NOON + timedelta(seconds=90)),
        ('"*/5 * * * *"', NOON + timedelta(minutes=5)),
        ('"0 0 * * *"', datetime(2026, 5, 2, tzinfo=UTC)),
        ("null", NOON),
    ],
)
def test_a_logical_date_stands_for_the_interval_that_it_begins(
    tmp_path: Path, schedule: str, end: datetime
) -> None:
    file = _file(tmp_path, schedule)
    assert form.interval(file, _run(NOON, NOON)) == (NOON, end)
    assert form.interval(file, _run(None, None)) == (NOON, end)
    hour = NOON + timedelta(hours=1)
    assert form.interval(file, _run(NOON, hour)) == (NOON, hour)


def test_only_a_run_of_a_backfill_is_kept_from_the_live_tables() -> None:
    from airflow.sdk.exceptions import AirflowSkipException

    form.skip_in_a_backfill(_run(NOON, NOON, "scheduled"))
    with pytest.raises(AirflowSkipException):
        form.skip_in_a_backfill(_run(NOON, NOON))


def test_the_form_offers_what_the_file_and_the_note_name(tmp_path: Path) -> None:
    file = _file(tmp_path)
    assert form.table_names(file) == ["public.orders"]
    file.state_dir.mkdir(parents=True, exist_ok=True)
    (file.state_dir / "tables.json").write_text(json.dumps(["public.items", "public.orders"]))
    assert form.table_names(file) == ["public.items", "public.orders"]
    (file.state_dir / "tables.json").write_text("half a no")
    assert form.table_names(file) == ["public.orders"]
