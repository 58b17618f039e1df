# ruff: noqa: E501  (a statement is read as a line)
"""What decides how values are printed: it is there again as long as no text that there is has changed."""

from __future__ import annotations

from slotlake.decoder.catalog.type_texts import printed_by
from slotlake.decoder.server.source import connect
from tests.conftest import Database

SETUP = """
CREATE TYPE mood AS ENUM ('sad', 'fine'); CREATE TYPE swing AS RANGE (subtype = mood); CREATE TYPE pair AS (m mood, n int);
CREATE DOMAIN moods AS mood[]; CREATE TYPE thing AS (n int, v text); CREATE TABLE referred (id int); CREATE TABLE other (id int);
CREATE TABLE t (mood mood, array_ mood[], domain_ moods, range_ swing, multi swing[], nested pair[], thing thing, table_ regclass, tables regclass[], plain int, words text[])
"""
MOODS = {"mood", "array_", "domain_", "range_", "multi", "nested"}
# What happens → columns whose text changed.
STEPS = [
    ("ALTER TYPE mood ADD VALUE 'glad' BEFORE 'fine'", set()),
    ("ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", MOODS),
    ("ALTER TYPE mood RENAME VALUE 'blue' TO 'sad'; ALTER TYPE mood RENAME VALUE 'sad' TO 'blue'", MOODS),
    ("ALTER TYPE thing ADD ATTRIBUTE more text", {"thing"}),
    ("ALTER TYPE thing DROP ATTRIBUTE more; ALTER TYPE thing RENAME ATTRIBUTE v TO w", {"thing"}),
    ("CREATE TABLE one_more (id int); CREATE TEMP TABLE passing (id int); CREATE INDEX ON other (id)", set()),
    ("ALTER TABLE one_more ADD c int; GRANT SELECT ON other TO PUBLIC; REINDEX TABLE other", set()),
    ("ALTER TABLE referred RENAME TO found", {"table_", "tables"}),
    ("CREATE SCHEMA far; ALTER TABLE other SET SCHEMA far", {"table_", "tables"}),
    ("ALTER SCHEMA far RENAME TO near", {"table_", "tables"}),
    ("DROP TABLE near.other", {"table_", "tables"}),
]


def test_what_changes_a_text_and_what_does_not(database: Database) -> None:
    database.execute(SETUP)
    columns = database.execute(
        "SELECT attname, atttypid::bigint FROM pg_attribute WHERE attrelid = 't'::regclass AND attnum > 0"
    )
    types = dict(columns)
    with connect(database.dsn) as connection:
        before = printed_by(connection, types.values())
        assert {name for name, oid in types.items() if oid not in before} == {"plain", "words"}
        for statements, changed in STEPS:
            with database.connect() as other:
                for statement in statements.split("; "):
                    other.execute(statement.encode())
                now = printed_by(connection, types.values())
            assert {n for n, oid in types.items() if before.get(oid, set()) - now.get(oid, set())} == changed
            before = now
