# ruff: noqa: E501  (a statement is read as a line)
"""Kinds of tables that are copied again over several syncs, and what happens to them half copied."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import SlotlakeError
from slotlake.infra.joining import recopying
from tests import catalogs
from tests.catalogs import lake_options
from tests.conftest import Database, fresh_database
from tests.e2e.joining_kinds import BY_KEY, KINDS
from tests.e2e.joins import BIG, LONG, ended_at, ready
from tests.e2e.recopies import REWRITTEN, Recopying, recopying_of, small_and_slow
from tests.e2e.test_modes import MODES

pytestmark = pytest.mark.timeout(900)
_ANEW = f"ALTER PUBLICATION shop DROP TABLE big; ALTER PUBLICATION shop ADD TABLE {BY_KEY}"
# Of kinds whose column `t` is not taken, or cannot be altered because a publication's filter needs it.
OTHERWISE = {
    "taken of root": "ALTER TABLE big ALTER v TYPE int USING v - 1",
    "published by key": _ANEW,
    "published by index": _ANEW,
}


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    small_and_slow(monkeypatch)


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("kind", KINDS)
def test_kinds(database: Database, connect: str, tmp_path: Path, kind: str) -> None:
    """Rows change their key, and move between partitions, into a filter and out of it, at every stage."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect, kind)
        made.half(OTHERWISE.get(kind, REWRITTEN))
        made.joined()
        made.sound()


# kind, what happens to it half copied, and what the lake holds in the end where that is something else.
EVENTS = {
    "altered again": ("plain", "ALTER TABLE big ALTER v TYPE bigint USING v + 1; UPDATE big SET v = 5 WHERE id < 50", None),
    "column added": ("plain", "ALTER TABLE big ADD x int DEFAULT 7; UPDATE big SET x = 8 WHERE id < 50", None),
    "column added, then of another type": ("plain", "ALTER TABLE big ADD x int DEFAULT 7; SYNC; SYNC; ALTER TABLE big ALTER x TYPE text USING x || ' as text'; UPDATE big SET x = 'z' WHERE id < 50", None),
    "column dropped": ("plain", "ALTER TABLE big DROP secret; UPDATE big SET v = 5 WHERE id < 50", None),
    "column renamed": ("plain", "ALTER TABLE big RENAME secret TO open; UPDATE big SET open = 'o' WHERE id < 50", None),
    "key renamed": ("plain", "ALTER TABLE big RENAME id TO k; UPDATE big SET v = 5 WHERE k < 50; SYNC; ALTER TABLE big RENAME k TO id", None),
    "other key": ("plain", "ALTER TABLE big DROP CONSTRAINT big_pkey, ADD PRIMARY KEY (id, v); UPDATE big SET v = v + 5000 WHERE id < 90", None),
    "no key": ("plain", "ALTER TABLE big DROP CONSTRAINT big_pkey; ALTER TABLE big REPLICA IDENTITY FULL; UPDATE big SET v = v + 5000 WHERE id < 90", None),
    "identity full": ("plain", "ALTER TABLE big REPLICA IDENTITY FULL; UPDATE big SET id = -id WHERE id < 90", None),
    "truncated": ("plain", "TRUNCATE big; INSERT INTO big SELECT i, i, 'after' FROM generate_series(1, 900) i", None),
    "rewritten": ("plain", "VACUUM FULL big", None),
    "made again": ("plain", "DROP TABLE big; CREATE TABLE big (id int PRIMARY KEY, v int, t text); INSERT INTO big SELECT i, -i, repeat('another', 20) FROM generate_series(1, 1500) i; ALTER PUBLICATION shop ADD TABLE big", None),
    "out and back": ("plain", "ALTER PUBLICATION shop DROP TABLE big; UPDATE big SET v = -1 WHERE id < 20; SYNC; ALTER PUBLICATION shop ADD TABLE big", None),
    "renamed and back": ("plain", "ALTER TABLE big RENAME TO other; UPDATE other SET v = 9 WHERE id % 3 = 0; ALTER TABLE other RENAME TO big", None),
    "other filter": ("published by key", "ALTER PUBLICATION shop SET TABLE small, big (v, id, t) WHERE (v > 300)", "(SELECT id, v, t FROM big WHERE v > 300) q"),
    "filter and back": ("published by key", f"ALTER PUBLICATION shop SET TABLE small, big (v, id, t) WHERE (v > 300); UPDATE big SET t = 'unseen' WHERE v < 300; ALTER PUBLICATION shop SET TABLE small, {BY_KEY}", None),
    "attached": ("root", "UPDATE aside SET v = -9 WHERE id % 3 = 0; ALTER TABLE big ATTACH PARTITION aside FOR VALUES FROM (30) TO (40); UPDATE big SET day = 35 WHERE id % 17 = 1 AND id > 600", None),
    "partition gone": ("root", "DROP TABLE big_2", None),
    "partitions swapped": ("root", "ALTER TABLE big_1 RENAME TO x; ALTER TABLE big_3 RENAME TO big_1; ALTER TABLE x RENAME TO big_3", None),
    "read again": ("plain", "BACKFILL", None),
    "looked after": ("plain", "MAINTAIN; VERIFY", None),
}  # fmt: skip


