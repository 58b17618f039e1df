# ruff: noqa: E501  (a statement is read as a line)
"""Random transactions in, the lake equals the source: Hypothesis writes them, PostgreSQL judges."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg import sql

from slotlake import Pipeline
from slotlake.infra.local.postgres import EmbeddedPostgres
from tests.conftest import Database, drop_database
from tests.e2e.oracle import differences, pipeline_file
from tests.e2e.scenarios import big

pytestmark = pytest.mark.timeout(600)

TABLES = ["by_key", "by_index", "by_pair", "full_with_key", "bag", "switching", "shifting"]
EXAMPLES = int(os.environ.get("SLOTLAKE_TEST_HISTORIES", "6"))
_SETUP = """
CREATE TABLE by_key (k int PRIMARY KEY, a text, big text, n numeric(8,2));
CREATE TABLE by_index (a text, k int NOT NULL, big text, n numeric(8,2)); CREATE UNIQUE INDEX by_index_k ON
by_index (k); ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_k;
CREATE TABLE by_pair (big text, k int, k2 text DEFAULT 'x', a text, n numeric(8,2), PRIMARY KEY (k2, k));
CREATE TABLE full_with_key (k int PRIMARY KEY, a text, big text, n numeric(8,2)); ALTER TABLE full_with_key
REPLICA IDENTITY FULL; CREATE TABLE bag (k int, a text, big text, n numeric(8,2)); ALTER TABLE bag REPLICA
IDENTITY FULL; CREATE TABLE shifting (k int PRIMARY KEY, a text, big text, n numeric(8,2), c int, d text);
CREATE TABLE switching (k int PRIMARY KEY, code int NOT NULL UNIQUE GENERATED ALWAYS AS IDENTITY, a text, big
text, n numeric(8,2));
"""
# What names a row of `switching`; a key goes only where whole rows are sent, and comes back where it can.
_SWITCHES = [
    "ALTER TABLE switching REPLICA IDENTITY FULL",
    "ALTER TABLE switching REPLICA IDENTITY USING INDEX switching_code_key",
    "DO $$ BEGIN IF EXISTS (SELECT FROM pg_index WHERE indrelid = 'switching'::regclass AND indisprimary) THEN ALTER TABLE switching REPLICA IDENTITY NOTHING; INSERT INTO switching (k) VALUES (5) ON CONFLICT DO NOTHING; ALTER TABLE switching REPLICA IDENTITY DEFAULT; END IF; END $$",
    "ALTER TABLE switching REPLICA IDENTITY FULL; ALTER TABLE switching DROP CONSTRAINT IF EXISTS switching_pkey",
    "DO $$ BEGIN ALTER TABLE switching ADD PRIMARY KEY (k); EXCEPTION WHEN unique_violation OR invalid_table_definition OR not_null_violation THEN NULL; END $$",
]

# What happens to columns of `shifting`, each time with a row that changes after it: that is when a column is
# seen.
_COLUMNS = [
    f"DO $$ BEGIN {ddl}; INSERT INTO shifting (k) VALUES (7) ON CONFLICT (k) DO UPDATE SET n = coalesce(shifting.n, 0) + 1; "
    "EXCEPTION WHEN undefined_column OR duplicate_column OR datatype_mismatch OR invalid_text_representation OR numeric_value_out_of_range THEN NULL; END $$"
    for ddl in (
        "ALTER TABLE shifting ADD c int",
        "ALTER TABLE shifting ADD d text DEFAULT 'old'",
        "ALTER TABLE shifting ADD c text DEFAULT md5(random()::text)",
        "ALTER TABLE shifting DROP c",
        "ALTER TABLE shifting DROP d",
        "ALTER TABLE shifting RENAME c TO d",
        "ALTER TABLE shifting RENAME d TO c",
        "ALTER TABLE shifting ALTER c TYPE text USING 'x' || c",
        "ALTER TABLE shifting ALTER c TYPE int USING length(c::text)",
        "ALTER TABLE shifting ALTER d TYPE varchar(9) USING left(d::text, 3)",
        "ALTER TABLE shifting ALTER n TYPE numeric(9,2)",
        "UPDATE shifting SET c = k",
        "UPDATE shifting SET d = k::text WHERE k < 4",
    )
]

_key = st.integers(1, 5)
_value = st.sampled_from(["NULL", "''", "'v'", "'w'", "E'\\n'"])
_number = st.sampled_from(["NULL", "1.5", "'NaN'", "-3"])
_big = st.one_of(st.just("NULL"), st.just("'short'"), st.integers(1, 4).map(big))
_set = st.one_of(
    _value.map(lambda v: f"a = {v}"), _number.map(lambda v: f"n = {v}"), _big.map(lambda v: f"big = {v}")
)


def _insert(k: int, a: str, b: str, n: str) -> str:
    return f"INSERT INTO {{t}} (k, a, big, n) VALUES ({k}, {a}, {b}, {n}) ON CONFLICT DO NOTHING"


def _move(old: int, new: int, also: str) -> str:
    return f"UPDATE {{t}} SET k = {new}, {also} WHERE k = {old} AND NOT EXISTS (SELECT 1 FROM {{t}} WHERE k = {new})"


_statement = st.one_of(
    st.builds(_insert, _key, _value, _big, _number),
    st.builds(lambda k, s: f"UPDATE {{t}} SET {s} WHERE k = {k}", _key, _set),
    st.builds(_move, _key, _key, _set),
    st.builds(lambda k: f"DELETE FROM {{t}} WHERE k = {k}", _key),
    st.just("UPDATE {t} SET k = k + 100"),
    st.just(
        "UPDATE {t} SET k = k - 100 WHERE k > 100 AND NOT EXISTS (SELECT 1 FROM {t} o WHERE o.k = {t}.k - 100)"
    ),
    st.builds(lambda k: f"DELETE FROM {{t}} WHERE ctid = (SELECT min(ctid) FROM {{t}} WHERE k = {k})", _key),
    st.just("TRUNCATE {t}"),
)
_change = st.tuples(st.sampled_from(TABLES), _statement).map(lambda pair: pair[1].format(t=pair[0]))
_work = st.one_of(_change, _change, _change, _change, st.sampled_from(_SWITCHES), st.sampled_from(_COLUMNS))
_lost = st.lists(_work, min_size=1, max_size=3).map(lambda s: ["SAVEPOINT s", *s, "ROLLBACK TO SAVEPOINT s"])
_transaction = st.lists(st.one_of(_work.map(lambda s: [s]), _lost), min_size=1, max_size=5).map(
    lambda parts: [statement for part in parts for statement in part]
)
_history = st.lists(_transaction, min_size=1, max_size=6)


@pytest.fixture(scope="module")
def shop(
    pg: EmbeddedPostgres, session: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Any, Any]]:
    """One pipeline that all histories go through, one after the other."""
    name = f"histories_{os.getpid()}"
    with psycopg.connect(pg.dsn(), autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    database = Database(pg, name)
    database.execute(_SETUP)
    folder: Path = tmp_path_factory.mktemp("histories")
    with Pipeline.open(pipeline_file(folder, database, TABLES)) as pipeline:
        pipeline.init()
        yield database, pipeline
    drop_database(pg, name)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(history=_history)
def test_any_history(shop: tuple[Database, Any], history: list[list[str]]) -> None:
    database, pipeline = shop
    with database.connect() as connection:
        for transaction in history:
            # One that fails, because a key is taken, is a transaction that was rolled back.
            with suppress(psycopg.errors.UniqueViolation), connection.transaction():
                for statement in transaction:
                    connection.execute(statement)
    pipeline.sync()
    assert differences(database, pipeline, TABLES) == {}


def test_the_lake_still_verifies(shop: tuple[Database, Any]) -> None:
    _, pipeline = shop
    report = pipeline.verify()
    assert report.equal, report
