# ruff: noqa: E501  (a statement is read as a line)
"""Tables copied over several syncs, as new ones and again: kinds of them, and what happens to them half copied.

One suite for both policies of the engine: the lake is the source, at exact LSNs.
"""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.local.postgres import temporary_postgres
from tests import catalogs
from tests.catalogs import lake_options
from tests.conftest import Database, fresh_database
from tests.decoder.servers.standby import SLOT, replayed_to, standby_of
from tests.e2e.joins import BIG, LONG, PART_BYTES, begun, ended_at, ranges, ready
from tests.e2e.over_syncs_kinds import EVENTS, KINDS, Joining
from tests.e2e.recopies import recopying_of, small_and_slow
from tests.e2e.test_beside import past
from tests.e2e.test_failover import (
    CONF,
    _slot_kept_in_time,
    leads_to,
    promote,
    synchronized,
    until,
    with_dsn,
)
from tests.e2e.test_modes import MODES
from tests.storage import files_folder, files_in

pytestmark = pytest.mark.timeout(900)


POLICIES = ("joins", "again")


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)


def _made(
    stack: ExitStack,
    database: Database,
    folder: Path,
    connect: str,
    kind: str,
    policy: str = "joins",
    **how: Any,
) -> Joining:
    """A pipeline, closed with the stack, with a table of which nothing is copied yet, or that is followed."""
    if policy == "again":
        small_and_slow(stack.enter_context(pytest.MonkeyPatch.context()))
        return recopying_of(stack, database, folder, connect, kind, **how)
    made = Joining(database, begun(database, folder, connect, **how), KINDS[kind])
    stack.callback(made.close)
    made.publish()
    return made


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(database: Database, connect: str, tmp_path: Path, kind: str, policy: str) -> None:
    """Rows change their key, and move between partitions, into a filter and out of it, at every stage."""
    with ExitStack() as stack:
        made = _made(stack, database, tmp_path, connect, kind, policy)
        made.half()
        assert made.joined() > 1
        made.sound()


EACH = [(event, policy) for event in EVENTS for policy in POLICIES]
FEW = [("partitions swapped", "joins"), ("truncated", "again")]


@pytest.mark.parametrize(("event", "policy"), EACH if LONG else FEW)
def test_events(database: Database, connect: str, tmp_path: Path, event: str, policy: str) -> None:
    kind, what, shown = EVENTS[event]
    with ExitStack() as stack:
        made = _made(stack, database, tmp_path, connect, kind, policy)
        made.half()
        happens(made, what)
        if shown:
            made.tables["big"] = shown
        if "big_2" in what and "ATTACH" not in what:
            rows = tuple(r.replace("day < 30", "day NOT BETWEEN 10 AND 19") for r in made.kind.rows)
            made.kind = replace(made.kind, rows=rows)
        made.joined()
        made.sound()


def happens(made: Joining, what: str) -> None:
    """SQL, a line of the pipeline file, or what the pipeline is to do, one after another."""
    if what.startswith("FILE"):
        made.take(what.removeprefix("FILE"))
        return
    whole = "BEGIN" in what
    for statement in [what] if whole else map(str.strip, what.split(";")):
        match statement:
            case "SYNC":
                made.pipeline.sync()
                made.others_go_on()
            case "MAINTAIN":
                made.pipeline.maintain()
                made.others_go_on()
            case "VERIFY":
                made.verified()
            case "BACKFILL":
                made.pipeline.backfill("big")
                assert BIG in ready(made.pipeline)
            case _:
                made.database.execute(statement)


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_gone_before_it_joined(database: Database, connect: str, tmp_path: Path) -> None:
    """Dropped at the source, and renamed to what is another table of the lake: nothing of it is left."""
    with ExitStack() as stack:
        made = _made(stack, database, tmp_path, connect, "plain")
        made.half()
        made.database.execute("ALTER TABLE big RENAME TO renamed; UPDATE small SET v = -1")
        made.pipeline.sync()
        assert made.progress.keys() == {"public.renamed"}
        made.database.execute("DROP TABLE renamed; UPDATE small SET v = -2")
        made.pipeline.sync()
        made.equal("small")
        assert made.progress == {}
        place = files_folder(tmp_path) / "shop"
        assert {path.relative_to(place).parts[0] for path in files_in(place)} == {"small", "commits"}


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize(
    "gone", ["ALTER TABLE big RENAME TO renamed", "DROP TABLE big", "ALTER PUBLICATION shop DROP TABLE big"]
)
def test_gone_while_it_is_copied_again(database: Database, connect: str, tmp_path: Path, gone: str) -> None:
    """It is not published under its name any more: nothing half copied stays, its old content does."""
    with ExitStack() as stack:
        small_and_slow(stack.enter_context(pytest.MonkeyPatch.context()))
        made = recopying_of(stack, database, tmp_path, connect)
        made.half()
        database.execute(gone)
        database.execute("UPDATE small SET v = -1")
        made.pipeline.sync()
        made.others_go_on()
        assert made.progress == {}
        assert made.pipeline.status().alarms == []
        made.left_nothing()
        if "RENAME" in gone:
            for _ in range(30):
                if "public.renamed" in made.pipeline.sync().added_tables:
                    break
            made.tables = {"small": "small", "renamed": "renamed"}
            made.equal()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_dropped(database: Database, connect: str, tmp_path: Path) -> None:
    """The pipeline is dropped: no file of a half copied table stays."""
    with ExitStack() as stack:
        small_and_slow(stack.enter_context(pytest.MonkeyPatch.context()))
        made = recopying_of(stack, database, tmp_path, connect)
        made.half()
        made.pipeline.drop()
        made.left_nothing()


