# ruff: noqa: E501  (a statement is read as a line)
"""A native subscriber beside the lake, on the same publications: after any history both hold the same rows.

What the source holds is not always what a subscriber holds: filters, lists of columns, operations that are
not published, changes that meet no row.  There PostgreSQL's own apply worker says what is right.
"""

from __future__ import annotations

import itertools
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from psycopg import sql

from slotlake import Pipeline
from slotlake.infra.local.postgres import temporary_postgres
from tests.conftest import Database, fresh_database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.scenarios import big

pytestmark = pytest.mark.timeout(1800)

_numbers = itertools.count(1)
EXAMPLES = int(os.environ.get("SLOTLAKE_TEST_SUBSCRIBER", "2"))
_ROW = "k int PRIMARY KEY, a text, big text, n numeric(8,2)"
TABLES = f"""
CREATE TABLE plain ({_ROW}); CREATE TABLE sifted ({_ROW}); ALTER TABLE sifted REPLICA IDENTITY FULL;
CREATE TABLE either ({_ROW}); ALTER TABLE either REPLICA IDENTITY FULL; CREATE TABLE by_key ({_ROW}); CREATE TABLE listed ({_ROW});
CREATE TABLE added ({_ROW}); CREATE TABLE grown ({_ROW}); CREATE TABLE frozen ({_ROW}); CREATE TABLE emptied ({_ROW});
CREATE TABLE bag (k int, a text, big text, n numeric(8,2)); ALTER TABLE bag REPLICA IDENTITY FULL;
CREATE TABLE indexed (k int NOT NULL UNIQUE, a text, big text, n numeric(8,2)); ALTER TABLE indexed REPLICA IDENTITY USING INDEX indexed_k_key;
CREATE SCHEMA whole; CREATE TABLE whole.one ({_ROW}); CREATE TABLE whole.two ({_ROW}, FOREIGN KEY (k) REFERENCES whole.one ON DELETE CASCADE);
CREATE TABLE rooted (k int PRIMARY KEY, a text, big text, n numeric(8,2)) PARTITION BY RANGE (k);
CREATE TABLE rooted_1 PARTITION OF rooted FOR VALUES FROM (MINVALUE) TO (4); CREATE TABLE rooted_2 (n numeric(8,2), big text, k int NOT NULL, a text);
ALTER TABLE rooted ATTACH PARTITION rooted_2 FOR VALUES FROM (4) TO (MAXVALUE); ALTER TABLE rooted_1 REPLICA IDENTITY FULL; ALTER TABLE rooted_2 REPLICA IDENTITY FULL;
CREATE TABLE leafy (k int PRIMARY KEY, a text, big text, n numeric(8,2)) PARTITION BY RANGE (k);
CREATE TABLE leafy_1 PARTITION OF leafy FOR VALUES FROM (MINVALUE) TO (4); CREATE TABLE leafy_2 PARTITION OF leafy FOR VALUES FROM (4) TO (MAXVALUE);
"""
PUBLICATIONS = """
CREATE PUBLICATION all_of FOR TABLE plain, bag, indexed, leafy, TABLES IN SCHEMA whole;
CREATE PUBLICATION part_of FOR TABLE sifted WHERE (n > 0 AND a <> 'w'), either WHERE (n > 0), by_key WHERE (k
% 2 = 0), listed (k, a, big) WHERE (k <> 3); CREATE PUBLICATION others FOR TABLE either WHERE (a = 'w' OR a IS
NULL); CREATE PUBLICATION root FOR TABLE rooted WHERE (n > 0) WITH (publish_via_partition_root = true);
CREATE PUBLICATION only_inserts FOR TABLE added WITH (publish = 'insert');
CREATE PUBLICATION no_deletes FOR TABLE grown WITH (publish = 'insert, update');
CREATE PUBLICATION no_updates FOR TABLE frozen WITH (publish = 'insert, delete');
CREATE PUBLICATION truncates FOR TABLE emptied WITH (publish = 'insert, truncate')
"""
NAMES = "all_of, part_of, others, root, only_inserts, no_deletes, no_updates, truncates"
# Of these a key is never used twice: a subscriber that has the row already would stop for good.
GROWING = ("added", "grown", "frozen", "emptied")
FREE = ("plain", "sifted", "either", "by_key", "listed", "bag", "indexed", "rooted", "leafy", "whole.one", "whole.two")  # fmt: skip
HELD = (*GROWING, *(t for t in FREE if t != "leafy"), "leafy_1", "leafy_2")
COLUMNS = {"listed": "k, a, big"}
FIRST = "; ".join(
    f"INSERT INTO {t} (k, a, big, n) SELECT g, 'v', {big(1)}, g - 3 FROM generate_series(1, 5) g"
    for t in (*GROWING, *FREE)
)

