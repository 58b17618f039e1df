"""Asset events of a batch, by Airflow's own accessors, without a scheduler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slotlake.infra.airflow.brought import Brought
from slotlake.infra.reports import SyncReport

TIMES = [f"2026-01-01T00:00:0{second}+00:00" for second in range(4)]


@pytest.fixture(autouse=True)
def _airflow_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing Airflow makes files there."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow-home"))


class _Store(dict[str, Any]):
    def __getitem__(self, asset: Any) -> _Store:
        return self

    def set(self, key: str, value: Any) -> None:
        self.update({key: value})


def _events(tables: dict[str, int]) -> tuple[dict[str, Any], _Store]:
    """The extra of each event by the asset's URI, as a task would send them; what is stored."""
    from airflow.sdk.execution_time.context import OutletEventAccessors

    from slotlake.infra.airflow import assets

    accessors, store = OutletEventAccessors(), _Store()
    brought = Brought("0/1", "0/2", "b", 3, tables, TIMES[0], TIMES[1])
    assets.emit("shop", brought.as_dict(), accessors, store)
    sent = [event for alias in accessors for event in accessors[alias].asset_alias_events]
    assert len({event.dest_asset_key.uri for event in sent}) == len(sent)
    return {event.dest_asset_key.uri: event.extra for event in sent}, store


def test_nothing_changed_is_no_event() -> None:
    assert _events({}) == ({}, {})


def test_each_table_has_an_event_and_the_pipeline_one_of_all() -> None:
    events, store = _events({"public.orders": 5, 'public."Odd / Name"': 1})
    shared = {"start_lsn": "0/1", "end_lsn": "0/2", "batch": "b", "transactions": 3}
    times = {"oldest_commit": TIMES[0], "newest_commit": TIMES[1]}
    whole = {**shared, **times, "changes": 6, "tables": 2}
    assert events == {
        "slotlake://shop/": whole,
        "slotlake://shop/public.orders": {**shared, **times, "table": "public.orders", "changes": 5},
        "slotlake://shop/public.%22Odd%20%2F%20Name%22": {
            **shared,
            **times,
            "table": 'public."Odd / Name"',
            "changes": 1,
        },
    }
    assert store == {"last_batch": whole}


@pytest.mark.parametrize("tables", [101, 1000, 10_000])
def test_many_tables_make_a_bounded_number_of_events_of_bounded_size(tables: int) -> None:
    from slotlake.infra.airflow import assets

    events, store = _events({f"public.t{number}": number + 1 for number in range(tables)})
    assert len(events) == 1 + assets.TABLES_MAX
    whole = events["slotlake://shop/"]
    assert (whole["tables"], whole["left_out_tables"]) == (tables, tables - assets.TABLES_MAX)
    assert f"slotlake://shop/public.t{tables - 1}" in events  # the most changes
    assert whole["left_out"][0] == f"public.t{tables - assets.TABLES_MAX - 1}"
    assert len(json.dumps([*events.values(), store])) < 40_000


def test_micro_batches_of_a_run_are_added_up() -> None:
    def made(batch: str | None, oldest: str | None, newest: str | None, **tables: int) -> SyncReport:
        transactions = 0 if batch is None else 2
        report = SyncReport(batch, "0/1", "0/9", transactions, sum(tables.values()), tables, 0.1)
        return SyncReport(**{**vars(report), "oldest_commit": oldest, "newest_commit": newest})

    brought = Brought.by_syncs(
        [
            made("a", TIMES[1], TIMES[2], x=1, idle=0),
            made("b", TIMES[0], TIMES[3], x=2, y=1),
            made(None, None, None),
        ],
        "0/1",
        "0/9",
    )
    assert brought == Brought("0/1", "0/9", "b", 4, {"x": 3, "y": 1}, TIMES[0], TIMES[3])
