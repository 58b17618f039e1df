# ruff: noqa: E501  (a statement is read as a line)
"""Kinds of tables that join, and what happens to them half copied: the lake is the source, at exact LSNs."""

from __future__ import annotations

import shutil
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.joining import joining_tables
from slotlake.infra.local.postgres import temporary_postgres
from tests import catalogs
from tests.catalogs import lake_options
from tests.conftest import Database, fresh_database
from tests.decoder.servers.standby import SLOT, replayed_to, standby_of
from tests.e2e.joining_kinds import BY_KEY, KINDS, Joining
from tests.e2e.joins import BIG, LONG, PART_BYTES, SMALL, begun, ended_at, ranges, ready
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


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slotlake.decoder.copy.parts.PART_BYTES", PART_BYTES)


def _joining(
    stack: ExitStack, database: Database, folder: Path, connect: str, kind: str, **how: Any
) -> Joining:
    """A pipeline, closed with the stack, with a published table of which nothing is copied."""
    made = Joining(database, begun(database, folder, connect, **how), KINDS[kind])
    stack.callback(made.close)
    made.publish()
    return made


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(database: Database, connect: str, tmp_path: Path, kind: str) -> None:
    """Rows change their key, and move between partitions, into a filter and out of it, at every stage."""
    with ExitStack() as stack:
        made = _joining(stack, database, tmp_path, connect, kind)
        made.half()
        assert made.joined() > 2
        made.sound()


# kind, what happens to it half copied, and what the lake holds in the end where that is something else.
EVENTS = {
    "attached": ("root", "UPDATE aside SET v = -9 WHERE id % 3 = 0; ALTER TABLE big ATTACH PARTITION aside FOR VALUES FROM (30) TO (40); UPDATE big SET day = 35 WHERE id % 17 = 1 AND id > 600", None),
    "born": ("root", "CREATE TABLE big_5 PARTITION OF big FOR VALUES FROM (40) TO (50); UPDATE big SET day = 45 WHERE id % 17 = 1", None),
    "detached": ("root", "ALTER TABLE big DETACH PARTITION big_2; UPDATE big_2 SET v = 7", None),
    "detached and back": ("root", "ALTER TABLE big DETACH PARTITION big_2; UPDATE big_2 SET v = 7; ALTER TABLE big ATTACH PARTITION big_2 FOR VALUES FROM (10) TO (20)", None),
    "cut off": ("root", "TRUNCATE big_2; INSERT INTO big_2 SELECT i, 12, i, 'after' FROM generate_series(1, 9) i", None),
    "partition gone": ("root", "DROP TABLE big_2", None),
    "partition renamed": ("root", "ALTER TABLE big_1 RENAME TO big_old", None),
    "partitions swapped": ("root", "ALTER TABLE big_1 RENAME TO x; ALTER TABLE big_3 RENAME TO big_1; ALTER TABLE x RENAME TO big_3", None),
    "other filter": ("published by key", "ALTER PUBLICATION shop SET TABLE small, big (v, id, t) WHERE (v > 300)", "(SELECT id, v, t FROM big WHERE v > 300) q"),
    "filter and back": ("published by key", f"ALTER PUBLICATION shop SET TABLE small, big (v, id, t) WHERE (v > 300); UPDATE big SET t = 'unseen' WHERE v < 300; ALTER PUBLICATION shop SET TABLE small, {BY_KEY}", None),
    "other columns": ("published by key", "ALTER PUBLICATION shop SET TABLE small, big (v, id, secret) WHERE (v > 0)", "(SELECT id, v, secret FROM big WHERE v > 0) q"),
    "file's filter": ("taken by key", "FILE  big: {filter: v > 300, columns: [id, v, secret]}\n", "(SELECT id, v, secret FROM big WHERE v > 300) q"),
    "renamed and back": ("plain", "ALTER TABLE big RENAME TO other; UPDATE other SET v = 9 WHERE id % 3 = 0; SYNC; UPDATE other SET v = 8 WHERE id % 4 = 0; ALTER TABLE other RENAME TO big", None),
    "renamed and back at once": ("plain", "ALTER TABLE big RENAME TO other; UPDATE other SET v = 9 WHERE id % 3 = 0; ALTER TABLE other RENAME TO big", None),
    "to another schema and back": ("plain", "CREATE SCHEMA s; ALTER TABLE big SET SCHEMA s; UPDATE s.big SET v = 9 WHERE id % 3 = 0; SYNC; ALTER TABLE s.big SET SCHEMA public", None),
    "column added": ("plain", "ALTER TABLE big ADD x int DEFAULT 7; UPDATE big SET x = 8 WHERE id < 50", None),
    "column dropped": ("plain", "ALTER TABLE big DROP secret; UPDATE big SET v = 5 WHERE id < 50", None),
    "key renamed": ("plain", "ALTER TABLE big RENAME id TO k; UPDATE big SET v = 5 WHERE k < 50; SYNC; ALTER TABLE big RENAME k TO id", None),
    "key retyped": ("plain", "ALTER TABLE big ALTER id TYPE bigint; UPDATE big SET id = id + 5000000000 WHERE id < 50", None),
    "other key": ("plain", "ALTER TABLE big DROP CONSTRAINT big_pkey, ADD PRIMARY KEY (id, v); UPDATE big SET v = v + 5000 WHERE id < 90", None),
    "identity full": ("plain", "ALTER TABLE big REPLICA IDENTITY FULL; UPDATE big SET id = -id WHERE id < 90", None),
    "identity index": ("plain", "CREATE UNIQUE INDEX i ON big (id, v); ALTER TABLE big REPLICA IDENTITY USING INDEX i; UPDATE big SET id = -id WHERE id < 90", None),
    "truncated": ("plain", "TRUNCATE big; INSERT INTO big SELECT i, i, 'after' FROM generate_series(1, 900) i", None),
    "cut off in one transaction": ("plain", "BEGIN; UPDATE big SET v = 1; TRUNCATE big; INSERT INTO big SELECT i, i, 'after' FROM generate_series(1, 900) i; COMMIT", None),
    "looked after": ("plain", "MAINTAIN; VERIFY", None),
    "read again": ("plain", "BACKFILL", None),
}  # fmt: skip
FEW_EVENTS = ("partitions swapped",)


