# ruff: noqa: E501  (a statement is read as a line)
"""Columns whose type became wider: the lake widens its own, and copies no table whose values are the same."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.changelog.batches import Batch, batches
from slotlake.decoder.lsn import format_lsn
from slotlake.spark.merge.fields import field_types
from slotlake.spark.publish import sidecar as annex
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.replay.scratch import scratch_of
from tests.conftest import Database
from tests.e2e.oracle import differences, pipeline_file

pytestmark = pytest.mark.timeout(600)

SETUP = "id int PRIMARY KEY, a text, b int"
FILL = "SELECT g, 'a' || g, g FROM generate_series(1, 50) g"
REALS = "SELECT g, 'a' || g, g / 10::real FROM generate_series(1, 50) g"
WIDE = "ALTER TABLE {t} ALTER b TYPE bigint"


@dataclass(frozen=True)
class Change:
    """One table: what it is, what happens to it between two changes of rows, which fields it has then."""

    altered: str
    fields: dict[str, str]
    copied: bool = False
    setup: str = SETUP
    fill: str = FILL
    around: tuple[bool, bool] = (True, True)  # do rows change before it, and after?


def fields(b: str, *, key: str = "int") -> dict[str, str]:
    return {"id": key, "a": "string", "b": b}


CHANGES = {
    "plain": Change(WIDE, fields("bigint")),
    "quiet": Change(WIDE, fields("bigint"), around=(False, False)),
    "inserted": Change(WIDE + "; INSERT INTO {t} VALUES (99, 'far', 5000000000)", fields("bigint")),
    "keyed": Change(
        "ALTER TABLE {t} ALTER id TYPE bigint; INSERT INTO {t} VALUES (5000000000, 'far', 1)",
        fields("int", key="bigint"),
    ),
    "small": Change(
        "ALTER TABLE {t} ALTER b TYPE int", fields("int"), setup="id int PRIMARY KEY, a text, b smallint"
    ),
    "smaller": Change(WIDE, fields("bigint"), setup="id int PRIMARY KEY, a text, b smallint"),
    "exact": Change(
        "ALTER TABLE {t} ALTER b TYPE double precision; INSERT INTO {t} VALUES (90, 'nan', 'NaN'), (91, 'inf', '-Infinity'), (92, 'pi', pi())",
        fields("double"),
        setup="id int PRIMARY KEY, a text, b real",
        fill=REALS,
    ),
    "early": Change(WIDE, fields("bigint"), around=(True, False)),
    "early_exact": Change(
        "ALTER TABLE {t} ALTER b TYPE double precision, ALTER id TYPE bigint",
        fields("double", key="bigint"),
        setup="id int PRIMARY KEY, a text, b real",
        fill=REALS,
        around=(True, False),
    ),
    "late": Change(WIDE, fields("bigint"), around=(False, True)),
    "together": Change(
        "ALTER TABLE {t} ALTER b TYPE bigint, ALTER id TYPE bigint, ALTER a TYPE varchar(200), ALTER a SET NOT NULL",
        fields("bigint", key="bigint"),
        setup="id int PRIMARY KEY, a varchar(20), b int",
    ),
    "money": Change(
        "ALTER TABLE {t} ALTER b TYPE numeric(12,2), ALTER id TYPE bigint; INSERT INTO {t} VALUES (90, 'x', 1e9)",
        fields("decimal(12, 2)", key="bigint"),
        setup="id int PRIMARY KEY, a text, b numeric(6,2)",
    ),
    "renamed": Change(
        "ALTER TABLE {t} ALTER b TYPE bigint; ALTER TABLE {t} RENAME b TO c",
        {"id": "int", "a": "string", "c": "bigint"},
    ),
    "bag": Change(
        WIDE + "; DELETE FROM {t} WHERE id = 5; INSERT INTO {t} VALUES (6, 'a6', 6)",
        fields("bigint"),
        copied=True,
        setup="id int, a text, b int); ALTER TABLE bag REPLICA IDENTITY FULL; CREATE TABLE unused_bag (id int",
    ),
    "whole": Change(
        "ALTER TABLE {t} ALTER id TYPE bigint; UPDATE {t} SET id = id + 5000000000 WHERE id = 7",
        fields("int", key="bigint"),
        copied=True,  # the key is newer than the first rows of the batch, which are named by all of their values
        setup="id int PRIMARY KEY, a text, b int); ALTER TABLE whole REPLICA IDENTITY FULL; CREATE TABLE unused_whole (id int",
    ),
    "still_bag": Change(
        WIDE,
        fields("bigint"),
        setup="id int, a text, b int); ALTER TABLE still_bag REPLICA IDENTITY FULL; CREATE TABLE unused_still (id int",
        around=(False, False),
    ),
    "versions": Change(WIDE + "; UPDATE {t} SET b = 5000000000 WHERE id = 3", fields("bigint")),
    "emptied": Change(
        "TRUNCATE {t}; " + WIDE + "; INSERT INTO {t} VALUES (1, 'b', 5000000000)", fields("bigint")
    ),
    "toasted": Change(
        WIDE + "; UPDATE {t} SET b = 5000000000 WHERE id = 3",
        fields("bigint"),
        fill="SELECT g, (SELECT string_agg(md5((g + h)::text), '') FROM generate_series(1, 300) h), g FROM generate_series(1, 50) g",
    ),
    "lied": Change("ALTER TABLE {t} ALTER b TYPE bigint USING b + 1", fields("bigint"), copied=True),
    "lied_once": Change(
        "ALTER TABLE {t} ALTER b TYPE bigint USING CASE id WHEN 30 THEN 0 ELSE b END",
        fields("bigint"),
        copied=True,
    ),
    "beside": Change(
        "ALTER TABLE {t} ALTER b TYPE bigint, ALTER a TYPE text USING upper(a)", fields("bigint"), copied=True
    ),
    "longer": Change(WIDE + "; ALTER TABLE {t} ADD c int", fields("bigint") | {"c": "int"}, copied=True),
    "there_and_back": Change(
        WIDE + "; INSERT INTO {t} VALUES (99, 'x', 1); ALTER TABLE {t} ALTER b TYPE int",
        fields("int"),
        copied=True,
    ),
}


# The others are taken with SLOTLAKE_TEST_LONG=1.
FEW = ("plain", "quiet", "keyed", "exact", "money", "versions", "early", "lied_once")


def test_wider_columns(database: Database, session: Any, tmp_path: Path) -> None:
    tables = list(CHANGES) if os.environ.get("SLOTLAKE_TEST_LONG") else list(FEW)
    changes = {table: CHANGES[table] for table in tables}
    for table, change in changes.items():
        database.execute(f"CREATE TABLE {table} ({change.setup}); INSERT INTO {table} {change.fill}")
    listed = [table for table in tables if table != "versions"]
    file = pipeline_file(tmp_path, database, listed, extra="  versions: {mode: [mirror, history, append]}\n")
    wrong: dict[str, Any] = {}
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        first = format_lsn(pipeline.position())
        before = {table: sorted(pipeline.rows(table)) for table in tables}
        for table, change in changes.items():
            _take(database, table, change)
        pipeline.sync()
        copied = _copied(pipeline)
        wrong["after"] = differences(database, pipeline, tables)
        kinds = {table: _fields(pipeline, table) for table in tables}
        for table in tables:
            database.execute(f"UPDATE {table} SET a = a || '!' WHERE id BETWEEN 40 AND 45")
        pipeline.sync()
        wrong["later"] = differences(database, pipeline, tables)
        wrong["copied later"] = _copied(pipeline) - copied
        report = pipeline.verify()
        wrong["verify"] = {name: table for name, table in report.tables.items() if not table.equal}
        wrong["then"] = [table for table in tables if sorted(pipeline.rows(table, at=first)) != before[table]]
        replayed = pipeline.replay("scratch", start=first, end="latest")
        wrong["replayed"] = _differing(pipeline, tables)
        wrong["not replayed"] = replayed.copied_meanwhile
        status = {entry.table: entry for entry in pipeline.status().tables}
    assert {when: found for when, found in wrong.items() if found} == {}
    assert copied == {table for table, change in changes.items() if change.copied}
    assert kinds == {table: change.fields for table, change in changes.items()}
    assert status["public.plain"].copied_again == ""
    assert status["public.lied_once"].copied_again.endswith(": its rows were rewritten")


def _take(database: Database, table: str, change: Change) -> None:
    first = [f"UPDATE {table} SET a = a || '-' WHERE id < 4"]
    last = [f"DELETE FROM {table} WHERE id = 20", f"UPDATE {table} SET id = -id WHERE id = 2"]
    before, after = change.around
    with database.connect() as connection:
        for statement in [*first * before, *change.altered.format(t=table).split("; "), *last * after]:
            connection.execute(statement)


def test_nothing_else_happened(database: Database, session: Any, tmp_path: Path) -> None:
    """Without one change of a row anywhere; then rows come."""
    database.execute(f"CREATE TABLE lone ({SETUP}); INSERT INTO lone {FILL}")
    with Pipeline.open(pipeline_file(tmp_path, database, ["lone"])) as pipeline:
        pipeline.init()
        database.execute(WIDE.format(t="lone"))
        pipeline.sync()
        assert _fields(pipeline, "lone") == fields("bigint")
        assert pipeline.status().tables[0].copied_again == ""
        assert pipeline.verify().equal
        database.execute("INSERT INTO lone VALUES (99, 'far', 5000000000)")
        pipeline.sync()
        assert differences(database, pipeline, ["lone"]) == {}
        database.execute("ALTER TABLE lone ALTER id TYPE bigint")
        report = pipeline.verify()
        assert report.equal
        assert _fields(pipeline, "lone") == fields("bigint", key="bigint")
        assert pipeline.status().tables[0].copied_again == ""


def _copied(pipeline: Any) -> set[str]:
    """The tables that are in copies beside batches."""
    found = [Batch.open(path) for path in batches(pipeline.file.changelog_dir)]
    return {copy.schema.table for batch in found for copy in annex.read(batch).copies}


def _fields(pipeline: Any, table: str) -> dict[str, str]:
    cut = ReadPoint.latest(pipeline.lake)
    return field_types(cut.pinned[cut.find(table)].metadata)


def _differing(pipeline: Any, tables: list[str]) -> list[str]:
    scratch, live = ReadPoint.latest(scratch_of(pipeline.lake, "scratch")), ReadPoint.latest(pipeline.lake)
    return [table for table in tables if sorted(scratch.rows(table)) != sorted(live.rows(table))]
