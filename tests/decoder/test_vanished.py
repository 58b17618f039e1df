"""Tables that are dropped while they are read: they are gone, and the others go on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slotlake.decoder.catalog.publications import SourceTable, source_tables
from slotlake.decoder.catalog.vanished import VanishedError, vanished
from slotlake.decoder.copy.parts import plan_parts
from slotlake.decoder.copy.table import CopyCrew, CopyJob
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.server.source import connect
from slotlake.expectations.shapes import Compared
from slotlake.expectations.source_side import reading, snapshot_session
from tests.conftest import Database
from tests.decoder.copied import copy_table

AFTER = {
    "dropped": "DROP TABLE brief",
    "replaced": "DROP TABLE brief; CREATE TABLE brief (id int PRIMARY KEY)",
}


def _place(folder: Path) -> Any:
    folder.mkdir()
    more: dict[str, Any] = {
        name: {} for name in ("exact_names", "exact_field_ids", "representations", "inner_ids")
    }
    return SimpleNamespace(directory=folder, names={"id": "id"}, field_ids={"id": 1}, **more)


@pytest.mark.parametrize("what", AFTER)
def test_a_copy_and_a_comparison(database: Database, tmp_path: Path, what: str) -> None:
    database.execute(
        "CREATE TABLE brief (id int PRIMARY KEY); CREATE TABLE lasting (id int PRIMARY KEY);"
        "INSERT INTO brief VALUES (1), (2); INSERT INTO lasting VALUES (1);"
        "CREATE PUBLICATION p FOR ALL TABLES"
    )
    with connect(database.dsn) as holder:
        brief, lasting = source_tables(holder, ["p"])
        planned = plan_parts(holder, [brief, lasting])
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        (snapshot,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        with snapshot_session(database.dsn, snapshot) as session:
            database.execute(AFTER[what])
            assert vanished(database.dsn, [brief.relation_id, lasting.relation_id]) == {brief.relation_id}
            with pytest.raises(VanishedError, match="dropped"), reading(session, _compared(brief)):
                session.execute("SELECT * FROM brief")
            with reading(session, _compared(lasting)):
                assert session.execute("SELECT count(*) FROM lasting").fetchone() == (1,)
        places = {table: _place(tmp_path / table.table) for table in (brief, lasting)}
        jobs = [CopyJob(t, places[t], part, "copy-0") for t in (brief, lasting, brief) for part in planned[t]]
        copied: list[str] = []
        done = lambda job, files: copied.append(job.table.table)  # noqa: E731
        with CopyCrew(database.dsn, snapshot, jobs, workers=1, done=done) as crew:
            crew.wait(jobs)
        assert copied == ["lasting"]
        assert crew.dropped_tables == {brief.relation_id}
        with pytest.raises(VanishedError):
            copy_table(database.dsn, snapshot, brief, places[brief])
        assert list((tmp_path / "brief").iterdir()) == []


def test_one_that_is_renamed_is_not_gone(database: Database, tmp_path: Path) -> None:
    database.execute("CREATE TABLE brief (id int PRIMARY KEY); CREATE PUBLICATION p FOR ALL TABLES")
    with connect(database.dsn) as holder:
        (brief,) = source_tables(holder, ["p"])
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        (snapshot,) = holder.execute("SELECT pg_export_snapshot()").fetchone() or ("",)
        database.execute("ALTER TABLE brief RENAME TO other")
        with snapshot_session(database.dsn, snapshot) as session:
            renamed = pytest.raises(ChangedMeanwhileError, match="renamed")
            with renamed as told, reading(session, _compared(brief)):
                session.execute("SELECT * FROM brief")
            assert not isinstance(told.value, VanishedError)


def _compared(table: SourceTable) -> Compared:
    return Compared(table.quoted, (), (), (), None, relation_id=table.relation_id)
