"""The user's own suites of Great Expectations: as gates of a batch, and in a verification."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import GateError
from slotlake.expectations.suites.of_users import SuiteError, TableSuite, UserProject, read_suite
from slotlake.infra.cli.main import main
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file

pytestmark = pytest.mark.timeout(600)
LONG = pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG is not set")

# The suite of Great Expectations' own documentation, on its example of taxi rides.
TAXI = {
    "name": "taxi",
    "expectations": [
        {
            "type": "expect_column_values_to_be_between",
            "kwargs": {"column": "passenger_count", "min_value": 1},
        },
        {"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "pickup_datetime"}},
        {"type": "expect_column_values_to_be_unique", "kwargs": {"column": "ride_id"}},
        {
            "type": "expect_table_row_count_to_be_between",
            "kwargs": {"min_value": {"$PARAMETER": "rows_yesterday"}, "max_value": 1000},
        },
    ],
}
_ACTION = """
from typing import Literal

from great_expectations.checkpoint import ValidationAction


class NoteIt(ValidationAction):
    type: Literal["note_it"] = "note_it"
    path: str

    def run(self, checkpoint_result, action_context=None):
        with open(self.path, "a") as notes:
            notes.write(f"{checkpoint_result.success}\\n")
        return {}
"""


@pytest.fixture
def rides(database: Database, session: Any, tmp_path: Path) -> tuple[Database, Path]:
    database.execute(
        "CREATE TABLE rides (ride_id int PRIMARY KEY, passenger_count int, pickup_datetime timestamp);"
        "INSERT INTO rides SELECT g, 1 + g % 4, '2026-01-01' FROM generate_series(1, 200) g;"
        "CREATE TABLE other (id int PRIMARY KEY)"
    )
    (tmp_path / "taxi.json").write_text(json.dumps(TAXI))
    return database, pipeline_file(tmp_path, database, ["rides", "other"])


def _choose(file: Path, text: str) -> None:
    """Set the options of the table, as a user edits the file."""
    lines = [line for line in file.read_text().splitlines() if not line.startswith(("  'rides'", "expect"))]
    lines.insert(lines.index("tables:") + 1, f"  'rides': {{expectations: {text}}}")
    file.write_text("\n".join(lines) + "\n")


def _lake_rows(pipeline: Any, table: str) -> int:
    (row,) = pipeline.session.sql(f"SELECT count(*) FROM lake.shop.{table}").collect()
    return int(row[0])


def test_a_gate_on_a_spark_server(database: Database, connect: str, tmp_path: Path) -> None:
    """Great Expectations calls pyspark's functions: those of Connect, in a process that has another Spark."""
    database.execute(
        "CREATE TABLE rides (ride_id int PRIMARY KEY, passenger_count int, pickup_datetime timestamp);"
        "INSERT INTO rides SELECT g, 1 + g % 4, '2026-01-01' FROM generate_series(1, 20) g"
    )
    (tmp_path / "taxi.json").write_text(json.dumps(TAXI))
    file = pipeline_file(tmp_path, database, ["rides"])
    _choose(file, "[{suite: taxi.json, gate: true}]")
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        database.execute("UPDATE rides SET passenger_count = 3 WHERE ride_id = 1")
        assert pipeline.sync().changes == 1
        database.execute("UPDATE rides SET passenger_count = 0 WHERE ride_id = 2")
        with pytest.raises(GateError, match="expect_column_values_to_be_between"):
            pipeline.sync()
        database.execute("UPDATE rides SET passenger_count = 4 WHERE ride_id = 2")
        assert pipeline.sync().changes == 2
        assert "SPARK_CONNECT_MODE_ENABLED" not in os.environ


