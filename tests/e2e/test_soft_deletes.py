"""Soft deletes (`on_delete: mark`): what a mirror has of rows that the source deleted."""

from __future__ import annotations

import os
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.table import StaticTable

from slotlake import Pipeline
from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.errors import PipelineFileError
from slotlake.spark.names import LakeName
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.read.query import query
from slotlake.spark.storage.file_io import FILE_IO
from tests.conftest import Database
from tests.e2e.oracle import pipeline_file, source_rows
from tests.e2e.test_crash import run_cli

pytestmark = pytest.mark.timeout(900)

LONG = bool(os.environ.get("SLOTLAKE_TEST_LONG"))
only_long = pytest.mark.skipif(not LONG, reason="SLOTLAKE_TEST_LONG=1 runs it")

SETUP = """
CREATE TABLE items (a int, k text, v numeric(9,3), big text, PRIMARY KEY (a, k));
CREATE TABLE plain (id int PRIMARY KEY, v text);
ALTER TABLE items ALTER big SET STORAGE EXTERNAL;
ALTER TABLE plain REPLICA IDENTITY FULL;
INSERT INTO items SELECT g, 'k', 'NaN', repeat(md5(g::text), 100) FROM generate_series(1, 8) g;
INSERT INTO plain SELECT g, 'v' FROM generate_series(1, 8) g
"""
KEYS = {"items": 2, "plain": 1}
TABLES = """
  items: {on_delete: mark, mode: history}
  plain: {on_delete: mark, mode: [mirror, history], format: 2}
"""


def _file(folder: Path, database: Database) -> Path:
    return pipeline_file(folder, database, [], extra=TABLES.lstrip("\n"))


def _statement(dice: random.Random) -> str:
    key, to = dice.randint(1, 9), dice.randint(1, 9)
    big = f"repeat(md5('{dice.random()}'), 100)"
    absent = f"NOT EXISTS (SELECT FROM items WHERE a = {to})"
    return dice.choice(
        [
            f"INSERT INTO items VALUES ({key}, 'k', '{to}', {big}) ON CONFLICT DO NOTHING",
            f"INSERT INTO items VALUES ({key}, 'k', '{to}', {big}) ON CONFLICT DO NOTHING",
            f"UPDATE items SET v = '{dice.random()}' WHERE a = {key}",
            f"UPDATE items SET a = {to}, v = 'NaN' WHERE a = {key} AND {absent}",
            f"UPDATE items SET a = {to} WHERE a = {key} AND {absent}",
            f"DELETE FROM items WHERE a = {key}",
            f"DELETE FROM items WHERE a = {key}",
            f"INSERT INTO plain VALUES ({key}, '{to}') ON CONFLICT (id) DO UPDATE SET v = 'again'",
            f"UPDATE plain SET v = '{to}' WHERE id = {key}",
            f"DELETE FROM plain WHERE id = {key}",
            *(["TRUNCATE " + dice.choice([*KEYS])] if dice.random() < 0.3 else []),
        ]
    )


