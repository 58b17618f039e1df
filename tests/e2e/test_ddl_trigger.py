# ruff: noqa: E501  (a statement is read as a line)
"""The event trigger: what it tells, at its place in any kind of transaction, and what is followed by it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import make_conninfo

from slotlake import Pipeline
from slotlake.decoder.changelog.batches import Batch, batches
from slotlake.decoder.errors import SourceError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.slots.slot import create_slot
from slotlake.decoder.stream.pull import pull
from slotlake.infra.cli.main import main
from slotlake.infra.local.postgres import Version
from slotlake.infra.source import ddl_trigger
from slotlake.infra.sync.schema.ddl_events import altered_tables, row_places
from slotlake.spark.publish import sidecar as annex
from tests.conftest import Database
from tests.e2e.oracle import differences, pipeline_file

pytestmark = pytest.mark.timeout(300)

TABLES = ("together", "again", "back", "off", "hidden", "bare")
SETUP = "(id int PRIMARY KEY, a text, b int)"


@pytest.mark.parametrize("version", [14, 16, 18])
def test_events_come_in_order(
    database_on: Callable[[Version], Database], tmp_path: Path, version: Version
) -> None:
    """Plain, streamed and rolled-back transactions, and parts of them; installed anew, and gone without a trace."""
    database = database_on(version)
    database.execute(f"CREATE TABLE t {SETUP}; CREATE TABLE other (id int); CREATE PUBLICATION p FOR TABLE t")
    database.execute(ddl_trigger.INSTALL)
    slot = SourceSettings(database.dsn, ("p",), f"slot_{database.name}", streaming="on", messages=True)
    with create_slot(slot) as snapshot:
        start = snapshot.lsn
    with database.connect() as connection:
        connection.execute("INSERT INTO t VALUES (1, 'plain', 1)")
        connection.execute("ALTER TABLE t ADD c int")
        connection.execute("INSERT INTO t VALUES (2, 'plain', 1, 1)")
        with pytest.raises(psycopg.errors.DuplicateColumn):
            connection.execute("ALTER TABLE t ADD c int")
    _many(database, "ALTER TABLE t RENAME c TO lost", 1000, commit=False)
    _many(database, "ALTER TABLE t RENAME c TO d", 2000, commit=True)
    made = pull(slot, "p", tmp_path, start=start, until=None)
    (oid,) = database.execute("SELECT 't'::regclass::oid::int8")[0]
    told = altered_tables(made)[oid]
    assert [list(event.columns.values())[3][0] for event in told] == ["c", "d"]
    assert [list(event.columns) for event in told] == [[1, 2, 3, 4]] * 2
    places = {tuple(c.name for c in r.columns): row_places(made, r) for r in made.relations if r.rows}
    before, added, renamed = (
        places[names] for names in (("id", "a", "b"), ("id", "a", "b", "c"), ("id", "a", "b", "d"))
    )
    assert before[-1] < told[0].seq < added[0]
    assert added[-1] < told[1].seq < renamed[0]
    assert (len(added), len(renamed)) == (1 + 3000, 3000)
    database.execute(ddl_trigger.REMOVE + ddl_trigger.INSTALL + ddl_trigger.REMOVE)
    left = "SELECT (SELECT count(*) FROM pg_event_trigger) + (SELECT count(*) FROM pg_namespace WHERE nspname = 'slotlake_ddl')"
    assert database.execute(left) == [(0,)]


def _many(database: Database, alter: str, first: int, *, commit: bool) -> None:
    """More than fits the server's memory for decoding; with parts that are rolled back."""
    rows = "INSERT INTO t SELECT g, repeat('x', 200), 1 FROM generate_series({}, {}) g"
    with database.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET logical_decoding_work_mem = '64kB'")
        cursor.execute("BEGIN")
        cursor.execute(rows.format(first * 10, first * 10 + 2999))
        cursor.execute("SAVEPOINT s")
        cursor.execute("ALTER TABLE t ADD never int DEFAULT 7")
        cursor.execute("ROLLBACK TO s")
        cursor.execute(alter)
        cursor.execute(rows.format(first * 10 + 3000, first * 10 + 5999))
        cursor.execute("COMMIT" if commit else "ROLLBACK")


def _steps(database: Database, steps: dict[str, str], first: int = 2) -> None:
    """A row before and after each statement."""
    with database.connect() as connection:
        for table, text in steps.items():
            connection.execute(f"UPDATE {table} SET id = id WHERE id = 1".encode())
            for number, statement in enumerate(text.split("; ")):
                connection.execute(statement.format(t=table).encode())
                connection.execute(f"UPDATE {table} SET id = -id WHERE id = {first + number}".encode())


CHANGES = {
    # Without the trigger each of these is copied again.
    "together": "ALTER TABLE {t} RENAME b TO z; ALTER TABLE {t} ADD c text; ALTER TABLE {t} RENAME a TO b; UPDATE {t} SET c = 'c' WHERE id = 7",
    "again": "ALTER TABLE {t} RENAME a TO x; ALTER TABLE {t} RENAME x TO y; ALTER TABLE {t} DROP b; ALTER TABLE {t} ADD n int",
    # And these with it.
    "back": "ALTER TABLE {t} RENAME a TO x; UPDATE {t} SET x = 'x'; ALTER TABLE {t} RENAME x TO a; UPDATE {t} SET a = 'y' WHERE id = 8",
    "bare": "ALTER TABLE {t} DROP b; ALTER TABLE {t} ADD b int",
}


