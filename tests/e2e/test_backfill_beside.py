"""Batches go on while a backfill of chosen rows compares and reads; no older image of a row wins."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slotlake import Pipeline
from slotlake.decoder.failpoints import happening
from slotlake.infra.backfill import backfill as backfills
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)

Both = tuple[Database, Pipeline, Pipeline]
WHERE = "id < 50"
LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
CHANGES = [
    "UPDATE items SET v = 'newer' WHERE id = 5",
    "DELETE FROM items WHERE id = 5",
    "UPDATE items SET id = -7 WHERE id = 8",
    "TRUNCATE items; INSERT INTO items (id, v) VALUES (6, 'after')",
    "ALTER TABLE items ADD more int; UPDATE items SET more = 1 WHERE id = 90",
]


@pytest.fixture(scope="module")
def lake(pg: Any, connect: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with fresh_database(pg) as database:
        database.execute(
            "CREATE TABLE items (id int PRIMARY KEY, v text);"
            "INSERT INTO items SELECT g, 'v' || g FROM generate_series(1, 100) g"
        )
        file = pipeline_file(tmp_path_factory.mktemp("beside"), database, ["items"])
        with Pipeline.open(file, remote=connect) as pipeline, Pipeline.open(file, remote=connect) as other:
            pipeline.init()
            yield database, pipeline, other


@pytest.fixture
def damaged(lake: Both, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Both, list[str]]]:
    """A lake with three wrong rows; and what was done again under the lock."""
    database, pipeline, _ = lake
    database.execute(
        "INSERT INTO items SELECT g, 'v' || g FROM generate_series(1, 100) g ON CONFLICT DO NOTHING"
    )
    pipeline.sync()
    for statement in (
        "UPDATE lake.shop.items SET v = 'wrong' WHERE id = 5",
        "DELETE FROM lake.shop.items WHERE id = 6",
        "INSERT INTO lake.shop.items (id, v) VALUES (-7, 'nobody')",
    ):
        pipeline.session.sql(statement).collect()
    again: list[str] = []
    at_one_point = backfills._Run.at_one_point

    def counted(run: Any, tables: Any) -> int:
        again.append("again")
        return at_one_point(run, tables)

    monkeypatch.setattr(backfills._Run, "at_one_point", counted)
    yield lake, again
    assert_equal(database, pipeline, ["items"])
    assert pipeline.verify().equal


def _batch(both: Both, *statements: str) -> Callable[[], None]:
    """What another run does meanwhile: it has the lock at once."""
    database, _, other = both

    def work() -> None:
        for statement in statements:
            database.execute(statement)
            assert other.sync().batch
        other.end_stream()

    return work


def test_batches_go_on_and_what_was_read_is_published_after_them(damaged: tuple[Both, list[str]]) -> None:
    both, again = damaged
    meanwhile = [
        "UPDATE items SET v = v || '!' WHERE id BETWEEN 10 AND 60",
        "DELETE FROM items WHERE id = 70",
    ]
    with happening("backfill.compared", _batch(both, *meanwhile)):
        report = both[1].backfill("items", where=WHERE)
    assert (report.inserted, report.changed, report.deleted) == (1, 1, 1)
    assert not again


@pytest.mark.parametrize("change", CHANGES if LONG else CHANGES[:1])
def test_rows_that_change_meanwhile_are_compared_again(damaged: tuple[Both, list[str]], change: str) -> None:
    both, again = damaged
    with happening("backfill.compared", _batch(both, change)):
        both[1].backfill("items", where=WHERE)
    assert again == ["again"]


@pytest.mark.skipif(not LONG, reason="some seconds")
def test_a_dry_run_counts_at_its_own_position(damaged: tuple[Both, list[str]]) -> None:
    both, again = damaged
    with happening("backfill.compared", _batch(both, "UPDATE items SET v = 'later' WHERE id = 5")):
        report = both[1].backfill("items", where=WHERE, dry_run=True)
    assert (report.inserted, report.changed, report.deleted) == (1, 1, 1)
    assert not again
    both[1].backfill("items", where=WHERE)
