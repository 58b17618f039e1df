"""What publications hold, read without a lock: as the server's own view has it, and beside locked tables."""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
import pytest

from slotlake.decoder.catalog.fingerprints import table_fingerprints
from slotlake.decoder.catalog.publication_tables import UNREAD_FILTER, published_names, published_rows
from slotlake.decoder.catalog.publications import source_tables, unsent_warnings
from slotlake.decoder.catalog.row_filters import partition_identities
from slotlake.decoder.copy.parts import part_query, plan_parts
from slotlake.decoder.errors import SourceUnavailableError
from slotlake.decoder.plugins.changelog import published_columns
from slotlake.decoder.server.source import SourceSettings, connect
from slotlake.infra.local.postgres import Version
from slotlake.infra.recover.compare import sizes
from tests.conftest import LONG, SERVER_VERSIONS, Database
from tests.debian_postgres import IN_DEBIAN_ONLY

pytestmark = pytest.mark.server
SETUP = """
CREATE SCHEMA s; CREATE SCHEMA s2;
CREATE TABLE a (id int PRIMARY KEY, v text, g int GENERATED ALWAYS AS (id * 2) STORED);
ALTER TABLE a ADD d int; ALTER TABLE a DROP d;
CREATE TABLE s.b (id int PRIMARY KEY); CREATE UNLOGGED TABLE s.u (id int); CREATE VIEW s.w AS SELECT 1;
CREATE TABLE bare (); CREATE TABLE made (g int GENERATED ALWAYS AS (1) STORED);
CREATE TABLE root (id int PRIMARY KEY, v int) PARTITION BY RANGE (id);
CREATE TABLE mid PARTITION OF root FOR VALUES FROM (0) TO (100) PARTITION BY RANGE (id);
CREATE TABLE s.leaf1 PARTITION OF mid FOR VALUES FROM (0) TO (50);
CREATE TABLE s2.leaf2 PARTITION OF mid FOR VALUES FROM (50) TO (100);
CREATE TABLE leaf3 PARTITION OF root FOR VALUES FROM (100) TO (200);
CREATE TABLE s.root2 (id int PRIMARY KEY) PARTITION BY RANGE (id);
CREATE TABLE s2.leaf4 PARTITION OF s.root2 DEFAULT;
CREATE TABLE parent (id int); CREATE TABLE child () INHERITS (parent)
"""
NAMED = [
    "FOR ALL TABLES",
    "FOR TABLE a, s.b, parent, child, bare",
    "FOR TABLE root",
    "FOR TABLE mid, root",
    "FOR TABLE leaf3, root, s.leaf1",
    "FOR TABLE s.leaf1",
    "FOR TABLE ONLY parent",
]
SINCE_15 = [
    "FOR TABLES IN SCHEMA s",
    "FOR TABLES IN SCHEMA s2, TABLE root",
    "FOR TABLES IN SCHEMA s, s2",
    "FOR TABLE a (v, id) WHERE (v <> 'x''y' AND id < 5), s.b WHERE (id > 3)",
    "FOR TABLE s.b WHERE (id < 5), TABLES IN SCHEMA s",
]
ROOTS_SINCE_15 = [
    "FOR TABLE root (id) WHERE (id > 7)",
    "FOR TABLE root WHERE (v > 7), s.leaf1 WHERE (id > 1)",
]


SINCE_19 = [
    "FOR ALL TABLES EXCEPT (TABLE a, root)",
    "FOR ALL TABLES EXCEPT (TABLE s.root2, ONLY parent), ALL SEQUENCES",
    "FOR ALL TABLES EXCEPT (TABLE parent)",
    "FOR ALL SEQUENCES",
]


@pytest.mark.parametrize("version", SERVER_VERSIONS)
def test_as_the_servers_own_view(database_on: Callable[[Version], Database], version: Version) -> None:
    with database_on(version).connect() as connection:
        connection.execute(SETUP.encode())
        bodies = [(body, root) for body in NAMED + SINCE_15 * (version >= 15) for root in ("false", "true")]
        bodies += [(body, "true") for body in ROOTS_SINCE_15 * (version >= 15)]
        bodies += [(body, root) for body in SINCE_19 * (version >= 19) for root in ("false", "true")]
        more = ["", *[", publish_generated_columns = stored"] * (version >= 18)]
        asked = [
            (body, f"publish_via_partition_root = {root}{each}") for body, root in bodies for each in more
        ]
        columns = "attnames::text[], rowfilter" if version >= 15 else "NULL, NULL"
        for number, (body, options) in enumerate(asked):
            connection.execute(f"CREATE PUBLICATION p{number} {body} WITH ({options})".encode())
            view = f"SELECT DISTINCT schemaname, tablename, {columns} FROM pg_publication_tables"
            where = f"WHERE pubname = 'p{number}' ORDER BY 1, 2"
            wanted = connection.execute(f"{view} {where}".encode()).fetchall()
            if version == 15:  # its view shows generated columns, which are not in the stream
                sent = [[c for c in row[2] or () if c != "g"] or None for row in wanted]
                wanted = [(*row[:2], of, row[3]) for row, of in zip(wanted, sent, strict=True)]
            rows = published_rows(connection, [f"p{number}"])
            found = [(row[1], row[2], row[5] or None, row[6]) for row in rows]
            assert found == wanted, (body, options)
            names = published_names(connection, [f"p{number}"])
            assert names == {row[:2] for row in wanted}
            assert _has_entry(connection, "a", f"p{number}") == (("public", "a") in names)


