"""What the DAG files share, without a scheduler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotlake.infra.airflow import late, scheduling
from slotlake.infra.config.pipeline_file import load_pipeline

ROOT = Path(__file__).resolve().parents[2]
FILE = """name: {name}
source: {{dsn: "postgresql://u:p@127.0.0.1:1/db", publications: [p], slot: slot_{name}}}
lake: {{uri: "sqlite:///lake.db", warehouse: warehouse, namespace: n}}
airflow: {airflow}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(scheduling.VARIABLE, str(tmp_path))
    return tmp_path


@pytest.fixture(autouse=True)
def _airflow_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing Airflow makes files there."""
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow-home"))


def _write(folder: Path, name: str, airflow: str = "{}", file: str | None = None) -> Path:
    path = folder / (file or f"{name}.yaml")
    path.write_text(FILE.format(name=name, airflow=airflow))
    return path


def _answer(monkeypatch: pytest.MonkeyPatch, **methods: Any) -> None:
    """Let the steps open a pipeline that has these methods."""
    from slotlake.infra.airflow import steps

    @contextmanager
    def open_pipeline(path: str) -> Iterator[Any]:
        yield SimpleNamespace(file=load_pipeline(path), **methods)

    monkeypatch.setattr(steps, "Pipeline", SimpleNamespace(open=open_pipeline))


def _verified(monkeypatch: pytest.MonkeyPatch, report: dict[str, Any]) -> None:
    """Let the step `verify` report this."""
    from slotlake.expectations.results import Report

    compared = Report("0/1", {})
    _answer(monkeypatch, verify=lambda scope, **_: compared, verification_summary=lambda _: report)


def test_files_and_folders_are_read_and_others_in_a_folder_are_not(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write(folder, "b")
    _write(folder, "a", file="a.yml")
    (folder / "notes.txt").write_text("not a pipeline")
    alone = _write(tmp_path_factory.mktemp("other"), "c")
    monkeypatch.setenv(scheduling.VARIABLE, f"{folder}{os.pathsep}{os.pathsep}{alone}")
    assert [pipeline.name for pipeline in scheduling.pipelines()] == ["a", "b", "c"]
    assert scheduling.problems() == []


def test_no_variable_means_no_pipelines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(scheduling.VARIABLE, raising=False)
    assert scheduling.pipelines() == []
    assert scheduling.problems() == []


def test_a_wrong_file_is_told_by_name_and_key_and_the_others_stay(folder: Path) -> None:
    _write(folder, "good")
    _write(folder, "bad", "{schedul: 5}")
    assert [pipeline.name for pipeline in scheduling.pipelines()] == ["good"]
    (problem,) = scheduling.problems()
    assert "airflow.schedul" in str(problem)
    assert "bad.yaml" in str(problem)


def test_two_files_of_one_name_are_a_mistake(folder: Path) -> None:
    _write(folder, "same", file="1.yaml")
    _write(folder, "same", file="2.yaml")
    assert [pipeline.path.name for pipeline in scheduling.pipelines()] == ["1.yaml"]
    (problem,) = scheduling.problems()
    assert "1.yaml" in str(problem)
    assert "2.yaml" in str(problem)


def test_a_missing_file_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(scheduling.VARIABLE, str(folder / "none.yaml"))
    (problem,) = scheduling.problems()
    assert "none.yaml" in str(problem)


@pytest.mark.parametrize(
    ("written", "expected"),
    [('"*/5 * * * *"', "*/5 * * * *"), ("15", timedelta(seconds=15)), ("null", None)],
)
def test_the_schedule_is_a_cron_expression_seconds_or_by_hand(
    folder: Path, written: str, expected: object
) -> None:
    _write(folder, "p", f"{{schedule: {written}}}")
    assert scheduling.schedule(scheduling.pipelines()[0]) == expected


@pytest.mark.parametrize(
    ("written", "kind", "schedule"),
    [
        ("{}", "four", timedelta(seconds=60)),
        ("{tasks: one, schedule: 10}", "one", timedelta(seconds=10)),
        ("{run: continuous, run_for: 90s}", "continuous", "@continuous"),
        ("{run: continuous, tasks: one, schedule: null}", "continuous", None),
    ],
)
def test_what_a_run_of_cdc_sync_is(folder: Path, written: str, kind: str, schedule: object) -> None:
    _write(folder, "p", written)
    (pipeline,) = scheduling.pipelines()
    assert (scheduling.kind_of_run(pipeline), scheduling.schedule(pipeline)) == (kind, schedule)


def test_ranges_of_several_events_become_one() -> None:
    from slotlake.infra.airflow import steps

    # 0/FF < 0/100 < 1/0 as positions, in another order as text
    events = [
        {"start_lsn": "0/100", "end_lsn": "1/0", "batch": "b"},
        {"start_lsn": "0/FF", "end_lsn": "0/100", "batch": "a"},
        {"by": "hand"},
    ]
    assert steps.covered(events) == {"start_lsn": "0/FF", "end_lsn": "1/0"}
    assert steps.covered([]) == {}


PARSE = """
import runpy, sys, time
import airflow.sdk, airflow.providers.standard.operators.python, airflow.models.asset
before = set(sys.modules)
started = time.process_time()
for kind in ("backfill", "bootstrap", "maintenance", "monitor", "recover", "sync", "tables", "verify"):
    runpy.run_path(f"dags/cdc_{kind}.py")
