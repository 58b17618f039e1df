# ruff: noqa: E501  (a statement is read as a line)
"""Tables and statements of histories in which everything comes together: what each table is taken as, and drawn work."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import Any

import psycopg
from hypothesis import strategies as st

from tests.conftest import Database
from tests.e2e.oracle import source_rows
from tests.e2e.scenarios import big

# Table → (what the pipeline file says of it, what the lake must then hold).
TABLES = {
    "chosen": ("filter: 'k % 2 = 0 OR k > 100', columns: [k, a, big]", "SELECT k, a, big FROM chosen WHERE k % 2 = 0 OR k > 100"),
    "wholly": ("filter: \"n > 0 OR a = 'w'\"", "SELECT * FROM wholly WHERE n > 0 OR a = 'w'"),
    "bag": ("filter: \"a <> 'w'\"", "SELECT * FROM bag WHERE a <> 'w'"),
    "shifting": ("", "SELECT * FROM shifting"),
    "keyless": ("filter: k > 2, mode: [history]", "SELECT * FROM keyless WHERE k > 2"),
    "switching": ("on_drop: drop", "SELECT * FROM switching"),
}  # fmt: skip
# Of these the columns stay as they are: what held at any past point can be compared.
STEADY = ("chosen", "wholly", "bag")
SETUP = """
CREATE SEQUENCE rows START 1000; CREATE TABLE chosen (k int PRIMARY KEY, a text, big text, n numeric(8,2));
CREATE TABLE wholly (k int PRIMARY KEY, a text, big text, n numeric(8,2)); ALTER TABLE wholly REPLICA IDENTITY
FULL; CREATE TABLE bag (k int, a text, big text, n numeric(8,2)); ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE shifting (k int PRIMARY KEY, a text, big text, n numeric(8,2), c int, d text);
CREATE TABLE keyless (k int PRIMARY KEY, a text, big text, n numeric(8,2), c int NOT NULL GENERATED ALWAYS AS
IDENTITY); ALTER TABLE keyless REPLICA IDENTITY FULL; CREATE TABLE switching (k int PRIMARY KEY, code int NOT
NULL UNIQUE GENERATED ALWAYS AS IDENTITY, a text, big text, n numeric(8,2));
""" + "; ".join(
    f"INSERT INTO {t} (k, a, big, n) SELECT g, 'v', {big(1)}, g - 3 FROM generate_series(1, 5) g" for t in TABLES
)  # fmt: skip

_key = st.integers(1, 6)
_value = st.sampled_from(["NULL", "''", "'v'", "'w'"])
_number = st.sampled_from(["NULL", "1.5", "'NaN'", "-3"])
_big = st.one_of(st.just("NULL"), st.just("'short'"), st.integers(1, 4).map(big))
_set = st.one_of(
    _value.map(lambda v: f"a = {v}"), _number.map(lambda v: f"n = {v}"), _big.map(lambda v: f"big = {v}")
)
_statement = st.one_of(
    st.builds(lambda k, a, b, n: f"INSERT INTO {{t}} (k, a, big, n) VALUES ({k}, {a}, {b}, {n})", _key, _value, _big, _number),
    st.builds(lambda k, s: f"UPDATE {{t}} SET {s} WHERE k = {k}", _key, _set),
    st.builds(lambda old, new: f"UPDATE {{t}} SET k = {new} WHERE k = {old}", _key, _key),
    st.builds(lambda old, new, s: f"UPDATE {{t}} SET k = {new}, {s} WHERE k = {old}", _key, _key, _set),
    st.builds(lambda k: f"DELETE FROM {{t}} WHERE k = {k}", _key),
    st.builds(lambda k: f"DELETE FROM {{t}} WHERE ctid = (SELECT min(ctid) FROM {{t}} WHERE k = {k})", _key),
    st.sampled_from(["UPDATE {t} SET k = k + 101 WHERE k < 100", "UPDATE {t} SET k = k - 101 WHERE k > 100", "TRUNCATE {t}"]),
    st.just("UPDATE {t} SET k = 7 - k WHERE k < 7"),
)  # fmt: skip
_columns = st.sampled_from([
    "ADD c int", "ADD d text DEFAULT 'old'", "ADD c text DEFAULT md5(random()::text)", "DROP c", "DROP d", "DROP a",
    "ADD a text", "RENAME c TO d", "RENAME d TO c", "RENAME a TO x", "RENAME x TO a", "RENAME big TO y", "RENAME y TO big",
    "ALTER c TYPE text USING 'x' || c", "ALTER c TYPE int USING length(c::text)", "ALTER d TYPE varchar(9) USING left(d::text, 3)",
    "ALTER n TYPE numeric(9,2)", "ALTER n TYPE numeric(12,2)", "ALTER n TYPE numeric(8,2) USING 1",
    "ADD e int GENERATED ALWAYS AS IDENTITY", "DROP e", "ADD g int DEFAULT 3, DROP IF EXISTS c",
    "DROP CONSTRAINT shifting_pkey, REPLICA IDENTITY FULL", "ADD CONSTRAINT shifting_pkey PRIMARY KEY (k), REPLICA IDENTITY DEFAULT",
    "REPLICA IDENTITY FULL", "REPLICA IDENTITY DEFAULT", "ALTER k TYPE bigint", "ALTER k TYPE int",
    "DROP CONSTRAINT shifting_pkey, ADD CONSTRAINT shifting_pkey PRIMARY KEY (k, n)",
])  # fmt: skip
_elsewhere = st.sampled_from([
    "ALTER TABLE keyless DROP CONSTRAINT keyless_pkey", "ALTER TABLE keyless ADD CONSTRAINT keyless_pkey PRIMARY KEY (k)",
    "ALTER TABLE keyless DROP CONSTRAINT keyless_pkey, ADD CONSTRAINT keyless_pkey PRIMARY KEY (c)",
    "ALTER TABLE keyless ADD d int", "ALTER TABLE keyless DROP d", "ALTER TABLE keyless ADD e text DEFAULT 'e'", "ALTER TABLE keyless RENAME e TO f",
    "ALTER TABLE switching REPLICA IDENTITY FULL", "ALTER TABLE switching REPLICA IDENTITY DEFAULT",
    "ALTER TABLE switching REPLICA IDENTITY USING INDEX switching_code_key", "ALTER TABLE switching DROP a", "ALTER TABLE switching ADD a text DEFAULT 'again'",
    "ALTER TABLE switching REPLICA IDENTITY NOTHING", "ALTER TABLE wholly SET (fillfactor = 50)", "VACUUM FULL chosen",
    "ALTER EVENT TRIGGER slotlake_ddl DISABLE", "ALTER EVENT TRIGGER slotlake_ddl ENABLE", "TRUNCATE chosen, shifting, bag", "CLUSTER switching USING switching_code_key",
])  # fmt: skip
_change = st.tuples(st.sampled_from(sorted(TABLES)), _statement).map(lambda pair: pair[1].format(t=pair[0]))
_altered = _columns.map(lambda change: f"ALTER TABLE shifting {change}")
_shifted = _statement.map(lambda statement: statement.format(t="shifting"))
_work = st.one_of(_change, _change, _change, _change, _shifted, _altered, _elsewhere)
_part = st.one_of(
    _work.map(lambda s: [s]),
    _work.map(lambda s: [s]),
    st.lists(_work, min_size=1, max_size=3).map(lambda s: ["SAVEPOINT s", *s, "ROLLBACK TO SAVEPOINT s"]),
    st.lists(_work, min_size=1, max_size=3).map(lambda s: ["SAVEPOINT s", *s, "RELEASE SAVEPOINT s"]),
)
_transaction = st.lists(_part, min_size=1, max_size=5).map(lambda parts: [s for part in parts for s in part])
FAILPOINTS = (
    "pull.renamed",
    "apply.between_tables",
    "apply.between_tables:3",
    "apply.between_modes",
    "apply.between_modes:4",
    "publish.before_swap",
    "publish.after_swap",
    "evolve.copying",
    "evolve.compared",
    "evolve.copied",
)
# Transactions, and where the run that takes them dies.
_piece = st.tuples(
    st.lists(_transaction, min_size=1, max_size=5), st.one_of(st.just(""), st.sampled_from(FAILPOINTS))
)
histories = st.lists(_piece, min_size=2, max_size=4)


def run(connection: psycopg.Connection[Any], transaction: list[str]) -> None:
    """A statement that cannot be done is left out; one that allows no transaction has none."""
    if len(transaction) == 1:
        with suppress(psycopg.Error):
            connection.execute(transaction[0].encode())
        return
    with connection.transaction():
        for statement in transaction:
            if "SAVEPOINT" in statement:
                connection.execute(statement.encode())
                continue
            with suppress(psycopg.Error), connection.transaction():
                connection.execute(statement.encode())


def seen(connection: psycopg.Connection[Any]) -> None:
    """Columns join and leave with the next change of a row: each table that may have altered gets one."""
    for table in sorted(TABLES.keys() - set(STEADY)):
        connection.execute(f"INSERT INTO {table} (k) VALUES (nextval('rows'))".encode())


def held(database: Database) -> dict[str, Counter[Any]]:
    """What the lake must hold now."""
    with database.connect() as connection:
        return {t: source_rows(connection, f"({query}) AS t")[1] for t, (_, query) in TABLES.items()}


def sections() -> str:
    """Of the pipeline file."""
    listed = [f"  {table}: {{{said}}}" for table, (said, _) in TABLES.items()]
    return "mode: [history, append]\ntables:\n" + "\n".join(listed) + "\n"