class Model:
    """What the mirrors hold by the rule alone: of each key the last committed row, and whether it is live."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.rows: dict[str, dict[Any, tuple[Any, bool]]] = {table: {} for table in KEYS}

    def look(self) -> None:
        """Take in what a transaction left."""
        with self._database.connect() as connection:
            for table, width in KEYS.items():
                rows = {row[:width]: row for row in source_rows(connection, table)[1]}
                before = {key: (row, True) for key, (row, _) in self.rows[table].items()}
                self.rows[table] = before | {key: (row, False) for key, row in rows.items()}

    def transactions(self, dice: random.Random, count: int) -> None:
        """Write at random, and look after each transaction."""
        for _ in range(count):
            with self._database.connect() as connection, connection.transaction():
                for _ in range(dice.randint(1, 4)):
                    connection.execute(_statement(dice))
            self.look()

    def of(self, table: str) -> Counter[Any]:
        """The rows, each with its mark."""
        return Counter((*row, "t" if deleted else "f") for row, deleted in self.rows[table].values())


def _rows(pipeline: Any, lake: Any, sql: str) -> Counter[Any]:
    return Counter(query(pipeline.session, lake, sql).rows)


def _marks(pipeline: Any, lake: Any, table: str) -> Counter[Any]:
    columns = "a, k, v__exact, v, big" if table == "items" else "id, v"
    name = f"{lake.namespace}.{table}"
    return _rows(pipeline, lake, f"SELECT {columns}, _is_deleted, _lsn, _committed_at FROM {name}")


def _by_history(pipeline: Any, table: str) -> Counter[Any]:
    """The same from the table's history: of each key the last version, and when it began or ended."""
    columns = "a, k, v__exact, v, big" if table == "items" else "id, v"
    key = "a, k" if table == "items" else "id"
    newest = f"row_number() OVER (PARTITION BY {key} ORDER BY valid_from_lsn DESC) AS place"
    return _rows(
        pipeline,
        pipeline.lake,
        f"SELECT {columns}, NOT is_open, coalesce(valid_to_lsn, valid_from_lsn), "
        f"coalesce(valid_to_time, valid_from_time) FROM (SELECT *, {newest} FROM shop.{table}__history) "
        "WHERE place = 1",
    )


def _assert_as(model: Model, pipeline: Any, database: Database) -> None:
    for table in KEYS:
        with database.connect() as connection:
            names = ", ".join(source_rows(connection, table)[0])
        exact = names.replace("v,", "coalesce(v__exact, CAST(v AS STRING)),") if table == "items" else names
        held = _rows(pipeline, pipeline.lake, f"SELECT {exact}, _is_deleted FROM shop.{table}")
        assert held == model.of(table), table
        assert _marks(pipeline, pipeline.lake, table) == _by_history(pipeline, table), table


@only_long
def test_random_histories(database: Database, session: Any, tmp_path: Path) -> None:
    """With TRUNCATE, key changes, values not sent; wherever batches end; in both formats."""
    database.execute(SETUP)
    model = Model(database)
    model.look()
    dice = random.Random(int(os.environ.get("SLOTLAKE_TEST_SEED", "7")))
    with Pipeline.open(_file(tmp_path, database)) as pipeline:
        copied = pipeline.init().lsn
        _assert_as(model, pipeline, database)
        for _ in range(int(os.environ.get("SLOTLAKE_TEST_BATCHES", "2"))):
            model.transactions(dice, 12)
            pipeline.sync()
            _assert_as(model, pipeline, database)
        assert pipeline.verify().equal
        for transactions in (1000, 5):
            pipeline.replay(f"scratch{transactions}", start=copied, transactions=transactions)
            scratch = replace(pipeline.lake, namespace=f"scratch{transactions}")
            for table in KEYS:
                assert _marks(pipeline, scratch, table) == _marks(pipeline, pipeline.lake, table), table


SHOP = """
CREATE TABLE orders (id int PRIMARY KEY, state text, total numeric(9,2));
CREATE TABLE bag (v int);
CREATE TABLE taken (id int PRIMARY KEY, _lsn text);
CREATE TABLE plain (id int PRIMARY KEY, v text);
ALTER TABLE orders REPLICA IDENTITY FULL;
INSERT INTO orders SELECT g, 'open', g FROM generate_series(1, 30) g;
INSERT INTO plain SELECT g, 'v' FROM generate_series(1, 5) g
"""


def _orders(pipeline: Any) -> dict[int, tuple[str, bool]]:
    """State and mark by key; fails if a key is there twice."""
    rows = query(pipeline.session, pipeline.lake, "SELECT id, state, _is_deleted FROM shop.orders").rows
    assert len(rows) == len({row[0] for row in rows})
    return {int(row[0] or 0): (row[1] or "", row[2] == "t") for row in rows}


def _marked(pipeline: Any) -> set[int]:
    return {key for key, (_, deleted) in _orders(pipeline).items() if deleted}


def _shop(folder: Path, database: Database, orders: str = "on_delete: mark", plain: str = "") -> Path:
    listed = f"  orders: {{{orders}}}\n  plain: {{{plain}}}\n"
    return pipeline_file(folder, database, [], extra=listed)


