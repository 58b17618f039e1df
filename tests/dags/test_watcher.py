"""The trigger that watches a source, on a real server: what wakes, and what a restart or a mistake does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psycopg
import pytest

from slotlake.decoder.slots import activity
from slotlake.infra.airflow import watcher
from slotlake.infra.airflow.watcher import SourceTrigger
from slotlake.infra.local.postgres import temporary_postgres
from tests.conftest import Database

FILE = """name: shop
source: {{dsn: "{dsn}", publications: [shop], slot: {slot}}}
lake: {{catalog: lake, uri: "env:LAKE", warehouse: "warehouse", namespace: shop}}
airflow: {{schedule: on_change}}
"""
TABLES = """
CREATE TABLE orders (id int PRIMARY KEY, v text);
CREATE TABLE parted (id int) PARTITION BY RANGE (id);
CREATE TABLE part PARTITION OF parted FOR VALUES FROM (0) TO (1000);
CREATE TABLE private (id int);
CREATE PUBLICATION shop FOR TABLE orders, parted WITH (publish_via_partition_root = true);
"""
QUIET_SECONDS = 1.5
SECONDS_MAX = 15.0


class _Watched:
    """A trigger that runs in the background, and the events that it has made."""

    def __init__(self, trigger: SourceTrigger, database: Database, slot: str) -> None:
        self.events: list[object] = []
        self.database, self.slot = database, slot
        self._task = asyncio.create_task(self._collect(trigger.run()))

    async def _collect(self, events: AsyncIterator[object]) -> None:
        async for event in events:
            self.events.append(event)

    async def do(self, statement: str) -> None:
        await asyncio.to_thread(self.database.execute, statement)

    async def wakes(self, statement: str) -> None:
        """It wakes once; then a run confirms."""
        before = len(self.events)
        await self.do(statement)
        give_up = time.monotonic() + SECONDS_MAX
        while len(self.events) == before:
            assert time.monotonic() < give_up, statement
            assert not self._task.done()
            await asyncio.sleep(0.05)
        await self.confirm()
        await asyncio.sleep(0.3)
        assert len(self.events) == before + 1

    async def stays_quiet(self, *statements: str) -> None:
        before = len(self.events)
        for statement in statements:
            await self.do(statement)
        await asyncio.sleep(QUIET_SECONDS)
        assert len(self.events) == before, statements

    async def confirm(self) -> None:
        await self.do(f"SELECT pg_replication_slot_advance('{self.slot}', pg_current_wal_lsn())")

    async def end(self) -> None:
        self._task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await self._task


def _made(database: Database, folder: Path) -> tuple[SourceTrigger, str]:
    slot = f"watched_{database.name}"
    database.execute(TABLES)
    database.execute(f"SELECT pg_create_logical_replication_slot('{slot}', 'pgoutput')")
    database.execute("INSERT INTO private VALUES (0)")  # a start cannot know what was before it
    file = folder / "shop.yaml"
    file.write_text(FILE.format(dsn=database.server.url(database.name), slot=slot))
    return SourceTrigger(str(file)), slot


def test_changes_of_published_tables_wake(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "LOOK_SECONDS", 0.1)

    async def story() -> None:
        trigger, slot = _made(database, tmp_path)
        watched = _Watched(trigger, database, slot)
        await watched.wakes("SELECT 1")
        for statement in (
            "INSERT INTO orders SELECT g, 'x' FROM generate_series(1, 9) g",
            "UPDATE orders SET v = 'y'",
            "DELETE FROM orders WHERE id = 1",
            "TRUNCATE orders",
            "INSERT INTO parted VALUES (1)",
        ):
            await watched.wakes(statement)
        await watched.stays_quiet(
            "INSERT INTO private VALUES (1)", "SELECT pg_current_xact_id()", "CHECKPOINT"
        )
        await watched.end()

    asyncio.run(story())


def test_a_server_without_counters_goes_by_transactions(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "LOOK_SECONDS", 0.1)
    database.execute(f"ALTER DATABASE {database.name} SET track_counts = off")

    async def story() -> None:
        trigger, slot = _made(database, tmp_path)
        watched = _Watched(trigger, database, slot)
        await watched.wakes("SELECT 1")
        await watched.wakes("INSERT INTO orders VALUES (1)")
        await watched.stays_quiet("CHECKPOINT")
        await watched.end()

    asyncio.run(story())


def test_of_many_tables_the_counters_of_the_database_are_read(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watcher, "LOOK_SECONDS", 0.1)
    monkeypatch.setattr(activity, "RELATIONS_MAX", 1)

    async def story() -> None:
        trigger, slot = _made(database, tmp_path)
        watched = _Watched(trigger, database, slot)
        await watched.wakes("SELECT 1")
        await watched.wakes("INSERT INTO orders VALUES (1)")
        await watched.wakes("TRUNCATE orders")
        await watched.end()

    asyncio.run(story())


def test_the_source_and_the_file_may_be_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(watcher, "LOOK_SECONDS", 0.1)
    said: list[str] = []

    def log() -> str:
        said.append(capsys.readouterr().out)
        return "".join(said)

    with temporary_postgres(version=18) as server:
        with psycopg.connect(server.dsn(), autocommit=True) as admin:
            admin.execute("CREATE DATABASE shop")
        database = Database(server, "shop")

        async def story() -> None:
            trigger, slot = _made(database, tmp_path)
            hidden = tmp_path / "hidden"
            await asyncio.to_thread((tmp_path / "shop.yaml").rename, hidden)
            watched = _Watched(trigger, database, slot)
            await asyncio.sleep(0.2)
            await asyncio.to_thread(hidden.rename, tmp_path / "shop.yaml")
            await watched.wakes("SELECT 1")
            longest = asyncio.create_task(_longest_pause())
            await asyncio.to_thread(server.stop, "fast")
            await _until(lambda: "cannot be reached" in log())
            await asyncio.to_thread(server.start)
            await watched.wakes("INSERT INTO orders VALUES (1)")
            longest.cancel()
            assert _longest[0] < 1.0  # the event loop goes on meanwhile
            await watched.end()

        asyncio.run(story())
        assert "is watched again" in log()
        assert server.password not in log()


_longest = [0.0]


async def _longest_pause() -> None:
    while True:
        before = time.monotonic()
        await asyncio.sleep(0.02)
        _longest[0] = max(_longest[0], time.monotonic() - before - 0.02)


async def _until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + SECONDS_MAX
    while not true():
        assert time.monotonic() < give_up
        await asyncio.sleep(0.05)


def test_airflow_keeps_no_secret_of_it(database: Database, tmp_path: Path) -> None:
    trigger, _ = _made(database, tmp_path)
    path, arguments = trigger.serialize()
    assert arguments == {"pipeline_file": str(tmp_path / "shop.yaml")}
    assert path == f"{SourceTrigger.__module__}.{SourceTrigger.__qualname__}"
