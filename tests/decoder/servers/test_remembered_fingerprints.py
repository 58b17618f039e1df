"""What is remembered of the source's catalog says what a new look says, after each kind of change."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping

import psycopg
import pytest

from slotlake.decoder.catalog.fingerprints import TableFingerprint, table_fingerprints
from slotlake.decoder.catalog.publication_tables import published_names
from slotlake.decoder.catalog.remembered_fingerprints import RememberedFingerprints, RememberedNames
from slotlake.decoder.server.source import connect
from slotlake.infra.local.postgres import Version, temporary_postgres
from tests.conftest import Database

pytestmark = pytest.mark.server
PUBLICATIONS = ["p", "q"]
TABLES = ["one", "two", "three", "places", "root", "leaf"]
# Each statement, and how many of the tables must be read again for it: all others must not.
CHANGES = {
    "INSERT INTO one VALUES (2, 'b'); UPDATE two SET t = 'x'; ANALYZE; VACUUM one": 0,
    "CREATE TABLE elsewhere (id int)": 1,  # one that regclass can name
    "ALTER TABLE one ADD added int DEFAULT 7": 1,
    "ALTER TABLE one RENAME t TO u": 1,
    "ALTER TABLE one DROP added": 1,
    "ALTER TABLE one ALTER u TYPE varchar(9); ALTER TABLE one ALTER u TYPE text": 1,
    "ALTER TABLE one RENAME TO passing; ALTER TABLE two RENAME TO one; ALTER TABLE passing RENAME TO two": 3,
    "ALTER TABLE two RENAME COLUMN u TO w; ALTER TABLE one RENAME COLUMN t TO u;"
    "ALTER TABLE two RENAME COLUMN w TO t": 2,
    "TRUNCATE three": 1,
    "ALTER TABLE three ALTER id SET DEFAULT 3": 1,
    "ALTER PUBLICATION p DROP TABLE three": 1,
    "ALTER PUBLICATION p ADD TABLE three": 1,
    "ALTER PUBLICATION p DROP TABLE three; ALTER PUBLICATION p ADD TABLE three": 1,
    "ALTER PUBLICATION q SET (publish = 'insert')": 2,
    "ALTER TYPE mood RENAME VALUE 'sad' TO 'low'": 2,
    "ALTER TYPE mood RENAME VALUE 'low' TO 'sad'": 2,
    "ALTER TABLE elsewhere RENAME TO nowhere": 1,
    "ALTER TABLE root DETACH PARTITION leaf": 1,
    "ALTER TABLE root ATTACH PARTITION leaf FOR VALUES IN (1)": 1,
    "DROP TABLE three": 1,
    "CREATE SCHEMA aside; ALTER TABLE places SET SCHEMA aside": 1,
    "ALTER TABLE aside.places SET SCHEMA public": 1,
}


def _made(database: Database) -> dict[str, int]:
    database.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'glad');"
        "CREATE TABLE one (id int PRIMARY KEY, t text); CREATE TABLE two (id int PRIMARY KEY, t text);"
        "CREATE TABLE three (id int PRIMARY KEY, m mood);"
        "CREATE TABLE places (id int PRIMARY KEY, r regclass, m mood);"
        "CREATE TABLE root (k int) PARTITION BY LIST (k);"
        "CREATE TABLE leaf PARTITION OF root FOR VALUES IN (1);"
        "CREATE PUBLICATION p FOR TABLE one, two, three, places; CREATE PUBLICATION q FOR TABLE root"
    )
    return {name: int(database.execute(f"SELECT '{name}'::regclass::oid")[0][0]) for name in TABLES}


def test_a_table_is_read_again_when_it_changed_and_only_then(database: Database) -> None:
    oids = _made(database)
    remembered = RememberedFingerprints()

    def read() -> tuple[Mapping[int, TableFingerprint], int]:
        before = remembered.read_count
        with connect(database.dsn) as connection, connection.transaction():
            return remembered.fingerprints(
                connection, oids.values(), PUBLICATIONS
            ), remembered.read_count - before

    assert read()[1] == len(oids)
    counts = {}
    for change in CHANGES:
        earlier, none = read()
        assert none == 0, change
        assert read()[0] is earlier, change  # the same mapping, by one query
        for statement in change.split(";"):
            database.execute(statement)
        now, counts[change] = read()
        with connect(database.dsn) as connection:
            assert now == table_fingerprints(connection, oids.values(), PUBLICATIONS), change
        same = [oid for oid in now if now[oid] is earlier.get(oid)]
        assert len(same) == len(now) - counts[change], change
    assert counts == CHANGES


# Each changes what is published, or only what the digest might miss; and nothing that a table is called.
LISTING = {
    "CREATE TABLE fresh (id int)": False,
    "ALTER PUBLICATION p ADD TABLE fresh": True,
    "ALTER TABLE fresh RENAME TO later; ALTER TABLE three RENAME TO fresh": True,
    "ALTER TABLE fresh RENAME TO x; ALTER TABLE later RENAME TO fresh; ALTER TABLE x RENAME TO later": False,
    "CREATE SCHEMA s; ALTER TABLE fresh SET SCHEMA s": True,
    "ALTER SCHEMA s RENAME TO t": True,
    "INSERT INTO one VALUES (7, 'x'); TRUNCATE two; ANALYZE": False,
    "CREATE TABLE leaf2 PARTITION OF root FOR VALUES IN (2)": True,
    "CREATE TABLE mid PARTITION OF root FOR VALUES IN (3, 4) PARTITION BY LIST (k)": False,
    "CREATE TABLE t.deep PARTITION OF mid FOR VALUES IN (3)": True,
    "ALTER PUBLICATION q SET (publish_via_partition_root = true)": True,
    "ALTER PUBLICATION p ADD TABLE leaf2": False,
    "ALTER PUBLICATION q SET (publish_via_partition_root = false)": True,
    "ALTER TABLE root DETACH PARTITION mid": True,
    "ALTER PUBLICATION p DROP TABLE one": True,
    "DROP PUBLICATION p; CREATE PUBLICATION p FOR ALL TABLES": True,
    "CREATE TABLE among_all (id int)": True,
    "CREATE TEMP TABLE x (id int); CREATE UNLOGGED TABLE unlogged (id int)": False,
    "CREATE VIEW v AS SELECT 1": False,
    "ALTER TABLE unlogged SET LOGGED": True,
    "DROP TABLE among_all": True,
    "DROP PUBLICATION p": True,
}
LISTING_SINCE_15 = {
    "CREATE PUBLICATION p FOR TABLES IN SCHEMA t": True,
    "CREATE TABLE t.more (id int)": True,
    "ALTER TABLE t.more SET SCHEMA public": True,
    "ALTER PUBLICATION p SET TABLES IN SCHEMA public": True,
    "ALTER SCHEMA public RENAME TO elsewhere; ALTER SCHEMA t RENAME TO public": True,
}


@pytest.mark.parametrize("version", [14, 18])
def test_published_names_are_read_again_when_they_changed(
    database_on: Callable[[Version], Database], version: Version
) -> None:
    database = database_on(version)
    _made(database)
    remembered, changed = RememberedNames(), {}
    changes = LISTING | (LISTING_SINCE_15 if version >= 15 else {})
    with connect(database.dsn) as connection:
        before = remembered.names(connection, PUBLICATIONS)
        for change in changes:
            count = remembered.read_count
            assert remembered.names(connection, PUBLICATIONS) is before
            assert remembered.read_count == count, change
            for statement in change.split(";"):
                database.execute(statement)
            now = remembered.names(connection, PUBLICATIONS)
            assert now == published_names(connection, PUBLICATIONS), change
            changed[change] = now != before
            before = now
        assert remembered.names(connection, ["q"]) == published_names(connection, ["q"])
    assert changed == changes


# What publishes a table may be above it, or its schema; and a change may leave all as it was before.
ABOVE = [
    "CREATE TABLE top (k int) PARTITION BY RANGE (k)",
    "ALTER TABLE root DETACH PARTITION leaf",
    "CREATE TABLE mid (k int) PARTITION BY LIST (k)",
    "ALTER TABLE mid ATTACH PARTITION leaf FOR VALUES IN (1)",
    "ALTER TABLE top ATTACH PARTITION mid FOR VALUES FROM (0) TO (9)",
    "ALTER PUBLICATION q ADD TABLE top",
    "ALTER TABLE top DETACH PARTITION mid",
    "ALTER TABLE top ATTACH PARTITION mid FOR VALUES FROM (0) TO (9)",
    "ALTER PUBLICATION q DROP TABLE top",
    "ALTER TABLE one ADD filled int DEFAULT 7",
    "ALTER TABLE one ALTER filled SET DEFAULT 8",
    "ALTER TABLE one ALTER filled DROP DEFAULT",
    "ALTER TABLE two ADD number int GENERATED ALWAYS AS IDENTITY",
    "ALTER TABLE two ALTER number DROP IDENTITY",
    "CREATE SCHEMA s; ALTER TABLE one SET SCHEMA s",
    "ALTER TABLE s.one SET SCHEMA public",
    "ALTER SCHEMA s RENAME TO t",
    "ALTER PUBLICATION p SET (publish_via_partition_root = true)",
    "ALTER PUBLICATION p SET (publish = 'insert'); ALTER PUBLICATION p SET (publish = 'insert, delete')",
    "VACUUM FULL two",
]
ABOVE_SINCE_15 = [
    "ALTER PUBLICATION q ADD TABLES IN SCHEMA t",
    "ALTER TABLE one SET SCHEMA t",
    "ALTER TABLE mid SET SCHEMA t",
    "ALTER TABLE t.one SET SCHEMA public; ALTER TABLE one SET SCHEMA t",
    "ALTER TABLE t.mid SET SCHEMA public; ALTER TABLE mid SET SCHEMA t",
    "ALTER PUBLICATION p SET TABLE two WHERE (id > 3), three",
    "ALTER PUBLICATION p SET TABLE two (id), three",
]


@pytest.mark.parametrize("version", [14, 18])
def test_what_is_above_a_table_is_in_its_digest(
    database_on: Callable[[Version], Database], version: Version
) -> None:
    database = database_on(version)
    oids = _made(database)
    remembered = RememberedFingerprints()
    with connect(database.dsn) as connection:
        remembered.fingerprints(connection, oids.values(), PUBLICATIONS)
        for change in ABOVE + ABOVE_SINCE_15 * (version >= 15):
            for statement in change.split(";"):
                database.execute(statement)
            found = remembered.fingerprints(connection, oids.values(), PUBLICATIONS)
            assert found == table_fingerprints(connection, oids.values(), PUBLICATIONS), change
            assert remembered.fingerprints(connection, oids.values(), PUBLICATIONS) is found, change


def test_other_publications_and_other_tables_are_not_mixed_up(database: Database) -> None:
    oids = _made(database)
    remembered = RememberedFingerprints()
    with connect(database.dsn) as connection:
        for publications, names in (
            (["p"], TABLES),
            (["q"], TABLES),
            (["q"], TABLES[:2]),
            (["p", "q"], TABLES),
        ):
            tables = [oids[name] for name in names]
            for _ in range(2):
                seen = remembered.fingerprints(connection, tables, publications)
                assert seen == table_fingerprints(connection, tables, publications)


def test_what_changed_while_it_was_read_is_not_remembered(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    oids = _made(database)
    remembered = RememberedFingerprints()

    def read_late(*arguments: object) -> dict[int, TableFingerprint]:
        database.execute("ALTER TABLE one ADD late int")
        return table_fingerprints(*arguments)  # type: ignore[arg-type]

    with connect(database.dsn) as connection:
        with monkeypatch.context() as patch:
            patch.setattr("slotlake.decoder.catalog.remembered_fingerprints.table_fingerprints", read_late)
            assert (
                "late"
                in remembered.fingerprints(connection, oids.values(), PUBLICATIONS)[oids["one"]].numbers
            )
        count = remembered.read_count
        remembered.fingerprints(connection, oids.values(), PUBLICATIONS)
        assert remembered.read_count == count + 1


def test_a_role_that_may_not_ask_for_the_checkpoint_reads_all_numbers(database: Database) -> None:
    oids = _made(database)
    revoke = "REVOKE EXECUTE ON FUNCTION pg_control_checkpoint() FROM PUBLIC"
    database.execute(f"{revoke}; CREATE ROLE {database.name}_asks; GRANT USAGE ON SCHEMA public TO PUBLIC")
    remembered, names = RememberedFingerprints(), RememberedNames()
    try:
        with connect(database.dsn) as connection:
            connection.execute(f"SET ROLE {database.name}_asks".encode())
            for column in ("first", "second"):
                database.execute(f"ALTER TABLE one ADD {column} int")
                for _ in range(2):
                    found = remembered.fingerprints(connection, oids.values(), PUBLICATIONS)
                    assert found == table_fingerprints(connection, oids.values(), PUBLICATIONS)
                    assert column in found[oids["one"]].numbers
                    assert names.names(connection, PUBLICATIONS) == published_names(connection, PUBLICATIONS)
            assert names.read_count == 4
            assert remembered.read_count == len(oids) + 1
    finally:
        database.execute(f"DROP ROLE {database.name}_asks")


@pytest.mark.parametrize("version", [14, 18])
def test_a_server_that_gives_a_lost_transactions_number_again_is_another(version: Version) -> None:
    conf = {"synchronous_commit": "off", "wal_writer_delay": "10s", "autovacuum": "off", "fsync": "off"}
    with temporary_postgres(version=version, conf=conf) as server:
        database = Database(server, "postgres")
        oids = _made(database)
        followed = [oids[name] for name in ("one", "two")]  # no type of theirs is printed otherwise
        changes = [(f"lost{i}", f"kept{i}") for i in range(20)]
        for name in (each for both in changes for each in both):
            database.execute(f"CREATE TABLE of_{name} (id int)")
        database.execute("CHECKPOINT")
        remembered, names = RememberedFingerprints(), RememberedNames()

        def altered(column: str) -> object:
            database.execute(f"ALTER TABLE one ADD {column} int")
            database.execute(f"ALTER PUBLICATION p ADD TABLE of_{column}")
            with connect(database.dsn) as connection:
                found = remembered.fingerprints(connection, followed, PUBLICATIONS)
                assert found == table_fingerprints(connection, followed, PUBLICATIONS)
                assert names.names(connection, PUBLICATIONS) == published_names(connection, PUBLICATIONS)
            return database.execute(
                f"SELECT ctid, xmin FROM pg_attribute WHERE attname = '{column}' UNION ALL "
                f"SELECT ctid, xmin FROM pg_publication_rel WHERE prrelid = 'of_{column}'::regclass"
            )

        for lost, kept in changes:
            rows = altered(lost)
            _crash_in_place(database)
            rows_again = altered(kept)
            if rows == rows_again:  # else the server had written it
                break
        else:
            raise AssertionError("no transaction was lost: this test shows nothing")


def _crash_in_place(database: Database) -> None:
    """Kill a backend: the server drops what it has in memory and recovers, in the same process."""
    started = database.execute("SELECT pg_postmaster_start_time()")
    with connect(database.dsn) as connection:
        os.kill(connection.info.backend_pid, signal.SIGKILL)
    for _ in range(100):
        try:
            assert database.execute("SELECT pg_postmaster_start_time()") == started
        except psycopg.OperationalError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the server did not come back")
