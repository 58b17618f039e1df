"""Slots and publications on a real server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from slotlake.decoder.catalog.publications import (
    create_publication,
    missing_publications,
    source_tables,
    unfit_tables,
)
from slotlake.decoder.errors import SlotError, SourceError
from slotlake.decoder.server.source import SourceSettings, connect, identify
from slotlake.decoder.slots import comparable
from slotlake.decoder.slots.comparable import require_comparable
from slotlake.decoder.slots.confirm import confirm
from slotlake.decoder.slots.slot import create_slot, drop_slot, inspect_slot
from slotlake.infra.local.postgres import Version
from tests.conftest import SERVER_VERSIONS, Database
from tests.decoder.sources import confirmed_flush, insert_position, settings, slotted


def test_identity(database: Database) -> None:
    server = identify(database.dsn)
    told = database.execute("SELECT system_identifier::text FROM pg_control_system()")[0][0]
    assert (server.system_identifier, server.database, server.wal_level) == (told, database.name, "logical")
    assert server.timeline == 1
    assert server.position <= insert_position(database)
    assert server.version_text.startswith(f"{database.server.version}.")


def test_a_slot_is_made_seen_moved_and_dropped(database: Database) -> None:
    source, start = slotted(database)
    with connect(source.dsn) as connection:
        state = inspect_slot(connection, source.slot)
    assert state is not None
    assert (state.plugin, state.database, state.confirmed_flush_lsn) == ("pgoutput", database.name, start)
    assert not state.lost
    assert not state.temporary
    database.execute("CREATE TABLE t (a int)")
    position = insert_position(database)
    confirm(source, position)
    assert confirmed_flush(source) == position
    assert drop_slot(source)
    assert not drop_slot(source)


def test_confirming_goes_forward_only(database: Database) -> None:
    source, start = slotted(database)
    database.execute("CREATE TABLE t (a int)")
    position = insert_position(database)
    confirm(source, position)
    with pytest.raises(SlotError, match="does not send the changes in between"):
        confirm(source, start)
    assert confirmed_flush(source) == position


def test_a_snapshot_can_be_taken_up_while_it_is_held(database: Database) -> None:
    database.execute("CREATE TABLE t (a int); INSERT INTO t VALUES (1)")
    source = settings(database)
    with create_slot(source, temporary=True) as made, connect(source.dsn) as reader:
        database.execute("INSERT INTO t VALUES (2)")
        reader.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        reader.execute(f"SET TRANSACTION SNAPSHOT '{made.snapshot}'")
        made.close()
        assert reader.execute("SELECT count(*) FROM t").fetchall() == [(1,)]
        reader.execute("COMMIT")
    deadline = time.monotonic() + 5
    query = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    while database.execute(query) != [(0,)] and time.monotonic() < deadline:
        time.sleep(0.05)
    assert database.execute(query) == [(0,)], "a temporary slot goes with its session"


def test_an_open_transaction_holds_a_slot_up_and_is_named(database: Database) -> None:
    database.execute("CREATE TABLE t (a int)")
    source = settings(database)
    with database.connect(application_name="nightly") as writer:
        writer.execute("BEGIN; INSERT INTO t VALUES (1)")
        pid = writer.info.backend_pid
        begun = time.monotonic()
        with pytest.raises(
            SlotError, match=rf"waited 1 s .*pid {pid} \(user slotlake, application nightly"
        ) as caught:
            create_slot(source, temporary=True, wait_seconds=1)
        assert time.monotonic() - begun < 4
        assert caught.value.retryable
        assert "INSERT" not in str(caught.value), "no statement, which may hold row values"
        writer.execute("ROLLBACK")
    create_slot(source, temporary=True, wait_seconds=5).close()


def test_waiting_ends_with_the_transaction(database: Database) -> None:
    database.execute("CREATE TABLE t (a int)")
    source = settings(database)
    with database.connect() as writer:
        writer.execute("BEGIN; INSERT INTO t VALUES (1)")
        ending = threading.Timer(0.7, lambda: writer.execute("COMMIT"))
        ending.start()
        create_slot(source, temporary=True, wait_seconds=20).close()
        ending.join()


def test_tables_of_a_publication(database: Database) -> None:
    database.execute(
        """
        CREATE SCHEMA "Other"; CREATE TYPE mood AS ENUM ('sad'); CREATE DOMAIN small AS int CHECK (VALUE < 9);
        CREATE TABLE a (id int, n numeric(8,2), m mood, s small, k text NOT NULL UNIQUE,
                        g int GENERATED ALWAYS AS (id * 2) STORED, PRIMARY KEY (id));
        ALTER TABLE a REPLICA IDENTITY USING INDEX a_k_key;
        ALTER TABLE a DROP COLUMN n; ALTER TABLE a ADD n2 numeric;
        CREATE TABLE "Other"."b c" (x int, y int, PRIMARY KEY (y, x));
        CREATE TABLE keyless (x int);
        CREATE TABLE appended (x int);
        CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE parted_1 PARTITION OF parted FOR VALUES FROM (0) TO (10);
        CREATE PUBLICATION p FOR TABLE a, "Other"."b c" (x, y) WHERE (x > 1), keyless;
        CREATE PUBLICATION q FOR TABLE "Other"."b c" (x, y) WHERE (y > 7);
        CREATE PUBLICATION i FOR TABLE appended WITH (publish = 'insert');
        CREATE PUBLICATION root FOR TABLE parted WITH (publish_via_partition_root);
        CREATE PUBLICATION leaf FOR TABLE parted;
        """
    )
    with connect(database.dsn) as connection:
        tables = {t.table: t for t in source_tables(connection, ("p", "q", "i"))}
        assert [t.table for t in source_tables(connection, ("leaf",))] == ["parted_1"]
        (root,) = source_tables(connection, ("root",))
        only = source_tables(connection, ("p",))
    assert (root.table, root.kind) == ("parted", "p")
    a = tables["a"]
    assert [c.name for c in a.columns] == ["id", "m", "s", "k", "n2"]
    assert [c.type_name for c in a.columns] == ["int4", "public.mood", "pg_catalog.int4", "text", "numeric"]
    assert (a.primary_key, a.key, a.replica_identity) == (("id",), ("k",), "i")
    assert [c.name for c in a.columns if c.in_key] == ["k"]
    b = tables["b c"]
    assert (b.quoted, b.key) == ('"Other"."b c"', ("x", "y"))
    assert b.row_filter == "((x > 1)) OR ((y > 7))"
    assert next(t for t in only if t.table == "b c").row_filter == "((x > 1))"
    warnings = unfit_tables(list(tables.values()))
    assert [warning.table for warning in warnings] == ['"public"."keyless"']
    with database.connect() as connection, pytest.raises(Exception, match="replica identity"):
        connection.execute("INSERT INTO keyless VALUES (1); UPDATE keyless SET x = 2")


def test_a_column_type_has_the_name_the_stream_gives_it(database: Database, tmp_path: object) -> None:
    from pathlib import Path

    from tests.decoder.sources import pulled

    database.execute(
        """
        CREATE SCHEMA own; CREATE TYPE own.mood AS ENUM ('sad'); CREATE DOMAIN small AS int;
        CREATE DOMAIN moody AS own.mood; CREATE TYPE pair AS (a int, b text);
        CREATE TABLE t (id int PRIMARY KEY, m own.mood, s small, d moody, p pair, ms own.mood[],
                        v varchar(9));
        CREATE PUBLICATION p FOR TABLE t
        """
    )
    source, start = slotted(database)
    database.execute("INSERT INTO t VALUES (1)")
    (relation,) = pulled(source, Path(str(tmp_path)), start).relations
    with connect(database.dsn) as connection:
        (table,) = source_tables(connection, ("p",))
    streamed = [(c.name, c.type_oid, c.typmod, c.type_name, c.in_key) for c in relation.columns]
    assert streamed == [(c.name, c.type_oid, c.typmod, c.type_name, c.in_key) for c in table.columns]
    assert (relation.relation_id, relation.key) == (table.relation_id, table.key)


def test_making_a_publication(database: Database) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY); CREATE VIEW v AS SELECT 1")
    with connect(database.dsn) as connection:
        assert missing_publications(connection, ("p", "q")) == ["p", "q"]
        with pytest.raises(SourceError, match="names no tables"):
            create_publication(connection, "p", [])
        with pytest.raises(SourceError, match="does not exist"):
            create_publication(connection, "p", [("public", "nowhere")])
        with pytest.raises(SourceError, match="cannot be created"):
            create_publication(connection, "p", [("public", "v")])
        with pytest.raises(SourceError, match="has no publication 'p'"):
            source_tables(connection, ("p",))
        create_publication(connection, "p", [("public", "t")])
        assert missing_publications(connection, ("p", "q")) == ["q"]
        assert [t.table for t in source_tables(connection, ("p",))] == ["t"]


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_the_wals_end_and_a_slots_position_are_comparable(
    database_on: Callable[[Version], Database], version: Version
) -> None:
    database = database_on(version)
    source = SourceSettings(database.dsn, ("p",), f"slot_{database.name}")
    assert "are comparable" in require_comparable(source)
    left = "SELECT count(*) FROM pg_replication_slots WHERE database = current_database()"
    assert database.execute(left) == [(0,)]


def test_an_open_transaction_delays_no_comparison(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(comparable, "_WAIT_MILLISECONDS", 200)
    source = SourceSettings(database.dsn, ("p",), f"slot_{database.name}")
    with database.connect() as other:
        other.execute("BEGIN; SELECT txid_current()")
        assert "transactions are open" in require_comparable(source)
        other.execute("ROLLBACK")


def test_positions_that_are_counted_apart_are_told() -> None:
    comparable.judge(0x2000018, 0x2000000, 0x2000060, "here")  # directly behind a page's header
    for before, slot, after in ((0x2000100, 0x2000080, 0x2000200), (0x2000100, 0x9000000, 0x2000200)):
        with pytest.raises(SourceError, match="counts the two apart"):
            comparable.judge(before, slot, after, "here")