def _has_entry(connection: psycopg.Connection[tuple[object, ...]], table: str, publication: str) -> bool:
    """Has a table's fingerprint an entry that publishes it?"""
    row = connection.execute("SELECT %s::regclass::oid::bigint", [table]).fetchone()
    assert row is not None
    (fingerprint,) = table_fingerprints(connection, [int(str(row[0]))], [publication]).values()
    return bool(fingerprint.members)


# Bodies of several publications of one pipeline; "^": through the root.
TOGETHER = [
    ("FOR TABLE root ^", "FOR TABLE s.leaf1, leaf3"),
    ("FOR TABLE root", "FOR TABLE mid ^"),
    ("FOR TABLE mid ^", "FOR TABLE root ^", "FOR TABLE s.leaf1 ^"),
    ("FOR ALL TABLES ^", "FOR TABLE mid ^", "FOR TABLE s2.leaf2, s2.leaf4"),
    ("FOR ALL TABLES", "FOR TABLE mid ^"),
    ("FOR TABLE s.leaf1 ^", "FOR TABLE root"),
]
TOGETHER_SINCE_15 = [
    ("FOR TABLES IN SCHEMA s, s2 ^", "FOR TABLE root ^"),
    ("FOR TABLES IN SCHEMA s2", "FOR TABLE mid ^"),
]
TOGETHER_SINCE_19 = [
    ("FOR ALL TABLES EXCEPT (TABLE root) ^", "FOR TABLE mid"),
    ("FOR ALL TABLES EXCEPT (TABLE root, s.root2)", "FOR TABLE mid, s2.leaf4 ^"),
    ("FOR ALL TABLES EXCEPT (TABLE a), ALL SEQUENCES ^", "FOR TABLE s.leaf1"),
]
_WRITE = (
    "INSERT INTO root VALUES (1, 1), (51, 1), (101, 1); INSERT INTO s.root2 VALUES (1); "
    "DELETE FROM root; DELETE FROM s.root2"
)


@pytest.mark.parametrize("version", [14, 18, *IN_DEBIAN_ONLY * LONG])
def test_under_whose_name_several_publications_send(
    database_on: Callable[[Version], Database], version: Version
) -> None:
    with database_on(version).connect() as connection:
        connection.execute(SETUP.encode())
        cases = TOGETHER + TOGETHER_SINCE_15 * (version >= 15) + TOGETHER_SINCE_19 * (version >= 19)
        for case in cases:
            names = [f"p{number}" for number in range(len(case))]
            for name, body in zip(names, case, strict=True):
                through = "true" if body.endswith("^") else "false"
                options = f"WITH (publish_via_partition_root = {through})"
                connection.execute(f"CREATE PUBLICATION {name} {body.rstrip('^')} {options}".encode())
            connection.execute("SELECT pg_create_logical_replication_slot('names', 'pgoutput')")
            for statement in _WRITE.split("; "):
                connection.execute(statement.encode())
            trees = {"root", "mid", "leaf1", "leaf2", "leaf3", "root2", "leaf4"}
            listed = {table for _, table in published_names(connection, names)} & trees
            assert listed == _sent(connection, names), case
            connection.execute("SELECT pg_drop_replication_slot('names')")
            connection.execute(f"DROP PUBLICATION {', '.join(names)}".encode())


def _sent(connection: psycopg.Connection[tuple[object, ...]], names: list[str]) -> set[str]:
    """The tables under whose name there are rows in the stream."""
    changes = connection.execute(
        "SELECT data FROM pg_logical_slot_get_binary_changes('names', NULL, NULL, 'proto_version', '1', "
        "'publication_names', %s)",
        [",".join(names)],
        binary=True,
    ).fetchall()
    tables, sent = {}, set()
    for (data,) in changes:
        assert isinstance(data, bytes)
        if data[:1] == b"R":
            tables[data[1:5]] = data[5:].split(b"\0")[1].decode()
        elif data[:1] == b"I":
            sent.add(tables[data[1:5]])
    return sent


