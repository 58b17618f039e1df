"""Operators, the sensor and the hook, each on a real pipeline, as a DAG of one's own calls them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.lsn import format_lsn
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.seconds


@pytest.fixture
def operators(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Importing Airflow makes files."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow-home"))
    from slotlake.infra.airflow import operators

    return operators


def test_a_day_of_a_dag_of_ones_own(operators: Any, database: Database, tmp_path: Path) -> None:
    from slotlake.infra.airflow.versions import AirflowFailException

    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t VALUES (1, 'a'), (2, 'b')")
    path = pipeline_file(tmp_path, database, ["t"])
    file = {"pipeline_file": str(path)}
    with operators.PipelineHook(str(path)).get_conn() as pipeline:
        assert isinstance(pipeline, Pipeline)
        pipeline.init()
    database.execute("INSERT INTO t VALUES (3, 'c')")
    ((source,),) = database.execute("SELECT pg_current_wal_insert_lsn()::text")
    written = datetime.now(UTC)
    by_lsn = operators.PositionSensor(task_id="lsn", at_least=source, **file)
    by_time = operators.PositionSensor(task_id="time", at_least=written.isoformat(), **file)
    assert [each.poke({}) for each in (by_lsn, by_time)] == [False, False]
    report = operators.SyncOperator(task_id="sync", **file).execute({})
    assert report["changes"] == 1
    assert [each.poke({}) for each in (by_lsn, by_time)] == [True, True]
    assert operators.SyncOperator(task_id="s", **file).pool == f"slotlake_slotlake_{database.name}_shop"
    assert operators.QueryOperator(task_id="q", sql="", **file).pool == "default_pool"
    later = (written + timedelta(hours=1)).isoformat()
    assert not operators.PositionSensor(task_id="later", at_least=later, **file).poke({})
    asked = operators.QueryOperator(task_id="ask", sql="SELECT id, v FROM t ORDER BY id", **file).execute({})
    assert asked["rows"] == [["1", "a"], ["2", "b"], ["3", "c"]]
    before = operators.QueryOperator(
        task_id="ask", sql="SELECT count(*) AS n FROM t", at=report["start_lsn"], **file
    ).execute({})
    assert (before["lsn"], before["rows"]) == (report["start_lsn"], [["2"]])
    assert operators.VerifyOperator(task_id="verify", **file).execute({})["equal"]
    done = operators.BackfillOperator(task_id="again", table="t", where="id = 3", **file).execute({})
    assert done["lsn"]
    with pytest.raises(AirflowFailException, match="at_least"):
        operators.PositionSensor(task_id="none", at_least="tomorrow", **file).poke({})
    with pytest.raises(AirflowFailException, match=r"missing\.yaml"):
        operators.SyncOperator(task_id="sync", pipeline_file=str(tmp_path / "missing.yaml")).execute({})
    with Pipeline.open(path) as pipeline:
        assert_equal(database, pipeline, ["t"])
        assert format_lsn(pipeline.position()) >= report["lsn"]


def test_templates_are_those_of_a_run(operators: Any) -> None:
    sensor = operators.PositionSensor(task_id="wait", pipeline_file="/pipelines/{{ params.name }}.yaml")
    sensor.render_template_fields({"params": {"name": "shop"}, "data_interval_end": "2026-11-27T00:00:00Z"})
    assert (sensor.pipeline_file, sensor.at_least) == ("/pipelines/shop.yaml", "2026-11-27T00:00:00Z")
