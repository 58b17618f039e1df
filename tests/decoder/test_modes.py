"""Every scenario of the lake's tests, asked of the server in every way: the change log is the same.

Protocol 1 in text is the reference; streaming, two-phase, binary and reading through SQL must come to the
same values.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import SourceError
from tests.conftest import Database
from tests.decoder.sources import through_sql
from tests.decoder.test_streaming import Twins
from tests.e2e.scenarios import SCENARIOS

MODES: dict[str, dict[str, Any]] = {
    "first": {"proto_version": 1, "streaming": "off", "bulk": False},
    "text": {"streaming": "parallel", "two_phase": True},
    "binary": {"streaming": "on", "binary": True, "bulk": False},
    "sql": {"streaming": "parallel", "binary": True},
}


def test_every_scenario_in_every_mode(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    through_sql(monkeypatch, 256 << 10)
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


def test_a_type_that_binary_does_not_carry_is_refused_beforehand(database: Database, tmp_path: Path) -> None:
    database.execute(
        "CREATE TABLE named (id int PRIMARY KEY, kind regclass); CREATE PUBLICATION p FOR TABLE named"
    )
    twins = Twins(database, tmp_path, {"text": {}, "binary": {"binary": True}})
    database.execute("INSERT INTO named VALUES (1, 'named')")
    assert twins.pull("text").changes == 1
    with pytest.raises(SourceError, match=r"column 'kind' of public\.named cannot be read in binary"):
        twins.pull("binary")
