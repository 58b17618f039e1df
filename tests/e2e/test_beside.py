# ruff: noqa: E501  (a statement is read as a line)
"""What is kept beside a mirror when all else varies: prepared transactions, conflicts by choice, another plugin."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import ApplyError, ChangeLogError
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.server import source
from slotlake.infra.local.postgres import Version
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.scenarios import big
from tests.e2e.test_modes import MODES, _told

pytestmark = pytest.mark.timeout(900)

Points = dict[str, dict[str, Counter[Any]]]
TABLES = ["keyed", "bag", "ddl", "chosen"]
SETUP = f"""
CREATE TABLE keyed (id int PRIMARY KEY, code int NOT NULL UNIQUE, v text, big text);
CREATE TABLE bag (v text, n int); ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE ddl (id int PRIMARY KEY, a text, b int);
CREATE TABLE chosen (id int PRIMARY KEY, v text);
INSERT INTO keyed SELECT g, g, 'v', {big(1)} FROM generate_series(1, 9) g;
INSERT INTO bag SELECT 'x', g % 2 FROM generate_series(1, 6) g;
INSERT INTO ddl SELECT g, 'a', g FROM generate_series(1, 9) g;
INSERT INTO chosen SELECT g, 'v' FROM generate_series(1, 9) g
"""
SOURCE = {
    **{table: f"SELECT * FROM {table}" for table in TABLES},
    "chosen": "SELECT * FROM chosen WHERE id % 2 = 0",
}
# Each followed by a sync.  What is prepared in one batch is decided in a later one.
STEPS = [
    [
        "BEGIN; UPDATE keyed SET v = 'p' WHERE id = 1; UPDATE keyed SET id = 20 WHERE id = 2; DELETE FROM bag WHERE ctid = '(0,1)'; PREPARE TRANSACTION 'kept'",
        "BEGIN; DELETE FROM keyed WHERE id = 3; INSERT INTO bag VALUES ('never', 1); UPDATE chosen SET id = 10 WHERE id = 1; PREPARE TRANSACTION 'lost'",
        "BEGIN; UPDATE ddl SET a = 'before' WHERE id = 1; ALTER TABLE ddl RENAME a TO z; ALTER TABLE ddl ADD c int; SAVEPOINT s; UPDATE ddl SET z = 'never'; ROLLBACK TO s; UPDATE ddl SET z = 'after', c = 1 WHERE id = 2; PREPARE TRANSACTION 'ddl'",
        "COMMIT PREPARED 'ddl'",
        "UPDATE keyed SET v = 'u' WHERE id = 4; UPDATE chosen SET id = 12 WHERE id = 3",
    ],
    ["INSERT INTO bag VALUES ('x', 1), (NULL, NULL); UPDATE keyed SET id = 21 WHERE id = 5"],
    [
        "COMMIT PREPARED 'kept'",
        "UPDATE keyed SET v = 'w' WHERE id = 1",
        "ROLLBACK PREPARED 'lost'",
        "UPDATE keyed SET v = 'x' WHERE id = 3",
    ],
    [
        "ALTER TABLE keyed REPLICA IDENTITY USING INDEX keyed_code_key",
        "UPDATE keyed SET code = code + 100, v = 'y' WHERE id = 20; DELETE FROM keyed WHERE id = 6",
        "ALTER TABLE keyed REPLICA IDENTITY FULL",
        "UPDATE keyed SET id = 22 WHERE id = 7; BEGIN; INSERT INTO keyed VALUES (30, 30, 'in', NULL); TRUNCATE bag, chosen; INSERT INTO chosen VALUES (2, 'back'), (3, 'odd'); PREPARE TRANSACTION 'cut'",
        "COMMIT PREPARED 'cut'",
    ],
    [
        "ALTER TABLE keyed REPLICA IDENTITY DEFAULT",
        "UPDATE keyed SET v = 'z'; INSERT INTO bag VALUES ('new', 1), ('new', 1); UPDATE ddl SET c = 2 WHERE id = 3",
        "BEGIN; TRUNCATE keyed; INSERT INTO keyed VALUES (1, 1, 'one', NULL); COMMIT",
    ],
]  # fmt: skip


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_prepared_transactions(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(SETUP)
    file = pipeline_file(
        tmp_path, database, [t for t in TABLES if t != "chosen"], source="two_phase: true",
        extra="  chosen: {filter: id % 2 = 0}\n" + MODES,
    )  # fmt: skip
    points: Points = {}
    with Pipeline.open(file) as pipeline:
        points[pipeline.init().lsn] = _source(database)
        for step in STEPS:
            with database.connect() as connection:
                for statements in step:
                    for statement in statements.split("; "):
                        connection.execute(statement.encode())
            points[pipeline.sync().lsn] = _source(database)
            assert mirrors(pipeline, list(points.values())[-1]) == {}, step
        wrong = past(pipeline, points, [t for t in TABLES if t != "ddl"])
        first = next(iter(points))
        for size in (None, 1, 1000) if os.environ.get("SLOTLAKE_TEST_LONG") else (9,):
            report = pipeline.replay("scratch", start=first, transactions=size)
            assert report.copied_meanwhile == []
            told = [_told(pipeline, lake, t) for t in TABLES for lake in _lakes(pipeline)]
            wrong |= {
                f"{t} in {size}": t for t, a, b in zip(TABLES, told[::2], told[1::2], strict=True) if a != b
            }
        assert wrong == {}
        assert pipeline.verify().equal
        _locked(database, pipeline, monkeypatch)


def _locked(database: Database, pipeline: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is published is looked up without waiting for such a table, and all others go on."""
    monkeypatch.setattr(source, "LOCK_SECONDS_MAX", 0.2)
    database.execute("UPDATE bag SET n = 9")
    bag = _bag(database)
    with database.connect() as connection:
        for statement in ("BEGIN", "ALTER TABLE ddl ADD e int", "PREPARE TRANSACTION 'e'"):
            connection.execute(statement.encode())
        pipeline.sync()
        assert mirrors(pipeline, bag) == {}
        connection.execute("COMMIT PREPARED 'e'")
    database.execute("UPDATE bag SET n = 10")
    pipeline.sync()
    assert mirrors(pipeline, _bag(database)) == {}


