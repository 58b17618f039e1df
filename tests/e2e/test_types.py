"""Types in the lake, from the source's first row to `verify`: what became what, and what is kept how."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.cli import main
from infra.pipeline import Pipeline
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)


def test_status_types(
    database: Database, session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute(
        "CREATE TABLE kinds (id bigint PRIMARY KEY, n numeric(10,2), d date, t timestamptz, w varchar(20), "
        "a int[], f numeric); INSERT INTO kinds VALUES (1, 'NaN', 'infinity', now(), 'w', '{1}', 1.50), "
        "(2, 1, '2026-11-21', now(), 'w', '{}', 'NaN'), (3, 'NaN', 'today', now(), 'w', '{}', 0)"
    )
    file = pipeline_file(tmp_path, database, ["kinds"])
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("INSERT INTO kinds (id, d) VALUES (4, '-infinity')")
        pipeline.sync()
        assert_equal(database, pipeline, ["kinds"])
    assert main(["status", "--types", "--json", str(file)]) == 0
    (table,) = json.loads(capsys.readouterr().out)["tables"]
    found = {column.pop("column"): column for column in table["columns"]}
    assert (table["table"], table["lake_table"]) == ("public.kinds", "shop.kinds")
    types = {name: (c["postgres"], c["arrow"], c["iceberg"]) for name, c in found.items()}
    assert types == {
        "id": ("int8", "int64", "long"),
        "n": ("numeric(10,2)", "decimal128(10, 2)", "decimal(10,2)"),
        "d": ("date", "date32[day]", "date"),
        "t": ("timestamptz", "timestamp[us, tz=UTC]", "timestamptz"),
        "w": ("varchar(20)", "string", "string"),
        "a": ("int4[]", "string", "string"),
        "f": ("numeric", "string", "string"),
    }
    assert {name: c["exact_texts"] for name, c in found.items() if c["companion"]} == {"n": 2, "d": 2}
    assert [name for name, c in found.items() if not c["exact"]] == ["n", "d", "t"]
    assert found["t"]["otherwise"] == "NULL, its text in t__exact"
    assert found["n"]["companion"] == "n__exact"
    assert main(["status", "--types", str(file)]) == 0
    assert "n__exact" in capsys.readouterr().out