@pytest.mark.parametrize("event", EVENTS if LONG else FEW_EVENTS)
def test_events(database: Database, connect: str, tmp_path: Path, event: str) -> None:
    kind, what, shown = EVENTS[event]
    with ExitStack() as stack:
        made = _joining(stack, database, tmp_path, connect, kind)
        made.half()
        happens(made, what)
        if shown:
            made.tables["big"] = shown
        if "big_2" in what and "ATTACH" not in what:
            made.kind = replace(
                made.kind,
                rows=tuple(r.replace("day < 30", "day NOT BETWEEN 10 AND 19") for r in made.kind.rows),
            )
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
                made.equal("small")
            case "MAINTAIN":
                made.pipeline.maintain()
            case "VERIFY":
                assert list(made.pipeline.verify().tables) == [SMALL]
            case "BACKFILL":
                made.pipeline.backfill("big")
                assert BIG in ready(made.pipeline)
            case _:
                made.database.execute(statement)


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_gone(database: Database, connect: str, tmp_path: Path) -> None:
    """Dropped at the source, and renamed to what is another table of the lake: nothing of it is left."""
    with ExitStack() as stack:
        made = _joining(stack, database, tmp_path, connect, "plain")
        made.half()
        made.database.execute("ALTER TABLE big RENAME TO renamed; UPDATE small SET v = -1")
        made.pipeline.sync()
        assert joining_tables.progress_by_table(made.pipeline).keys() == {"public.renamed"}
        made.database.execute("DROP TABLE renamed; UPDATE small SET v = -2")
        made.pipeline.sync()
        made.equal("small")
        assert joining_tables.progress_by_table(made.pipeline) == {}
        place = files_folder(tmp_path) / "shop"
        assert {path.relative_to(place).parts[0] for path in files_in(place)} == {"small", "commits"}


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
@pytest.mark.parametrize("day", WORST)
def test_recovered(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, day: str
) -> None:
    damage, dies = WORST[day]
    with ExitStack() as stack:
        made = _joining(stack, database, tmp_path, connect, "root")
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
        made = _joining(stack, Database(server, "postgres"), tmp_path, connect, "plain")
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
@pytest.mark.parametrize("catalog", catalogs.KINDS)
def test_catalogs(
    pg: Any,
    connect: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    catalog: str,
) -> None:
    """Also killed before and in the publication; histories and change logs beside the mirrors."""
    with ExitStack() as stack:
        database = stack.enter_context(fresh_database(pg))
        lake = lake_options(stack, catalog, pg, request, monkeypatch)
        made = _joining(stack, database, tmp_path, connect, "plain", extra=MODES, **lake)
        made.half()
        made.pipeline.pull()
        for failpoint in ("publish.after_swap", "init.before_publish", "join.published"):
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
        made = _joining(stack, database, tmp_path, connect, kind, extra=MODES)
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
    monkeypatch.setattr("slotlake.infra.advance.advance.create_slot", None)  # nothing waits for a slot
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
