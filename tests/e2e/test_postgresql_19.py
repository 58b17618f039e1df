"""What is new in PostgreSQL 19, from `validate` to `verify`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from slotlake import Pipeline
from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.slots.slot import create_slot
from slotlake.infra.local.postgres import temporary_postgres
from slotlake.infra.status.validation import validate
from tests.conftest import LONG, Database
from tests.debian_postgres import debian_postgres
from tests.e2e.oracle import assert_equal, pipeline_file

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not LONG, reason="PostgreSQL 19 is fetched from Debian's packages: SLOTLAKE_TEST_LONG=1"
    ),
]
SETUP = """
CREATE EXTENSION btree_gist;
CREATE TABLE t (id int PRIMARY KEY, at pg_lsn, big oid8, db regdatabase, v text,
                twice int GENERATED ALWAYS AS (id * 2) VIRTUAL, kept int GENERATED ALWAYS AS (id * 3) STORED);
CREATE TABLE lsns (at pg_lsn PRIMARY KEY, v oid8[]);
CREATE TABLE valid (id int, during int4range, price int, PRIMARY KEY (id, during WITHOUT OVERLAPS));
CREATE TABLE p (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);
CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
CREATE TABLE p2 PARTITION OF p FOR VALUES FROM (10) TO (20);
CREATE TABLE excepted (id int PRIMARY KEY); CREATE SEQUENCE numbers;
INSERT INTO t VALUES (1, '0/2A', '18446744073709551615', 'postgres', repeat('long', 5000));
INSERT INTO t VALUES (2);
INSERT INTO lsns VALUES ('0/0', '{1,18446744073709551615}'), ('16/B374D848', NULL);
INSERT INTO valid VALUES (1, '[1,100)', 5);
INSERT INTO p SELECT g, 'v' FROM generate_series(0, 19) g;
CREATE PUBLICATION shop FOR ALL TABLES EXCEPT (TABLE excepted), ALL SEQUENCES
    WITH (publish_via_partition_root, publish_generated_columns = stored)
"""
TABLES = ["t", "lsns", "valid", "p"]
TURNS = """
UPDATE valid SET during = '[1,50)', price = 6; INSERT INTO valid VALUES (1, '[50,100)', 7)

UPDATE t SET id = id + 10, at = '0/FF';
UPDATE lsns SET at = '0/1' WHERE at = '0/0';
INSERT INTO excepted VALUES (1)

INSERT INTO t (id, v) SELECT g, 'x' FROM generate_series(100, 900) g; DELETE FROM t WHERE id % 3 = 0

REPACK t; UPDATE t SET v = 'repacked' WHERE id % 5 = 0

REPACK (CONCURRENTLY) t; UPDATE t SET v = 'again' WHERE id % 7 = 0

DELETE FROM p WHERE id > 17; UPDATE p SET id = id + 10, v = 'moved' WHERE id = 8; DELETE FROM p WHERE id = 3

INSERT INTO t (id, v) VALUES (5000, 'y') ON CONFLICT (id) DO SELECT RETURNING v; SELECT nextval('numbers')
""".strip().split("\n\n")


@pytest.fixture(scope="module")
def server() -> Iterator[Database]:
    """With `wal_level = replica`, which is enough from 19 on."""
    with temporary_postgres(programs=debian_postgres(19), conf={"wal_level": "replica"}) as running:
        database = Database(running, "postgres")
        database.execute(SETUP)
        yield database


@pytest.mark.parametrize("binary", ["true", "false"])
def test_a_life(server: Database, connect: str, tmp_path: Path, binary: str) -> None:
    made = Database(server.server, f"life_{binary}")
    server.execute(f"CREATE DATABASE {made.name} TEMPLATE template0")
    made.execute(SETUP)
    if binary == "true":  # the name of a database is known to the server alone
        made.execute("ALTER TABLE t DROP db")
    file = pipeline_file(tmp_path, made, [], source=f"binary: {binary}")
    report = validate(file, remote=connect)
    assert report.valid, report.checks
    with Pipeline.open(file, remote=connect) as pipeline:
        pipeline.init()
        assert made.execute("SHOW effective_wal_level") == [("logical",)]
        assert_equal_stored(made, pipeline)
        for turn in TURNS:
            for statement in turn.split(";"):
                made.execute(statement)
            pipeline.sync()
            assert_equal_stored(made, pipeline)
        assert pipeline.verify().equal
        assert "excepted" not in {each.table for each in pipeline.status().tables}
        made.execute(
            "ALTER PUBLICATION shop SET ALL TABLES EXCEPT (TABLE lsns)"
        )  # it has left, and one joins
        made.execute("INSERT INTO lsns VALUES ('0/77'); UPDATE t SET v = 'left'")
        pipeline.sync()
        assert_equal(made, pipeline, ["excepted", "valid", "p"])
        assert pipeline.verify().equal
        assert pipeline.status().alarms == []


def assert_equal_stored(database: Database, pipeline: Pipeline) -> None:
    """As the source has it, without columns that are stored nowhere."""
    columns = [
        name for (name,) in database.execute(
            "SELECT attname FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0 "
            "AND NOT attisdropped AND attgenerated <> 'v' ORDER BY attnum"
        )
    ]  # fmt: skip
    assert_equal(database, pipeline, [name for name in TABLES if name != "t"])
    wanted = database.execute(f"SELECT {', '.join(f'{name}::text' for name in columns)} FROM t")
    assert sorted(map(str, map(tuple, pipeline.rows("t")))) == sorted(map(str, wanted))


def test_a_plugin_that_the_server_does_not_name_is_refused(server: Database) -> None:
    with pytest.raises(SourceError, match="does not let this output plugin be used") as caught:
        create_slot(SourceSettings(server.dsn, ("shop",), "other", plugin="wal2json"))
    assert "output_plugin_libraries" in caught.value.way_out


def test_minimal_is_still_too_low() -> None:
    conf = {"wal_level": "minimal", "max_wal_senders": "0"}
    with temporary_postgres(programs=debian_postgres(19), conf=conf) as running:
        with pytest.raises(SourceError):
            create_slot(SourceSettings(running.dsn(), ("p",), "s"))
        with psycopg.connect(running.dsn()) as connection:
            assert connection.execute("SELECT count(*) FROM pg_replication_slots").fetchone() == (0,)
