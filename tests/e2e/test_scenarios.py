"""After each step of every scenario the lake equals the source, and `verify` says so too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import differences, pipeline_file
from tests.e2e.scenarios import SCENARIOS

pytestmark = pytest.mark.timeout(600)


def test_every_scenario_step_by_step(database: Database, session: Any, tmp_path: Path) -> None:
    # Little memory for decoding: a large transaction is sent while it is in progress.
    database.execute(f"ALTER DATABASE {database.name} SET logical_decoding_work_mem = '64kB'")
    for scenario in SCENARIOS.values():
        database.execute(scenario.setup)
    tables = [table for scenario in SCENARIOS.values() for table in scenario.tables]
    with Pipeline.open(pipeline_file(tmp_path, database, tables, source="two_phase: true")) as pipeline:
        pipeline.init()
        wrong: dict[str, Any] = {"after init": differences(database, pipeline, tables)}
        for step in range(max(len(scenario.steps) for scenario in SCENARIOS.values())):
            with database.connect() as connection:
                for scenario in SCENARIOS.values():
                    for transaction in scenario.steps[step] if step < len(scenario.steps) else []:
                        connection.execute(transaction)
            pipeline.sync()
            wrong[f"after step {step}"] = differences(database, pipeline, tables)
        assert {when: tables for when, tables in wrong.items() if tables} == {}
        report = pipeline.verify()
        assert report.equal, {name: table for name, table in report.tables.items() if not table.equal}
