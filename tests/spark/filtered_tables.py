# ruff: noqa: E501  (a statement is read as a line)
"""Tables of which publications, or the lake, take some rows and columns; and random histories of them."""

from __future__ import annotations

import contextlib

import psycopg
from hypothesis import strategies as st

from tests.conftest import Database
from tests.e2e.scenarios import big

# Table → columns taken (none: all), filters (each that of another publication).
CHOSEN: dict[str, tuple[list[str], list[str]]] = {
    "by_key": ([], ["k % 2 = 0"]),
    "by_full": ([], ["n > 1 AND a LIKE 'v%' OR big IS NULL"]),
    "by_index": ([], ["a <> 'w' AND k < 100"]),
    "by_several": (["k", "n"], ["k = 1", "(k + 0.5) * 2 > 7.5"]),
    "by_bag": ([], ["coalesce(n, 2) >= 1.5"]),
}
# The server's own choice, and none.
FILTERED, WHOLE = ("one", "other"), ("whole",)
_COLUMNS = "k int, a text NOT NULL DEFAULT 'v', big text, n numeric(8,2)"


def _published(table: str) -> str:
    columns, filters = CHOSEN[table]
    listed = f"({', '.join(columns)})" if columns else ""
    return f"{table} {listed} WHERE ({filters[0]})"


SETUP = f"""
{" ".join(f"CREATE TABLE {table} ({_COLUMNS});" for table in CHOSEN)}
ALTER TABLE by_key ADD PRIMARY KEY (k); ALTER TABLE by_several ADD PRIMARY KEY (k); ALTER TABLE by_full ADD PRIMARY KEY (k);
ALTER TABLE by_full REPLICA IDENTITY FULL; ALTER TABLE by_bag REPLICA IDENTITY FULL;
ALTER TABLE by_index ALTER k SET NOT NULL; CREATE UNIQUE INDEX by_index_k ON by_index (k, a); ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_k;
CREATE PUBLICATION one FOR TABLE {", ".join(map(_published, CHOSEN))};
CREATE PUBLICATION other FOR TABLE by_several (k, n) WHERE ({CHOSEN["by_several"][1][1]});
CREATE PUBLICATION whole FOR TABLE {", ".join(CHOSEN)};
INSERT INTO by_key SELECT g, 'v', {big(0)}, g FROM generate_series(1, 8) g;
INSERT INTO by_full SELECT g, 'v', {big(1)}, g FROM generate_series(1, 8) g;
INSERT INTO by_index SELECT g, 'v', {big(2)}, g FROM generate_series(1, 8) g;
INSERT INTO by_several SELECT g, 'v', 'b', g FROM generate_series(1, 8) g;
INSERT INTO by_bag SELECT g % 3, 'v', NULL, 1.5 FROM generate_series(1, 8) g;
"""

_key = st.integers(1, 6)
_value = st.sampled_from(["'v'", "'w'", "'vw'"])
_number = st.sampled_from(["NULL", "1", "1.5", "'NaN'", "-3"])
_big = st.one_of(st.just("NULL"), st.just("'short'"), st.integers(1, 4).map(big))
_set = st.one_of(
    _value.map(lambda v: f"a = {v}"), _number.map(lambda v: f"n = {v}"), _big.map(lambda v: f"big = {v}")
)


def _insert(k: int, a: str, b: str, n: str) -> str:
    return f"INSERT INTO {{t}} (k, a, big, n) VALUES ({k}, {a}, {b}, {n})"


def _move(old: int, new: int, also: str) -> str:
    return f"UPDATE {{t}} SET k = {new}, {also} WHERE k = {old}"


_statement = st.one_of(
    st.builds(_insert, _key, _value, _big, _number),
    st.builds(lambda k, s: f"UPDATE {{t}} SET {s} WHERE k = {k}", _key, _set),
    st.builds(_move, _key, _key, _set),
    st.builds(lambda old, new: f"UPDATE {{t}} SET k = {new} WHERE k = {old}", _key, _key),
    st.builds(lambda k: f"DELETE FROM {{t}} WHERE k = {k}", _key),
    st.sampled_from(["UPDATE {t} SET k = k + 101 WHERE k < 100", "UPDATE {t} SET k = k - 101 WHERE k > 100"]),
    st.just("TRUNCATE {t}"),
)
_work = st.tuples(st.sampled_from(sorted(CHOSEN)), _statement).map(lambda pair: pair[1].format(t=pair[0]))
histories = st.lists(st.lists(_work, min_size=1, max_size=6), min_size=4, max_size=10)


def run(database: Database, history: list[list[str]]) -> None:
    """Run transactions; a statement that meets a key twice is left out, as a savepoint would."""
    with database.connect() as connection:
        for transaction in history:
            with connection.transaction():
                for statement in transaction:
                    with contextlib.suppress(psycopg.errors.UniqueViolation), connection.transaction():
                        connection.execute(statement)
