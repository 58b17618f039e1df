"""One table's trouble is its own: it is set aside, all others go on, and it comes back by a copy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError, ProtocolError, SourceError
from slotlake.decoder.failpoints import happening
from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.server import source
from slotlake.spark import lake_files
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.names import lake_table
from slotlake.spark.publish.place import table_directory
from slotlake.spark.storage.location import Location
from tests.conftest import Database
from tests.e2e.aside_causes import BAD, encoded_database, five_rows
from tests.e2e.oracle import differences, pipeline_file

pytestmark = pytest.mark.timeout(600)


@pytest.fixture
def ascii_database(database: Database) -> Iterator[Database]:
    """A database that takes any bytes for text."""
    with encoded_database(database.server, f"{database.name}_ascii", "SQL_ASCII") as made:
        yield made


def _equal(database: Database, pipeline: Any, *tables: str) -> None:
    assert differences(database, pipeline, list(tables)) == {}


def test_a_value_that_cannot_be_read(ascii_database: Database, session: Any, tmp_path: Path) -> None:
    database = ascii_database
    five_rows(database, "good", "bad")
    with Pipeline.open(pipeline_file(tmp_path, database, ["good", "bad"])) as pipeline:
        pipeline.init()
        before = pipeline.position()
        with database.connect() as writer, writer.transaction():
            writer.execute("INSERT INTO good VALUES (6, 'same transaction')")
            writer.execute(f"INSERT INTO bad VALUES (6, {BAD})")
            writer.execute("DELETE FROM bad WHERE id = 1")
        report = pipeline.sync()
        assert list(report.set_aside) == ["public.bad"]
        assert "UTF-8" in report.set_aside["public.bad"]
        _equal(database, pipeline, "good")
        assert sorted(pipeline.rows("bad")) == [(str(i), "first") for i in range(1, 6)]
        (told,) = pipeline.status().set_aside
        assert (told["table"], parse_lsn(told["lsn"]), told["cause"]) == ("bad", before, "value")
        assert [alarm.kind for alarm in pipeline.status().alarms] == ["set aside"]

        # It goes on being passed over, and the slot moves.
        database.execute(
            "TRUNCATE good, bad; INSERT INTO good VALUES (1, 'again'); INSERT INTO bad VALUES (7, 'x')"
        )
        database.execute(f"INSERT INTO bad VALUES (8, {BAD})")
        assert list(pipeline.sync().set_aside) == ["public.bad"]
        _equal(database, pipeline, "good")
        assert len(list(pipeline.rows("bad"))) == 5
        verified = pipeline.verify()
        assert not verified.equal
        assert verified.tables["public.good"].equal
        assert verified.tables["public.bad"].totals == {"set aside, and not followed": 1}
        with pytest.raises(ProtocolError, match="UTF-8"):
            pipeline.resume("bad")
        assert "table public.bad is set aside" in pipeline.recover().diagnosis

        # The value is corrected: the copy is whole, and changes go on from it.
        database.execute("UPDATE bad SET v = 'corrected' WHERE id = 8; INSERT INTO good VALUES (2, 'too')")
        resumed = pipeline.resume("bad")
        assert (resumed.table, resumed.rows, resumed.already) == ("public.bad", 2, False)
        _equal(database, pipeline, "good", "bad")
        database.execute("UPDATE bad SET v = 'followed'; DELETE FROM bad WHERE id = 7")
        report = pipeline.sync()
        assert report.set_aside == {}
        assert report.tables["public.bad"] == 3
        _equal(database, pipeline, "good", "bad")
        assert pipeline.verify().equal
        assert pipeline.resume("bad").already
        assert pipeline.status().set_aside == []
        assert pipeline.status().alarms == []


def test_from_the_start_and_while_it_joins(ascii_database: Database, session: Any, tmp_path: Path) -> None:
    """Copies meet such a value too: `init` and a table that joins; then it is left, back, and renamed."""
    database = ascii_database
    five_rows(database, "good", "bad")
    database.execute(f"INSERT INTO bad VALUES (6, {BAD}); CREATE PUBLICATION shop FOR TABLE good, bad")
    with Pipeline.open(pipeline_file(tmp_path, database, [])) as pipeline:
        report = pipeline.init()
        assert list(report.set_aside) == ["public.bad"]
        assert [each.table for each in report.tables] == ["public.good"]
        five_rows(database, "late")
        database.execute(f"INSERT INTO late VALUES (6, {BAD}); ALTER PUBLICATION shop ADD TABLE late")
        assert set(pipeline.sync().set_aside) == {"public.bad", "public.late"}
        database.execute("UPDATE late SET v = 'read' WHERE id = 6; UPDATE good SET v = 'x'")
        assert pipeline.sync().resumed == ["public.late"]
        _equal(database, pipeline, "good", "late")
        database.execute(f"INSERT INTO late VALUES (7, {BAD}); UPDATE good SET v = 'y'")
        assert set(pipeline.sync().set_aside) == {"public.bad", "public.late"}
        asked = pipeline.query("SELECT count(*) FROM late")
        assert (asked.rows, list(asked.set_aside)) == ([("6",)], ["public.late"])

        # Left and back: what was written meanwhile is in the copy.
        database.execute("ALTER PUBLICATION shop DROP TABLE late; DELETE FROM late WHERE id = 7")
        assert list(pipeline.sync().set_aside) == ["public.bad", "public.late"]
        assert [alarm.what.split()[1] for alarm in pipeline.status().alarms] == ["public.bad"]
        with pytest.raises(SourceError, match="not published any more"):
            pipeline.resume("late")
        database.execute("INSERT INTO late VALUES (8, 'unseen'); ALTER PUBLICATION shop ADD TABLE late")
        database.execute("INSERT INTO late VALUES (9, 'seen')")
        assert pipeline.sync().resumed == ["public.late"]
        _equal(database, pipeline, "good", "late")

        # Under another name it is another table of the lake.
        database.execute("DELETE FROM bad WHERE id = 6; ALTER TABLE bad RENAME TO other")
        assert pipeline.sync().added_tables == ["public.other"]
        _equal(database, pipeline, "good", "late", "other")
        assert pipeline.status().set_aside == []
        assert pipeline.verify().equal


def test_on_trouble_stop(ascii_database: Database, session: Any, tmp_path: Path) -> None:
    """It stops at each sync, nothing is confirmed; another choice lets the same changes pass."""
    database = ascii_database
    five_rows(database, "good", "bad")
    file = pipeline_file(tmp_path, database, ["good", "bad"])
    asked = file.read_text()
    file.write_text(asked.replace("'bad': {}", "'bad': {on_trouble: stop}"))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        before = pipeline.position()
        database.execute(f"INSERT INTO bad VALUES (6, {BAD}); DELETE FROM good")
        for _ in range(2):
            with pytest.raises(ProtocolError, match=r"(?s)UTF-8.*public\.bad.*on_trouble"):
                pipeline.sync()
        assert pipeline.position() == before
        assert pipeline.status().set_aside == []
        assert "sync will stop again at table public.bad" in pipeline.recover().diagnosis
    file.write_text(asked)
    with Pipeline.open(file) as pipeline:
        assert list(pipeline.sync().set_aside) == ["public.bad"]
        _equal(database, pipeline, "good")


def _drop(pipeline: Any, table: str) -> None:
    with open_catalog(pipeline.lake) as catalog:
        catalog.drop([lake_table(pipeline.lake.namespace, "public", table)])


def _directory(pipeline: Any, table: str) -> Location:
    return table_directory(pipeline.lake, lake_table(pipeline.lake.namespace, "public", table))


@pytest.mark.skipif(not os.environ.get("SLOTLAKE_TEST_LONG"), reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_mirror_dropped_between_apply_and_publish(database: Database, session: Any, tmp_path: Path) -> None:
    """It is this table's trouble, in its own words; the others are published, and it is copied again."""
    tables = five_rows(database, "good", "gone")
    file = pipeline_file(tmp_path, database, tables)
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        database.execute("UPDATE good SET v = 'x'; UPDATE gone SET v = 'x'")
        batch = pipeline.pull().batch
        assert batch is not None
        pipeline.apply(batch)
        _drop(pipeline, "gone")
        pipeline.publish(batch)
        assert pipeline.publish(batch).already_published
        (entry,) = pipeline.status().set_aside
        assert (entry["table"], entry["cause"]) == ("gone", "copy")
        assert "dropped from the catalog by someone else" in entry["what"]
        assert "slotlake resume public.gone" in entry["way_out"]
        assert str(_directory(pipeline, "gone")) in entry["way_out"]
        _equal(database, pipeline, "good")
        database.execute("DELETE FROM gone WHERE id = 1; DELETE FROM good WHERE id = 1")
        with pytest.raises(LakeError, match="the directory of a new table is in use"):
            pipeline.resume("gone")
        lake_files.remove_tree(_directory(pipeline, "gone"))
        assert pipeline.resume("gone").rows == 4
        database.execute("INSERT INTO gone VALUES (9, 'after')")
        assert pipeline.sync().set_aside == {}
        _equal(database, pipeline, *tables)
        assert pipeline.verify().equal
    file.write_text(file.read_text().replace("'gone': {}", "'gone': {on_trouble: stop}"))
    with Pipeline.open(file) as pipeline:
        before = pipeline.position()
        database.execute("UPDATE good SET v = 'y'; UPDATE gone SET v = 'y'")
        batch = pipeline.pull().batch
        assert batch is not None
        pipeline.apply(batch)
        _drop(pipeline, "gone")
        with pytest.raises(LakeError, match="dropped from the catalog by someone else"):
            pipeline.publish(batch)
        assert pipeline.position() == before
        lake_files.remove_tree(_directory(pipeline, "gone"))
        assert pipeline.sync().added_tables == ["public.gone"]
        _equal(database, pipeline, *tables)


