"""A large table that must be copied again is copied over several syncs: the others go on meanwhile."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from psycopg.conninfo import make_conninfo

from slotlake.decoder.errors import PipelineFileError
from tests.conftest import Database
from tests.e2e.joins import BIG, LONG, SMALL, big, ended_at, killed, ready, stepped
from tests.e2e.oracle import assert_equal
from tests.e2e.over_syncs_kinds import REWRITTEN
from tests.e2e.recopies import ranges, recopying_of, reopened, small_and_slow
from tests.e2e.test_beside import past
from tests.e2e.test_modes import MODES

pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    small_and_slow(monkeypatch)


def test_the_others_go_on(database: Database, connect: str, tmp_path: Path) -> None:
    """Each sync carries the others' changes and moves the slot; all say how far it is; then it is whole."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect, extra=MODES)
        before = made.pipeline.position()
        made.half()
        for number in range(3, 30):
            made.change()
            done = stepped(made.pipeline) if number % 2 else made.pipeline.sync()
            if BIG in done.resumed:
                break
            made.others_go_on()
            there = f"{number} of "
            assert there in done.set_aside[BIG]
            status = made.pipeline.status()
            assert status.slot is not None
            assert status.slot["confirmed_flush_lsn"] == status.last_consistent_lsn
            (told,) = status.set_aside
            assert (told["cause"], told["tries"]) == ("again", 0)
            assert there in told["copied"]
            assert status.alarms == []
            assert any(there in each for each in status.warnings)
            entry = next(each for each in status.tables if each.table == BIG)
            assert entry.copied is not None
            assert entry.copied["ranges_done"] == number
            if number == 3:
                verified = made.pipeline.verify()
                assert verified.tables[SMALL].equal
                assert not verified.tables[BIG].equal
                assert verified.tables[BIG].totals == {"set aside, and not followed": 1}
        assert number > 4
        made.equal()
        again = next(each for each in made.pipeline.status().tables if each.table == BIG).copied_again
        assert again.endswith("rows were rewritten") or ": " in again
        points = {made.pipeline.sync().lsn: made.held()}
        for _ in range(2):
            made.change()
            points[made.pipeline.sync().lsn] = made.held()
        assert past(made.pipeline, points, ["big"]) == {}
        made.sound()
        assert made.pipeline.position() > before