_key = st.integers(1, 6)
_value = st.sampled_from(["NULL", "''", "'v'", "'w'"])
_number = st.sampled_from(["NULL", "1.5", "'NaN'", "-3"])
_big = st.one_of(st.just("NULL"), st.just("'short'"), st.integers(1, 4).map(big))
_set = st.one_of(
    _value.map(lambda v: f"a = {v}"), _number.map(lambda v: f"n = {v}"), _big.map(lambda v: f"big = {v}")
)
_kept = st.builds(lambda k, s: f"UPDATE {{t}} SET {s} WHERE k = {k}", _key, _set)
_gone = st.builds(lambda k: f"DELETE FROM {{t}} WHERE k = {k}", _key)
_insert = "INSERT INTO {{t}} (k, a, big, n) VALUES ({}, {}, {}, {})"
_free = st.one_of(
    st.builds(_insert.format, _key, _value, _big, _number),
    _kept,
    st.builds(lambda old, new, s: f"UPDATE {{t}} SET k = {new}, {s} WHERE k = {old}", _key, _key, _set),
    st.builds(lambda old, new: f"UPDATE {{t}} SET k = {new} WHERE k = {old}", _key, _key),
    _gone,
    st.sampled_from(["UPDATE {t} SET k = k + 101 WHERE k < 100", "UPDATE {t} SET k = k - 101 WHERE k > 100"]),
    st.sampled_from(["TRUNCATE {t}", "TRUNCATE {t} CASCADE", "UPDATE {t} SET k = 7 - k WHERE k < 7"]),
)
_growing = st.one_of(
    st.builds(_insert.format, st.just("nextval('rows')"), _value, _big, _number),
    _kept,
    _gone,
    st.just("TRUNCATE {t}"),
)
_change = st.one_of(
    *[st.tuples(st.sampled_from(FREE), _free).map(lambda pair: pair[1].format(t=pair[0]))] * 3,
    st.tuples(st.sampled_from(GROWING), _growing).map(lambda pair: pair[1].format(t=pair[0])),
)
_part = st.one_of(
    _change.map(lambda s: [s]),
    _change.map(lambda s: [s]),
    st.lists(_change, min_size=1, max_size=3).map(lambda s: ["SAVEPOINT s", *s, "ROLLBACK TO SAVEPOINT s"]),
)
_end = st.sampled_from(["COMMIT", "COMMIT", "COMMIT", "ROLLBACK", "PREPARE", "PREPARE"])
_transaction = st.tuples(
    st.lists(_part, min_size=1, max_size=6).map(lambda parts: [s for part in parts for s in part]), _end
)
_histories = st.lists(st.lists(_transaction, min_size=1, max_size=6), min_size=2, max_size=3)


@pytest.fixture(scope="module", params=[False, True], ids=["one-phase", "two-phase"])
def both(
    request: pytest.FixtureRequest, session: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Database, Database, Path]]:
    """A publisher, its subscriber on another server, and the file of a pipeline that has been initialised."""
    conf = {"max_prepared_transactions": "20", "logical_decoding_work_mem": "64kB"}
    with (
        temporary_postgres(version=18, conf=conf) as publishing,
        temporary_postgres(version=18, conf=conf) as subscribing,
        fresh_database(publishing) as publisher,
        fresh_database(subscribing) as subscriber,
    ):
        for database in (publisher, subscriber):
            database.execute(TABLES)
        publisher.execute(f"CREATE SEQUENCE rows START 1000; {FIRST}; {PUBLICATIONS}")
        said = "two_phase: true\n" if request.param else ""
        file = pipeline_file(tmp_path_factory.mktemp("beside"), publisher, [], source=said)
        file.write_text(file.read_text().replace("[shop]", f"[{NAMES}]").replace("tables:\n", ""))
        with _subscribed(publisher, subscriber, two_phase=request.param):
            with Pipeline.open(file) as pipeline:
                pipeline.init()
            yield publisher, subscriber, file