def _killed() -> None:
    raise KeyboardInterrupt


def _spoil(pipeline: Any, table: str) -> None:
    pipeline.session.sql(f"DELETE FROM lake.shop.{table} WHERE id = 2").collect()


def test_refusals_that_were_asked_for(database: Database, session: Any, tmp_path: Path) -> None:
    """`on_conflict: fail`, `on_lossy: fail`: the table alone; over when the file asks no more."""
    tables = five_rows(database, "good", "met")
    database.execute(
        "CREATE TABLE lossy (id int PRIMARY KEY, d date); INSERT INTO lossy VALUES (1, '2024-01-01')"
    )
    tables.append("lossy")
    file = pipeline_file(tmp_path, database, tables)
    asked = file.read_text()
    file.write_text(
        asked.replace("'met': {}", "'met': {on_conflict: fail, mode: [history, append]}").replace(
            "'lossy': {}", "'lossy': {on_lossy: fail}"
        )
    )
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        _spoil(pipeline, "met")
        for table in ("good", "met"):
            database.execute(f"UPDATE {table} SET v = 'new' WHERE id <= 2")
        database.execute("INSERT INTO lossy VALUES (2, 'infinity')")
        with happening("aside.written", _killed), pytest.raises(KeyboardInterrupt):
            pipeline.sync()  # ended between the record and the step taken again
        report = pipeline.sync()
        assert set(report.set_aside) == {"public.met", "public.lossy"}
        assert report.tables == {"public.good": 2}
        assert {each["table"]: each["cause"] for each in pipeline.status().set_aside} == {
            "met": "on_conflict",
            "lossy": "on_lossy",
        }
        _equal(database, pipeline, "good")
        assert len(list(pipeline.rows("met"))) == 4
        assert list(pipeline.rows("lossy")) == [("1", "2024-01-01")]
        database.execute("INSERT INTO met VALUES (7, 'seven'); TRUNCATE good, lossy")
        assert set(pipeline.sync().set_aside) == {"public.met", "public.lossy"}  # not before it is asked
        _equal(database, pipeline, "good")
        assert pipeline.resume("met").rows == 6
        _equal(database, pipeline, "good", "met")
        held = pipeline.query("SELECT id, v FROM met__history WHERE valid_to_lsn IS NULL ORDER BY id").rows
        assert [row[1] for row in held] == ["new", "new", "first", "first", "first", "seven"]
    file.write_text(asked.replace("'met': {}", "'met': {mode: [history, append]}"))
    with Pipeline.open(file) as pipeline:
        report = pipeline.sync()
        assert (report.resumed, report.set_aside) == (["public.lossy"], {})
        _equal(database, pipeline, *tables)
        assert pipeline.verify().equal


