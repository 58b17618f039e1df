"""Whatever is lost, `recover` says so, and brings lake and source together by what differs and no more."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError, SlotError, SlotlakeError, SourceError
from slotlake.infra.recover import renew as recovery_renew
from slotlake.infra.recover.approved import note_plan
from slotlake.infra.recover.compare import compare
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.storage import local_file

pytestmark = pytest.mark.timeout(600)

TABLES = ["big", "bag", "once", "small"]


@pytest.fixture(scope="module")
def shop(pg: Any, session: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Database, Any]]:
    """A pipeline of four tables, one with a history and a change log beside it, for all tests here."""
    with fresh_database(pg) as database:
        database.execute(
            "CREATE TYPE mood AS ENUM ('sad', 'fine');"
            "CREATE TABLE big (id int PRIMARY KEY, v text, n numeric(12, 2), m mood, at timestamptz);"
            "CREATE TABLE bag (a int, v text); ALTER TABLE bag REPLICA IDENTITY FULL;"
            "CREATE TABLE once (id int PRIMARY KEY, v text);"
            "CREATE TABLE small (id int PRIMARY KEY, v text);"
            "INSERT INTO big SELECT g, 'v' || g, g / 7.0, 'fine', now() FROM generate_series(1, 3000) g;"
            "INSERT INTO bag SELECT g % 50, 'x' FROM generate_series(1, 200) g;"
            "INSERT INTO once VALUES (1, 'only inserts'); INSERT INTO small VALUES (1, 'a'), (2, NULL)"
        )
        folder = tmp_path_factory.mktemp("recover")
        file = pipeline_file(folder, database, TABLES)
        text = file.read_text().replace("'small': {}", "'small': {mode: [mirror, history, append]}")
        file.write_text(text)
        with Pipeline.open(file) as pipeline:
            pipeline.init()
            yield database, pipeline


def _sound(database: Database, pipeline: Any) -> None:
    """Equal, and going on."""
    assert_equal(database, pipeline, TABLES)
    database.execute(
        "UPDATE small SET v = v || '!' WHERE id = 1;"
        "INSERT INTO big VALUES ((SELECT max(id) + 1 FROM big), 'later')"
    )
    pipeline.sync()
    assert_equal(database, pipeline, TABLES)
    assert pipeline.recover().plan == []
    slots = "SELECT slot_name FROM pg_replication_slots WHERE database = current_database()"
    assert database.execute(slots) == [(pipeline.source.slot,)]


def _how(report: Any) -> dict[str, str]:
    return {table.table: table.how for table in report.tables}


def _drop_slot(database: Database, pipeline: Any) -> None:
    database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.source.slot])


def _rows(pipeline: Any, sql: str) -> list[Any]:
    return sorted(pipeline.query(sql).rows, key=str)


def test_slot_dropped(shop: tuple[Database, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    database, pipeline = shop
    fine = pipeline.recover()
    assert (fine.plan, fine.findings) == ([], [])
    assert "nothing is lost" in fine.diagnosis
    database.execute("SELECT pg_drop_replication_slot(%s)", [pipeline.source.slot])
    database.execute(
        "UPDATE big SET v = 'changed', n = NULL WHERE id <= 5; DELETE FROM big WHERE id IN (10, 11);"
        "INSERT INTO big VALUES (9001, NULL, 1e5, 'sad', '2020-01-01');"
        "INSERT INTO big VALUES (9002, E'tab\\t\\\\', -1, NULL, 'infinity');"
        "INSERT INTO bag VALUES (1, 'x'), (1, 'x'); DELETE FROM bag WHERE ctid = (SELECT min(ctid) FROM bag);"
        "DELETE FROM small WHERE id = 2; INSERT INTO small VALUES (3, 'c');"
        "UPDATE small SET v = 'b' WHERE id = 1"
    )
    with pytest.raises(SlotError, match="does not exist") as refused:
        pipeline.sync()
    assert "slotlake recover" in refused.value.way_out
    before = pipeline.position()
    plan = pipeline.recover()
    assert not plan.carried_out
    assert pipeline.position() == before
    wanted = {
        "public.big": ("rows", 9), "public.bag": ("rows", 1),
        "public.once": ("nothing", 0), "public.small": ("rows", 3),
    }  # fmt: skip
    assert {table.table: (table.how, table.rows) for table in plan.tables} == wanted
    (lost,) = plan.lost
    assert "seen by its net effect only" in lost
    with monkeypatch.context() as patched:
        meanwhile = _comparing_while(database, "UPDATE small SET v = 'meanwhile' WHERE id = 3")
        patched.setattr(recovery_renew, "compare", meanwhile)
        done = pipeline.recover(carry_out=True)
    assert {table.table: (table.how, table.rows) for table in done.tables} == wanted
    assert pipeline.verify().equal
    _sound(database, pipeline)
    by_time = "SELECT v FROM shop.small__history WHERE id = 3 ORDER BY valid_from_time"
    assert pipeline.query(by_time).rows == [("c",), ("meanwhile",)]
    assert _rows(pipeline, "SELECT id FROM shop.small__history WHERE valid_to_time < valid_from_time") == []
    changes = _rows(
        pipeline,
        "SELECT op, coalesce(new.id, old.id), new.v FROM shop.small__changes "
        "WHERE origin = 'slotlake_recover'",
    )
    assert changes == [("D", "2", None), ("I", "3", "c"), ("U", "1", "b")]


def test_only_the_plan_that_was_approved_is_carried_out(shop: tuple[Database, Any]) -> None:
    database, pipeline = shop
    _drop_slot(database, pipeline)
    database.execute("UPDATE small SET v = 'approved' WHERE id = 1")
    before, slots = pipeline.position(), "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s"

    def refused(plan: str, why: str) -> None:
        with pytest.raises(LakeError, match=f"(?s)refused, and nothing was changed: {why}") as error:
            pipeline.recover(carry_out=True, approved=plan)
        assert "plan again" in error.value.way_out
        assert (pipeline.position(), database.execute(slots, [pipeline.source.slot])) == (before, [(0,)])

    first = note_plan(pipeline.file, pipeline.recover())
    database.execute("INSERT INTO big SELECT g, 'many' FROM generate_series(20000, 21100) g")
    refused(first, r".*public.big: 1,101 rows differ; approved were 0, and up to 2 times")
    second = note_plan(pipeline.file, pipeline.recover())
    refused(first, "the approved plan was carried out already, or another one was made since")
    database.execute("ALTER TABLE small ADD COLUMN more int")
    refused(second, "the plan is not .*public.small: copy all of it again; approved was: write the rows that")
    database.execute("ALTER TABLE small DROP COLUMN more; UPDATE small SET v = 'since' WHERE id = 3")
    third = note_plan(pipeline.file, pipeline.recover())
    database.execute("INSERT INTO big VALUES (30000, 'the source goes on', 1, 'sad', now())")
    assert pipeline.recover(carry_out=True, approved=third).carried_out
    _carried_out_at_second_try(database, pipeline)
    _sound(database, pipeline)
    assert pipeline.recover(carry_out=True, approved=third).plan == []  # cleared: nothing to do


def _carried_out_at_second_try(database: Database, pipeline: Any) -> None:
    """The first one ends when the publication is there again and the slot is not: another plan."""
    database.execute("DROP PUBLICATION shop")
    planned = pipeline.recover()
    name = note_plan(pipeline.file, planned)

    def end(place: str) -> None:
        raise KeyboardInterrupt(place)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(recovery_renew, "reach", end)
        with pytest.raises(KeyboardInterrupt, match="slot_dropped"):
            pipeline.recover(carry_out=True, approved=name)
    to_make = "make the publications that are missing"
    assert [to_make in " ".join(each.plan) for each in (planned, pipeline.recover())] == [True, False]
    assert pipeline.recover(carry_out=True, approved=name).carried_out


def _comparing_while(database: Database, statement: str) -> Callable[..., Any]:
    """Comparing, while the source goes on."""

    def compared(*given: Any) -> Any:
        database.execute(statement)
        return compare(*given)

    return compared


def test_what_was_pulled_before_the_slot_was_lost_is_not_lost(shop: tuple[Database, Any]) -> None:
    database, pipeline = shop
    for v in ("one", "two"):
        database.execute(f"UPDATE small SET v = '{v}' WHERE id = 1")
    assert pipeline.pull().batch
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())", [pipeline.source.slot])
    database.execute("UPDATE small SET v = 'three' WHERE id = 1; INSERT INTO once VALUES (2, 'also')")
    with pytest.raises(SlotError, match="the slot is confirmed up to"):
        pipeline.sync()
    done = pipeline.recover(carry_out=True)
    assert _how(done)["public.once"] == "rows"
    _sound(database, pipeline)
    told = _rows(pipeline, "SELECT new.v FROM shop.small__changes WHERE new.v IN ('one', 'two', 'three')")
    assert told == [("one",), ("three",), ("two",)]


def test_publication_dropped(shop: tuple[Database, Any]) -> None:
    """Also what it did not publish is seen, and a table of which most differs is copied whole, in place."""
    database, pipeline = shop
    database.execute(
        "UPDATE big SET v = v || 'x'; DROP PUBLICATION shop; INSERT INTO once VALUES (3, 'unseen')"
    )
    with pytest.raises(SlotlakeError, match="no publication") as refused:
        pipeline.sync()
    assert "slotlake recover" in refused.value.way_out
    done = pipeline.recover(carry_out=True)
    assert _how(done) == {
        "public.big": "whole", "public.bag": "nothing", "public.once": "rows", "public.small": "nothing",
    }  # fmt: skip
    _sound(database, pipeline)
    database.execute(
        "UPDATE once SET v = 'changed before'; DROP PUBLICATION shop; UPDATE once SET v = 'then'"
    )
    database.execute("CREATE PUBLICATION shop FOR TABLE big, bag, once, small; UPDATE small SET v = 'after'")
    with pytest.raises(SlotlakeError, match="publication"):
        pipeline.sync()
    assert _how(pipeline.recover(carry_out=True))["public.big"] == "nothing"
    _sound(database, pipeline)


def test_publication_dropped_that_had_more_than_the_file_names(
    database: Database, session: Any, tmp_path: Path
) -> None:
    """What was added without a line in the file is published again; what was removed is not."""
    assert session is not None
    database.execute(
        "CREATE TABLE named (id int PRIMARY KEY, v text); CREATE TABLE added (LIKE named INCLUDING ALL);"
        "CREATE TABLE removed (LIKE named INCLUDING ALL); CREATE TABLE gone (LIKE named INCLUDING ALL);"
        "CREATE TABLE just_removed (LIKE named INCLUDING ALL); CREATE TABLE back (LIKE named INCLUDING ALL);"
        "CREATE TABLE elsewhere (LIKE named INCLUDING ALL); CREATE PUBLICATION other FOR TABLE elsewhere;"
        "CREATE TABLE parts (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (10);"
        "INSERT INTO named VALUES (1, 'a'); INSERT INTO added VALUES (1, 'a');"
        "INSERT INTO parts VALUES (1, 'a')"
    )
    file = pipeline_file(tmp_path, database, ["named", "parts"], source="partitions: leaves")
    file.write_text(file.read_text().replace("publications: [shop]", "publications: [shop, other]"))
    with Pipeline.open(file) as pipeline:
        pipeline.init()
        pipeline.add(["added", "removed", "just_removed", "back", "gone"], publication="shop")
        pipeline.remove(["removed"])
        pipeline.sync()
        with pytest.raises(SourceError, match="removed is not published any more; the lake's table stays"):
            pipeline.resume("removed")
        pipeline.remove(["back"])
        pipeline.add(["back"], publication="shop")
        pipeline.remove(["just_removed"])
        database.execute("DROP PUBLICATION shop; DROP TABLE gone; UPDATE added SET v = 'unseen'")
        assert (
            pipeline.recover()
            .plan[0]
            .endswith("that the pipeline file names and of those that the lake follows")
        )
        assert _how(pipeline.recover(carry_out=True))["public.added"] == "rows"
        made = "SELECT tablename FROM pg_publication_tables WHERE pubname = 'shop' ORDER BY 1"
        assert database.execute(made) == [("added",), ("back",), ("named",), ("parts_1",)]
        listed = "SELECT prrelid::regclass::text FROM pg_publication_rel ORDER BY 1"
        assert [name for (name,) in database.execute(listed)] == [
            "added", "back", "elsewhere", "named", "parts",
        ]  # fmt: skip
        database.execute("INSERT INTO added VALUES (2, 'seen'); INSERT INTO parts VALUES (2, 'seen')")
        pipeline.sync()
        assert_equal(database, pipeline, ["named", "added", "parts_1", "elsewhere"])
        assert pipeline.recover().plan == []


def test_lake_moved_by_hand(shop: tuple[Database, Any]) -> None:
    """What is only elsewhere is moved back, and nothing is copied; nothing is built on it before."""
    database, pipeline = shop
    session, lake = pipeline.session, pipeline.lake.catalog

    def roll_back(table: str) -> None:
        chain = session.sql(
            f"SELECT parent_id FROM {lake}.shop.{table}.snapshots ORDER BY committed_at"
        ).collect()
        session.sql(f"CALL {lake}.system.rollback_to_snapshot('shop.{table}', {chain[-1][0]})").collect()

    def insert(table: str) -> None:
        session.sql(f"INSERT INTO {lake}.shop.{table} (id, v) VALUES (777, 'by hand')").collect()

    def by_several_hands() -> None:
        roll_back("big")
        insert("small")
        session.sql(f"DELETE FROM {lake}.shop.small__history").collect()

    written = [f"what somebody else wrote into shop.{table}" for table in ("small", "small__history")]
    for done, found, lost in ((by_several_hands, 3, written), (lambda: roll_back("commits"), 1, [])):
        database.execute("INSERT INTO big VALUES ((SELECT max(id) + 1 FROM big), 'before')")
        database.execute("UPDATE small SET v = 's'")
        pipeline.sync()
        database.execute("INSERT INTO big VALUES ((SELECT max(id) + 1 FROM big), 'after')")
        done()
        with pytest.raises(SlotlakeError, match=r"was rolled back|slotlake did not make") as refused:
            pipeline.sync()
        assert "slotlake recover" in refused.value.way_out
        plan = pipeline.recover()
        assert (len(plan.findings), sorted(plan.lost)) == (found, lost)
        mended = pipeline.recover(carry_out=True)
        assert sorted(mended.lost) == lost
        assert (mended.rows, mended.tables) == (0, [])
        pipeline.sync()
        assert_equal(database, pipeline, TABLES)
    assert pipeline.verify().equal


def test_files_missing(shop: tuple[Database, Any]) -> None:
    """Only the table that lacks something is copied again, in place, whether or not a batch is to come."""
    database, pipeline = shop
    session = pipeline.session
    files = session.sql(f"SELECT file_path FROM {pipeline.lake.catalog}.shop.once.files").collect()
    database.execute("UPDATE big SET v = 'meanwhile' WHERE id = 3")
    local_file(files[0][0]).unlink()
    report = pipeline.recover()
    assert [finding.kind for finding in report.findings] == ["table damaged"]
    assert _how(pipeline.recover(carry_out=True)) == {"public.once": "whole"}
    _sound(database, pipeline)
    files = session.sql(f"SELECT file_path FROM {pipeline.lake.catalog}.shop.small__history.files").collect()
    for file in files:
        local_file(file[0]).unlink(missing_ok=True)  # one may hold the deletes of several
    assert pipeline.recover(carry_out=True).lost
    _sound(database, pipeline)


def test_batch_altered_or_missing(shop: tuple[Database, Any]) -> None:
    database, pipeline = shop
    for spoil in ("alter", "remove"):
        database.execute("UPDATE once SET v = v || '.'")
        batch = pipeline.file.changelog_dir / pipeline.pull().batch
        if spoil == "alter":
            (batch / "r0.0.parquet").write_bytes(b"something else")
            with pytest.raises(SlotlakeError, match="damaged") as refused:
                pipeline.sync()
            assert "slotlake recover" in refused.value.way_out
            assert pipeline.recover(carry_out=True).plan
        else:
            for file in batch.iterdir():
                file.unlink()
            batch.rmdir()
        pipeline.sync()
        _sound(database, pipeline)


def test_ended_at_any_step(shop: tuple[Database, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The next recover ends it, wherever those before ended; until then nothing is built on half of it."""
    database, pipeline = shop
    _drop_slot(database, pipeline)
    for failpoint in ("slot_dropped", "slot_made", "batch_written", "published"):
        database.execute("UPDATE once SET v = v || '?' WHERE id = 1; INSERT INTO bag VALUES (7, NULL)")
        with monkeypatch.context() as patched:
            patched.setattr(recovery_renew, "reach", _ending_at(f"recover.{failpoint}"))
            with pytest.raises(KeyboardInterrupt):
                pipeline.recover(carry_out=True)
        if failpoint != "published":
            with pytest.raises(SlotlakeError) as refused:
                pipeline.sync()
            assert "slotlake recover" in refused.value.way_out
    _sound(database, pipeline)


def _ending_at(failpoint: str) -> Callable[[str], None]:
    def reach(name: str) -> None:
        if name == failpoint:
            raise KeyboardInterrupt

    return reach