def _bag(database: Database) -> dict[str, Counter[Any]]:
    """Not all tables: one of them may be locked."""
    with database.connect() as connection:
        return {"bag": source_rows(connection, f"({SOURCE['bag']}) AS t")[1]}


CHOICES = {"applied": "apply", "skipped": "skip", "refused": "fail"}


def test_conflicts(database: Database, session: Any, tmp_path: Path) -> None:
    """What is not published for a while is met later; the history has the mirror's outcome, at any moment."""
    for table in CHOICES:
        database.execute(
            f"CREATE TABLE {table} (id int PRIMARY KEY, v text, big text); INSERT INTO {table} SELECT g, 'first', {big(2)} FROM generate_series(1, 6) g"
        )
    listed = "".join(
        f"  {table}: {{on_conflict: {choice}, on_trouble: stop}}\n" for table, choice in CHOICES.items()
    )
    file = pipeline_file(tmp_path, database, [], extra=listed + MODES, source="origin: none")
    with Pipeline.open(file) as pipeline:
        seen = [pipeline.init().lsn]
        _unpublished(
            database,
            "DELETE FROM {t} WHERE id < 3; INSERT INTO {t} VALUES (20, 'unseen', {big}), (21, 'unseen', NULL)",
            ("applied", "skipped"),
        )
        _all(database, "UPDATE {t} SET v = 'second' WHERE id = 3", CHOICES)
        seen.append(pipeline.sync().lsn)
        _all(
            database,
            "INSERT INTO {t} VALUES (1, 'again', NULL); UPDATE {t} SET v = 'partly' WHERE id = 20; UPDATE {t} SET id = 22, v = 'moved' WHERE id = 21; UPDATE {t} SET id = 2 WHERE id = 4; DELETE FROM {t} WHERE id = 5",
            ("applied", "skipped"),
        )
        _all(database, "UPDATE {t} SET v = 'third' WHERE id IN (1, 3)", CHOICES)
        met = pipeline.sync()
        seen.append(met.lsn)
        _all(database, "BEGIN; TRUNCATE {t}; INSERT INTO {t} VALUES (1, 'x', NULL); COMMIT", ("skipped",))
        _unpublished(database, "DELETE FROM {t} WHERE id = 1", ("refused",))
        _all(database, "INSERT INTO {t} VALUES (1, 'again', NULL); UPDATE {t} SET v = 'last'", ("refused",))
        with pytest.raises(ApplyError, match="insert_exists 1"):
            pipeline.sync()
    file.write_text(file.read_text().replace("on_conflict: fail", "on_conflict: skip"))
    with Pipeline.open(file) as pipeline:
        seen.append(pipeline.sync().lsn)
        wrong = {}
        for table in CHOICES:
            told = _told(pipeline, pipeline.lake, table)
            for lsn in seen:
                mirror = Counter(pipeline.rows(table, at=lsn))
                if told.at(parse_lsn(lsn)) != mirror:
                    wrong[table, lsn] = (told.at(parse_lsn(lsn)) - mirror, mirror - told.at(parse_lsn(lsn)))
        assert wrong == {}
        values = {
            table: sorted((row[0], row[1]) for row in pipeline.rows(table, at=seen[2])) for table in CHOICES
        }
    assert met.conflicts["public.applied"] == met.conflicts["public.skipped"]
    assert ("1", "third") in values["applied"]
    assert ("22", "moved") in values["applied"]
    assert values["skipped"] == [
        ("1", "third"),
        ("2", "first"),
        ("3", "third"),
        ("4", "first"),
        ("6", "first"),
    ]


