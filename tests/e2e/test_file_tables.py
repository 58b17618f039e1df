"""What the pipeline file names under `tables` after `init`: added, misspelt, gone; `add` and `remove`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError, SourceError
from slotlake.infra.airflow import steps
from slotlake.infra.cli.main import main
from slotlake.infra.status.validation import validate
from tests.conftest import Database
from tests.e2e.joins import LONG, ended_at
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.storage import files_folder, files_in

pytestmark = pytest.mark.timeout(600)
TABLES = "CREATE TABLE a (id int PRIMARY KEY, v text); INSERT INTO a VALUES (1, 'a')"
REFUNDS = "CREATE TABLE refunds (id int PRIMARY KEY, v text); INSERT INTO refunds VALUES (1, 'r'), (2, 's')"
NAME = "public.refunds"
PLACES = ["named.published", "remove.unpublished", "drop.catalog", "remove.unlisted"]


def _begun(database: Database, folder: Path, connect: str, *, extra: str = "", **options: Any) -> Path:
    database.execute(TABLES)
    file = pipeline_file(folder, database, ["public.a"], extra=extra, **options)
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
    return file


def _edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def _name(file: Path, *lines: str) -> None:
    _edit(file, "tables:\n", "tables:\n" + "".join(f"  {line}\n" for line in lines))


def _said(file: Path, connect: str) -> dict[str, list[str]]:
    """What validate, status and a sync say about the file's tables, by who says it."""
    checks = [check for check in validate(file, remote=connect).checks if check.result != "ok"]
    with Pipeline.open(file, remote=connect) as pipeline:
        status = pipeline.status()
        synced = pipeline.sync().warnings
    of_validate = [f"{check.what}: {check.way_out}" for check in checks if "pipeline file" in check.what]
    return {"validate": of_validate, "status": status.warnings, "sync": synced}


def _all_say(file: Path, connect: str, *words: str) -> None:
    for who, lines in _said(file, connect).items():
        assert any(all(word in line for word in words) for line in lines), (who, lines)


def _silent(file: Path, connect: str) -> None:
    said = _said(file, connect)
    assert said == {"validate": [], "status": [], "sync": []}, said


def _publications(database: Database) -> set[tuple[str, str]]:
    return {(a, b) for a, b in database.execute("SELECT pubname, tablename FROM pg_publication_tables")}


def test_a_name_is_added_to_the_publication_of_init(database: Database, connect: str, tmp_path: Path) -> None:
    """Added with its choices, then taken out of the file, then removed by hand, then named again."""
    file = _begun(database, tmp_path, connect)
    database.execute(REFUNDS + '; CREATE TABLE "Odd Name" (a int); INSERT INTO "Odd Name" VALUES (1), (1)')
    _name(file, "public.refunds: {filter: id > 1}", "'public.\"Odd Name\"': {}")
    (check, _) = [c for c in validate(file, remote=connect).checks if c.name == "tables"]
    assert (check.result, "the next sync adds it to shop" in check.way_out) == ("warning", True), check
    with Pipeline.open(file, remote=connect) as pipeline:
        assert not [alarm for alarm in pipeline.status().alarms if alarm.kind == "table not followed"]
        assert sorted(pipeline.sync().added_tables) == ['public."Odd Name"', NAME]
        assert list(pipeline.rows("refunds")) == [("2", "s")]
        assert_equal(database, pipeline, ["a", '"Odd Name"'])
    _silent(file, connect)
    _edit(file, "  'public.\"Odd Name\"': {}\n", "")
    _all_say(file, connect, 'does not name public."Odd Name" any more', "slotlake remove shop.yaml --table '")
    database.execute('ALTER PUBLICATION shop DROP TABLE "Odd Name", refunds')
    _all_say(file, connect, NAME, "not published any more", f"slotlake add shop.yaml --table {NAME}")
    with Pipeline.open(file, remote=connect) as pipeline:
        database.execute("INSERT INTO refunds VALUES (3, 't')")
        pipeline.sync()
        assert ("shop", "refunds") not in _publications(database)  # somebody took it out: it stays out
        assert pipeline.add(NAME).tables[0].publication == "shop"
        assert sorted(pipeline.rows("refunds")) == [("2", "s"), ("3", "t")]
        assert pipeline.verify().equal
    _silent(file, connect)


def test_names_that_are_no_tables(database: Database, connect: str, tmp_path: Path) -> None:
    file = _begun(database, tmp_path, connect)
    database.execute(
        REFUNDS + "; CREATE VIEW seen AS SELECT * FROM a; CREATE UNLOGGED TABLE fast (id int);"
        "ALTER PUBLICATION shop ADD TABLE refunds"
    )
    _name(file, "public.refund: {}", "refnds: {filter: id > 1}", "public.seen: {}", "public.fast: {}")
    for words in (
        ("public.refund,", f"did you mean {NAME}?"),
        ("public.refnds,", f"did you mean {NAME}?"),
        ("public.seen, which is a view",),
        ("public.fast, which is an unlogged table",),
    ):
        _all_say(file, connect, *words)
    report = validate(file, remote=connect)
    assert [c.result for c in report.checks if c.name == "tables"] == ["error"] * 4
    with Pipeline.open(file, remote=connect) as pipeline:
        assert len([a for a in pipeline.status().alarms if a.kind == "table not followed"]) == 4
        assert_equal(database, pipeline, ["a", "refunds"])
        for name in ("public.refnds", "seen", "fast", "a.b.c"):
            with pytest.raises(PipelineFileError):
                pipeline.add([NAME, name])
    other = pipeline_file(tmp_path / "other", database, ["a", "nowhere"], name="other")
    database.execute("CREATE PUBLICATION other FOR TABLE a")
    with Pipeline.open(other, remote=connect) as pipeline, pytest.raises(PipelineFileError, match="nowhere"):
        pipeline.init()


