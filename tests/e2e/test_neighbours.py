"""Several pipelines on one database, a second reader, and replication in circles."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from psycopg import sql

from slotlake import Pipeline
from slotlake.decoder.errors import LakeError, SlotBusyError, SlotError
from slotlake.decoder.server.source import connect_replication
from slotlake.infra.cli.main import main
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = pytest.mark.timeout(600)


def test_two_pipelines_on_one_database(
    database: Database, session: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slotlake.decoder.slots.slot.BUSY_WAIT_SECONDS", 0.5)
    for table in "abc":
        database.execute(f"CREATE TABLE {table} (id int PRIMARY KEY); INSERT INTO {table} VALUES (1)")
    one = pipeline_file(tmp_path, database, ["a", "b"], name="one")
    two = pipeline_file(tmp_path, database, ["b", "c"], name="two")
    with Pipeline.open(one) as first, Pipeline.open(two) as second:
        first.init()
        second.init()
        database.execute("INSERT INTO a VALUES (2); INSERT INTO b VALUES (2); INSERT INTO c VALUES (2)")
        first.sync()
        assert list(second.rows("public.b")) == [("1",)]  # each at its own pace
        second.sync()
        assert_equal(database, first, ["a", "b"])
        assert_equal(database, second, ["b", "c"])
        assert {slot["name"] for slot in first.status().other_slots} >= {second.source.slot}
        _what_is_anothers_is_refused(database, first, tmp_path)
        _a_second_reader(first)
        first.drop(lake=True)
        database.execute("DELETE FROM b WHERE id = 1")
        second.sync()
        assert second.verify().equal


def _what_is_anothers_is_refused(database: Database, first: Pipeline, folder: Path) -> None:
    third = pipeline_file(folder, database, ["c"], name="third")
    text = third.read_text()
    third.write_text(text.replace("namespace: third", "namespace: one"))
    with Pipeline.open(third) as pipeline, pytest.raises(LakeError, match="belongs to pipeline one"):
        pipeline.init()
    third.write_text(text.replace(f"slot: slotlake_{database.name}_third", f"slot: {first.source.slot}"))
    with (
        Pipeline.open(third) as pipeline,
        pytest.raises(SlotError, match="is that of another pipeline, 'one'"),
    ):
        pipeline.init()
    with Pipeline.open(third) as pipeline:
        assert "that of the pipeline one, so it stays" in pipeline.drop().left[0]  # nor is it dropped
    first.sync()


def _a_second_reader(pipeline: Pipeline) -> None:
    """Named: its process, its user, its application."""
    source = pipeline.source
    other = connect_replication(source.dsn)
    options = "(proto_version '1', publication_names 'one')"
    command = f'START_REPLICATION SLOT "{source.slot}" LOGICAL 0/0 {options}'
    other.pgconn.send_query(command.encode())
    other.pgconn.get_result()
    named = rf"in use by pid {other.info.backend_pid} \(user slotlake, application slotlake"
    with pytest.raises(SlotBusyError, match=named):
        pipeline.sync()
    other.pgconn.finish()
    pipeline.sync()


def test_rows_that_came_by_replication_are_not_taken_twice(
    pg: EmbeddedPostgres, database: Database, session: Any, tmp_path: Path
) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY, v text); CREATE PUBLICATION circle FOR TABLE t"
    with fresh_database(pg) as other:
        for each in (database, other):
            each.execute(table)
        with _subscribed(database, other), _subscribed(other, database):
            file = pipeline_file(tmp_path, database, ["t"], source="origin: none\n")
            with Pipeline.open(file) as pipeline:
                pipeline.init()
                database.execute("INSERT INTO t VALUES (1, 'made here')")
                other.execute("INSERT INTO t VALUES (2, 'made there')")
                _until(lambda: _ids(database) == _ids(other) == {1, 2})
                _fed_from_the_lake(database)
                pipeline.sync()
                assert set(pipeline.rows("public.t")) == {("1", "made here")}
                database.execute("UPDATE t SET v = 'changed here' WHERE id = 2")
                assert pipeline.sync().changes == 1
                assert set(pipeline.rows("public.t")) == {("1", "made here"), ("2", "changed here")}


def _fed_from_the_lake(database: Database) -> None:
    """What a job writes back under an origin of its own, a pipeline with `origin: none` does not see."""
    with database.connect() as connection:
        connection.execute("SELECT pg_replication_origin_create('from_the_lake')")
        connection.execute("SELECT pg_replication_origin_session_setup('from_the_lake')")
        connection.execute("INSERT INTO t VALUES (3, 'from the lake')")
        connection.execute("SELECT pg_replication_origin_session_reset()")
        connection.execute("SELECT pg_replication_origin_drop('from_the_lake')")


@contextmanager
def _subscribed(subscriber: Database, publisher: Database) -> Iterator[None]:
    """A native subscription; its slot is made beforehand, because both are on one server."""
    name = sql.Identifier(f"to_{subscriber.name}")
    publisher.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [f"to_{subscriber.name}"])
    options = "create_slot = false, copy_data = false, origin = none"
    with subscriber.connect() as connection:
        connection.execute(
            sql.SQL("CREATE SUBSCRIPTION {} CONNECTION {} PUBLICATION circle WITH (" + options + ")").format(
                name, publisher.dsn
            )
        )
        try:
            yield
        finally:
            for statement in (
                "ALTER SUBSCRIPTION {} DISABLE",
                "ALTER SUBSCRIPTION {} SET (slot_name = NONE)",
            ):
                connection.execute(sql.SQL(statement).format(name))
            connection.execute(sql.SQL("DROP SUBSCRIPTION {}").format(name))


def _ids(database: Database) -> set[int]:
    return {number for (number,) in database.execute("SELECT id FROM t")}


def _until(true: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up, "not so after 60 s"
        time.sleep(0.1)


def test_an_older_server_says_so_before_anything_is_made(
    database_on: Callable[[int], Database], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    database = database_on(15)
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    file = pipeline_file(tmp_path, database, ["t"], source="origin: none\n")
    assert main(["init", str(file)]) == 3
    assert "use PostgreSQL 16 or later, or set source.origin to 'any'" in capsys.readouterr().err
    made = "SELECT (SELECT count(*) FROM pg_publication), (SELECT count(*) FROM pg_replication_slots)"
    assert database.execute(made)[0][0] == 0