def test_a_table_without_columns(database: Database, session: Any, tmp_path: Path) -> None:
    """From the start, when it joins, and when its last column is dropped; also if none is published."""
    five_rows(database, "good", "emptied")
    database.execute("CREATE TABLE never (); CREATE TABLE virtual (v int GENERATED ALWAYS AS (1) VIRTUAL)")
    database.execute("CREATE TABLE stored (v int GENERATED ALWAYS AS (1) STORED)")
    database.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    with Pipeline.open(pipeline_file(tmp_path, database, [])) as pipeline:
        first = ["public.never", "public.stored", "public.virtual"]
        assert sorted(pipeline.init().set_aside) == first
        database.execute("INSERT INTO never DEFAULT VALUES; UPDATE good SET v = 'x'")
        database.execute("ALTER TABLE never REPLICA IDENTITY FULL; DELETE FROM never; TRUNCATE never")
        database.execute(
            "INSERT INTO virtual DEFAULT VALUES; INSERT INTO stored DEFAULT VALUES; TRUNCATE virtual"
        )
        assert sorted(pipeline.sync().set_aside) == first
        database.execute("CREATE TABLE later (); INSERT INTO later DEFAULT VALUES")
        database.execute("ALTER TABLE emptied ADD w int GENERATED ALWAYS AS (1) VIRTUAL")
        database.execute("ALTER TABLE emptied DROP v; ALTER TABLE emptied DROP id")
        database.execute("INSERT INTO emptied DEFAULT VALUES; UPDATE good SET v = 'y'")
        none = {*first, "public.later", "public.emptied"}
        assert set(pipeline.sync().set_aside) == none
        assert len(list(pipeline.rows("emptied"))) == 5  # its last good content
        assert set(pipeline.sync().set_aside) == none
        _equal(database, pipeline, "good")
        database.execute("ALTER TABLE emptied DROP w; ALTER TABLE virtual DROP v; ALTER TABLE stored DROP v")
        for table in ("never", "virtual", "stored", "later", "emptied"):
            database.execute(f"ALTER TABLE {table} ADD id int DEFAULT 7")
        told = [each.change for each in pipeline.schema_changes().pending if each.table == "public.never"]
        assert len(told) == 1
        assert "is set aside: the table has no published column" in told[0]
        report = pipeline.sync()
        assert report.set_aside == {}
        assert set(report.resumed) == none
        _equal(database, pipeline, "good", "never", "virtual", "stored", "later", "emptied")
        database.execute("INSERT INTO emptied VALUES (8); INSERT INTO never VALUES (9)")
        pipeline.sync()
        _equal(database, pipeline, "good", "never", "later", "emptied")