def _all(database: Database, statements: str, tables: Any) -> None:
    for table in tables:
        database.execute(statements.format(t=table, big=big(3)))


def _unpublished(database: Database, statements: str, tables: Any) -> None:
    """Changes that the pipeline does not take: they have another origin."""
    origin = f"'{database.name}'"
    database.execute(
        f"SELECT pg_replication_origin_create({origin}); SELECT pg_replication_origin_session_setup({origin});"
        + "; ".join(statements.format(t=table, big=big(3)) for table in tables)
    )
    database.execute(f"SELECT pg_replication_origin_drop({origin})")


def _lakes(pipeline: Any) -> Any:
    from slotlake.spark.replay.scratch import scratch_of

    return pipeline.lake, scratch_of(pipeline.lake, "scratch")


def _source(database: Database) -> dict[str, Counter[Any]]:
    with database.connect() as connection:
        return {table: source_rows(connection, f"({sql}) AS t")[1] for table, sql in SOURCE.items()}


def mirrors(pipeline: Any, expected: dict[str, Counter[Any]]) -> dict[str, Any]:
    """The mirrors, and the open versions of their histories, where they are not what is expected."""
    cut, found = ReadPoint.latest(pipeline.lake), {}
    for table, rows in expected.items():
        names = [column.name for column in cut.schema(table).live]
        seen, versions = {"mirror": Counter(cut.rows(table))}, cut.open_versions(table, names)
        if versions is not None:
            lists = (zip(*(column.to_pylist() for column in b.columns), strict=True) for b in versions)
            seen["history"] = Counter(row for rows_of in lists for row in rows_of)
        for what, actual in seen.items():
            if actual != rows:
                found[f"{table} {what}"] = (rows - actual, actual - rows)
    return found


def past(pipeline: Any, points: Points, tables: list[str]) -> dict[str, Any]:
    """Each point by `rows`, by the history and by the change log, where it is not what the source held."""
    found: dict[str, Any] = {}
    for table in tables:
        told = _told(pipeline, pipeline.lake, table)
        for lsn, held in points.items():
            at = parse_lsn(lsn)
            seen = {
                "rows": Counter(pipeline.rows(table, at=lsn)),
                "history": told.at(at),
                "log": told.replayed(at),
            }
            found |= {
                f"{table} {how} {lsn}": (held[table] - r, r - held[table])
                for how, r in seen.items()
                if r != held[table]
            }
    return found


def test_empty_prepared_transactions_of_an_old_server(
    database_on: Callable[[Version], Database], session: Any, tmp_path: Path
) -> None:
    """Of an empty one 16 sends the outcome alone, as of one whose changes came before: the lake knows which."""
    database = database_on(16)
    database.execute(SETUP)
    file = pipeline_file(tmp_path, database, ["keyed"], source="two_phase: true")
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        for gid, statement in {
            "empty": "SELECT * FROM keyed FOR UPDATE",
            "undone": "SELECT * FROM bag FOR UPDATE",
            "full": "INSERT INTO keyed VALUES (20, 20, 'full', NULL)",
        }.items():
            prepare = f"BEGIN; {statement}; PREPARE TRANSACTION '{gid} {database.name}'"
            with database.connect() as connection:
                for part in prepare.split("; "):
                    connection.execute(part.encode())
        pipeline.sync()
        database.execute(f"COMMIT PREPARED 'empty {database.name}'")
        database.execute("UPDATE keyed SET v = 'meanwhile'")
        database.execute(f"ROLLBACK PREPARED 'undone {database.name}'")
        pipeline.sync()
        pipeline.backfill(["keyed"])  # a point of another kind
        assert [each["gid"] for each in pipeline.status().prepared] == [f"full {database.name}"]
        archive = pipeline.file.changelog_dir
        away = archive.rename(tmp_path / "away")  # with all that waits there
        database.execute(f"COMMIT PREPARED 'full {database.name}'")
        with pytest.raises(ChangeLogError, match="the file with its changes is missing"):
            pipeline.sync()
        shutil.rmtree(archive)
        away.rename(archive)
        pipeline.sync()
        assert sorted(pipeline.rows("public.keyed", columns=["id", "v"])) == sorted(
            database.execute("SELECT id::text, v FROM keyed")
        )
        assert pipeline.verify().equal
