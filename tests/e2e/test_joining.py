"""A table that joins is copied over several syncs: the others go on, and the lake is the source."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.infra.sync import settling
from slotlake.infra.sync.joining_tables import JoiningTables
from slotlake.infra.sync.over_syncs import shows_all
from tests.conftest import Database
from tests.e2e.joins import (
    BIG,
    LONG,
    PART_BYTES,
    SMALL,
    begun,
    big,
    ranges,
    ready,
    stepped,
    until_joined,
    write,
)
from tests.e2e.oracle import assert_equal
from tests.storage import files_folder, files_in

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)


def test_the_others_go_on(database: Database, connect: str, tmp_path: Path) -> None:
    """Each sync carries the others' changes, none waits for the copy, and the slot is confirmed."""
    with begun(database, tmp_path, connect) as pipeline:
        big(database)
        for number in range(1, 20):
            write(database, number)
            done = stepped(pipeline) if number % 2 else pipeline.sync()
            assert_equal(database, pipeline, ["small"])
            status = pipeline.status()
            assert status.slot is not None
            assert status.slot["confirmed_flush_lsn"] == status.last_consistent_lsn
            if done.added_tables:
                break
            assert ready(pipeline) == {SMALL}
            assert done.joining[BIG].startswith(f"{number} of ")
            told = next(entry for entry in status.tables if entry.table == BIG)
            assert (told.state, told.copied["ranges_done"]) == ("copying", number)  # type: ignore[index]
            if number == 2:
                assert list(pipeline.verify().tables) == [SMALL]
                (pending,) = pipeline.schema_changes().pending
                assert pending.change.startswith(
                    f"is published: {JoiningTables(pipeline).progress_by_table()[BIG]} are copied"
                )
        assert number > 3
        assert done.added_tables == [BIG]
        assert_equal(database, pipeline, ["big", "small"])
        assert not (pipeline.file.state_dir / "joining").exists()
        write(database, 70)
        pipeline.sync()
        assert pipeline.verify().equal
        assert_equal(database, pipeline, ["big", "small"])


def test_leaves_while_half_copied(database: Database, connect: str, tmp_path: Path) -> None:
    """Left, dropped, not wanted any more, the pipeline dropped: nothing stays; and it may come again."""
    with begun(database, tmp_path, connect) as pipeline:
        big(database, 800)
        place = files_folder(tmp_path) / "shop" / "big"

        def gone(what: Callable[[], Any]) -> None:
            pipeline.sync()
            assert ranges(pipeline) == 1
            assert files_in(place)
            what()
            assert JoiningTables(pipeline).progress_by_table() == {}
            assert files_in(place) == []
            assert not (pipeline.file.state_dir / "joining").exists()

        def left() -> None:
            database.execute("ALTER PUBLICATION shop DROP TABLE big")
            pipeline.sync()
            database.execute("ALTER PUBLICATION shop ADD TABLE big")

        def ignored() -> None:
            text = pipeline.file.path.read_text()
            pipeline.file.path.write_text(text + "new_tables: ignore\n")
            with Pipeline.open(pipeline.file.path, remote=connect) as other:
                other.sync()
            pipeline.file.path.write_text(text)

        gone(left)
        gone(ignored)
        pipeline.sync()
        write(database, 1)
        assert_equal(database, pipeline, [])
        until_joined(pipeline)
        assert_equal(database, pipeline, ["big", "small"])
        big(database, 800, "more")
        pipeline.sync()
        pipeline.drop()
        assert files_in(files_folder(tmp_path) / "shop" / "more") == []
        assert not (pipeline.file.state_dir / "joining").exists()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_two_at_once_and_what_cannot_wait(database: Database, connect: str, tmp_path: Path) -> None:
    """Beside a half copied table a small one joins at once, one without a key in one go; modes too."""
    extra = "mode: [history, append]\n"
    with begun(database, tmp_path, connect, extra=extra) as pipeline:
        big(database, 800)
        pipeline.sync()
        big(database, 900, "beside")
        database.execute(
            "CREATE TABLE loose (a int, b text);"
            "INSERT INTO loose SELECT i, 'l' FROM generate_series(1, 4000) i;"
            "CREATE TABLE tiny (id int PRIMARY KEY); INSERT INTO tiny VALUES (1), (2);"
            "ALTER PUBLICATION shop ADD TABLE loose, tiny"
        )
        write(database, 1)
        assert sorted(pipeline.sync().added_tables) == ["public.loose", "public.tiny"]
        assert_equal(database, pipeline, ["loose", "small", "tiny"])
        write(database, 2, "beside")
        until_joined(pipeline, "public.beside")
        pipeline.sync()
        pipeline.sync()
        tables = ["beside", "big", "loose", "small", "tiny"]
        write(database, 3)
        pipeline.sync()
        assert_equal(database, pipeline, tables)
        assert pipeline.verify().equal  # histories are compared too