def test_a_publication_of_somebody_else(
    database: Database, connect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sync leaves it alone and says how; a role without rights gets the statement; others run `add`."""
    role = f"reader_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'slotlake'")
    database.execute(
        TABLES + f'; CREATE PUBLICATION "Shop\'s" FOR TABLE a; GRANT SELECT ON a TO {role};'
        f"CREATE PUBLICATION inserts FOR TABLE a WITH (publish = 'insert')"
    )
    file = pipeline_file(tmp_path, database, ["a"])
    _edit(file, "publications: [shop]", 'publications: [inserts, "Shop\'s"]')
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
    database.execute(REFUNDS)
    _name(file, "public.refunds: {}")
    statement = 'ALTER PUBLICATION "Shop\'s" ADD TABLE "public"."refunds"'
    _all_say(file, connect, "slotlake add shop.yaml", statement)
    as_superuser = file.read_text()
    other = re.sub("//[^:]+:[^@]*@", f"//{role}:slotlake@", database.server.url(database.name))
    file.write_text(as_superuser.replace(database.dsn, other))
    _all_say(file, connect, statement, "this role may not")
    with Pipeline.open(file, remote=connect) as pipeline:
        with pytest.raises(SourceError, match="GRANT SELECT"):
            pipeline.add(NAME)
        database.execute(f"GRANT SELECT ON refunds TO {role}")
        with pytest.raises(SourceError) as refused:
            pipeline.add(NAME)
        assert statement in refused.value.way_out
    assert main(["add", str(file), "--table", NAME]) == refused.value.exit_code
    assert statement in capsys.readouterr().err
    database.execute(statement)
    _silent(file, connect)
    with Pipeline.open(file, remote=connect) as pipeline:
        assert_equal(database, pipeline, ["a", "refunds"])
        with pytest.raises(SourceError, match="DROP TABLE"):
            pipeline.remove(NAME)
    file.write_text(as_superuser)
    with Pipeline.open(file, remote=connect) as pipeline:
        assert pipeline.add(NAME).tables[0].publication is None
    database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.fixture(autouse=True)
def _commands_use_that_spark(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTLAKE_SPARK_REMOTE", connect)


@pytest.mark.parametrize("what", ["TABLES IN SCHEMA public", "ALL TABLES"][: 1 + LONG])
def test_a_publication_of_all(database: Database, connect: str, tmp_path: Path, what: str) -> None:
    """A table cannot leave it; with `new_tables: ignore` the lake does without it from then on."""
    database.execute(f"CREATE PUBLICATION shop FOR {what}")
    file = _begun(database, tmp_path, connect, extra="mode: [mirror, history]\n")
    database.execute(REFUNDS + "; CREATE SCHEMA other; CREATE TABLE other.t (id int PRIMARY KEY)")
    _name(file, "refunds: {}")
    with Pipeline.open(file, remote=connect) as pipeline:
        assert NAME in pipeline.sync().added_tables
        with pytest.raises(PipelineFileError, match="new_tables: ignore"):
            pipeline.remove(NAME, drop=True)
    if "SCHEMA" in what:
        with Pipeline.open(file, remote=connect) as pipeline:
            assert pipeline.add("other.t").tables[0].publication == "shop"
            assert pipeline.remove("other.t", drop=True).remaining == []
    file.write_text(file.read_text() + "new_tables: ignore\n")
    with Pipeline.open(file, remote=connect) as pipeline:
        database.execute("INSERT INTO refunds VALUES (7, 'x'); CREATE TABLE ignored (id int PRIMARY KEY)")
        pipeline.pull()  # a batch with a change of it waits
        report = pipeline.remove(NAME, drop=True)
        assert (report.still_published, report.to_take_out) == ([NAME], [f"  {NAME}: {{}}"])
        assert len([line for line in report.done if "lake table" in line]) == 2  # its history too
        assert files_in(files_folder(tmp_path) / "shop" / "refunds") == []
        assert pipeline.sync().added_tables == []
        assert not [a for a in pipeline.status().alarms if a.kind == "table missing"]
    _all_say(file, connect, NAME, "was removed from the lake")
    _edit(file, "  refunds: {}\n", "")
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.sync()
        assert [w for w in pipeline.status().warnings if "does not name" in w] == []
        assert pipeline.add("ignored").to_write == ["  public.ignored: {}"]
        assert_equal(database, pipeline, ["a", "ignored"])
    _name(file, "refunds: {}")  # named again: wanted again
    with Pipeline.open(file, remote=connect) as pipeline:
        assert pipeline.sync().added_tables == [NAME]
        assert_equal(database, pipeline, ["a", "refunds"])


def test_add_remove_and_add_again_while_batches_go_on(
    database: Database, connect: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = _begun(database, tmp_path, connect, extra="mode: [mirror, append]\n")
    database.execute(REFUNDS + "; CREATE TABLE loose (a int); INSERT INTO loose VALUES (1), (1)")
    connection = ["--table", NAME, "--table", "loose"]
    assert main(["add", str(file), *connection, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [(t["table"], t["publication"], t["state"]) for t in report["tables"]] == [
        (NAME, "shop", "followed"),
        ("public.loose", "shop", "followed"),
    ]
    assert report["to_write"] == [f"  {NAME}: {{}}", "  public.loose: {}"]
    with Pipeline.open(file, remote=connect) as pipeline:
        for number in range(2):
            database.execute(f"UPDATE refunds SET v = '{number}'; INSERT INTO a VALUES ({number + 10}, 'b')")
            pipeline.pull()
            remaining = pipeline.remove(NAME).remaining
            assert remaining == [NAME]
            database.execute("UPDATE refunds SET v = 'unseen'")
            pipeline.sync()
            assert {v for _, v in pipeline.rows("refunds")} == {str(number)}
            assert pipeline.verify().equal
            database.execute("UPDATE a SET v = 'c'")
            pipeline.pull()
            assert pipeline.remove([NAME, "loose"] if number else NAME, drop=True).remaining == []
            status = pipeline.status()
            assert NAME not in [table.table for table in status.tables]
            assert status.alarms == [], status.alarms
            pipeline.sync()
            assert pipeline.add(NAME).tables[0].state == "followed"
            database.execute("DELETE FROM refunds WHERE id = 2; INSERT INTO refunds VALUES (2, 'again')")
            pipeline.sync()
            assert_equal(database, pipeline, ["a", "refunds"])
            assert pipeline.verify().equal
        assert "removed" in {commit["kind"] for commit in _commits(pipeline)}
    report = steps.change_tables(str(file), ["loose"], [NAME], True)  # as the DAG does
    assert [table["state"] for table in report["added"]["tables"]] == ["followed"]
    assert 'DROP TABLE "public"."refunds"' in report["removed"]["done"][0]
    assert main(["remove", str(file), "--table", "nowhere"]) == PipelineFileError.exit_code


def _commits(pipeline: Pipeline) -> list[dict[str, Any]]:
    from slotlake.spark.read.point import ReadPoint

    return ReadPoint.latest(pipeline.lake).commits()


@pytest.mark.parametrize("place", PLACES if LONG else PLACES[-1:])
def test_killed_and_run_again(
    database: Database, connect: str, tmp_path: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = _begun(database, tmp_path, connect)
    database.execute(REFUNDS)
    with Pipeline.open(file, remote=connect) as pipeline:
        if place == "named.published":
            ended_at(monkeypatch, place, lambda: pipeline.add(NAME))
            assert ("shop", "refunds") in _publications(database)
        assert pipeline.add(NAME).tables[0].state == "followed"
        assert_equal(database, pipeline, ["a", "refunds"])
        if place == "named.published":
            return
        ended_at(monkeypatch, place, lambda: pipeline.remove(NAME, drop=True))
    database.execute("INSERT INTO refunds VALUES (9, 'k'); INSERT INTO a VALUES (9, 'k')")
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.sync()  # goes on in whatever state it is
        assert_equal(database, pipeline, ["a"])
        pipeline.remove(NAME, drop=True)
        assert NAME not in [table.table for table in pipeline.status().tables]
        assert files_in(files_folder(tmp_path) / "shop" / "refunds") == []
        pipeline.add(NAME)
        assert_equal(database, pipeline, ["a", "refunds"])
        assert pipeline.verify().equal
        assert pipeline.status().alarms == []


def test_a_table_that_is_set_aside_and_partitions(database: Database, connect: str, tmp_path: Path) -> None:
    """A table that cannot be followed says so; a partitioned one is published through itself."""
    file = _begun(database, tmp_path, connect)
    database.execute(
        "CREATE TABLE bare (); CREATE TABLE years (y int, v int, PRIMARY KEY (y, v)) PARTITION BY LIST (y);"
        "CREATE TABLE y1 PARTITION OF years FOR VALUES IN (1); INSERT INTO years VALUES (1, 1)"
    )
    _name(file, "public.years: {}")
    with Pipeline.open(file, remote=connect) as pipeline:
        assert pipeline.sync().added_tables == ["public.years"]
        assert pipeline.status().warnings == []
        (table,) = pipeline.add("bare").tables
        assert (table.state, "no published column" in table.detail) == ("set aside", True)
        assert pipeline.remove(["bare", "years"], drop=True).still_published == []
        status = pipeline.status()
        assert [each.table for each in status.tables] == ["public.a"]
        assert status.set_aside == []
        pipeline.sync()
        assert pipeline.verify().equal