@contextmanager
def _subscribed(publisher: Database, subscriber: Database, *, two_phase: bool) -> Iterator[None]:
    options = f"streaming = parallel, two_phase = {str(two_phase).lower()}"
    made = f"CREATE SUBSCRIPTION beside CONNECTION {{}} PUBLICATION {NAMES} WITH ({options})"
    subscriber.execute(sql.SQL(made).format(publisher.dsn).as_string(None))
    ready = "SELECT bool_and(srsubstate = 'r') FROM pg_subscription_rel"
    try:
        _until(lambda: subscriber.execute(ready) == [(True,)], subscriber)
        yield
    finally:
        subscriber.execute("DROP SUBSCRIPTION beside")


def _until(true: Any, subscriber: Database) -> None:
    give_up = time.monotonic() + 60
    while not true():
        failed = subscriber.execute("SELECT apply_error_count FROM pg_stat_subscription_stats")
        assert failed in ([], [(0,)]), "the subscriber stopped: the history is none that it can follow"
        assert time.monotonic() < give_up, "the subscriber has not caught up after 60 s"
        time.sleep(0.05)


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    print_blob=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.large_base_example,
    ],
)
@given(history=_histories)
def test_any_history(
    both: tuple[Database, Database, Path], history: list[list[tuple[list[str], str]]]
) -> None:
    publisher, _, _ = both
    for transactions in history:
        for statements, end in transactions:
            _run(publisher, statements, end)
        try:
            _compare(both, history)
        finally:
            _decide(publisher)
        _compare(both, history)


def _decide(publisher: Database) -> None:
    """Transactions that are prepared: two of three are committed."""
    prepared = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database() ORDER BY prepared"
    for number, (gid,) in enumerate(publisher.execute(prepared)):
        publisher.execute(f"{'ROLLBACK' if number % 3 == 2 else 'COMMIT'} PREPARED '{gid}'")


def _run(publisher: Database, statements: list[str], end: str) -> None:
    """A statement that cannot be done, or meets what a prepared transaction holds, is left out."""
    with psycopg.connect(publisher.dsn) as connection:
        connection.execute("SET lock_timeout = '100ms'; SET synchronous_commit = off")
        for statement in statements:
            if end == "PREPARE" and "TRUNCATE" in statement:
                continue  # what is published cannot be listed while it is pending (docs/schema.md)
            if "SAVEPOINT" in statement:
                connection.execute(statement.encode())
                continue
            with suppress(psycopg.Error), connection.transaction():
                connection.execute(statement.encode())
        if end == "PREPARE":
            connection.execute(f"PREPARE TRANSACTION 'p{next(_numbers)}'".encode())
        elif end == "ROLLBACK":
            connection.rollback()


def _compare(both: tuple[Database, Database, Path], history: Any) -> None:
    publisher, subscriber, file = both
    [(now,)] = publisher.execute("SELECT pg_current_wal_lsn()")
    caught_up = (
        "SELECT bool_and(confirmed_flush_lsn >= %s) FROM pg_replication_slots WHERE slot_name = 'beside'"
    )
    _until(lambda: publisher.execute(caught_up, [now]) == [(True,)], subscriber)
    wrong = {}
    with Pipeline.open(file) as pipeline, subscriber.connect() as connection:
        pipeline.sync()
        for table in HELD:
            queried = f"(SELECT {COLUMNS.get(table, '*')} FROM {table}) AS t"
            _, rows = source_rows(connection, queried)
            lake = Counter(pipeline.rows(table))
            if lake != rows:
                wrong[table] = _short(rows - lake), _short(lake - rows)
    assert not wrong, f"(missing, too many): {wrong}\n{history}"


def _short(rows: Counter[Any]) -> list[Any]:
    return [tuple(v if v is None else v[:9] for v in row) for row in rows.elements()]
