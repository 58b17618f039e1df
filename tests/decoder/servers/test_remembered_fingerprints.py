"""What is remembered of the source's catalog says what a new look says, after each kind of change."""

from __future__ import annotations

import pytest

from slotlake.decoder.catalog.fingerprints import TableFingerprint, table_fingerprints
from slotlake.decoder.catalog.remembered_fingerprints import RememberedFingerprints
from slotlake.decoder.server.source import connect
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

    def read() -> tuple[dict[int, TableFingerprint], int]:
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
        for statement in change.split(";"):
            database.execute(statement)
        now, counts[change] = read()
        with connect(database.dsn) as connection:
            assert now == table_fingerprints(connection, oids.values(), PUBLICATIONS), change
        same = [oid for oid in now if now[oid] is earlier.get(oid)]
        assert len(same) == len(now) - counts[change], change
    assert counts == CHANGES


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
