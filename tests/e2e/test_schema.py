# ruff: noqa: E501  (a statement is read as a line)
"""A source whose tables change: after each step the lake equals it, and old points stay as they were."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.changelog.batches import Batch, batches
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.spark.merge.fields import field_types
from slotlake.spark.publish import sidecar as annex
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.replay.scratch import scratch_of
from tests.conftest import Database
from tests.e2e.oracle import differences, pipeline_file, source_rows

pytestmark = pytest.mark.timeout(600)

Rows = tuple[list[str], Counter[tuple[str | None, ...]]]


@dataclass(frozen=True)
class Change:
    """One table of its own: what it is, what happens to it, whether it must be copied again for it."""

    table: str
    steps: tuple[str, ...]
    copied: bool
    setup: str = "id int PRIMARY KEY, a text, b int"
    fill: str = "SELECT g, 'a' || g, g FROM generate_series(1, 50) g"


# A row changes before and after each step, unless it says so itself; {t} is the table.
CHANGES = {
    "a column is added": Change("added", ("ALTER TABLE {t} ADD c text",), False),
    "a column with a constant": Change(
        "constant",
        (
            (
                "INSERT INTO {t} VALUES (70, 'early', 1); ALTER TABLE {t} ADD c numeric(8,2) DEFAULT 1.5, "
                "ADD d text[] DEFAULT '{{a,\"b, c\"}}', ADD e timestamptz DEFAULT '2020-01-01 00:00+00', "
                "ADD h boolean DEFAULT true, ADD k bytea DEFAULT '\\x00ff'; "
                "ALTER TABLE {t} ALTER c SET DEFAULT 9; INSERT INTO {t} (id) VALUES (71)"
            ),
            "UPDATE {t} SET a = 'n' WHERE id = 9; ALTER TABLE {t} ADD g text DEFAULT 'it''s'; INSERT INTO {t} (id) VALUES (72)",
        ),
        False,
    ),
    "a constant in a list of its own": Change(
        "boxed", ("ALTER TABLE {t} ADD c box DEFAULT '(1,1),(0,0)'",), True
    ),
    "a constant, and old rows in the stream": Change(
        "fully", ("ALTER TABLE {t} REPLICA IDENTITY FULL; ALTER TABLE {t} ADD c int DEFAULT 3",), True
    ),
    "a column is dropped, and is back": Change(
        "back", ("ALTER TABLE {t} DROP b", "ALTER TABLE {t} ADD b text"), False
    ),
    "a column is dropped in the lake": Change("leaner", ("ALTER TABLE {t} DROP b",), False),
    "a column is renamed while rows change": Change(
        "renamed",
        (
            "UPDATE {t} SET a = 'm' WHERE id = 3; ALTER TABLE {t} RENAME a TO z; UPDATE {t} SET b = 0 WHERE id = 4",
        ),
        False,
    ),
    "two columns change their names": Change(
        "swapped",
        ("ALTER TABLE {t} RENAME a TO x; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} RENAME x TO b",),
        False,
    ),
    "a column is another by the same name": Change(
        "another", ("ALTER TABLE {t} DROP b; ALTER TABLE {t} ADD b int",), True
    ),
    "a type is rewritten, twice": Change(
        "retyped",
        ("ALTER TABLE {t} ALTER b TYPE text USING 'n' || b", "ALTER TABLE {t} ALTER b TYPE int USING 7"),
        True,
    ),
    "a type is widened": Change(
        "widened", ("ALTER TABLE {t} ALTER b TYPE bigint USING b * 5000000000",), True
    ),
    "a numeric is widened": Change(
        "precise",
        ("ALTER TABLE {t} ALTER b TYPE numeric(12,2); INSERT INTO {t} VALUES (90, 'x', 1e9)",),
        False,
        "id int PRIMARY KEY, a text, b numeric(6,2)",
    ),
    "rewritten with its type kept": Change(
        "upper", ("ALTER TABLE {t} ALTER a TYPE text USING upper(a)",), True
    ),
    "moved together": Change("vacuumed", ("VACUUM FULL {t}",), False),
    "made anew": Change(
        "remade",
        (
            (
                "DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, a text, b int); "
                "INSERT INTO {t} VALUES (3, 'new', 3); ALTER PUBLICATION shop ADD TABLE {t}"
            ),
        ),
        True,
    ),
    "out of the publication and back": Change(
        "absent",
        (
            (
                "ALTER PUBLICATION shop DROP TABLE {t}; UPDATE {t} SET a = 'unseen' WHERE id = 5; "
                "ALTER PUBLICATION shop ADD TABLE {t}"
            ),
        ),
        True,
    ),
    "another key, and no NULLs": Change(
        "rekeyed",
        ("ALTER TABLE {t} DROP CONSTRAINT rekeyed_pkey, ADD PRIMARY KEY (b), ALTER a SET NOT NULL",),
        False,
    ),
    "a parent of others": Change(
        "parent",
        (
            (
                "CREATE TABLE child (c int) INHERITS (parent); INSERT INTO child VALUES (100, 'not the parent''s', 1, 1); "
                "ALTER TABLE {t} ADD d text; UPDATE {t} SET d = 'both' WHERE id IN (3, 100)"
            ),
        ),
        False,
    ),
    "only looked at": Change("quiet", (), False),
}
# What cannot be taken any more, of a table that is gone, holds nothing up.
LEFT = "gone"


def test_every_change_step_by_step(database: Database, session: Any, tmp_path: Path) -> None:
    tables = [change.table for change in CHANGES.values()]
    for change in CHANGES.values():
        database.execute(
            f"CREATE TABLE {change.table} ({change.setup}); INSERT INTO {change.table} {change.fill}"
        )
    database.execute(f"CREATE TABLE {LEFT} (id int PRIMARY KEY, a text); INSERT INTO {LEFT} VALUES (1, 'a')")
    database.execute("CREATE TABLE here (id int PRIMARY KEY, a text); INSERT INTO here VALUES (1, 'a')")
    listed = [*(table for table in tables if table != "leaner"), LEFT, "here"]
    file = pipeline_file(tmp_path, database, listed, extra="  leaner: {on_drop: drop}\n")
    wrong: dict[str, Any] = {}
    past: dict[str, dict[str, Rows]] = {}
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        _remember(database, pipeline, tables, past)
        _step(database, 0)
        _leaves(database)
        first = pipeline.sync()
        copied = _copied(pipeline)
        wrong["after step 0"] = differences(database, pipeline, tables)
        wrong["renamed"] = differences(database, pipeline, ["elsewhere"])
        _remember(database, pipeline, tables, past)
        _step(database, 1)
        _step_by_step(pipeline)
        wrong["after step 1"] = differences(database, pipeline, tables)
        _remember(database, pipeline, tables, past)
        database.execute("ALTER TABLE quiet ADD c int; ALTER TABLE quiet RENAME a TO z")
        report = pipeline.verify()
        wrong["verify"] = {name: table for name, table in report.tables.items() if not table.equal}
        for lsn, known in past.items():
            wrong[f"again at {lsn}"] = _differing_at(pipeline, known, lsn)
        replayed = pipeline.replay("scratch", start=first.lsn, end="latest", transactions=2)
        # If the server has written nothing more, it is read again where the last batch ends already.
        meanwhile = [name.partition(".")[2] for name in replayed.copied_meanwhile]
        assert set(meanwhile) <= {"quiet"}
        wrong["replayed"] = _differing_from(pipeline, replayed, [t for t in tables if t not in meanwhile])
        status = {entry.table: entry for entry in pipeline.status().tables}
    assert {when: found for when, found in wrong.items() if found} == {}
    assert copied == {change.table for change in CHANGES.values() if change.copied}
    assert {n for n, entry in status.items() if entry.state != "ready"} == {"public.gone", "public.here"}
    assert status["public.retyped"].copied_again.endswith(": its rows were rewritten")
    assert status["public.added"].copied_again == ""
    fields = {table: _fields(pipeline, table) for table in ("back", "leaner", "widened")}
    assert fields == {
        "back": {"id": "int", "a": "string", "b": "string", "b__dropped": "int"},
        "leaner": {"id": "int", "a": "string"},
        "widened": {"id": "int", "a": "string", "b": "bigint"},
    }


def _step(database: Database, step: int) -> None:
    for change in CHANGES.values():
        if step < len(change.steps) or change.table in ("renamed", "widened"):
            _take(database, change, step)


def _take(database: Database, change: Change, step: int) -> None:
    """A row changes, the step happens, rows change again; one statement at a time."""
    table = change.table
    statements = [f"UPDATE {table} SET id = id WHERE id = 1"]
    if step < len(change.steps):
        statements += change.steps[step].format(t=table).split("; ")
    statements += [
        f"DELETE FROM {table} WHERE id = {20 + step}",
        f"UPDATE {table} SET id = -id WHERE id = {2 + step}",
    ]
    with database.connect() as connection:
        for statement in statements:
            connection.execute(statement)


def _leaves(database: Database) -> None:
    with database.connect() as connection:
        for statement in (
            f"ALTER TABLE {LEFT} RENAME a TO z",
            f"UPDATE {LEFT} SET z = 'b'",
            f"DROP TABLE {LEFT}",
            "UPDATE here SET a = 'b'",
            "ALTER TABLE here RENAME TO elsewhere",
            "UPDATE elsewhere SET a = 'c'",
        ):
            connection.execute(statement)


def _step_by_step(pipeline: Any) -> None:
    """As a scheduler does it, each step twice, and one that was killed before it had what belongs to its batch."""
    killed = pipeline.file.changelog_dir / pipeline.pull().batch
    shutil.rmtree(annex.place(killed))
    batch = pipeline.pull().batch
    assert batch >= killed.name  # longer if the server has written meanwhile
    assert pipeline.pull().batch == batch
    for _ in range(2):
        assert not pipeline.apply(batch).already_published
    assert not pipeline.publish(batch).already_published
    assert pipeline.publish(batch).already_published
    pipeline.confirm()


def _copied(pipeline: Any) -> set[str]:
    """The tables that are in copies beside batches."""
    found = [Batch.open(path) for path in batches(pipeline.file.changelog_dir)]
    return {copy.schema.table for batch in found for copy in annex.read(batch).copies}


def _remember(database: Database, pipeline: Any, tables: list[str], past: dict[str, dict[str, Rows]]) -> None:
    with database.connect() as connection:
        past[format_lsn(pipeline.position())] = {table: source_rows(connection, table) for table in tables}


def _differing_at(pipeline: Any, known: dict[str, Rows], lsn: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for table, (names, rows) in known.items():
        try:
            actual = Counter(tuple(row) for row in pipeline.rows(table, columns=names, at=lsn))
        except KeyError as error:
            found[table] = str(error)
            continue
        if actual != rows:
            found[table] = {"missing": dict(rows - actual), "extra": dict(actual - rows)}
    return found


def _differing_from(pipeline: Any, replayed: Any, tables: list[str]) -> dict[str, Any]:
    """What a replay ends with, beside what the lake had at that position."""
    scratch = ReadPoint.latest(scratch_of(pipeline.lake, "scratch"))
    live = ReadPoint.of(pipeline.lake, parse_lsn(replayed.lsn))
    found = {}
    for table in tables:
        pair = [Counter(tuple(row) for row in cut.rows(table)) for cut in (live, scratch)]
        if pair[0] != pair[1]:
            found[table] = pair
    return found


def _fields(pipeline: Any, table: str) -> dict[str, str]:
    cut = ReadPoint.latest(pipeline.lake)
    return field_types(cut.pinned[cut.find(table)].metadata)