seconds = time.process_time() - started
heavy = {"pyspark", "numba", "pyarrow", "pandas", "great_expectations", "pyiceberg", "psycopg"}
print(seconds, *sorted(heavy & (set(sys.modules) - before)))
"""


@pytest.mark.seconds
def test_reading_the_dag_files_is_cheap_and_imports_nothing_heavy(folder: Path, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        _write(folder, name)
    done = subprocess.run(
        [sys.executable, "-c", PARSE],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "AIRFLOW_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, *heavy = done.stdout.split("\n")[-2].split()
    assert heavy == []
    assert float(seconds) < 1.0, f"{seconds} s of processor time for three pipelines"


def test_an_error_that_waiting_cannot_help_fails_at_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from slotlake.decoder.errors import BusyError, SlotError
    from slotlake.infra.airflow import steps
    from slotlake.infra.airflow.step_task import as_task

    file = str(_write(folder, "p"))
    for error, kind in (
        (SlotError("the slot is gone"), AirflowFailException),
        (BusyError("busy"), AirflowException),
    ):

        def fail(wait_seconds: float, error: Exception = error) -> None:
            raise error

        _answer(monkeypatch, pull=fail)
        with pytest.raises(AirflowException) as caught, as_task("pull", file):
            steps.pull(file)
        assert type(caught.value) is kind
        assert str(caught.value) == str(error)
        assert caught.value.__cause__ is None


def test_a_task_of_a_dag_file_is_run_so(folder: Path) -> None:
    from airflow.sdk import DAG
    from airflow.sdk.exceptions import AirflowFailException

    from slotlake.decoder.errors import SlotError
    from slotlake.infra.airflow.step_task import task

    def pull(pipeline_file: str) -> None:
        raise SlotError(f"the slot of {pipeline_file} is gone")

    file = str(_write(folder, "p"))
    with DAG("cdc_sync_p", schedule=None):
        begin = task(pull, multiple_outputs=False)
        made = [begin(file).operator, begin(pipeline_file=file).operator]
    for operator in made:
        with pytest.raises(AirflowFailException, match=r"the slot of .*p\.yaml is gone"):
            operator.execute({"run_id": "by hand"})


def test_a_difference_fails_the_task_and_names_no_row(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from slotlake.infra.airflow import steps

    counts = {"source_rows": 2, "lake_rows": 1, "differences": 1, "kinds": {"missing in lake": 1}}
    tables = {"public.a": {"equal": True, "source_rows": 3}, "public.t": {"equal": False, **counts}}
    _verified(monkeypatch, {"equal": False, "lsn": "0/1", "tables": tables})
    with pytest.raises(AirflowFailException, match=r"(?s)^public\.t: .*differ at 0/1"):
        steps.verify(str(_write(folder, "p")))


def test_the_log_of_a_verification_has_a_line_per_table_the_bad_ones_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from slotlake.infra.airflow import steps

    same = {"equal": True, "source_rows": 1234, "lake_rows": 1234, "kinds": {}}
    bad = {"equal": False, "source_rows": 2, "lake_rows": 1, "kinds": {"different": 7, "missing in lake": 1}}
    report = {"equal": False, "lsn": "0/1", "tables": {"public.a": same, "public.b": bad}}
    _verified(monkeypatch, report)
    caplog.set_level("INFO", "slotlake")
    with pytest.raises(AirflowFailException, match=r"^public\.b: different \(7\), missing in lake; "):
        steps.verify(str(_write(folder, "p")))
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        ("WARNING", "public.b: different (7), missing in lake; 2 rows in the source, 1 in the lake"),
        ("INFO", "public.a: equal, 1,234 rows"),
        ("INFO", "compared at 0/1: 1 of 2 tables are equal"),
    ]


def test_an_error_of_a_form_names_its_fields(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowFailException

    from slotlake.decoder.errors import PipelineFileError
    from slotlake.infra.airflow import steps
    from slotlake.infra.airflow.step_task import as_task

    def refuse(*_: object, **options: object) -> None:
        way_out = "write A..B; use --where for other rows, or run `slotlake backfill --table`"
        raise PipelineFileError("'x' is not a range of keys", where="--key-range", way_out=way_out)

    _answer(monkeypatch, backfill=refuse)
    file = str(_write(folder, "p"))
    with pytest.raises(AirflowFailException) as refused, as_task("backfill", file):
        steps.backfill(file, "t", key_range="x")
    assert "where: Key range\n" in str(refused.value)
    assert "use WHERE for other rows, or run `slotlake backfill --table`" in str(refused.value)


def test_owner_link_and_tags_are_those_of_the_pipeline_file(folder: Path) -> None:
    from airflow.sdk import DAG

    _write(folder, "p", "{owner: lake team, owner_link: 'mailto:lake@example.org', tags: [tier 1]}")
    (pipeline,) = scheduling.pipelines()
    dag = DAG("cdc_sync_p", schedule=None, **scheduling.start_options(pipeline, kind="sync"))
    assert (dag.dag_display_name, set(dag.tags)) == ("cdc_sync_p", {"slotlake", "p", "sync", "tier 1"})
    assert dag.owner_links == {"lake team": "mailto:lake@example.org"}
    assert dag.default_args["owner"] == "lake team"
    _write(folder, "p", "{owner_link: wiki}")
    assert "airflow.owner_link: write an address" in str(scheduling.problems()[0])


def test_a_table_that_is_locked_is_verified_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow.sdk.exceptions import AirflowException, AirflowFailException

    from slotlake.expectations.results import LOCKED, MISSING, REWRITTEN
    from slotlake.infra.airflow import steps

    again = AirflowException
    for kinds, kind in (
        ({LOCKED: 1}, again),
        ({REWRITTEN: 1}, again),
        ({MISSING: 1}, AirflowFailException),
    ):
        tables = {
            "public.t": {"equal": False, "kinds": {LOCKED: 1}},
            "public.u": {"equal": False, "kinds": kinds},
            "public.v": {"equal": True, "kinds": {}, "source_rows": 3},
        }
        told = {"equal": False, "lsn": "0/1", "tables": tables}
        _verified(monkeypatch, told)
        with pytest.raises(AirflowException, match="locked at the source") as caught:
            steps.verify(str(_write(folder, "p")))
        assert type(caught.value) is kind


def test_of_maintenance_only_what_was_done_is_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from slotlake.infra.airflow import steps

    nothing = {"staged": False, "rewritten_files": 0, "expired_snapshots": 0, "removed_files": 0}
    tables = [
        {"lake_table": "n.a", **nothing},
        {"lake_table": "n.b", **nothing, "removed_files": 2, "written_files": 0},
    ]
    done = {"pipeline": "p", "tables": tables, "left": [], "seconds": 1.0}
    _answer(monkeypatch, maintain=lambda wait_seconds: SimpleNamespace(as_dict=lambda: done))
    report = steps.maintain(str(_write(folder, "p", "{maintenance: 900}")))
    assert (report["tables"], report["all_tables"]) == (tables[1:], 2)
    (pipeline,) = scheduling.pipelines()
    assert scheduling.schedule_of(pipeline.airflow.maintenance) == timedelta(minutes=15)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("deadline: 5m", 300.0), ("run: continuous, run_for: 90s, deadline: 30", 120.0)],
)
def test_a_deadline_counts_from_the_time_a_run_may_take(folder: Path, written: str, seconds: float) -> None:
    _write(folder, "p", f"{{{written}}}")
    alert = scheduling.deadline(scheduling.pipelines()[0])["deadline"]
    assert alert.interval == timedelta(seconds=seconds)
    assert alert.callback.path == f"{late.__name__}.{late.warn.__name__}"
    assert set(alert.callback.kwargs) == {"pipeline_file"}


def test_without_the_key_there_is_no_deadline(folder: Path) -> None:
    _write(folder, "p", "{}")
    assert scheduling.deadline(scheduling.pipelines()[0]) == {}


def test_a_late_run_is_told_of_also_if_nothing_else_is_known(folder: Path) -> None:
    _write(folder, "p", "{run: continuous, deadline: 30}")
    pipeline = scheduling.pipelines()[0]
    text = late.late_text(pipeline, {}, "how far the lake is behind is not known: it is away")
    assert "pipeline p is late" in text
    assert "30 s after its time (run_for, 10 min)" in text
    assert "not known" in text
