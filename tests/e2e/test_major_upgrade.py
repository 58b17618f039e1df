"""pg_upgrade keeps the slot from 17 on: the lake goes on without a comparison, if nothing can be missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.server.timeline import HistoryError
from slotlake.infra.local.postgres import EmbeddedPostgres, temporary_postgres
from slotlake.infra.source.history import lake_origin
from slotlake.infra.sync.batch_steps import BatchSteps
from tests.conftest import LONG, Database
from tests.debian_postgres import debian_postgres
from tests.e2e.oracle import assert_equal, pipeline_file
from tests.meanwhile import meanwhile
from tests.pg_upgrade import programs_of_18, upgraded

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not LONG, reason="clusters are upgraded: SLOTLAKE_TEST_LONG=1"),
]

# A test may write into its databases at any time; autovacuum's ANALYZE takes transaction ids, as writes do.
CONF = {"autovacuum": "off", "max_prepared_transactions": "5"}
TABLES = ["a", "b", "p"]
SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE a (id int PRIMARY KEY, gone int, m mood, v text);
ALTER TABLE a DROP COLUMN gone;
CREATE TABLE b (id bigint, v numeric(10, 2)); ALTER TABLE b REPLICA IDENTITY FULL;
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (100000);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (100000) TO (200000);
INSERT INTO a SELECT g, 'ok', 'v' || g FROM generate_series(1, 500) g;
INSERT INTO b SELECT g, g FROM generate_series(1, 100) g;
INSERT INTO p SELECT g * 1000, 'v' FROM generate_series(1, 150) g
"""


def write(database: Database, first: int) -> None:
    database.execute(
        f"INSERT INTO a SELECT g, 'sad', 'new' FROM generate_series({first}, {first + 20}) g;"
        f"UPDATE a SET v = 'at {first}' WHERE id % 7 = 0; DELETE FROM a WHERE id = {first};"
        f"INSERT INTO b VALUES ({first}, 1.5), ({first}, 1.5); "
        f"UPDATE b SET v = v + 1 WHERE id = {first % 90};"
        f"UPDATE p SET id = id + 1, v = 'moved {first}' WHERE id = {(first % 100) * 1000 + 1000}"
    )


def load(database: Database, first: int) -> AbstractContextManager[None]:
    """Transactions all the time, of which some are open while the lake is synced."""

    def writing(ended: threading.Event) -> None:
        for number in range(first, first + 20_000, 50):
            if ended.wait(0.01):
                return
            write(database, number)

    return meanwhile(writing)


@pytest.fixture
def old(tmp_path: Path, connect: str) -> Iterator[tuple[Database, Pipeline]]:
    """A lake that is fed from a 17."""
    with temporary_postgres(version=17, conf=CONF) as server:
        database = Database(server, "postgres")
        database.execute(SETUP)
        with Pipeline.open(pipeline_file(tmp_path, database, TABLES), remote=connect) as pipeline:
            pipeline.init()
            yield database, pipeline


def _programs(version: int) -> Path:
    return programs_of_18() if version == 18 else debian_postgres(version)


def _tables(pipeline: Pipeline) -> dict[str, Any]:
    return {each.table: each for each in pipeline.status().tables}


def _goes_on(server: EmbeddedPostgres, pipeline: Pipeline, first: int) -> None:
    database = Database(server, "postgres")
    before = lake_origin(pipeline.lake)
    assert before is not None
    write(database, first)  # the application may come first
    assert pipeline.recover().findings == []
    report = pipeline.sync()
    assert report.changes > 0
    assert_equal(database, pipeline, TABLES)
    after = lake_origin(pipeline.lake)
    assert after is not None
    assert after.system_identifier != before.system_identifier
    with load(database, first + 1000):
        for _ in range(3):
            pipeline.sync()
        assert pipeline.verify().equal
    pipeline.sync()
    assert_equal(database, pipeline, TABLES)
    assert pipeline.verify().equal


def test_the_slot_is_kept_from_17_to_18_and_to_19_under_load(
    old: tuple[Database, Pipeline], monkeypatch: pytest.MonkeyPatch
) -> None:
    database, pipeline = old
    with load(database, 1000):
        pipeline.sync()
    pipeline.sync()
    with ExitStack() as stack:
        server: Any = stack.enter_context(upgraded(database.server, _programs(18)))
        with monkeypatch.context() as patch:  # the run is killed before the lake has the new position

            def killed(*_: Any) -> Any:
                raise KeyboardInterrupt

            patch.setattr(BatchSteps, "publish_named", killed)
            with pytest.raises(KeyboardInterrupt):
                pipeline.sync()
        _goes_on(server, pipeline, 30_000)
        server = stack.enter_context(upgraded(server, _programs(19)))
        _goes_on(server, pipeline, 60_000)
        assert pipeline.status().alarms == []


def test_a_table_that_was_altered_after_the_upgrade_is_copied_again_and_others_go_on(
    old: tuple[Database, Pipeline],
) -> None:
    database, pipeline = old
    pipeline.sync()
    with upgraded(database.server, _programs(18)) as server:
        database = Database(server, "postgres")
        database.execute(
            "ALTER TABLE b ALTER v TYPE text; INSERT INTO b VALUES (7, 'x'); ALTER TABLE a ADD n int"
        )
        write_a = "INSERT INTO a (id, m, n) VALUES (9000, 'ok', 3)"
        database.execute(write_a)
        pipeline.sync()
        assert [name for name, table in _tables(pipeline).items() if table.copied_again] == ["public.b"]
        assert_equal(database, pipeline, TABLES)


def _moved(database: Database, slot: str) -> None:
    """A change, and the slot is moved over it by somebody else."""
    database.execute("INSERT INTO a VALUES (8000, 'ok', 'missing')")
    database.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_flush_lsn())", [slot])


def _made_anew(database: Database, slot: str) -> None:
    database.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    database.execute("INSERT INTO a VALUES (8000, 'ok', 'missing')")
    database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [slot])


def _made_anew_at_once(database: Database, slot: str) -> None:
    """Four slots are made, which could hide the place of the one."""
    database.execute("SELECT pg_drop_replication_slot(%s)", [slot])
    database.execute("DELETE FROM b WHERE id = 5")
    for name in ("x1", "x2", "x3", slot):
        database.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [name])


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        (_moved, None, "has begun 1 transactions after the lake's position"),
        (_made_anew, None, "has begun 1 transactions after the lake's position"),
        (None, _made_anew, "made after the upgrade"),
        (None, _made_anew_at_once, "made after the upgrade"),
    ],
)
def test_a_gap_is_found_and_the_lake_is_compared(
    old: tuple[Database, Pipeline],
    before: Callable[[Database, str], None] | None,
    after: Callable[[Database, str], None] | None,
    why: str,
) -> None:
    database, pipeline = old
    pipeline.sync()
    if before is not None:
        before(database, pipeline.source.slot)
    with upgraded(database.server, _programs(18)) as server:
        database = Database(server, "postgres")
        if after is not None:
            after(database, pipeline.source.slot)
        for refused in (pipeline.sync, pipeline.verify):
            with pytest.raises(HistoryError, match=why) as told:
                refused()
            assert "slotlake recover" in told.value.way_out
        assert why in pipeline.recover().findings[0].what
        assert pipeline.recover(carry_out=True).carried_out
        assert_equal(database, pipeline, TABLES)
        write(database, 20_000)
        pipeline.sync()
        assert_equal(database, pipeline, TABLES)
