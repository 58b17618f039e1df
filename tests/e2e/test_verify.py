"""A lake that someone has changed by hand: `verify` names the table, the kind and the key."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.care.verification import summary
from slotlake.infra.cli.main import main
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file

pytestmark = pytest.mark.timeout(600)
CORRUPTIONS: dict[str, tuple[str, str, dict[str, str]]] = {
    "one value": ("UPDATE lake.shop.t SET v = 'x' WHERE id = 7", "different", {"id": "7"}),
    "a missing row": ("DELETE FROM lake.shop.t WHERE id = 8", "missing in lake", {"id": "8"}),
    "an extra row": ("INSERT INTO lake.shop.t VALUES (9000, 'y', 1)", "extra in lake", {"id": "9000"}),
    "a duplicated row": (
        "INSERT INTO lake.shop.t SELECT * FROM lake.shop.t WHERE id = 9",
        "duplicated in lake",
        {"id": "9"},
    ),
    "NULL for empty": ("UPDATE lake.shop.t SET v = NULL WHERE id = 1", "different", {"id": "1"}),
    "a digit of a scale": ("UPDATE lake.shop.t SET n = n + 0.01 WHERE id = 5", "different", {"id": "5"}),
}


@pytest.fixture
def opened(database: Database, session: Any, tmp_path: Path) -> Iterator[tuple[Database, Any]]:
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, n numeric(10,2));"
        "INSERT INTO t SELECT g, 'v' || g, g FROM generate_series(1, 2000) g;"
        "UPDATE t SET v = '' WHERE id = 1;"
        "CREATE TABLE other (id int PRIMARY KEY); INSERT INTO other VALUES (1)"
    )
    with Pipeline.open(pipeline_file(tmp_path, database, ["t", "other"])) as pipeline:
        pipeline.init()
        yield database, pipeline


def test_each_corruption_is_named(opened: tuple[Database, Any], capsys: pytest.CaptureFixture[str]) -> None:
    _, pipeline = opened
    assert pipeline.verify().equal
    for name, (statement, kind, key) in CORRUPTIONS.items():
        pipeline.session.sql(statement).collect()
        report = pipeline.verify()
        assert not report.equal, name
        assert report.tables["public.other"].equal
        found = [(d.kind, dict(d.key)) for d in report.tables["public.t"].differences]
        assert found == [(kind, key)], name
        assert "v7" not in json.dumps(summary(report))
        pipeline.backfill("t")
        assert pipeline.verify().equal, name
    statement, _, _ = CORRUPTIONS["a missing row"]
    pipeline.session.sql(statement).collect()
    capsys.readouterr()
    assert main(["verify", str(pipeline.file.path)]) == 1
    assert "missing in lake: id=8" in capsys.readouterr().out


def test_equal_while_the_source_is_written(opened: tuple[Database, Any]) -> None:
    database, pipeline = opened
    stopped = threading.Event()
    writer = threading.Thread(target=_write, args=(database, stopped.is_set))
    writer.start()
    try:
        reports = [pipeline.verify() for _ in range(3)]
    finally:
        stopped.set()
        writer.join()
    assert all(report.equal for report in reports)
    assert len({report.lsn for report in reports}) == len(reports)
    assert reports[-1].tables["public.t"].source_rows > reports[0].tables["public.t"].source_rows


def _write(database: Database, stopped: Callable[[], bool]) -> None:
    with database.connect() as connection:
        for number in range(100_000):
            if stopped():
                return
            connection.execute(
                f"BEGIN; INSERT INTO t VALUES ({10_000 + number}, 'w', 0);"
                f"UPDATE t SET n = n + 1 WHERE id = {number % 2000 + 1}; COMMIT"
            )
