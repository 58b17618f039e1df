"""A lake that someone has changed by hand: `verify` names the table, the kind and the key."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.decoder.lsn import parse_lsn
from slotlake.expectations.lake_side import LakeTable
from slotlake.expectations.results import REWRITTEN
from slotlake.expectations.scopes import key_rows
from slotlake.infra.cli.main import main
from slotlake.infra.state.journal import Journal
from slotlake.infra.verify.verification import summary
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file
from tests.meanwhile import meanwhile

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
    with meanwhile(partial(_write, database)):
        reports = [pipeline.verify() for _ in range(3)]
    assert all(report.equal for report in reports)
    assert len({report.lsn for report in reports}) == len(reports)
    assert reports[-1].tables["public.t"].source_rows > reports[0].tables["public.t"].source_rows


def _write(database: Database, stopped: threading.Event) -> None:
    with database.connect() as connection:
        for number in range(100_000):
            if stopped.is_set():
                return
            connection.execute(
                f"BEGIN; INSERT INTO t VALUES ({10_000 + number}, 'w', 0);"
                f"UPDATE t SET n = n + 1 WHERE id = {number % 2000 + 1}; COMMIT"
            )


def test_changed_rows_are_compared_by_key(opened: tuple[Database, Any]) -> None:
    database, pipeline = opened
    first = pipeline.verify("changed")  # all that the change log has: nothing yet
    assert (first.equal, first.scope, first.tables) == (True, "changed", {})
    database.execute(
        "UPDATE t SET v = 'new' WHERE id IN (3, 4); UPDATE t SET id = 3000 WHERE id = 5;"
        "DELETE FROM t WHERE id = 6; INSERT INTO t VALUES (3001, NULL, 1)"
    )
    report = pipeline.verify("changed")
    assert report.equal
    table = report.tables["public.t"]
    assert (table.source_rows, table.lake_rows) == (4, 4)  # 3, 4, 3000, 3001; not 5 and 6
    assert table.compared.startswith("6 keys changed since ")
    assert set(report.tables) == {"public.t"}
    assert pipeline.verify("changed").tables == {}


@pytest.mark.parametrize("rewriting", ["TRUNCATE t", "ALTER TABLE t ALTER n TYPE numeric(12,3)"])
def test_changed_rows_of_a_table_that_is_rewritten_meanwhile(
    opened: tuple[Database, Any], rewriting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot from before does not see its rows any more: they are no differences of the lake."""
    database, pipeline = opened
    assert pipeline.verify().equal
    database.execute("UPDATE t SET v = 'new' WHERE id IN (3, 4); INSERT INTO other VALUES (2)")
    plain = key_rows._Source.pairs

    def rewritten_before(source: Any, chosen: key_rows.KeyRows) -> Any:
        if chosen.table.name == "public.t":
            database.execute(rewriting)
        return plain(source, chosen)

    with monkeypatch.context() as patched:
        patched.setattr(key_rows._Source, "pairs", rewritten_before)
        report = pipeline.verify("changed")
    assert report.tables["public.t"].totals == {REWRITTEN: 1}
    assert report.tables["public.other"].equal
    for scope in ("changed", "full"):  # the next one meets the table as it is
        report = pipeline.verify(scope)
        assert report.equal, report.as_dict()


def test_a_changed_row_that_differs_is_reported_until_it_is_repaired(opened: tuple[Database, Any]) -> None:
    database, pipeline = opened
    assert pipeline.verify().equal
    pipeline.session.sql(
        "UPDATE lake.shop.t SET v = 'x' WHERE id = 7"
    ).collect()  # did not change at the source
    database.execute("UPDATE t SET v = 'new' WHERE id IN (8, 9); DELETE FROM t WHERE id = 10")
    pipeline.sync()
    assert pipeline.verify("changed", ["t"]).equal
    database.execute("UPDATE t SET n = 0 WHERE id = 8")
    pipeline.sync()
    pipeline.session.sql("UPDATE lake.shop.t SET v = 'y' WHERE id = 8").collect()
    for _ in range(2):  # the second time nothing has changed since, and it is reported all the same
        report = pipeline.verify("changed")
        found = [(d.kind, dict(d.key), d.columns) for d in report.tables["public.t"].differences]
        assert found == [("different", {"id": "8"}, ("v",))]
    assert _line(pipeline)["unresolved"] == ["public.t"]
    assert set(_keys(pipeline.verify("full", ["public.t"]))) == {"7", "8"}
    pipeline.backfill("t")
    assert pipeline.verify("full", ["t"]).equal
    assert (_line(pipeline)["unresolved"], _line(pipeline)["scope"]) == ([], "full")
    assert pipeline.verify("changed").equal
    with pytest.raises(PipelineFileError, match="no table elsewhere can be verified"):
        pipeline.verify(tables=["elsewhere"])


def test_what_the_change_log_cannot_say(
    opened: tuple[Database, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    database, pipeline = opened
    database.execute("CREATE TABLE bag (v text); ALTER TABLE bag REPLICA IDENTITY FULL")
    database.execute(f"ALTER PUBLICATION {pipeline.file.source.publications[0]} ADD TABLE bag")
    pipeline.sync()
    assert pipeline.verify().equal
    database.execute("INSERT INTO bag VALUES ('a'); TRUNCATE t; INSERT INTO t VALUES (1, 'again', 0)")
    report = pipeline.verify("changed")
    assert report.equal
    assert "has no key" in report.tables["public.bag"].left
    assert "all rows, because since" in report.tables["public.t"].compared
    assert "truncated" in report.tables["public.t"].compared
    database.execute("UPDATE t SET n = 1; INSERT INTO t VALUES (2, '', 0)")
    pipeline.sync()
    for batch in pipeline.file.changelog_dir.iterdir():
        shutil.rmtree(batch)
    database.execute("INSERT INTO t VALUES (3, '', 0)")
    capsys.readouterr()
    assert main(["verify", str(pipeline.file.path), "--changed", "--table", "t"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "1 keys changed since" in printed
    assert "the change log has no changes from" in printed
    assert main(["verify", str(pipeline.file.path), "--changed", "--full"]) == PipelineFileError.exit_code


def test_batches_go_on_while_a_verification_reads(
    opened: tuple[Database, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, pipeline = opened
    positions, sums = [], LakeTable.sums

    def published_meanwhile(table: LakeTable) -> Any:
        with Pipeline.open(pipeline.file.path, remote=pipeline.remote) as other:
            database.execute("UPDATE t SET v = 'meanwhile' WHERE id <= 100")
            positions.append(other.sync().lsn)
            other.maintain("t")
        return sums(table)

    monkeypatch.setattr(LakeTable, "sums", published_meanwhile)
    report = pipeline.verify(connections=1)  # with more, tables are read at the same time
    assert report.equal
    assert len(positions) == 2
    assert all(parse_lsn(lsn) > parse_lsn(report.lsn) for lsn in positions)


def _line(pipeline: Any) -> dict[str, Any]:
    return dict(Journal(pipeline.file.state_dir).verifications.newest()[0])


def _keys(report: Any) -> list[str]:
    return [dict(each.key)["id"] for each in report.tables["public.t"].differences]
