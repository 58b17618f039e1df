"""Patterns under `tables`: what matches is published, also what comes later; options, winners, excludes."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.airflow.words import change_tables_lines
from slotlake.infra.cli.main import main
from slotlake.infra.config.pipeline_file import load_pipeline
from slotlake.infra.config.table_names import by_name, by_source_name, pattern_of
from slotlake.infra.status.validation import ValidationReport, validate
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)
TABLES = (
    "CREATE SCHEMA shop; CREATE TABLE shop.items (id int PRIMARY KEY, at timestamp NOT NULL, v text);"
    "CREATE TABLE shop.tmp_a (id int PRIMARY KEY); CREATE TABLE order_lines (id int PRIMARY KEY, v text);"
    "CREATE TABLE order_heads (id int PRIMARY KEY, v text); CREATE TABLE others (id int PRIMARY KEY);"
    "CREATE TABLE shop.years (y int PRIMARY KEY, at timestamp) PARTITION BY LIST (y);"
    "CREATE TABLE shop.y1 PARTITION OF shop.years FOR VALUES IN (1);"
    "CREATE VIEW shop.seen AS SELECT 1 AS a; CREATE UNLOGGED TABLE shop.fast (id int PRIMARY KEY);"
    "INSERT INTO order_lines VALUES (1, 'a'); INSERT INTO shop.items VALUES (1, now(), 'a')"
)
FILE = {
    "shop.*": "partition_by: day(at), mode: [history]",
    "public.order_*": "",
    "shop.tmp_*": "exclude: true",
    "public.order_heads": "mode: [append]",
}


@pytest.fixture(autouse=True)
def _commands_use_that_spark(connect: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLOTLAKE_SPARK_REMOTE", connect)


def _file(folder: Path, database: Database, tables: dict[str, str], **options: Any) -> Path:
    file = pipeline_file(folder, database, [], **options)
    lines = "".join(f"  {name}: {{{said}}}\n" for name, said in tables.items())
    file.write_text(file.read_text().replace("tables:\n", f"tables:\n{lines}"))
    return file


def _published(database: Database) -> list[str]:
    rows = database.execute(
        "SELECT schemaname || '.' || tablename FROM pg_publication_tables WHERE pubname = 'shop' ORDER BY 1"
    )
    return [str(name) for (name,) in rows]


def _words(report: ValidationReport) -> list[str]:
    return [f"{c.result}: {c.what}: {c.way_out}" for c in report.checks if c.result in {"warning", "error"}]


def test_what_matches_is_published_now_and_later(
    database: Database, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute(TABLES)
    file = _file(tmp_path, database, FILE)
    assert _words(validate(file)) == []
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        followed = ["public.order_heads", "public.order_lines", "shop.items", "shop.years"]
        assert _published(database) == followed
        point = ReadPoint.latest(pipeline.lake)
        assert [list(point.derived_tables(name)) for name in followed] == [
            *(["append"], [], ["history"], ["history"])
        ]
        assert pipeline.lake.layout_of("shop.items").partition
        assert not pipeline.lake.layout_of("public.order_heads").partition
        database.execute(
            "CREATE TABLE shop.later (id int PRIMARY KEY, at timestamp);"
            "INSERT INTO shop.later VALUES (1, now()); CREATE TABLE orders (id int PRIMARY KEY);"
            "CREATE TABLE shop.tmp_b (id int PRIMARY KEY, at timestamp)"
        )
        assert any(
            "shop.* names shop.later" in words and "the next sync" in words
            for words in _words(validate(file))
        )
        assert any("shop.later" in warning for warning in pipeline.status().warnings)
        assert pipeline.status().alarms == []
        assert pipeline.sync().added_tables == ["shop.later"]
        database.execute("INSERT INTO shop.later VALUES (2, now())")
        report = pipeline.sync()
        assert (report.added_tables, report.warnings) == ([], [])
        assert _words(validate(file)) == []
        assert_equal(database, pipeline, ["order_lines", "order_heads", "shop.later", "shop.items"])
        assert pipeline.lake.layout_of("shop.later").partition
        # Removed: it stays out, and the line for the file is printed.
        assert main(["remove", str(file), "--table", "shop.later"]) == 0
        assert "  shop.later: {exclude: true}" in capsys.readouterr().out
        assert pipeline.sync().added_tables == []
        (words,) = [w for w in _words(validate(file)) if "not published any more" in w]
        assert "shop.later: {exclude: true}" in words
        assert main(["remove", str(file), "--table", "shop.later", "--drop"]) == 0
        (words,) = [w for w in _words(validate(file)) if "no publication of the pipeline has" in w]
        assert "shop.later: {exclude: true}" in words
        file.write_text(file.read_text() + "  shop.later: {exclude: true}\n")
    with Pipeline.open(file) as pipeline:
        assert _words(validate(file)) == []
        assert pipeline.sync().warnings == []
        # `add` and `remove` take patterns.
        assert [t.table for t in pipeline.add("public.o*s").tables] == [
            "public.order_heads", "public.order_lines", "public.orders", "public.others"
        ]  # fmt: skip
        assert pipeline.add("public.o*s").to_write == ["  public.orders: {}", "  public.others: {}"]
        removed = pipeline.remove("public.order_*")
        assert removed.remaining == ["public.order_heads", "public.order_lines"]
        assert removed.to_take_out == ["  public.order_heads: {}"]
        assert removed.to_write == ["  public.order_lines: {exclude: true}"]
        lines = [text for _, text in change_tables_lines({"added": None, "removed": removed.as_dict()})]
        assert any("write under `tables`" in line and "exclude" in line for line in lines)
        with pytest.raises(PipelineFileError, match=re.escape("no table matches public.zz*")):
            pipeline.remove("public.zz*")
        pipeline.sync()
        assert pipeline.verify().equal


def test_a_role_that_may_not_gets_the_statement(database: Database, tmp_path: Path) -> None:
    """What --print-sql prints publishes what the patterns match; a later table is for its owner to add."""
    role = f"reader_{database.name}"
    database.execute(f"{TABLES}; CREATE ROLE {role} LOGIN REPLICATION PASSWORD '{database.server.password}'")
    try:
        file = _file(tmp_path, database, FILE)
        file.write_text(file.read_text().replace(database.dsn, database.server.dsn(database.name, user=role)))
        from slotlake.infra.source.grants import grants

        for _ in range(2):
            database.execute(grants(load_pipeline(file)))
        assert _published(database) == [
            "public.order_heads",
            "public.order_lines",
            "shop.items",
            "shop.years",
        ]
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            database.execute("CREATE TABLE shop.later (id int PRIMARY KEY, at timestamp)")
            statement = 'ALTER PUBLICATION "shop" ADD TABLE "shop"."later"'
            assert any(statement in warning for warning in pipeline.sync().warnings)
            assert [statement in alarm.way_out for alarm in pipeline.status().alarms] == [True]
            database.execute(f"{statement}; GRANT SELECT ON shop.later TO {role}")
            assert pipeline.sync().added_tables == ["shop.later"]
            assert pipeline.status().alarms == []
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_pattern_that_matches_nothing(database: Database, tmp_path: Path) -> None:
    database.execute(TABLES)
    for tables, meant in (
        ({"shp.*": ""}, "did you mean shop.*?"),
        ({"public.ordr_lines*": "", "others": ""}, "did you mean public.order_lines?"),
        ({"zzz.*": ""}, "correct the pattern"),
        ({"shop.fast*": ""}, "take it out"),
    ):
        file = _file(tmp_path, database, tables)
        report = validate(file)
        assert not report.valid
        assert any(
            meant in words and "no table of the source matches" in words for words in _words(report)
        ), report
        with (
            Pipeline.open(file) as pipeline,
            pytest.raises(PipelineFileError, match="no table of the source"),
        ):
            pipeline.init()
    database.execute("CREATE PUBLICATION shop FOR TABLE others")
    assert any(
        "did you mean shop.*?" in words
        for words in _words(validate(_file(tmp_path, database, {"shp.*": ""})))
    )
    database.execute("DROP PUBLICATION shop")
    file = _file(tmp_path, database, {"public.ot*": "", "public.order_l*": ""})
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("DROP TABLE order_lines")
        synced = pipeline.sync()  # only said from now on
        assert any("public.order_l*" in warning for warning in synced.warnings)
        assert not any("public.order_l*" in alarm.what for alarm in pipeline.status().alarms)
        assert_equal(database, pipeline, ["others"])


def test_new_tables_ignore(database: Database, tmp_path: Path) -> None:
    """Then a pattern is what it matched at `init`."""
    database.execute(TABLES)
    file = _file(tmp_path, database, {"public.order_*": ""}, extra="new_tables: ignore\n")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("CREATE TABLE order_notes (id int PRIMARY KEY)")
        report = pipeline.sync()
        assert (report.added_tables, report.warnings) == ([], [])
        assert _published(database) == ["public.order_heads", "public.order_lines"]
        assert pipeline.add("public.order_*").to_write == []
        assert_equal(database, pipeline, ["order_heads", "order_lines", "order_notes"])
        assert pipeline.sync().warnings == []


def test_a_publication_that_was_dropped(database: Database, tmp_path: Path) -> None:
    """`recover` publishes what is followed and what came since, and not what was removed."""
    database.execute(TABLES)
    file = _file(tmp_path, database, {"public.*": ""})
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        pipeline.remove("order_heads")
        pipeline.sync()
        database.execute("DROP PUBLICATION shop; CREATE TABLE later (id int PRIMARY KEY)")
        pipeline.recover(carry_out=True)
        assert _published(database) == ["public.later", "public.order_lines", "public.others"]
        pipeline.sync()
        assert_equal(database, pipeline, ["later", "order_lines", "others"])


def test_leaves(database: Database, tmp_path: Path) -> None:
    """With `partitions: leaves` a pattern chooses for partitions; the table above them has no lake table."""
    database.execute(TABLES)
    file = _file(tmp_path, database, {"shop.y*": "mode: [history]"}, source="partitions: leaves")
    assert _words(validate(file)) == []
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("CREATE TABLE shop.y2 PARTITION OF shop.years FOR VALUES IN (2)")
        database.execute("INSERT INTO shop.years VALUES (1), (2)")
        assert pipeline.sync().added_tables == ["shop.y2"]
        point = ReadPoint.latest(pipeline.lake)
        assert {name: list(point.derived_tables(name)) for name in ("shop.y1", "shop.y2")} == {
            "shop.y1": ["history"],
            "shop.y2": ["history"],
        }
        assert pipeline.sync().warnings == []


def test_options_that_do_not_fit_a_match_name_it(database: Database, tmp_path: Path) -> None:
    database.execute(TABLES)
    report = validate(_file(tmp_path, database, {"public.*": "partition_by: day(at)"}))
    assert any("tables.public.order_heads.partition_by" in words for words in _words(report)), report


def test_a_new_file_with_a_pattern(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute(TABLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setenv("MY_DSN", database.dsn)
    arguments = ["new", "shop.yaml", "--dsn", "env:MY_DSN", "--yes", "--tables"]
    assert main([*arguments, "shp.*"]) == PipelineFileError.exit_code
    assert "did you mean shop.*?" in capsys.readouterr().err
    assert main([*arguments, "shop.* order_*", "--tables", "*.others"]) == 0
    assert list(load_pipeline(tmp_path / "shop.yaml").tables) == ["shop.*", "public.order_*", "*.others"]


@pytest.mark.fast
def test_who_wins() -> None:
    said = by_name({"public.*": 1, "public.order_*": 2, "public.orders": None, "*.order_*": 4, '"A*".x*': 5})
    assert said.get(("public", "a.b\nc")) == 1
    assert said["public", "order_x"] == 2
    assert said["other", "order_x"] == 4
    assert ("public", "orders") not in said  # it says nothing, and the pattern is not asked
    assert ("publics", "a") not in said
    assert said["A*", "xyz"] == 5
    assert ("ab", "xyz") not in said
    assert sorted(said.values()) == [1, 2, 4, 5]
    assert by_name({"a": 1, "b": None}) == {("public", "a"): 1}
    assert by_source_name({"public.*": 1})['public."Odd Name"'] == 1
    first = by_name({"public.a*": 1, "public.*b": 2})
    assert first["public", "ab"] == 1
    assert pattern_of('public."a*"') is None
    assert pattern_of("Public.Order_*").matches(("public", "order_1"))  # type: ignore[union-attr]


@pytest.mark.fast
@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("{'a.*': {}, 'A.*': {}}", "are the same table"),
        ("{'a.b.*': {}}", "is no table's name"),
        ("{'a.*': {exclude: true, mode: history}}", "nothing else can be chosen"),
        ("{'a.*': {expectations: quality.json}}", "name the table"),
    ],
)
def test_wrong_patterns(tmp_path: Path, lines: str, words: str) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(
        "name: x\nsource: {dsn: 'postgresql:///x', publications: [p], slot: s}\n"
        f"lake: {{uri: 'sqlite:///lake.db', warehouse: lake, namespace: x}}\ntables: {lines}\n"
    )
    with pytest.raises(PipelineFileError, match=re.escape(words)):
        load_pipeline(file)