def test_open_and_prepared_transactions(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table waits, without a slot, for those that wrote to it before it was published; for no others."""
    monkeypatch.setattr("slotlake.infra.sync.at_lsn.create_slot", refused)
    with begun(database, tmp_path, connect) as pipeline, database.connect() as writer:
        writer.autocommit = False
        database.execute("CREATE TABLE big (id int PRIMARY KEY, v int, t text)")
        writer.execute("INSERT INTO big VALUES (-1, 0, 'before it is published')")
        database.execute("INSERT INTO big SELECT i, i, repeat('x', 60) FROM generate_series(1, 2500) i")
        database.execute("ALTER PUBLICATION shop ADD TABLE big")
        database.execute("UPDATE small SET v = 1")
        done = pipeline.sync()
        assert ranges(pipeline) == 0
        assert done.joining[BIG].startswith("0 ranges (open transactions wrote to it before it was published")
        assert_equal(database, pipeline, ["small"])
        database.execute("UPDATE small SET v = 2")
        monkeypatch.setattr(settling, "WRITERS_WAIT_SECONDS", 900.0)  # who is known is not waited for again
        assert pipeline.sync().joining == done.joining
        writer.commit()
        pipeline.sync()
        assert ranges(pipeline) == 1
        writer.execute("UPDATE big SET v = -5 WHERE id % 10 = 1")
        writer.execute("INSERT INTO big SELECT 50000 + i, i, 'open' FROM generate_series(1, 3000) i")
        database.execute("BEGIN; DELETE FROM big WHERE id % 10 = 5; PREPARE TRANSACTION 'joining'")
        assert 2 < until_joined(pipeline) < 30
        assert_equal(database, pipeline, ["big", "small"])
        writer.execute("DELETE FROM big WHERE id % 10 = 3")
        writer.commit()
        database.execute("COMMIT PREPARED 'joining'")
        pipeline.sync()
        assert_equal(database, pipeline, ["big", "small"])
        assert pipeline.verify().equal


def test_a_table_of_all_tables_joins_beside_its_writers(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was published when it was made: a transaction that is open since is sent whole when it commits."""
    monkeypatch.setattr("slotlake.infra.sync.at_lsn.create_slot", refused)
    database.execute("CREATE PUBLICATION shop FOR ALL TABLES")
    with begun(database, tmp_path, connect) as pipeline, ExitStack() as stack:
        pipeline.sync()
        writer, other = (stack.enter_context(database.connect()) for _ in range(2))
        writer.autocommit = other.autocommit = False
        database.execute("BEGIN; UPDATE small SET v = 7; PREPARE TRANSACTION 'all_tables'")
        other.execute("CREATE TABLE unseen (id int PRIMARY KEY); INSERT INTO unseen VALUES (1)")
        database.execute("CREATE TABLE made (id int PRIMARY KEY, a text); INSERT INTO made VALUES (1, 'a')")
        database.execute("CREATE TABLE loose (a text); INSERT INTO loose VALUES ('a'), ('a')")
        for session in (writer, other):
            session.execute(
                "INSERT INTO made SELECT pg_backend_pid(), 'open'; INSERT INTO loose VALUES ('b')"
            )
        added = set(pipeline.sync().added_tables)
        assert added == {"public.loose", "public.made"}
        assert_equal(database, pipeline, ["made", "loose", "small"])
        writer.commit()
        other.commit()
        database.execute("COMMIT PREPARED 'all_tables'")
        assert pipeline.sync().added_tables == ["public.unseen"]
        assert_equal(database, pipeline, ["made", "loose", "small", "unseen"])
        assert pipeline.verify().equal


def refused(*_: object, **__: object) -> None:
    raise AssertionError("a slot is waited for")


@pytest.mark.parametrize(
    ("now", "earlier", "shows"),
    [
        ("10:12:10,11", "10:11:10", True),  # 10 was not shown before, 11 is new
        ("10:12:10", "10:12:", False),  # 10 was shown before
        ("9:12:9", "10:12:10", False),  # so was 9
        ("10:11:", "10:12:", False),
        ("10:12:", "10:12:10,11", True),
        ("20:25:23", "10:12:", True),
    ],
)
def test_a_snapshot_that_shows_all(now: str, earlier: str, shows: bool) -> None:
    assert shows_all(now, earlier) is shows
