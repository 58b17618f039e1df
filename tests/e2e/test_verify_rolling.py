"""`slotlake verify --rolling`: all rows are compared within a chosen time, a slice at a time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.progress import silent
from slotlake.infra.state.journal import Journal
from slotlake.infra.state.verified import coverage, read_verified
from slotlake.infra.verify import rolling
from slotlake.infra.verify.outcome import changed_verified
from slotlake.infra.verify.verification import Verification, VerifyRequest
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.e2e.rolled import let_pass

pytestmark = pytest.mark.timeout(600)
VERIFY = "verify: {changed: every_verify, full_within: 1h, source_load: 1}\n"


@pytest.fixture
def opened(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Database, Any]]:
    monkeypatch.setattr(rolling, "SLICE_ROWS", 500)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text);"
        "INSERT INTO t SELECT g * g, 'v' || g FROM generate_series(-1000, 999) g WHERE g * g > 0"
        " ON CONFLICT DO NOTHING; INSERT INTO t VALUES (-5, 'low');"
        'CREATE TABLE "By Text" ("K" text, n int, v text, PRIMARY KEY ("K", n));'
        """INSERT INTO "By Text" SELECT 'k' || g, g, 'v' FROM generate_series(1, 1200) g;"""
        "CREATE TABLE bag (v text); INSERT INTO bag SELECT 'b' FROM generate_series(1, 1100); ANALYZE t"
    )
    file = pipeline_file(tmp_path, database, ["t", '"By Text"', "bag"], extra=VERIFY)
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        yield database, pipeline


def test_all_rows_are_compared_within_the_time(opened: tuple[Database, Any]) -> None:
    database, pipeline = opened
    first = pipeline.verify("rolling")
    assert first.equal
    assert len(first.tables) == 1  # no time has passed: one slice, so that there is a beginning
    let_pass(pipeline, 600)
    some = pipeline.verify("rolling")
    never = _rolling(pipeline)["never"]
    assert 0 < never < _rolling(pipeline)["slices"] - 1
    assert some.equal
    rows = dict.fromkeys(("public.t", 'public."By Text"', "public.bag"), 0)
    _forget(pipeline)
    for _ in range(6):
        for name, table in pipeline.verify("rolling").tables.items():
            assert table.equal, table
            rows[name] += table.source_rows
        let_pass(pipeline, 600)
    assert _rolling(pipeline)["never"] == 0
    counts = {name: database.execute(f"SELECT count(*) FROM {name}")[0][0] for name in rows}
    assert all(rows[name] >= count for name, count in counts.items()), (rows, counts)


def test_a_wrong_row_that_does_not_change_is_found_within_the_time(opened: tuple[Database, Any]) -> None:
    _, pipeline = opened
    pipeline.verify()
    point = ReadPoint.latest(pipeline.lake)
    for table, condition in (("t", "id = 250000"), ('"By Text"', "n = 77")):
        name = point.find(table)
        place = f"lake.`{name.namespace}`.`{name.table}`"
        pipeline.session.sql(f"UPDATE {place} SET v = 'x' WHERE {condition}").collect()
    assert pipeline.verify("changed").equal
    found: dict[str, list[dict[str, Any]]] = {}
    for _ in range(8):
        let_pass(pipeline, 600)
        for name, result in pipeline.verify("rolling").tables.items():
            found.setdefault(name, []).extend(dict(each.key) for each in result.differences)
    assert {name: keys[0] for name, keys in found.items() if keys} == {
        "public.t": {"id": "250000"},
        'public."By Text"': {"K": "k77", "n": "77"},
    }
    line = Journal(pipeline.file.state_dir).verifications.newest()[0]
    assert line["unresolved"] == ['public."By Text"', "public.t"]
    assert pipeline.status().verification == {"different": line["unresolved"], **_rolling(pipeline)}
    assert any("found different" in warning for warning in pipeline.status().warnings)
    assert pipeline.verify("changed").equal
    pipeline.backfill(["t", '"By Text"'])
    assert pipeline.verify("rolling").equal  # what differed is compared by each run
    line = Journal(pipeline.file.state_dir).verifications.newest()[0]
    assert (line["scope"], line["unresolved"]) == ("rolling", [])


def test_a_table_that_is_copied_again_is_not_verified(opened: tuple[Database, Any]) -> None:
    database, pipeline = opened
    pipeline.verify("rolling")
    pipeline.verify()
    assert _rolling(pipeline)["never"] == 0
    noted = read_verified(pipeline.file.state_dir)["tables"]
    begun = Verification(pipeline).begin(VerifyRequest("full", ["t"]), silent)
    database.execute("INSERT INTO t VALUES (2000001, 'later')")
    pipeline.backfill("t")
    after = read_verified(pipeline.file.state_dir)["tables"]
    slices = len(noted["public.t"]["slices"])
    assert _rolling(pipeline)["never"] == slices, "those of the copied table"
    assert "lsn" not in after["public.t"]
    assert after["public.bag"] == noted["public.bag"]
    assert begun.finish(silent).equal, "at an LSN of before the copy: that says nothing of the copy"
    assert read_verified(pipeline.file.state_dir)["tables"] == after
    pipeline.backfill('"By Text"', where="n < 5")  # what is equal is not copied
    assert read_verified(pipeline.file.state_dir)["tables"] == after
    assert pipeline.verify().equal
    assert _rolling(pipeline)["never"] == 0
    assert read_verified(pipeline.file.state_dir)["tables"]["public.t"]["lsn"]


def test_without_a_time_nothing_has_its_turn(tmp_path: Path, database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    with Pipeline.open(pipeline_file(tmp_path, database, ["t"])) as pipeline:
        pipeline.init()
        with pytest.raises(PipelineFileError, match="within which time all rows are to be compared"):
            pipeline.verify("rolling")


def _forget(pipeline: Any) -> None:
    with changed_verified(pipeline) as verified:
        verified["tables"].clear()
        verified["credit_from"] = time.time()


def _rolling(pipeline: Any) -> dict[str, Any]:
    covered = coverage(read_verified(pipeline.file.state_dir))
    assert covered is not None
    return covered