def test_a_batch_that_fails_its_gate_is_not_published(
    rides: tuple[Database, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    database, file = rides
    _choose(file, "[{suite: taxi.json, gate: true}]")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("INSERT INTO rides VALUES (201, 2, '2026-01-02')")
        assert pipeline.sync().transactions == 1  # meets the suite
        before = pipeline.position()
        database.execute("INSERT INTO rides VALUES (202, 0, '2026-01-02'), (203, 0, NULL)")
        database.execute("INSERT INTO other VALUES (1)")
        with pytest.raises(
            GateError, match=r"expect_column_values_to_be_between\(passenger_count\): 2 of"
        ) as at:
            pipeline.sync()
        assert "2 of 4 expectations" in at.value.what
        assert at.value.retryable
        assert (pipeline.position(), _lake_rows(pipeline, "rides"), _lake_rows(pipeline, "other")) == (
            before,
            201,
            0,
        )
        assert any("the last batch is not published" in each for each in pipeline.status().warnings)
        with pytest.raises(GateError):
            pipeline.sync()  # nothing is corrected
        # Corrected at the source: the same batch takes the correction.
        database.execute(
            "UPDATE rides SET passenger_count = 1, pickup_datetime = '2026-01-02' WHERE ride_id > 201"
        )
        report = pipeline.sync()
        assert report.transactions == 3
        assert (_lake_rows(pipeline, "rides"), _lake_rows(pipeline, "other")) == (203, 1)
        assert not any("not published" in each for each in pipeline.status().warnings)
        assert pipeline.verify().success
        database.execute(
            "DELETE FROM rides WHERE ride_id > 203; UPDATE rides SET passenger_count = -1 WHERE ride_id = 1"
        )
    assert main(["sync", str(file)]) == 13
    assert "set gate: false" in capsys.readouterr().err
    _choose(file, "[{suite: taxi.json, gate: false}]")  # the other way out
    assert main(["sync", str(file)]) == 0
    _a_verification_checks_it(database, file, capsys)


def _a_verification_checks_it(database: Database, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Suites that are no gates are checked at the verified position, and the user's actions run."""
    capsys.readouterr()
    assert main(["verify", str(file), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["equal"]
    (suite,) = report["suites"]
    assert (suite["suite"], suite["success"], suite["expectations"]) == ("taxi.json", False, 4)
    assert suite["failed"] == ["expect_column_values_to_be_between(passenger_count): 1 of 203 rows"]
    assert main(["verify", str(file)]) == 1
    assert "the suite 'taxi.json' fails, 1 of 4 expectations" in " ".join(capsys.readouterr().out.split())
    database.execute("UPDATE rides SET passenger_count = 1 WHERE ride_id = 1")
    assert main(["verify", str(file)]) == 0


@LONG
def test_a_project_of_the_user_is_only_read(
    rides: tuple[Database, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The suite is checked and the checkpoint's actions run, but nothing is written to the project."""
    database, file = rides
    (tmp_path / "note_it.py").write_text(_ACTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    project, notes = tmp_path / "quality", tmp_path / "notes.txt"
    _make_project(project, notes)
    stored = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    _choose(file, "taxi")
    assert main(["validate", str(file)]) == 1  # a suite of a project, and no project
    file.write_text(file.read_text() + "expectations: {project: quality, checkpoint: nightly}\n")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        report = pipeline.verify()
        assert (report.success, [each.suite for each in report.suites]) == (True, ["taxi"])
        database.execute("UPDATE rides SET passenger_count = 0 WHERE ride_id = 7")
        assert not pipeline.verify().success
    assert notes.read_text().split() == ["True", "True", "False", "True"]  # suite, then equality; twice
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == stored


def _make_project(folder: Path, notes: Path) -> None:
    import great_expectations as gx
    from note_it import NoteIt  # type: ignore[import-not-found]

    folder.mkdir()
    context = gx.get_context(mode="file", project_root_dir=str(folder))
    suite = context.suites.add(gx.ExpectationSuite("taxi", expectations=TAXI["expectations"]))
    batch = (
        context.data_sources.add_pandas("p")
        .add_dataframe_asset("a")
        .add_batch_definition_whole_dataframe("b")
    )
    definition = context.validation_definitions.add(
        gx.ValidationDefinition(name="v", data=batch, suite=suite)
    )
    action = NoteIt(name="note", path=str(notes))
    context.checkpoints.add(
        gx.Checkpoint(name="nightly", validation_definitions=[definition], actions=[action])
    )


@pytest.mark.seconds
@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "cannot be read"),
        ('{"expectation_suite_name": "old", "expectations": [{"expectation_type": "x"}]}', "not a suite of"),
        ('{"expectations": [{"type": "expect_nothing_of_the_kind", "kwargs": {}}]}', "cannot be used"),
        (None, "cannot be read"),
    ],
)
def test_a_wrong_suite_is_named(tmp_path: Path, content: str | None, what: str) -> None:
    if content is not None:
        (tmp_path / "s.json").write_text(content)
    with pytest.raises(SuiteError, match=what):
        read_suite(TableSuite("public.t", "s.json", tmp_path / "s.json"), UserProject())


def test_a_folder_without_a_project_stays_as_it_is(tmp_path: Path) -> None:
    with pytest.raises(SuiteError, match=r"great_expectations\.yml is missing"):
        read_suite(TableSuite("public.t", "s", None), UserProject(tmp_path))
    assert not list(tmp_path.iterdir())