# -- the worst days -----------------------------------------------------------------------------------


def _slot_dropped(made: Joining) -> None:
    made.database.execute("SELECT pg_drop_replication_slot(%s)", [made.pipeline.source.slot])


def _rolled_back(made: Joining) -> None:
    place = f"{made.pipeline.lake.catalog}.{made.pipeline.lake.namespace}.small"
    query = f"SELECT snapshot_id FROM {place}.history WHERE is_current_ancestor ORDER BY made_current_at DESC"
    before = made.pipeline.session.sql(query).collect()[1][0]
    call = f"CALL {made.pipeline.lake.catalog}.system.rollback_to_snapshot"
    made.pipeline.session.sql(f"{call}('{made.pipeline.lake.namespace}.small', {before})").collect()


WORST = {
    "slot dropped": (_slot_dropped, False),
    "slot dropped, killed": (_slot_dropped, True),
    "rolled back": (_rolled_back, False),
}


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("day", WORST)
def test_recovered(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, day: str, policy: str
) -> None:
    """What is copied is given up, and the table is copied under the new slot."""
    damage, dies = WORST[day]
    with ExitStack() as stack:
        made = _made(stack, database, tmp_path, connect, "root", policy)
        made.half()
        damage(made)
        made.change()
        with pytest.raises(SlotlakeError) as told:
            made.pipeline.sync()
        assert "slotlake recover" in told.value.way_out
        if dies:
            ended_at(monkeypatch, "recover.published", lambda: made.pipeline.recover(carry_out=True))
            made.equal("small")
        else:
            assert made.pipeline.recover(carry_out=True).carried_out
            made.change()
        made.joined()
        made.sound()
        assert made.pipeline.recover().plan == []


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("dies", [False, True])
def test_restored(connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool) -> None:
    """A backup put back: positions that the lake knows come again, with other content."""
    with ExitStack() as stack:
        server = stack.enter_context(temporary_postgres(version=18, conf={"shared_buffers": "16MB"}))
        made = _made(stack, Database(server, "postgres"), tmp_path, connect, "plain")
        made.half()
        server.stop("fast")
        copy = tmp_path / "copy"
        subprocess.run(["cp", "-a", str(server.data), str(copy)], check=True)
        server.start()
        for _ in range(3):
            made.change()
            made.pipeline.sync()
        there = ranges(made.pipeline)
        made.change()
        server.stop("immediate")
        shutil.rmtree(server.data)
        subprocess.run(["cp", "-a", str(copy), str(server.data)], check=True)
        server.start()
        made.number += 10
        made.change()
        with pytest.raises(SlotlakeError, match="the server's WAL ends at"):
            made.pipeline.sync()
        assert ranges(made.pipeline) == there
        if dies:
            ended_at(monkeypatch, "recover.published", lambda: made.pipeline.recover(carry_out=True))
        else:
            made.pipeline.recover(carry_out=True)
        made.joined()
        made.sound()


# -- other lakes, other sources -----------------------------------------------------------------------


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("catalog", catalogs.KINDS)
def test_catalogs(
    pg: Any,
    connect: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    catalog: str,
    policy: str,
) -> None:
    """Also killed before and in the publication; histories and change logs beside the mirrors."""
    with ExitStack() as stack:
        database = stack.enter_context(fresh_database(pg))
        lake = lake_options(stack, catalog, pg, request, monkeypatch)
        made = _made(stack, database, tmp_path, connect, "plain", policy, extra=MODES, **lake)
        made.half()
        made.pipeline.pull()
        staged = {"joins": "init.before_publish", "again": "recopy.staged"}[policy]
        for failpoint in ("publish.after_swap", staged, "join.published"):
            made.change()
            for _ in range(20):
                try:
                    ended_at(monkeypatch, failpoint, made.pipeline.sync)
                    break
                except pytest.fail.Exception:  # it did not get there yet
                    made.equal("small")
                    made.change()
            else:
                raise AssertionError(f"{failpoint} was not reached")
        made.joined()
        made.sound()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("kind", ["plain", "root", "taken by key"])
