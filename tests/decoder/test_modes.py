"""Every scenario of the lake's tests, asked of the server in every way: the change log is the same.

Protocol 1 in text is the reference; streaming, two-phase and binary must come to the same values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conftest import Database
from tests.decoder.test_streaming import Twins
from tests.e2e.scenarios import SCENARIOS

MODES: dict[str, dict[str, Any]] = {
    "first": {"proto_version": 1, "streaming": "off"},
    "text": {"streaming": "parallel", "two_phase": True},
    "binary": {"streaming": "on", "binary": True},
}


def test_every_scenario_in_every_mode(database: Database, tmp_path: Path) -> None:
    for scenario in SCENARIOS.values():
        database.execute(scenario.setup)
    database.execute(
        "CREATE PUBLICATION p FOR ALL TABLES;"
        f"ALTER DATABASE {database.name} SET debug_logical_replication_streaming = immediate"
    )
    twins = Twins(database, tmp_path, MODES)
    changes = 0
    for step in range(max(len(scenario.steps) for scenario in SCENARIOS.values())):
        with database.connect() as connection:
            for scenario in SCENARIOS.values():
                for transaction in scenario.steps[step] if step < len(scenario.steps) else []:
                    connection.execute(transaction)
        changes += len(twins.same())
    assert changes > 1000
