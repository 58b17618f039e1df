"""The plan of a recovery as a person reads it in Airflow, and what an answer leads to."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

REPORT = {
    "findings": [{"kind": "slot", "what": "the slot `s` does not exist", "repair": "renew", "tables": []}],
    "plan": ["make a new slot", 'public."Odd_*|<b>Name": write the rows that differ (1 missing)'],
    "lost": ["what happened between 0/1 and the new slot"],
    "written": 1,
    "rows": 1,
    "bytes": 2048,
    "lsn": "0/1",
    "plan_name": "abc",
}


class _Pushed:
    """What a task instance gets."""

    def __init__(self) -> None:
        self.xcoms: dict[str, Any] = {}

    def xcom_push(self, key: str, value: Any) -> None:
        self.xcoms[key] = value


@pytest.fixture
def approval(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, with steps that report REPORT."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow-home"))
    from slotlake.infra.airflow import approval, steps

    monkeypatch.setattr(steps, "plan_recovery", lambda file: REPORT)
    monkeypatch.setattr(steps, "recover", lambda file, plan_name: {**REPORT, "carried out": plan_name})
    return approval


def test_the_plan_says_what_is_wrong_done_lost_and_what_it_costs(approval: Any) -> None:
    text = approval.markdown(REPORT)
    order = ["What is wrong", "does not exist", "What is done", "new slot", "lost for good", "between 0/1"]
    places = [text.index(part) for part in [*order, "What it costs", "about 1 row, 2 kB, in 1 table"]]
    assert places == sorted(places)
    assert r"Odd\_\*\|\<b\>Name" in text  # a name is a name, whatever it is
    many = approval.markdown({**REPORT, "plan": [f"t{number}" for number in range(250)]})
    assert "- t99\n- and 150 more" in many
    assert "t100" not in many


def test_a_plan_is_asked_about_unless_nothing_is_wrong_or_it_is_a_dry_run(
    approval: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowSkipException, DownstreamTasksSkipped

    from slotlake.infra.airflow import steps

    task = _Pushed()
    assert approval.plan("f", task, dry_run=False)["plan_name"] == "abc"
    assert "What is wrong" in task.xcoms["plan_markdown"]
    with pytest.raises(AirflowSkipException, match=r"1 thing is wrong.*nothing was changed"):
        approval.plan("f", task, dry_run=True)
    assert task.xcoms["return_value"]["plan"] == REPORT["plan"]
    monkeypatch.setattr(steps, "plan_recovery", lambda file: {"findings": [], "plan_name": None})
    with pytest.raises(DownstreamTasksSkipped) as skipped:
        approval.plan("f", task, dry_run=True)
    assert list(skipped.value.tasks) == ["approve", "recover"]


def test_only_an_approved_plan_is_carried_out(approval: Any) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    for answer in (None, {}, {"chosen_options": ["Reject"]}):
        with pytest.raises(AirflowFailException, match="nobody approved the plan: nothing was changed"):
            approval.recover("f", {"plan_name": "abc"}, answer)
    report = approval.recover("f", {"plan_name": "abc"}, {"chosen_options": ["Approve"]})
    assert report["carried out"] == "abc"


def test_an_answer(approval: Any) -> None:
    from datetime import UTC, datetime

    from airflow.sdk import DAG
    from airflow.sdk.exceptions import AirflowSkipException

    with DAG("cdc_recover_shop", schedule=None):
        task = approval.PlanApproval(task_id="approve", pipeline_name="shop")
    assert (task.pool, task.defaults) == ("default_pool", ["Reject"])
    event = {"params_input": {}, "responded_at": datetime.now(UTC), "responded_by_user": None}
    admin = {"id": "1", "name": "admin"}
    with pytest.raises(AirflowSkipException, match="nobody answered within a day: nothing was changed"):
        task.execute_complete({}, {**event, "chosen_options": ["Reject"]})
    with pytest.raises(AirflowSkipException, match="admin rejected the plan: nothing was changed"):
        task.execute_complete({}, {**event, "chosen_options": ["Reject"], "responded_by_user": admin})
    answer = task.execute_complete({}, {**event, "chosen_options": ["Approve"], "responded_by_user": admin})
    assert answer["chosen_options"] == ["Approve"]
