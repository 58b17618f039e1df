# ruff: noqa: E501  (a statement is read as a line)
"""A source whose tables change: after each step the lake equals it, and old points stay as they were."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from decoder.lsn import parse_lsn
from infra.pipeline import Pipeline
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


# A row changes before and after each, unless a step says so itself; {t} is the table.
CHANGES = {
    "a column is added": Change("added", ("ALTER TABLE {t} ADD c text",), False),
    "a column with a constant": Change("constant", ("ALTER TABLE {t} ADD c numeric(8,2) DEFAULT 1.5",), True),
    "a column with a default that is dropped": Change(
        "forgotten", ("ALTER TABLE {t} ADD c float8 DEFAULT random(); ALTER TABLE {t} ALTER c DROP DEFAULT",), True
    ),
    "a column is dropped": Change("dropped", ("ALTER TABLE {t} DROP b",), False),
    "a column is renamed": Change("renamed", ("ALTER TABLE {t} RENAME a TO z",), False),
    "two columns change their names": Change(
        "swapped",
        ("ALTER TABLE {t} RENAME a TO x; ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} RENAME x TO b",),
        False,
    ),
    "renamed while rows change": Change(
        "midway", ("UPDATE {t} SET a = 'm' WHERE id = 3; ALTER TABLE {t} RENAME a TO z; UPDATE {t} SET b = 0 WHERE id = 4",), False
    ),
    "a column is another by the same name": Change(
        "another", ("ALTER TABLE {t} DROP b; ALTER TABLE {t} ADD b int",), True
    ),
    "a column comes back": Change("back", ("ALTER TABLE {t} DROP b", "ALTER TABLE {t} ADD b text"), False),
    "a type is rewritten": Change("retyped", ("ALTER TABLE {t} ALTER b TYPE text USING 'n' || b",), True),
    "a type is widened": Change("widened", ("ALTER TABLE {t} ALTER b TYPE bigint USING b * 5000000000",), True),
    "a numeric is widened": Change(
        "precise", ("ALTER TABLE {t} ALTER b TYPE numeric(12,2); INSERT INTO {t} VALUES (90, 'x', 1e9)",), False,
        "id int PRIMARY KEY, a text, b numeric(6,2)",
    ),
    "a key is widened": Change("keys", ("ALTER TABLE {t} ALTER id TYPE bigint",), True),
    "rewritten with its type kept": Change(
        "upper", ("ALTER TABLE {t} ALTER a TYPE text USING upper(a)",), True
    ),
    "moved together": Change("vacuumed", ("VACUUM FULL {t}",), False),
    "made anew": Change(
        "remade",
        ("DROP TABLE {t}; CREATE TABLE {t} (id int PRIMARY KEY, a text, b int); "
         "INSERT INTO {t} VALUES (3, 'new', 3); ALTER PUBLICATION shop ADD TABLE {t}",),
        True,
    ),
    "out of the publication and back": Change(
        "absent",
        ("ALTER PUBLICATION shop DROP TABLE {t}; UPDATE {t} SET a = 'unseen' WHERE id = 5; "
         "ALTER PUBLICATION shop ADD TABLE {t}",),
        True,
    ),
    "another key": Change(
        "rekeyed", ("ALTER TABLE {t} DROP CONSTRAINT rekeyed_pkey; ALTER TABLE {t} ADD PRIMARY KEY (b)",), False
    ),
    "never null": Change("filled", ("ALTER TABLE {t} ALTER a SET NOT NULL",), False),
    "generated": Change(
        "computed", ("ALTER TABLE {t} ADD twice int GENERATED ALWAYS AS (b * 2) STORED",), False
    ),
    "nothing": Change("quiet", (), False),
}  # fmt: skip


# Those whose rows change in a further batch too.
_GO_ON = {"renamed", "swapped", "retyped", "widened", "precise", "remade"}


def test_every_change_step_by_step(database: Database, session: Any, tmp_path: Path) -> None:
    tables = [change.table for change in CHANGES.values()]
    for change in CHANGES.values():
        database.execute(
            f"CREATE TABLE {change.table} ({change.setup}); INSERT INTO {change.table} {change.fill}"
        )
    file = pipeline_file(tmp_path, database, tables)
    wrong: dict[str, Any] = {}
    copied: set[str] = set()
    past: dict[str, dict[str, Rows]] = {}
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        _remember(database, pipeline, tables, past)
        for step in range(2):
            for change in CHANGES.values():
                if step < len(change.steps) or change.table in _GO_ON:
                    _take(database, change, step)
            copied |= _copied(pipeline, pipeline.sync().lsn)
            wrong[f"after step {step}"] = _differing(database, pipeline)
            _remember(database, pipeline, tables, past)
        for lsn, known in past.items():
            wrong[f"again at {lsn}"] = _differing_at(pipeline, known, lsn)
        report = pipeline.verify()
        wrong["verify"] = {name: table for name, table in report.tables.items() if not table.equal}
    assert {when: found for when, found in wrong.items() if found} == {}
    assert copied == {f"shop.{change.table}" for change in CHANGES.values() if change.copied}


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


def _copied(pipeline: Any, lsn: str) -> set[str]:
    from spark import annex

    found = [annex.place(path) for path in pipeline.file.changelog_dir.iterdir() if "." not in path.name]
    batches = [path.with_name(path.name.removesuffix(".annex")) for path in found if path.is_dir()]
    tables = {copy.schema.table for path in batches for copy in annex.read(_At(path)).copies}
    assert all(pipeline.position() == parse_lsn(lsn) for _ in tables)
    return {f"shop.{table}" for table in tables}


@dataclass(frozen=True)
class _At:
    path: Path


def _differing(database: Database, pipeline: Any) -> dict[str, Any]:
    found = {what: differences(database, pipeline, [change.table]) for what, change in CHANGES.items()}
    # What is generated is not published.
    return {what: each for what, each in found.items() if each and what != "generated"}


def _remember(database: Database, pipeline: Any, tables: list[str], past: dict[str, dict[str, Rows]]) -> None:
    """Of the tables of which the source publishes all columns: the lake must show them so from then on."""
    with database.connect() as connection:
        past[pipeline.status().last_consistent_lsn] = {
            table: source_rows(connection, table) for table in tables if table != "computed"
        }


def _differing_at(pipeline: Any, known: dict[str, Rows], lsn: str) -> dict[str, Any]:
    found = {}
    for table, (names, rows) in known.items():
        try:
            actual = Counter(tuple(row) for row in pipeline.rows(table, columns=names, at=lsn))
        except KeyError as error:
            found[table] = str(error)
            continue
        if actual != rows:
            found[table] = {"missing": dict(rows - actual), "extra": dict(actual - rows)}
    return found