# By name and type nothing happened.
ANOTHER = "ALTER TABLE {t} DROP b; ALTER TABLE {t} ADD b int; UPDATE {t} SET b = 77 WHERE id = 9"


def test_followed_by_it(database: Database, session: Any, tmp_path: Path) -> None:
    for table in TABLES:
        database.execute(
            f"CREATE TABLE {table} {SETUP}; INSERT INTO {table} SELECT g, 'a' || g, g FROM generate_series(1, 20) g"
        )
    file = pipeline_file(tmp_path, database, list(TABLES))
    wrong: dict[str, Any] = {}
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        assert pipeline.status().ddl_trigger == "not installed"
    assert main(["init", str(file), "--ddl-trigger", "--yes"]) == 0
    with Pipeline.open(file) as pipeline:
        assert pipeline.install_trigger().already
        start = pipeline.position()
        _steps(database, CHANGES)
        # What happens while it is disabled is told by the marks alone.
        database.execute("ALTER EVENT TRIGGER slotlake_ddl DISABLE")
        _steps(database, {"off": "ALTER TABLE {t} RENAME b TO z", "hidden": ANOTHER})
        assert pipeline.status().ddl_trigger == "disabled"
        database.execute("ALTER EVENT TRIGGER slotlake_ddl ENABLE ALWAYS")
        _steps(database, {"off": "ALTER TABLE {t} ADD c text", "hidden": "ALTER TABLE {t} RENAME b TO z"}, 10)
        report = pipeline.sync()
        wrong["after"] = differences(database, pipeline, list(TABLES))
        wrong["old point"] = [r for r in pipeline.rows("together", at=format_lsn(start)) if len(r) != 3]
        copied = {
            c.schema.table
            for path in batches(pipeline.file.changelog_dir)
            for c in annex.read(Batch.open(path)).copies
        }
        status = pipeline.status()
        _steps(database, {"together": "ALTER TABLE {t} RENAME b TO a; ALTER TABLE {t} ADD e int"}, 10)
        pipeline.sync()
        wrong["later"] = differences(database, pipeline, list(TABLES))
        done = pipeline.drop().done
    assert {when: found for when, found in wrong.items() if found} == {}
    assert copied == {"back", "bare", "hidden"}
    assert report.transactions
    assert status.ddl_trigger == "installed"
    assert "dropped the event trigger slotlake_ddl" in done
    assert database.execute("SELECT count(*) FROM pg_event_trigger")[0] == (0,)


def test_shown_and_asked(
    database: Database, session: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    file = pipeline_file(tmp_path, database, ["t"])
    assert main(["init", str(file), "--ddl-trigger", "--print-sql"]) == 0
    assert "CREATE EVENT TRIGGER slotlake_ddl" in capsys.readouterr().out
    assert database.execute("SELECT count(*) FROM pg_event_trigger")[0] == (0,)
    assert main(["init", str(file), "--ddl-trigger", "--yes", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ddl_trigger"], report["already"], report["rows"]) == ("installed", False, 0)
    _what_changed(database, file, capsys)


def _what_changed(database: Database, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`slotlake ddl`: pending before the sync, with its LSN behind it."""

    def told() -> dict[str, list[tuple[str, str]]]:
        capsys.readouterr()
        assert main(["ddl", str(file), "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert all(
            (each["lsn"] is None) == (when == "pending")
            for when in ("pending", "past")
            for each in report[when]
        )
        return {
            when: [(each["table"], each["change"]) for each in report[when]] for when in ("pending", "past")
        }

    assert told() == {"pending": [], "past": []}
    database.execute(
        "ALTER TABLE t ADD v varchar(5); INSERT INTO t VALUES (1, 'x'); CREATE TABLE u (id int PRIMARY KEY);"
        "ALTER PUBLICATION shop ADD TABLE u"
    )
    added = ("public.t", "column v (varchar) was added")
    assert told() == {
        "pending": [
            added,
            ("public.u", "is published: the next sync copies it; a large table takes several syncs"),
        ],
        "past": [],
    }
    with Pipeline.open(file) as pipeline:
        pipeline.sync()
        database.execute(
            "ALTER TABLE t ALTER v TYPE text; ALTER TABLE t RENAME v TO w; INSERT INTO t VALUES (2, 'y')"
        )
        renamed = [
            ("public.t", "column v was renamed to w"),
            ("public.t", "column w changed its type from varchar to text"),
        ]
        assert told() == {"pending": renamed, "past": [added]}
        pipeline.sync()
    assert told()["pending"] == []
    assert set(told()["past"]) == {added, *renamed}


def test_not_a_superuser(database: Database, tmp_path: Path) -> None:
    role = sql.Identifier(f"mortal_{database.name}")
    with database.connect() as connection:
        connection.execute(sql.SQL("CREATE ROLE {}").format(role))
        connection.execute(
            sql.SQL("GRANT CREATE ON DATABASE {} TO {}").format(sql.Identifier(database.name), role)
        )
        try:
            file = pipeline_file(tmp_path, database, ["t"])
            with Pipeline.open(file) as pipeline:
                pipeline.source = SourceSettings(
                    make_conninfo(database.dsn, options=f"-c role=mortal_{database.name}"), ("p",), "s"
                )
                with pytest.raises(SourceError, match="have one run what"):
                    pipeline.install_trigger()
            assert connection.execute(
                "SELECT count(*) FROM pg_namespace WHERE nspname = 'slotlake_ddl'"
            ).fetchone() == (0,)
        finally:
            connection.execute(sql.SQL("DROP OWNED BY {}").format(role))
            connection.execute(sql.SQL("DROP ROLE {}").format(role))
