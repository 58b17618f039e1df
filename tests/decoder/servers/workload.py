"""One workload for every server and every way of asking it: what it does, and what a reader must find.

Transactions are interleaved, larger than the test servers' memory for decoding (so that they are streamed
where that is asked for), with savepoints, aborts, TOASTed values, keys that change, truncations, a table that
changes its shape, logical messages, replication origins and prepared transactions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotlake.decoder.changelog.batches import Batch
from slotlake.decoder.server.source import SourceSettings
from slotlake.decoder.stream.pull import pull
from tests.conftest import Database
from tests.decoder.sources import replayed

TABLES = {
    "items": "id::text, name, price::text, body, extra::text",
    "whole": "id::text, a::text, b",
    "indexed": "code::text, n::text, body",
}
_SETUP = """
CREATE TABLE items (id int PRIMARY KEY, name text, price numeric(10, 2), body text);
CREATE TABLE whole (id bigint PRIMARY KEY, a int[], b text);
CREATE TABLE indexed (code uuid NOT NULL, n float8, body text);
CREATE TABLE silent (n int);
CREATE UNIQUE INDEX indexed_code ON indexed (code);
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_code;
ALTER TABLE items ALTER body SET STORAGE EXTERNAL;
ALTER TABLE indexed ALTER body SET STORAGE EXTERNAL;
CREATE PUBLICATION p FOR TABLE items, whole, indexed;
"""
# A session and its statement, in this order.  Two large transactions, a and b, run into each other.
_STEPS = """
c INSERT INTO items SELECT i, 'n' || i, i * 1.5, repeat('x', 300) FROM generate_series(1, 400) i
c SELECT pg_logical_emit_message(false, 'p', 'before')
a BEGIN
b BEGIN
a INSERT INTO items SELECT i, 'a' || i, i, repeat('a', 300) FROM generate_series(1001, 1400) i
b INSERT INTO whole SELECT i, array[i, null, -i], repeat('b', 300) FROM generate_series(1, 400) i
a SAVEPOINT one
a UPDATE items SET price = price + 1 WHERE id > 1000
b SELECT pg_logical_emit_message(true, 'p', 'inside b')
b SAVEPOINT one
b DELETE FROM whole WHERE id % 2 = 0
a ROLLBACK TO one
a DELETE FROM items WHERE id % 7 = 0
b ROLLBACK TO one
b UPDATE whole SET id = id + 10000, a = NULL WHERE id % 5 = 0
a SELECT pg_logical_emit_message(false, 'p', 'while both are open')
c INSERT INTO silent VALUES (1)
b COMMIT
a SAVEPOINT two
a INSERT INTO indexed SELECT md5(i::text)::uuid, i / 3.0, repeat('i', 4000) FROM generate_series(1, 50) i
a RELEASE two
a COMMIT
c UPDATE items SET name = upper(name) WHERE id < 50
c UPDATE indexed SET n = 'NaN'
c UPDATE indexed SET code = md5(n::text || code::text)::uuid WHERE n IS NOT NULL
c UPDATE items SET id = -id WHERE id % 3 = 0
a BEGIN
a INSERT INTO items SELECT i, 'gone', i, repeat('g', 300) FROM generate_series(5001, 5400) i
a ROLLBACK
a BEGIN
a INSERT INTO items VALUES (7001, 'narrow', 1, 'x')
a ALTER TABLE items ADD COLUMN extra timestamptz
a INSERT INTO items SELECT i, 'wide', i, 'w', '2020-01-01 12:00:00.5+01' FROM generate_series(7002, 7400) i
a COMMIT
c UPDATE items SET extra = '1999-12-31', name = name WHERE id < 7001
c UPDATE items SET extra = 'infinity' WHERE id = 7001
o SELECT pg_replication_origin_create('origin_' || current_database())
o SELECT pg_replication_origin_session_setup('origin_' || current_database())
o BEGIN
o SELECT pg_replication_origin_xact_setup('0/ABCDEF', '2021-02-03 04:05:06+00')
o INSERT INTO whole VALUES (100077, '{7}', 'from elsewhere')
o COMMIT
o SELECT pg_replication_origin_session_reset()
a BEGIN
a INSERT INTO whole SELECT i, array[i], repeat('p', 300) FROM generate_series(20001, 20400) i
a PREPARE TRANSACTION 'kept_{database}'
b BEGIN
b INSERT INTO whole SELECT i, array[i], repeat('p', 300) FROM generate_series(30001, 30400) i
b PREPARE TRANSACTION 'dropped_{database}'
c INSERT INTO whole VALUES (100088, '{8}', 'while two are prepared')
b ROLLBACK PREPARED 'dropped_{database}'
a COMMIT PREPARED 'kept_{database}'
c TRUNCATE indexed
c INSERT INTO indexed VALUES (md5('last')::uuid, 1e300, NULL)
c SELECT pg_logical_emit_message(false, 'p', 'after')
c SELECT pg_logical_emit_message(true, 'p', 'alone')
"""
COMMITTED = 15 + 1  # with a row or a transactional message; the transaction on `silent` is not one of them


def set_up(database: Database) -> None:
    """Make the tables and the publication."""
    database.execute(_SETUP)


def run(database: Database) -> None:
    """Do all of it; ends with everything on disk."""
    sessions = {name: database.connect() for name in "abco"}
    for line in _STEPS.strip().splitlines():
        name, _, statement = line.partition(" ")
        sessions[name].execute(statement.replace("{database}", database.name).encode())
    for session in sessions.values():
        session.close()
    database.execute("SELECT pg_replication_origin_drop('origin_' || current_database())")


def pulled(source: SourceSettings, directory: Path, start: int) -> Batch:
    """All of it as one batch, checked against its digests."""
    batch = pull(source, "test", directory, start=start)
    batch.verify()
    return batch


def contents(batch: Batch) -> dict[str, dict[Any, tuple[Any, ...]]]:
    """What the batch makes of each table."""
    return {name: replayed([batch], table=name) for name in TABLES}


def truth(database: Database) -> dict[str, dict[Any, tuple[Any, ...]]]:
    """The same of the live tables."""
    with database.connect(options="-c TimeZone=UTC") as connection:
        return {
            name: {row[0]: row for row in connection.execute(f"SELECT {columns} FROM {name}").fetchall()}
            for name, columns in TABLES.items()
        }


def transactions(batch: Batch) -> list[tuple[int, int, int, str | None]]:
    """(xid, commit LSN, end LSN, origin) of each, in commit order."""
    rows = batch.transaction_table().to_pylist()
    return [(row["xid"], row["commit_lsn"], row["end_lsn"], row["origin"]) for row in rows]


def messages(batch: Batch) -> list[tuple[bool, str]]:
    """(transactional, content) of each logical message, in order."""
    table = batch.message_table()
    rows = [] if table is None else sorted(table.to_pylist(), key=lambda row: row["seq"])
    return [(row["transactional"], row["content"].decode()) for row in rows]