@pytest.mark.parametrize("event", EVENTS if LONG else ["truncated"])
def test_events(database: Database, connect: str, tmp_path: Path, event: str) -> None:
    kind, what, shown = EVENTS[event]
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect, kind)
        made.half(OTHERWISE.get(kind, REWRITTEN))
        _happens(made, what)
        if shown:
            made.tables["big"] = shown
        if "big_2" in what:
            rows = tuple(r.replace("day < 30", "day NOT BETWEEN 10 AND 19") for r in made.kind.rows)
            made.kind = replace(made.kind, rows=rows)
        made.joined()
        made.sound()


def _happens(made: Recopying, what: str) -> None:
    for statement in map(str.strip, what.split(";")):
        match statement:
            case "SYNC":
                made.pipeline.sync()
                made.others_go_on()
            case "MAINTAIN":
                made.pipeline.maintain()
                made.others_go_on()
            case "VERIFY":
                assert not made.pipeline.verify().equal
                made.others_go_on()
            case "BACKFILL":
                made.pipeline.backfill("big")
                assert BIG in ready(made.pipeline)
            case _:
                made.database.execute(statement)


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize(
    "gone", ["ALTER TABLE big RENAME TO renamed", "DROP TABLE big", "ALTER PUBLICATION shop DROP TABLE big"]
)
def test_gone(database: Database, connect: str, tmp_path: Path, gone: str) -> None:
    """It is not published under its name any more: nothing half copied stays, its old content does."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect)
        made.half()
        database.execute(gone)
        database.execute("UPDATE small SET v = -1")
        made.pipeline.sync()
        made.others_go_on()
        assert recopying.progress_by_table(made.pipeline) == {}
        assert made.pipeline.status().alarms == []
        made.left_nothing()
        if "RENAME" in gone:
            for _ in range(30):
                if "public.renamed" in made.pipeline.sync().added_tables:
                    break
            made.tables = {"small": "small", "renamed": "renamed"}
            made.equal()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
@pytest.mark.parametrize("dies", [False, True])
def test_recovered(
    database: Database, connect: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """The slot is lost: what is copied is given up, and the table comes back under the new one."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect)
        made.half()
        database.execute("SELECT pg_drop_replication_slot(%s)", [made.pipeline.source.slot])
        made.change()
        with pytest.raises(SlotlakeError):
            made.pipeline.sync()
        if dies:
            ended_at(monkeypatch, "recover.published", lambda: made.pipeline.recover(carry_out=True))
        else:
            assert made.pipeline.recover(carry_out=True).carried_out
        made.change()
        made.joined()
        made.sound()


@pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")
def test_dropped(database: Database, connect: str, tmp_path: Path) -> None:
    """The pipeline is dropped: no file of a half copied table stays."""
    with ExitStack() as stack:
        made = recopying_of(stack, database, tmp_path, connect)
        made.half()
        made.pipeline.drop()
        made.left_nothing()


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
        made = recopying_of(stack, database, tmp_path, connect, extra=MODES, **lake)
        made.half()
        for failpoint in ("publish.after_swap", "recopy.staged", "join.published"):
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