def test_killed_at_each_step(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the record, between ranges, keys are noted, whole and not published, published and not noted so."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect)
        made.run(REWRITTEN)
        made.change()
        ended_at(monkeypatch, "aside.written", made.pipeline.sync)
        made.change()
        if LONG:
            killed(connect, made.pipeline.file.path, "init.part_done")
        else:
            ended_at(monkeypatch, "init.part_done", made.pipeline.sync)
        for failpoint in ("join.noted", "init.mid_copy", "publish.after_swap"):
            made.change()
            ended_at(monkeypatch, failpoint, made.pipeline.sync)
            assert ready(made.pipeline) == {SMALL}
        there = ranges(made.pipeline)
        assert there > 1
        for failpoint in ("init.registered", "recopy.staged", "publish.before_swap:2", "join.published"):
            made.change()
            for _ in range(20):
                try:
                    ended_at(monkeypatch, failpoint, made.pipeline.sync)
                    break
                except pytest.fail.Exception:  # it did not get there yet
                    assert ranges(made.pipeline) >= there, failpoint
            there = ranges(made.pipeline)
        made.change()
        made.pipeline.sync()
        made.sound()


def test_stop_and_what_cannot_be_in_ranges(database: Database, connect: str, tmp_path: Path) -> None:
    """`on_trouble: stop`, a table without a key, a small one: copied with the batch, in one point."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect, extra="on_trouble: stop\n")
        made.change()
        made.run(REWRITTEN)
        assert made.pipeline.sync().set_aside == {}
        made.equal()
        database.execute("CREATE TABLE loose (a int, b text); ALTER TABLE loose REPLICA IDENTITY FULL")
        database.execute("INSERT INTO loose SELECT i, repeat('l', 50) FROM generate_series(1, 4000) i")
        database.execute("ALTER PUBLICATION shop ADD TABLE loose")
        reopened(made, "on_trouble: stop\n", "")
        made.pipeline.sync()
        database.execute("ALTER TABLE loose ALTER b TYPE text USING upper(b)")
        database.execute("ALTER TABLE small ALTER v TYPE int USING v + 1; DELETE FROM loose WHERE a < 9")
        assert made.pipeline.sync().set_aside == {}
        assert_equal(database, made.pipeline, ["big", "loose", "small"])


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_several_at_once_and_one_that_joins(database: Database, connect: str, tmp_path: Path) -> None:
    """Two are rewritten, a third joins; a volatile default, and a column that leaves the lake."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect, extra="on_drop: drop\n")
        made.seconds(60.0)
        big(database, 900, "beside")
        made.pipeline.sync()
        made.seconds(0.001)
        database.execute("ALTER TABLE big ADD r float8 DEFAULT random(), DROP secret")
        database.execute("ALTER TABLE beside ALTER v TYPE numeric USING v * 2")
        big(database, 700, "third")
        report = made.pipeline.sync()
        assert set(report.set_aside) == {BIG, "public.beside"}
        resumed: list[str] = []
        added: list[str] = []
        for _ in range(60):
            made.change()
            database.execute("UPDATE beside SET v = v + 1 WHERE id % 11 = 0; DELETE FROM third WHERE id = 7")
            report = made.pipeline.sync()
            resumed, added = resumed + report.resumed, added + report.added_tables
            assert_equal(database, made.pipeline, ["small"])
            if len(resumed) == 2 and added:
                break
        assert set(resumed) == {BIG, "public.beside"}
        assert added == ["public.third"]
        assert_equal(database, made.pipeline, ["beside", "big", "small", "third"])
        made.tables |= {"beside": "beside", "third": "third"}
        made.sound()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_only_where_it_must_be_copied(database: Database, connect: str, tmp_path: Path) -> None:
    """A wider column is compared first: nothing is copied if no value changed, else over several syncs."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect)
        database.execute("ALTER TABLE big ALTER v TYPE bigint")
        made.change()
        assert made.pipeline.sync().set_aside == {}
        made.equal()
        database.execute("ALTER TABLE big ALTER id TYPE bigint USING id + 1")
        made.change()
        assert list(made.pipeline.sync().set_aside) == [BIG]
        made.joined()
        made.sound()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_resumed_and_brought_back(database: Database, connect: str, tmp_path: Path) -> None:
    """Set aside for another cause, a large table comes back in ranges too; `resume` copies some at once."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect)
        reopened(made, "tables:\n", "tables:\n  big: {on_conflict: fail}\n")
        made.pipeline.session.sql("DELETE FROM lake.shop.big WHERE id = 2").collect()
        database.execute("UPDATE big SET v = 0 WHERE id = 2")
        assert list(made.pipeline.sync().set_aside) == [BIG]
        assert made.pipeline.status().set_aside[0]["cause"] == "on_conflict"
        made.change()
        report = made.pipeline.resume("big")
        assert report.copying.startswith("1 of ")
        assert report.rows == 0
        (told,) = made.pipeline.status().set_aside
        assert told["cause"] == "again"
        assert "because" in told["what"]
        made.change()
        assert ranges(made.pipeline) == 1
        made.pipeline.sync()
        assert ranges(made.pipeline) == 2
        made.seconds(60.0)
        made.change()
        report = made.pipeline.resume("big")
        assert report.copying == ""
        assert report.rows > 1000
        made.pipeline.sync()
        made.sound()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_a_copy_that_fails_half_way(database: Database, connect: str, tmp_path: Path) -> None:
    """A right is revoked: somebody is told, the others go on; granted again, it goes on where it was."""
    role = f"mortal_{database.name}"
    database.execute(f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'mortal'")
    try:
        with ExitStack() as stack:
            made = recopying_of(stack, database, tmp_path, connect)
            database.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
            reopened(made, database.dsn, make_conninfo(database.dsn, user=role, password="mortal"))
            made.half()
            database.execute(f"REVOKE SELECT ON big FROM {role}")
            for _ in range(2):
                made.change()
                assert "may not read" in made.pipeline.sync().set_aside[BIG]
                assert [each.kind for each in made.pipeline.status().alarms] == ["set aside"]
                made.others_go_on()
            assert ranges(made.pipeline) == 2
            database.execute(f"GRANT SELECT ON big TO {role}")
            made.change()
            assert "over several syncs" in made.pipeline.sync().set_aside[BIG]
            assert ranges(made.pipeline) == 3
            assert made.pipeline.status().alarms == []
            made.joined()
            made.sound()
    finally:
        database.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_values_that_the_typed_column_cannot_hold(database: Database, connect: str, tmp_path: Path) -> None:
    """Files with exact texts, for which the lake's table has no column yet, are written once more."""
    infinite = "CASE WHEN random() < 0.5 THEN 'infinity'::date ELSE '2024-01-01'::date END"
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect)
        made.kind = replace(made.kind, rewritten=f"ALTER TABLE big ADD d date DEFAULT {infinite}")
        made.half()
        made.joined()
        made.sound()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_chosen_rows_of_a_table_that_is_just_set_aside(
    database: Database, connect: str, tmp_path: Path
) -> None:
    """The way to the snapshot meets the rewrite: no rows are put into a table that stays behind."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect)
        made.change()
        made.run(REWRITTEN)
        for dry in (False, True):
            with pytest.raises(PipelineFileError, match="set aside"):
                made.pipeline.backfill("big", where="id < 100", dry_run=dry)
            assert [each["cause"] for each in made.pipeline.status().set_aside] == ["again"]
        made.joined()
        made.sound()
