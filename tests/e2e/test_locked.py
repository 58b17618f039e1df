"""Published tables that a transaction has locked, open or prepared: every sync goes on with all others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LockedError
from slotlake.decoder.server import source
from tests.conftest import Database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = [pytest.mark.timeout(600), pytest.mark.server]
TABLES = ["plain", "chosen", "filtered", "parted"]
LOCKS = {
    "open": "ALTER TABLE plain ADD e int; TRUNCATE chosen; ALTER TABLE filtered ADD e int; LOCK TABLE parted",
    "prepared": "ALTER TABLE plain ADD p int; ALTER TABLE chosen ADD p int; ALTER TABLE filtered ADD p int;"
    " TRUNCATE part",
}
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
# Statements of a transaction that stays open, and whether nobody can read the table meanwhile.
HELD = {
    "LOCK TABLE held": True,
    "CLUSTER held USING held_pkey": True,
    "TRUNCATE held": True,
    "REINDEX TABLE held": True,
    "DROP TABLE held": True,
    "CREATE INDEX ON held (v)": False,
}


def test_every_sync_goes_on(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "CREATE TABLE other (id int PRIMARY KEY);"
        "CREATE TABLE parted (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);"
        "CREATE TABLE part PARTITION OF parted DEFAULT;"
        + ";".join(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)" for table in TABLES[:3])
        + ";CREATE PUBLICATION shop FOR TABLE other, plain, chosen, filtered WHERE (id < 1000), parted"
        " WITH (publish_via_partition_root = true)"
    )
    _write(database, 1)
    file = pipeline_file(tmp_path, database, [], extra="  chosen: {filter: id < 500}\n")
    monkeypatch.setattr(source, "LOCK_SECONDS_MAX", 1.0)
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        for number, (how, statements) in enumerate(LOCKS.items(), start=2):
            _write(database, number)
            with database.connect() as holder:
                for statement in ("BEGIN", *statements.split("; ")):
                    holder.execute(statement.encode())
                if how == "prepared":
                    holder.execute("PREPARE TRANSACTION 'locks'")
                pipeline.sync()
                database.execute("INSERT INTO other VALUES (%s)", [100 + number])
                pipeline.sync()
                pipeline.status()
                assert [row for row in pipeline.rows("other") if row == (str(100 + number),)]
                for table in TABLES:
                    assert len(list(pipeline.rows(table))) == number, (how, table)
                holder.execute("ROLLBACK" if how == "open" else "COMMIT PREPARED 'locks'")
            _write(database, 10 + number)
            database.execute(
                f"DELETE FROM other; {';'.join(f'DELETE FROM {t} WHERE id > 9' for t in TABLES)}"
            )
            pipeline.sync()
            assert_equal(database, pipeline, ["other", *TABLES] if how == "open" else ["other"])
        pipeline.sync()
        assert_equal(database, pipeline, ["other", *TABLES])
        assert pipeline.verify().equal


def _write(database: Database, number: int) -> None:
    for table in TABLES:
        database.execute(f"INSERT INTO {table} (id, v) VALUES ({number}, 1)")


@pytest.mark.parametrize("how", list(HELD) if LONG else ["LOCK TABLE held"])
def test_nothing_waits(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Held open: tables join, others are read again and verified; only who reads that table hears of it."""
    monkeypatch.setattr(source, "LOCK_SECONDS_MAX", 1.0)
    for table in ("other", "held"):
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)")
        database.execute(f"INSERT INTO {table} SELECT g, g FROM generate_series(1, 9) g")
    database.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    with Pipeline.open(pipeline_file(tmp_path, database, [])) as pipeline:
        pipeline.init()
        with database.connect() as holder:
            holder.execute("BEGIN")
            holder.execute(how.encode())
            database.execute("CREATE TABLE joins (id int PRIMARY KEY); INSERT INTO other VALUES (10, 1)")
            assert pipeline.sync().added_tables == ["public.joins"]
            assert_equal(database, pipeline, ["other", "joins"])
            assert pipeline.status().set_aside == []
            assert pipeline.backfill("other", where="id > 3").rows == 7
            if HELD[how]:
                report = pipeline.verify()
                assert report.tables["public.other"].equal
                assert report.tables["public.joins"].equal
                assert report.tables["public.held"].totals == {"locked at the source, and not compared": 1}
                with pytest.raises(LockedError, match="locked"):
                    pipeline.backfill("held")
            else:
                assert pipeline.verify().equal
            holder.execute("ROLLBACK")
        pipeline.sync()
        assert pipeline.verify().equal
        assert pipeline.status().set_aside == []