@pytest.mark.parametrize("how", ["open", "prepared", "waiting"])
def test_locked_tables_hold_nobody_up(database: Database, how: str) -> None:
    database.execute(SETUP)
    database.execute(
        "INSERT INTO a SELECT g, 'x' FROM generate_series(1, 9) g; ANALYZE a;"
        "CREATE PUBLICATION p FOR TABLE a WHERE (id < 5), s.b WHERE (id < 6);"
        "CREATE PUBLICATION q FOR TABLE root, parent WITH (publish_via_partition_root = true)"
    )
    locking = ("ALTER TABLE a ADD e int", "TRUNCATE s.leaf1", "ALTER TABLE parent ADD e int")
    with database.connect() as holder, database.connect() as waiter, connect(database.dsn) as connection:
        if how == "waiting":
            holder.execute("BEGIN; SELECT * FROM a; SELECT * FROM s.leaf1")
            waiter.pgconn.send_query(b"BEGIN; LOCK TABLE a; LOCK TABLE s.leaf1")
            _until_locked(database)
        else:
            for statement in ("BEGIN", *locking, *["PREPARE TRANSACTION 'alter'"] * (how == "prepared")):
                holder.execute(statement.encode())
        began = time.monotonic()
        tables = {table.table: table for table in source_tables(connection, ["p", "q"])}
        assert tables.keys() == {"a", "b", "root", "parent", "child"}
        assert UNREAD_FILTER in str(tables["a"].row_filter)
        assert tables["b"].row_filter == "((id < 6))"
        parts = plan_parts(connection, tables.values())
        assert len(parts[tables["root"]]) == 3
        oids = [table.relation_id for table in tables.values()]
        assert table_fingerprints(connection, oids, ["p", "q"]).keys() == set(oids)
        assert set(sizes(connection, oids)) == set(oids)
        partition_identities(connection, tables["root"].relation_id)
        assert published_columns(connection, SourceSettings(database.dsn, ("r",), "s")) == {}
        assert time.monotonic() - began < 5
        with pytest.raises(SourceUnavailableError, match=r"row filter of .*a.* cannot be read"):
            part_query(tables["a"], parts[tables["a"]][0])
        with pytest.raises(psycopg.errors.LockNotAvailable):
            connection.execute("SET lock_timeout = 100; SELECT * FROM a")
        if how == "waiting":
            waiter.close()  # in the middle of its statement
    if how == "prepared":
        database.execute("ROLLBACK PREPARED 'alter'")


def _until_locked(database: Database) -> None:
    until = time.monotonic() + 20
    while not database.execute("SELECT 1 FROM pg_locks WHERE NOT granted AND mode = 'AccessExclusiveLock'"):
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.mark.parametrize("version", [14, 18])
def test_partitions_of_which_nothing_is_sent(
    database_on: Callable[[Version], Database], version: Version
) -> None:
    """A publication that names a root lists them all; the server sends neither foreign nor unlogged ones."""
    database = database_on(version)
    database.execute(
        f"{SETUP}; ALTER TABLE root DROP CONSTRAINT root_pkey;"
        "CREATE FOREIGN DATA WRAPPER none; CREATE SERVER far FOREIGN DATA WRAPPER none;"
        "CREATE FOREIGN TABLE far_leaf PARTITION OF root FOR VALUES FROM (200) TO (300) SERVER far;"
        "ALTER TABLE leaf3 SET UNLOGGED; CREATE PUBLICATION p FOR TABLE root, a;"
        "CREATE PUBLICATION q FOR TABLE root, a WITH (publish_via_partition_root = true);"
        "CREATE PUBLICATION every FOR ALL TABLES"
    )
    with database.connect() as connection:
        by_leaf = {name for _, name in published_names(connection, ["p"])}
        assert by_leaf == {"a", "leaf1", "leaf2"}
        assert not {"far_leaf", "leaf3"} & {name for _, name in published_names(connection, ["every"])}
        for publication, words in (
            ("p", "nothing of it is sent or copied"),
            ("q", "no change of them is sent"),
        ):
            far, unlogged = unsent_warnings(connection, [publication])
            assert (far.table, unlogged.table) == ('"public"."far_leaf"', '"public"."leaf3"')
            assert "foreign table" in far.what
            assert "unlogged" in unlogged.what
            assert words in far.what
            assert words in unlogged.what
        assert unsent_warnings(connection, ["every"]) == []