def test_a_copy_that_cannot_be_made(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permission gone, a lock not to be had, the table vanished: each where a copy is needed."""
    tables = five_rows(database, "good", "secret", "locked", "vanished")
    role = f"mortal_{database.name}"
    database.execute(
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'mortal'; CREATE PUBLICATION shop FOR ALL TABLES"
    )
    database.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
    monkeypatch.setattr(source, "LOCK_SECONDS_MAX", 1.0)
    file = pipeline_file(tmp_path, database, [])
    file.write_text(
        file.read_text().replace(database.dsn, make_conninfo(database.dsn, user=role, password="mortal"))
    )
    try:
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            before = pipeline.position()
            database.execute(f"REVOKE SELECT ON secret FROM {role}")
            rewrite = "ALTER TABLE {} ALTER v TYPE varchar USING upper(v)"
            for table in ("secret", "locked"):
                database.execute(rewrite.format(table))
            database.execute(
                "UPDATE good SET v = 'x'; UPDATE secret SET v = 'z'; INSERT INTO locked VALUES (6, 'b')"
            )
            with database.connect() as locker, locker.transaction():
                locker.execute("LOCK TABLE locked")
                report = pipeline.sync()
                assert set(report.set_aside) == {"public.secret", "public.locked"}
                _equal(database, pipeline, "good")
                assert set(pipeline.sync().set_aside) == {"public.secret", "public.locked"}
            assert pipeline.sync().resumed == ["public.locked"]
            _equal(database, pipeline, "good", "locked")
            with pytest.raises(SourceError, match="may not read"):
                pipeline.resume("secret")
            (told,) = pipeline.status().set_aside
            assert parse_lsn(told["lsn"]) == before
            assert told["cause"] == "source"

            # Set aside, it is dropped: there is nothing to bring back, and nobody need be warned any more.
            database.execute("DROP TABLE secret; UPDATE good SET v = 'y'")
            assert set(pipeline.sync().set_aside) == {"public.secret"}
            assert pipeline.status().alarms == []
            assert len(list(pipeline.rows("secret"))) == 5
            assert pipeline.verify().equal
            five_rows(database, "secret")
            database.execute(f"GRANT SELECT ON secret TO {role}")
            assert pipeline.sync().resumed == ["public.secret"]
            _equal(database, pipeline, *(set(tables)))
            assert pipeline.status().set_aside == []
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_points_of_before_and_a_replay(ascii_database: Database, session: Any, tmp_path: Path) -> None:
    """Readers of any point see what the table was; a replay passes it over as the lake did."""
    database = ascii_database
    five_rows(database, "good", "bad")
    with Pipeline.open(pipeline_file(tmp_path, database, ["good", "bad"])) as pipeline:
        begun = pipeline.init().lsn
        database.execute("UPDATE bad SET v = 'second'; UPDATE good SET v = 'second'")
        followed = pipeline.sync().lsn
        database.execute(
            f"UPDATE bad SET v = 'lost'; UPDATE good SET v = 'third'; INSERT INTO bad VALUES (6, {BAD})"
        )
        without = pipeline.sync().lsn
        database.execute("DELETE FROM bad WHERE id = 6; UPDATE good SET v = 'fourth'")
        assert pipeline.sync().resumed == ["public.bad"]
        database.execute("UPDATE bad SET v = 'last'; UPDATE good SET v = 'last'")
        pipeline.sync()
        for at, good, bad in (
            (begun, "first", "first"),
            (followed, "second", "second"),
            (without, "third", "second"),
        ):
            for table, value in (("good", good), ("bad", bad)):
                assert {v for _, v in pipeline.rows(table, at=at)} == {value}, (at, table)
        kinds = [row[0] for row in pipeline.query("SELECT kind FROM commits ORDER BY published_at").rows]
        assert kinds.count("set_aside") == 1
        assert "backfill" in kinds
        report = pipeline.replay("again", start=begun, end=without)
        assert report.copied_meanwhile == ["shop.bad"]
        scratch = pipeline.session.sql("SELECT DISTINCT v FROM lake.again.good").collect()
        assert [row[0] for row in scratch] == ["third"]
        assert [
            row[0] for row in pipeline.session.sql("SELECT DISTINCT v FROM lake.again.bad").collect()
        ] == ["second"]
        _equal(database, pipeline, "good", "bad")