def test_beside_the_mirror(database: Database, connect: str, tmp_path: Path, kind: str) -> None:
    """History and change log begin where the table joins, and hold every point from there on."""
    with ExitStack() as stack:
        made = _made(stack, database, tmp_path, connect, kind, extra=MODES)
        made.half()
        made.joined()
        points = {made.pipeline.sync().lsn: made.held()}
        for _ in range(3):
            made.change()
            points[made.pipeline.sync().lsn] = made.held()
        assert past(made.pipeline, points, ["big"]) == {}
        made.sound()


# Of rows that no other one of them locks.
PREPARED = "BEGIN; UPDATE big SET v = {v} WHERE id % 19 = {n}; UPDATE big SET id = id + 300000 WHERE id % 95 = {n}; DELETE FROM big WHERE id % 95 = {n} + 19; INSERT INTO big VALUES ({n} - 50, 1, 'prepared'); PREPARE TRANSACTION '{gid}'"


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_two_phase(database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prepared before the table is published, before its copy begins, and within; ended within and after."""
    monkeypatch.setattr("slotlake.infra.sync.at_lsn.create_slot", None)  # nothing waits for a slot
    with ExitStack() as stack:
        made = Joining(
            database, begun(database, tmp_path, connect, source="two_phase: true\n"), KINDS["plain"]
        )
        stack.callback(made.close)
        made.run(made.kind.setup)

        def prepare(gid: str, number: int) -> None:
            database.execute(PREPARED.format(gid=f"{database.name} {gid}", n=number, v=-1000 - number))

        def end(how: str, gid: str) -> None:
            database.execute(f"{how} PREPARED '{database.name} {gid}'")

        prepare("before", 11)
        made.run(made.kind.publishing)
        made.tables = {"small": "small", "big": "big"}
        made.kind = replace(
            made.kind,
            rows=(
                "INSERT INTO big VALUES ({n} * 10000, 1, 'new')",
                "UPDATE big SET t = 'at {n}' WHERE id = {n}",
            ),
        )
        made.change()
        made.pipeline.sync()
        assert ranges(made.pipeline) == 0
        prepare("published", 13)
        end("COMMIT", "before")
        made.change()
        made.pipeline.sync()
        made.equal("small")
        assert ranges(made.pipeline) == 1  # beside what was prepared since it is published
        end("COMMIT", "published")
        made.change()
        made.pipeline.sync()
        assert ranges(made.pipeline) == 2
        made.equal("small")
        for gid, number in (("kept", 14), ("lost", 15), ("late", 16)):
            prepare(gid, number)
        made.change()
        made.pipeline.sync()
        made.equal("small")
        end("COMMIT", "kept")
        end("ROLLBACK", "lost")
        made.joined()  # beside what is prepared
        made.pipeline.sync()
        made.equal()
        prepare("after", 17)
        end("COMMIT", "late")
        made.pipeline.sync()
        made.equal()
        end("COMMIT", "after")
        made.pipeline.sync()
        made.sound()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("pulled", [False, True])
def test_failover(connect: str, tmp_path: Path, pulled: bool) -> None:
    """A standby takes over; what is copied of a table that joins is copied again from there."""
    with ExitStack() as stack:
        primary = stack.enter_context(temporary_postgres(version=18, conf=CONF))
        database = Database(primary, "postgres")
        made = Joining(database, begun(database, tmp_path, connect), KINDS["root"])
        stack.callback(made.close)
        standby = stack.enter_context(standby_of(primary, keeps_slots=True))
        with_dsn(made.pipeline.file.path, leads_to(primary, standby))
        made.publish()
        synchronized(database, SLOT)
        made.half()
        until(lambda: _slot_kept_in_time(database, standby, made.pipeline), "the standby's copy of the slot")
        there = ranges(made.pipeline)
        made.change()
        if pulled:
            made.pipeline.pull()
        replayed_to(standby, database.execute("SELECT pg_current_wal_flush_lsn()::text")[0][0])
        primary.stop("immediate")
        made.database = promote(standby)
        synchronized(made.database, "")
        made.change()
        made.pipeline.sync()
        assert 1 <= ranges(made.pipeline) < there
        made.joined()
        made.sound()
