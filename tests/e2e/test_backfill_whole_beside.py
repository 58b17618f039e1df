"""Batches go on while a backfill reads whole tables; what they change meanwhile is in the result."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.failpoints import happening
from slotlake.infra.backfill import ahead
from slotlake.infra.sync.reading_again import WholeTablesAgain
from slotlake.spark.read.point import ReadPoint
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)

Both = tuple[Database, Pipeline, Pipeline]
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
TABLES = ["items", "parts", "spread", "kept", "log"]
CHOSEN = [f"public.{table}" for table in TABLES[:-1]]  # what has a key
# A value that the server does not send again; a key of two columns, exact texts, versions; partitions;
# deleted rows that stay.
SETUP = """
CREATE TABLE items (id int PRIMARY KEY, v text, long text);
ALTER TABLE items ALTER long SET STORAGE EXTERNAL;
CREATE TABLE parts (a int, b text, price numeric, PRIMARY KEY (a, b));
CREATE TABLE spread (id int PRIMARY KEY, region text);
CREATE TABLE kept (id int PRIMARY KEY, v text);
CREATE TABLE log (id int, v text);
"""
OPTIONS = {
    "parts": "{mode: [mirror, history]}",
    "spread": '{partition_by: ["bucket(3, id)", region]}',
    "kept": "{on_delete: mark}",
}
FILL = """
INSERT INTO items SELECT g, 'v' || g, repeat('x', 3000) FROM generate_series(1, 100) g ON CONFLICT DO NOTHING;
INSERT INTO parts SELECT g, 'p' || g, g * 1.5 FROM generate_series(1, 60) g ON CONFLICT DO NOTHING;
INSERT INTO spread SELECT g, 'r' || g % 4 FROM generate_series(1, 60) g ON CONFLICT DO NOTHING;
INSERT INTO kept SELECT g, 'v' || g FROM generate_series(1, 60) g ON CONFLICT DO NOTHING;
"""
DAMAGE = (
    "UPDATE lake.shop.items SET v = 'wrong' WHERE id = 5",
    "DELETE FROM lake.shop.items WHERE id = 6",
    "INSERT INTO lake.shop.items (id, v) VALUES (-7, 'nobody')",
    "UPDATE lake.shop.spread SET region = 'wrong' WHERE id = 9",
    "UPDATE lake.shop.kept SET v = 'wrong' WHERE id = 9",
)
MEANWHILE = (
    "UPDATE items SET v = v || '!' WHERE id BETWEEN 1 AND 20",
    "DELETE FROM items WHERE id = 70; INSERT INTO items VALUES (700, 'new', 'y')",
    "UPDATE items SET id = -id WHERE id = 80; UPDATE parts SET price = 'NaN' WHERE a = 3",
    "UPDATE items SET id = 80 WHERE id = -80; DELETE FROM parts WHERE a = 4; INSERT INTO log VALUES (1, 'x')",
    "UPDATE spread SET region = 'moved' WHERE id < 5; DELETE FROM spread WHERE id = 6",
    "DELETE FROM kept WHERE id = 3; UPDATE kept SET v = 'n' WHERE id = 4; INSERT INTO kept VALUES (99, 'n')",
)
AGAIN = {
    "altered": "ALTER TABLE items ADD more int; UPDATE items SET more = 1 WHERE id = 90",
    "truncated": "TRUNCATE items; INSERT INTO items (id, v) VALUES (6, 'after')",
    "rewritten": "VACUUM FULL items",
    "too many": "INSERT INTO spread SELECT g, 'n' FROM generate_series(1000, 3000) g",
}


@pytest.fixture(scope="module")
def lake(pg: Any, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with fresh_database(pg) as database:
        database.execute(SETUP)
        database.execute(FILL)
        file = pipeline_file(tmp_path_factory.mktemp("whole"), database, TABLES)
        text = file.read_text()
        for table, options in OPTIONS.items():
            text = text.replace(f"'{table}': {{}}", f"'{table}': {options}")
        file.write_text(text)
        with Pipeline.open(file, remote=connect) as pipeline, Pipeline.open(file, remote=connect) as other:
            pipeline.init()
            yield database, pipeline, other


@pytest.fixture
def damaged(lake: Both, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Both, list[str]]]:
    """A lake with wrong rows; and what was read under the lock, in the end."""
    database, pipeline, _ = lake
    database.execute(FILL)
    pipeline.sync()
    for statement in DAMAGE:
        pipeline.session.sql(statement).collect()
    monkeypatch.setattr(ahead, "BYTES_MIN", 0)
    under_lock: list[str] = []
    read_again = WholeTablesAgain.read_again

    def counted(*arguments: Any) -> Any:
        under_lock.append("under the lock")
        return read_again(*arguments)

    monkeypatch.setattr(WholeTablesAgain, "read_again", counted)
    yield lake, under_lock
    assert_equal(database, pipeline, [table for table in TABLES if table != "kept"])
    report = pipeline.verify()  # of marked rows it knows that they are no rows of the source
    assert report.equal, report


def _batches(both: Both, *statements: str) -> Callable[[], None]:
    """What another run does meanwhile: it has the lock at once."""
    database, _, other = both

    def work() -> None:
        for statement in statements:
            database.execute(statement)
            other.sync()
        other.end_stream()

    return work


def test_what_batches_change_meanwhile_is_in_the_result(damaged: tuple[Both, list[str]]) -> None:
    both, under_lock = damaged
    database, pipeline, _ = both
    with happening("backfill.read", _batches(both, *MEANWHILE)):
        report = pipeline.backfill(CHOSEN)
    assert not under_lock
    rows = {table.table: table.rows for table in report.tables if table.table != "public.kept"}
    counts = {name: database.execute(f"SELECT count(*) FROM {name}")[0][0] for name in rows}
    assert rows == counts
    commits = ReadPoint.latest(pipeline.lake).commits()
    (point,) = [row for row in commits if row["lsn"] == report.lsn and row["kind"] == "backfill"]
    assert len(point["changed"]) == len(CHOSEN)  # all in one point


@pytest.mark.parametrize("what", AGAIN if LONG else ["altered"])
def test_what_cannot_be_brought_in_is_read_again_under_the_lock(
    damaged: tuple[Both, list[str]], what: str
) -> None:
    both, under_lock = damaged
    with happening("backfill.read", _batches(both, AGAIN[what], "UPDATE items SET v = 'l' WHERE id = 2")):
        both[1].backfill(CHOSEN)
    # What the engine can bring to the later snapshot, it does table by table.
    assert under_lock == (["under the lock"] if what == "altered" else [])


@pytest.mark.skipif(not LONG, reason="some seconds")
def test_small_tables_and_those_without_a_key_are_read_under_the_lock(
    damaged: tuple[Both, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    both, under_lock = damaged
    both[1].backfill(["public.items", "public.log"])
    assert under_lock.pop()
    monkeypatch.setattr(ahead, "BYTES_MIN", 1 << 30)
    both[1].backfill("public.items")
    assert under_lock
    both[1].backfill(CHOSEN)


_KILLED = """
import sys
from slotlake import Pipeline
from slotlake.infra.backfill import ahead
ahead.BYTES_MIN = 0
with Pipeline.open(sys.argv[1], remote=sys.argv[2]) as pipeline:
    pipeline.backfill(sys.argv[3:])
"""
_STEPS = ("backfill.staged", "backfill.read", "publish.before_swap")


@pytest.mark.parametrize("step", _STEPS if LONG else _STEPS[:1])
def test_killed_and_run_again(damaged: tuple[Both, list[str]], connect: str, step: str) -> None:
    """As it was; batches go on after that, and the same command makes all equal."""
    (database, pipeline, _), under_lock = damaged
    before = pipeline.position()
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(pipeline.file.path), connect, *CHOSEN],
        env={**os.environ, "SLOTLAKE_FAILPOINT": step},
        check=False,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert pipeline.position() >= before
    assert not pipeline.verify("full").equal
    database.execute("UPDATE items SET v = 'after' WHERE id = 11; INSERT INTO log VALUES (2, 'y')")
    assert pipeline.sync().batch
    pipeline.backfill(CHOSEN)
    assert not under_lock
