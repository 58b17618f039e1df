# ruff: noqa: E501  (a statement is read as a line)
"""Tables of which publications, or the lake, take some rows and columns; and random histories of them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

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


_IDENTITIES = {
    "by_key": "ALTER TABLE by_key ADD PRIMARY KEY (k)",
    "by_several": "ALTER TABLE by_several ADD PRIMARY KEY (k)",
    "by_full": "ALTER TABLE by_full ADD PRIMARY KEY (k), REPLICA IDENTITY FULL",
    "by_bag": "ALTER TABLE by_bag REPLICA IDENTITY FULL",
    "by_index": "ALTER TABLE by_index ALTER k SET NOT NULL; CREATE UNIQUE INDEX by_index_k ON by_index (k, a); ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_k",
}


def setup(tables: Iterable[str] = tuple(CHOSEN)) -> str:
    """SQL that makes some of the tables, with rows, and the three publications of them."""
    chosen = list(tables)
    made = "; ".join(f"CREATE TABLE {table} ({_COLUMNS}); {_IDENTITIES[table]}" for table in chosen)
    filled = "; ".join(
        f"INSERT INTO {t} SELECT {'g % 3' if t == 'by_bag' else 'g'}, 'v', {big(n)}, 1 + g / 4.0 FROM generate_series(1, 8) g"
        for n, t in enumerate(chosen)
    )
    return f"""{made};
CREATE PUBLICATION one FOR TABLE {", ".join(map(_published, chosen))};
CREATE PUBLICATION other FOR TABLE by_several (k, n) WHERE ({CHOSEN["by_several"][1][1]});
CREATE PUBLICATION whole FOR TABLE {", ".join(chosen)}; {filled}"""


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


def histories(tables: Iterable[str] = tuple(CHOSEN)) -> st.SearchStrategy[list[list[str]]]:
    """Transactions, each some statements."""
    pairs = st.tuples(st.sampled_from(sorted(tables)), _statement)
    work = pairs.map(lambda pair: pair[1].format(t=pair[0]))
    return st.lists(st.lists(work, min_size=1, max_size=6), min_size=4, max_size=10)


def run(database: Database, history: list[list[str]]) -> None:
    """Run transactions; a statement that meets a key twice is left out, as a savepoint would."""
    with database.connect() as connection:
        for transaction in history:
            with connection.transaction():
                for statement in transaction:
                    with contextlib.suppress(psycopg.errors.UniqueViolation), connection.transaction():
                        connection.execute(statement)