def test_marked_alive_again_and_read(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(SHOP)
    chosen = 'on_delete: mark, filter: total < 100, partition_by: ["bucket(3, id)"], sort_by: [state]'
    with Pipeline.open(_shop(tmp_path, database, chosen, "on_delete: mark")) as pipeline:
        pipeline.init()
        database.execute("DELETE FROM orders WHERE id IN (1, 2); UPDATE orders SET total = 500 WHERE id = 3")
        database.execute("UPDATE orders SET id = 104 WHERE id = 4; DELETE FROM plain WHERE id = 1")
        pipeline.sync()
        assert _marked(pipeline) == {1, 2, 3, 4}
        database.execute("INSERT INTO orders VALUES (1, 'again', 1); ALTER TABLE plain ADD n int DEFAULT 7")
        database.execute("UPDATE plain SET v = 'w' WHERE id = 2")
        pipeline.sync()
        assert _orders(pipeline)[1] == ("again", False)
        assert _marked(pipeline) == {2, 3, 4}
        assert pipeline.verify().equal
        rows = query(pipeline.session, pipeline.lake, "SELECT id, n, _is_deleted FROM shop.plain").rows
        assert sorted(rows) == [("1", None, "t"), *((str(id_), "7", "f") for id_ in range(2, 6))]
        _read_by_others(pipeline)


@only_long
def test_copied_again_filled_recovered_and_changed(database: Database, session: Any, tmp_path: Path) -> None:
    database.execute(SHOP)
    with Pipeline.open(_shop(tmp_path, database, "on_delete: mark, filter: total < 100")) as pipeline:
        pipeline.init()
        assert next(t for t in pipeline.status().tables if "orders" in t.table).takes["on_delete"] == "mark"
        database.execute("DELETE FROM orders WHERE id IN (1, 2); UPDATE orders SET total = 500 WHERE id = 3")
        pipeline.sync()
        assert _marked(pipeline) == {1, 2, 3}  # a row that leaves the filter is deleted for the lake
        database.execute(
            "INSERT INTO orders VALUES (1, 'again', 1); UPDATE orders SET total = 3 WHERE id = 3"
        )
        _changed_columns(pipeline, database)
        _lost_rows(pipeline, database)
        _recovered(pipeline, database)
        pipeline.maintain()
        assert pipeline.verify().equal
        _read_by_others(pipeline)
        _found_by_verify(pipeline)
    _other_choice(database, tmp_path)


def _changed_columns(pipeline: Any, database: Database) -> None:
    """A column with a default: rows that are marked did not have it."""
    database.execute(
        "ALTER TABLE orders ADD note text DEFAULT 'new', ADD n int; ALTER TABLE orders RENAME n TO m"
    )
    database.execute("UPDATE orders SET m = 1 WHERE id = 9")
    pipeline.sync()
    assert _marked(pipeline) == {2}
    assert pipeline.verify().equal
    notes = query(pipeline.session, pipeline.lake, "SELECT id, note FROM shop.orders WHERE id < 4").rows
    assert sorted(notes) == [("1", "new"), ("2", None), ("3", "new")]


def _lost_rows(pipeline: Any, database: Database) -> None:
    """Rows that the lake has and the source does not, and the other way round; read again."""
    pipeline.session.sql("UPDATE lake.shop.orders SET id = id + 1000 WHERE id IN (11, 12)").collect()
    assert not pipeline.verify().equal
    pipeline.backfill("orders", where="id > 10")
    assert _marked(pipeline) == {2, 1011, 1012}
    assert pipeline.verify().equal
    pipeline.session.sql("UPDATE lake.shop.orders SET id = id + 1000 WHERE id IN (13, 14)").collect()
    pipeline.backfill("orders")
    assert _marked(pipeline) == {2, 1011, 1012, 1013, 1014}
    assert pipeline.verify().equal
    database.execute("ALTER TABLE orders ALTER state TYPE int USING length(state)")  # copied again, too
    database.execute("INSERT INTO orders VALUES (2, 7, 2); DELETE FROM orders WHERE id = 20")
    pipeline.sync()
    assert _marked(pipeline) == {20, 1011, 1012, 1013, 1014}
    assert pipeline.verify().equal


def _recovered(pipeline: Any, database: Database) -> None:
    database.execute(f"SELECT pg_drop_replication_slot('{pipeline.source.slot}')")
    database.execute("DELETE FROM orders WHERE id = 21; INSERT INTO orders VALUES (20, 1, 1)")
    pipeline.recover(carry_out=True)
    assert _marked(pipeline) == {21, 1011, 1012, 1013, 1014}
    assert pipeline.verify().equal


def _read_by_others(pipeline: Any) -> None:
    """pyiceberg, DuckDB and Spark have the same marks."""
    expected = sorted((key, deleted) for key, (_, deleted) in _orders(pipeline).items())
    location = ReadPoint.latest(pipeline.lake).pinned[LakeName("shop", "orders")].location
    table = StaticTable.from_metadata(location, dict(FILE_IO))
    arrow = table.scan().to_arrow()
    assert (
        arrow["_is_deleted"].null_count == arrow["_lsn"].null_count == arrow["_committed_at"].null_count == 0
    )
    columns = (python_values(arrow[name]) for name in ("id", "_is_deleted"))
    assert sorted(zip(*columns, strict=True)) == expected
    rows = pipeline.query("SELECT id, _is_deleted FROM shop.orders", engine="duckdb").rows
    assert sorted((int(key), deleted == "t") for key, deleted in rows) == expected


def _found_by_verify(pipeline: Any) -> None:
    orders = "lake.shop.orders"
    pipeline.session.sql(f"UPDATE {orders} SET id = 5 WHERE id = 1011").collect()
    totals = pipeline.verify().tables["public.orders"].totals
    assert totals == {"marked as deleted in lake, and not deleted": 1}
    pipeline.backfill("orders")
    assert pipeline.verify().equal


def _other_choice(database: Database, folder: Path) -> None:
    """Refused until the table is copied again; of tables that cannot be marked, only these are set aside."""
    with Pipeline.open(_shop(folder, database, "filter: total < 100")) as pipeline:
        with pytest.raises(
            PipelineFileError, match=r"another on_delete.*\n.*public\.orders\n.*slotlake backfill"
        ):
            pipeline.sync()
        pipeline.backfill("orders")
        pipeline.sync()
        assert pipeline.verify().equal
        assert (
            "_is_deleted" not in ReadPoint.latest(pipeline.lake).pinned[LakeName("shop", "orders")].field_ids
        )
    own = "  orders: {on_delete: mark}\n  plain: {on_delete: delete}\non_delete: mark\n"
    with Pipeline.open(pipeline_file(folder, database, [], extra=own)) as pipeline:
        pipeline.backfill("orders")
        database.execute("DELETE FROM orders WHERE id = 30; ALTER PUBLICATION shop ADD TABLE bag, taken")
        pipeline.sync()
        assert _marked(pipeline) == {30}
        aside = {each["table"]: str(each) for each in pipeline.status().set_aside}
        assert aside.keys() == {"bag", "taken"}
        assert "do not name rows by a primary key" in aside["bag"]
        assert "has a column '_lsn'" in aside["taken"]
        assert pipeline.verify().tables["public.orders"].equal


@only_long
def test_killed_in_the_midst(database: Database, session: Any, connect: str, tmp_path: Path) -> None:
    database.execute(SETUP)
    model = Model(database)
    model.look()
    file = _file(tmp_path, database)
    assert run_cli(connect, ["init", str(file)], "init.before_publish").returncode
    assert not run_cli(connect, ["init", str(file)]).returncode
    dice = random.Random(5)
    for failpoint in ("apply.mid_merge", "publish.before_swap", "publish.after_swap"):
        model.transactions(dice, 6)
        assert run_cli(connect, ["sync", str(file)], failpoint).returncode, failpoint
    assert not run_cli(connect, ["sync", str(file)]).returncode
    with Pipeline.open(file) as pipeline:
        _assert_as(model, pipeline, database)
        assert pipeline.verify().equal
