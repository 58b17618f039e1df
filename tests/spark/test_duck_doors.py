"""`query` with DuckDB reads this lake's tables and does nothing else: hostile statements; harmless ones."""

# ruff: noqa: E501 (statements, one a line)

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import duckdb
import pytest

from slotlake.decoder.errors import LakeError
from slotlake.spark.read.duck.answer import query
from slotlake.spark.read.duck.database import _extension_files, new_database, reading
from slotlake.spark.read.point import ReadPoint
from tests.spark.lake_lab import Lab, insert, relation, update

ORDERS = relation("orders", ["id"], id="int4", customer="text", total="numeric(10,2)")
CUSTOMERS = relation("Sales.customers", ["name"], name="text", doc="text")
UPPER = relation("Orders", ["id"], id="int4")
# {d}: a folder that nothing may be written to; {f}: a file beside it whose content nobody may see;
# {t}: the folder of a table of this lake; {m}: a metadata file of it; {p}: a data file of it.
HOSTILE = [
    # what writes
    "COPY orders TO '{d}/x.csv'",
    "COPY (SELECT * FROM orders) TO '{d}/x.parquet' (FORMAT parquet)",
    "COPY orders FROM '{f}'",
    "EXPORT DATABASE '{d}'",
    "IMPORT DATABASE '{d}'",
    "CREATE TABLE stolen AS SELECT * FROM orders",
    "CREATE TEMP TABLE stolen AS SELECT * FROM read_csv('{f}')",
    "CREATE VIEW v AS SELECT * FROM read_text('{f}')",
    "CREATE OR REPLACE VIEW orders AS SELECT 1 AS id",
    "CREATE MACRO f(x) AS x + 1",
    "CREATE OR REPLACE TEMP MACRO abs(x) AS getenv('HOME')",
    "CREATE SCHEMA s",
    "CREATE SEQUENCE s",
    "CREATE TYPE t AS ENUM (SELECT customer FROM orders)",
    "CREATE SECRET s (TYPE s3, KEY_ID 'a', SECRET 'b')",
    "INSERT INTO orders VALUES (1, 'x', 1)",
    "WITH x AS (SELECT * FROM orders) INSERT INTO orders SELECT * FROM x",
    "UPDATE orders SET total = 0",
    "DELETE FROM orders",
    "TRUNCATE orders",
    "MERGE INTO orders USING orders o ON true WHEN MATCHED THEN DELETE",
    "ALTER VIEW orders RENAME TO gone",
    "DROP VIEW orders",
    "DROP SCHEMA shop CASCADE",
    "COMMENT ON VIEW orders IS 'x'",
    "VACUUM",
    "CHECKPOINT",
    "FORCE CHECKPOINT",
    "ANALYZE",
    # what attaches, loads, sets, calls
    "ATTACH '{d}/x.db' AS x",
    "ATTACH '{f}' AS x (READ_ONLY)",
    "DETACH lake",
    "USE memory",
    "INSTALL httpfs",
    "LOAD httpfs",
    "LOAD '{f}'",
    "SET enable_external_access = true",
    "SET allowed_directories = ['/']",
    "SET lock_configuration = false",
    "SET VARIABLE x = 1",
    "RESET enable_external_access",
    "PRAGMA database_list",
    "PRAGMA enable_profiling",
    "PRAGMA version",
    "CALL duckdb_settings()",
    "CALL pragma_version()",
    "PREPARE p AS SELECT 1",
    "EXECUTE p",
    "BEGIN",
    "SELECT 1; SELECT 2",
    "SELECT 1; DROP VIEW orders",
    "SELECT * FROM orders /* ; */; COPY orders TO '{d}/x.csv'",
    "EXPLAIN COPY orders TO '{d}/x.csv'",
    "EXPLAIN ANALYZE COPY orders TO '{d}/x.csv'",
    "EXPLAIN ANALYZE INSERT INTO orders VALUES (1, 'x', 1)",
    "EXPLAIN SELECT * FROM read_text('{f}')",
    # what reads something else
    "SELECT * FROM '{f}'",
    "FROM '{f}'",
    'SELECT * FROM "{f}"',
    "SELECT * FROM '{p}'",
    "TABLE '{f}'",
    "SELECT * FROM read_csv('{f}')",
    "SELECT * FROM read_csv_auto('{f}')",
    "SELECT * FROM read_text('{f}')",
    "SELECT * FROM read_blob('{f}')",
    "SELECT * FROM read_text('{t}/metadata/*.json')",
    "SELECT * FROM read_json('{m}')",
    "SELECT * FROM read_json_objects('{m}')",
    "SELECT * FROM read_ndjson('{f}')",
    "SELECT * FROM read_parquet('{p}')",
    "SELECT * FROM parquet_scan('{p}')",
    "SELECT * FROM parquet_metadata('{p}')",
    "SELECT * FROM parquet_schema('{p}')",
    "SELECT * FROM parquet_file_metadata('{p}')",
    "SELECT * FROM parquet_kv_metadata('{p}')",
    "SELECT * FROM read_avro('{f}')",
    "SELECT * FROM sniff_csv('{f}')",
    "SELECT * FROM glob('/*')",
    "SELECT * FROM glob('{t}/*')",
    "SELECT * FROM iceberg_scan('{t}')",
    "SELECT * FROM iceberg_scan('{m}')",
    "SELECT * FROM iceberg_metadata('{m}')",
    "SELECT * FROM iceberg_snapshots('{m}')",
    "SELECT * FROM main.read_text('{f}')",
    "SELECT * FROM system.main.read_text('{f}')",
    "SELECT * FROM query('SELECT * FROM read_text(''{f}'')')",
    "SELECT * FROM query_table('{f}')",
    "SELECT * FROM query_table(['orders', '{f}'])",
    "SELECT * FROM histogram('{f}', 'x')",
    "SELECT * FROM histogram_values('orders', id)",
    "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('SELECT 1'))",
    "SELECT * FROM sql_auto_complete('SEL')",
    "SELECT * FROM arrow_scan(1, 2, 3)",
    "SELECT * FROM pandas_scan(1)",
    "SELECT * FROM python_map_function(1)",
    "SELECT * FROM which_secret('{f}', 's3')",
    "SELECT * FROM duckdb_settings()",
    "SELECT * FROM duckdb_secrets()",
    "SELECT * FROM duckdb_extensions()",
    "SELECT * FROM duckdb_databases()",
    "SELECT * FROM duckdb_views()",
    "SELECT * FROM duckdb_views",
    "SELECT * FROM duckdb_logs",
    "SELECT * FROM duckdb_temporary_files()",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM sqlite_master",
    "SELECT * FROM information_schema.tables",
    "SELECT * FROM pg_catalog.pg_class",
    "SELECT * FROM pg_settings",
    "SELECT * FROM memory.main.x",
    "SELECT * FROM other.shop.orders",
    "SELECT * FROM lake.other.orders",
    "SELECT * FROM temp.x",
    "SELECT * FROM local_variable",
    "SELECT getenv('HOME')",
    "SELECT current_setting('home_directory')",
    "SELECT current_setting('allowed_directories')",
    "SELECT id FROM orders WHERE current_setting('temp_directory') = ''",
    "SELECT getvariable('x')",
    "SELECT nextval('s')",
    "SELECT write_log('x')",
    "SELECT main.getenv('HOME')",
    "SELECT system.main.current_setting('home_directory')",
    "SELECT getenv ('HOME'), GETENV('HOME')",
    'SELECT "getenv"(\'HOME\')',
    "SHOW ALL TABLES FROM lake",
    "SHOW DATABASES",
    "SHOW VARIABLES",
    "SHOW threads",
    "SELECT * FROM (SHOW ALL TABLES)",
    "SELECT * FROM (SHOW DATABASES)",
    "DESCRIBE SELECT * FROM read_text('{f}')",
    "DESCRIBE '{f}'",
    "SUMMARIZE '{f}'",
    "SELECT $1",
    "SELECT ?",
    "SELECT * FROM orders WHERE id = $id",
    # deeper inside, and by names written otherwise
    "SELECT * FROM orders WHERE id IN (SELECT length(content) FROM read_text('{f}'))",
    "SELECT (SELECT content FROM read_text('{f}'))",
    "SELECT id, (SELECT max(content) FROM read_text('{f}')) FROM orders",
    "SELECT * FROM orders, LATERAL (SELECT * FROM read_text('{f}'))",
    "SELECT * FROM orders JOIN read_text('{f}') ON true",
    "SELECT * FROM orders POSITIONAL JOIN read_text('{f}')",
    "SELECT id FROM orders ORDER BY (SELECT content FROM read_text('{f}'))",
    "SELECT id FROM orders LIMIT (SELECT length(content) FROM read_text('{f}'))",
    "SELECT id FROM orders LIMIT 1 OFFSET (SELECT length(content) FROM read_text('{f}'))",
    "SELECT count(*) FROM orders GROUP BY (SELECT content FROM read_text('{f}'))",
    "SELECT count(*) FROM orders HAVING (SELECT count(*) FROM read_text('{f}')) > 0",
    "SELECT id FROM orders QUALIFY row_number() OVER (ORDER BY (SELECT content FROM read_text('{f}'))) = 1",
    "SELECT sum(id) OVER (PARTITION BY (SELECT content FROM read_text('{f}'))) FROM orders",
    "SELECT sum(id) FILTER (WHERE getenv('HOME') = '') FROM orders",
    "SELECT string_agg(customer ORDER BY getenv('HOME')) FROM orders",
    "SELECT list_transform([1], lambda x: getenv('HOME'))",
    "SELECT [getenv('HOME') FOR x IN [1]]",
    "SELECT {'a': getenv('HOME')}",
    "SELECT CASE WHEN true THEN getenv('HOME') END",
    "SELECT COLUMNS(c -> getenv('HOME') = '') FROM orders",
    "SELECT * REPLACE (getenv('HOME') AS customer) FROM orders",
    "SELECT DISTINCT ON (getenv('HOME')) * FROM orders",
    "VALUES (getenv('HOME'))",
    "SELECT * FROM (VALUES (getenv('HOME'))) t(x)",
    "SELECT unnest([getenv('HOME')])",
    "SELECT * FROM range(length(getenv('HOME')))",
    "SELECT * FROM unnest((SELECT list(content) FROM read_text('{f}')))",
    "WITH a AS (WITH b AS (SELECT * FROM read_text('{f}')) SELECT * FROM b) SELECT * FROM a",
    "WITH RECURSIVE a(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM a, read_text('{f}') WHERE x < 2) SELECT * FROM a",
    "WITH a AS MATERIALIZED (SELECT * FROM read_text('{f}')) SELECT 1",
    "WITH \"{f}\" AS (SELECT * FROM '{f}') SELECT 1",
    "SELECT * FROM (WITH \"{f}\" AS (SELECT 1) SELECT 2), '{f}'",
    "SELECT * FROM '{f}' x, (WITH \"{f}\" AS (SELECT 1) SELECT * FROM \"{f}\") y",
    "SELECT 1 UNION ALL SELECT length(content) FROM read_text('{f}')",
    "(SELECT content FROM read_text('{f}')) EXCEPT SELECT ''",
    "PIVOT read_csv('{f}') ON x USING count(*)",
    "SELECT * FROM (PIVOT orders ON customer IN (SELECT content FROM read_text('{f}')) USING sum(total))",
    "SELECT * FROM (UNPIVOT (SELECT content FROM read_text('{f}')) ON content)",
    "FROM orders SELECT id WHERE (SELECT count(*) FROM '{f}') > 0",
    "SELECT * FROM orders AT (VERSION => 1)",
    "SELECT * FROM orders TABLESAMPLE 10% JOIN '{f}' ON true",
    "SELECT * FROM 'https://example.com/x.parquet'",
    "SELECT * FROM 's3://bucket/x.parquet'",
    "SELECT read_text('{f}')",
    "SELECT glob('/*')",
    "SELECT * FROM orders.files",
    "SELECT * FROM shop.missing",
    "",
    ";",
    "   -- nothing\n",
    "no SQL at all",
    "SELECT 1 \0 FROM orders",
    "SELECT '\ud800'",
    "\\'; COPY orders TO '{d}/x.csv'; --",
    "'') || getenv('HOME') || ('",
]  # fmt: skip
HARMLESS: dict[str, Any] = {
    "SELECT id, customer, total FROM orders ORDER BY id": [("1", "ann", "1.50"), ("2", "bob", "7.00")],
    "select ID from orders join shop__Sales.customers c on c.name = customer where total > 1.4": [("1",)],
    "SELECT c.doc->>'$.age', o.total FROM orders o JOIN \"Sales\".customers c ON c.name = o.customer": [("41", "1.50")],
    "WITH a AS (SELECT id FROM orders), b AS (SELECT * FROM A) SELECT count(*) FROM b": [("2",)],
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4) SELECT sum(i) FROM n": [("10",)],
    "SELECT id, sum(total) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM orders ORDER BY id": [
        ("1", "1.50"),
        ("2", "8.50"),
    ],
    "SELECT id, lag(id, 1, 0) OVER w, rank() OVER w FROM orders WINDOW w AS (ORDER BY total DESC) ORDER BY 3": [
        ("2", "0", "1"),
        ("1", "2", "2"),
    ],
    "SELECT customer, count(*) c FROM orders GROUP BY CUBE (customer) HAVING count(*) > 1": [(None, "2")],
    "SELECT max(id) FILTER (WHERE total > 2), quantile_cont(id, 0.5) FROM orders": [("2", "1.5")],
    "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM shop__Sales.customers c WHERE c.name = customer)": [("1",)],
    "SELECT id FROM orders WHERE customer IN (SELECT name FROM public.orders JOIN Sales.customers ON true)": [("1",)],
    "(SELECT id FROM orders EXCEPT SELECT 1) UNION (VALUES (9)) ORDER BY 1 LIMIT 5": [("2",), ("9",)],
    "SELECT * FROM (PIVOT (SELECT id, customer FROM orders) ON customer IN ('ann', 'bob') USING max(id))": [("1", "2")],
    "SELECT n, ten FROM range(2) AS r(n), LATERAL (SELECT id * 10 AS ten FROM orders WHERE orders.id = n + 1) ORDER BY n": [
        ("0", "10"),
        ("1", "20"),
    ],
    "SELECT CASE WHEN id BETWEEN 1 AND 1 THEN 'a' || customer ELSE upper(trim(customer)) END FROM orders ORDER BY id": [
        ("aann",),
        ("BOB",),
    ],
    "SELECT DATE '2024-05-01' + INTERVAL 1 DAY, extract(year FROM TIMESTAMP '2024-05-01 10:00:00'), CAST('1' AS INT)": [
        ("2024-05-02 00:00:00", "2024", "1")
    ],
    "SELECT date_trunc('month', TIMESTAMPTZ '2024-05-17 10:00:00+00'), strftime(DATE '2024-05-01', '%Y')": [
        ("2024-05-01 00:00:00+00", "2024")
    ],
    "SELECT list_transform([1, 2], lambda x: x + id), {'f': 1}.f, MAP {'a': 1}['a'] FROM orders ORDER BY id LIMIT 1": [
        ("[2,3]", "1", "1")
    ],
    "SELECT 'getenv(''x'')', 'COPY orders TO', 'read_text(''/etc/passwd'')' -- getenv(": [
        ("getenv('x')", "COPY orders TO", "read_text('/etc/passwd')")
    ],
    "SELECT * EXCLUDE (total) FROM lake.shop.orders WHERE regexp_matches(customer, '^a') AND NOT total IS NULL;": [
        ("1", "ann")
    ],
    "SELECT COLUMNS('^c') FROM orders ORDER BY 1": [("ann",), ("bob",)],
    "FROM orders SELECT id WHERE id = 1": [("1",)],
    "SELECT count(*) FROM commits": [("2",)],
    "SELECT kind FROM shop.commits ORDER BY position": [("copy",), ("batch",)],
    "SELECT tables['shop.orders'] IS NOT NULL FROM commits ORDER BY position": [("t",), ("t",)],
    "SELECT struct_pack(id := id, t := total) FROM orders ORDER BY id LIMIT 1": [('{"id":1,"t":1.50}',)],
    "SELECT {'a': NULL, 'b': [1.5, NULL], 'c': 'x\"y', 'd': DATE '2024-05-01', 'e': true}": [
        ('{"a":null,"b":[1.5,null],"c":"x\\"y","d":"2024-05-01","e":true}',)
    ],
    'SELECT customer AS "kündé 名前" FROM orders WHERE id = 1 -- ö': [("ann",)],
    "SELECT string_agg(customer, ',' ORDER BY id) FROM orders": [("ann,bob",)],
    "SELECT customer, sum(total) FROM orders GROUP BY ALL ORDER BY ALL": [("ann", "1.50"), ("bob", "7.00")],
    "SELECT a.id FROM orders a ANTI JOIN orders b ON a.id = b.id + 1": [("1",)],
    "SELECT '\\x1F'::BLOB, 1e3, total::VARCHAR, TRY_CAST('x' AS INT) FROM orders ORDER BY id LIMIT 1": [
        ("\\x1f", "1000", "1.50", None)
    ],
    "SELECT count(*) FROM generate_series(1, 100000)": [("100000",)],
    "WITH t(a, b) AS (VALUES (1, 2)) SELECT a + b FROM t": [("3",)],
    "SELECT unnest([3, 4])": [("3",), ("4",)],
    "SELECT CASE '; DROP VIEW orders; --' WHEN '' THEN 1 END; -- done": [(None,)],
    "SELECT id FROM ORDERS_ o": "no table ORDERS_",
    "SELECT * FROM orders USING SAMPLE 100%": None,
    "DESCRIBE orders": None,
    "DESCRIBE SELECT id FROM orders": None,
    "SUMMARIZE orders": None,
    "EXPLAIN SELECT id FROM orders": None,
    "EXPLAIN ANALYZE SELECT id FROM orders": None,
    "SHOW TABLES": [("shop", "commits", "f"), ("shop", "orders", "f")],
    "show tables;": None,
}  # fmt: skip


def _filled(lab: Lab) -> ReadPoint:
    """A lake of two tables and two points."""
    ann, bob = (
        {"id": str(i), "customer": n, "total": t} for i, n, t in ((1, "ann", "1.00"), (2, "bob", "7.00"))
    )
    lab.init({ORDERS: [ann], CUSTOMERS: [{"name": "ann", "doc": '{"age": 41}'}]})
    lab.sync(update(ORDERS, **ann | {"total": "1.50"}), insert(ORDERS, **bob))
    return ReadPoint.latest(lab.lake)


def _places(lab: Lab, folder: Path) -> dict[str, Path]:
    (folder / "out").mkdir(parents=True)
    secret = folder / "secret.csv"
    secret.write_text("s3cret content\n")
    table = lab.lake.warehouse_path / "shop" / "orders"
    metadata, data = (
        max(table.glob("metadata/*.metadata.json")),
        min(table.glob("data/*.parquet")),
    )
    return {"d": folder / "out", "f": secret, "t": table, "m": metadata, "p": data}


def _with(statement: str, places: dict[str, Path]) -> str:
    for name, place in places.items():
        statement = statement.replace("{" + name + "}", str(place))
    return statement


def test_hostile_statements_never_reach_duckdb(lab: Lab, tmp_path: Path) -> None:
    read_point = _filled(lab)
    places = _places(lab, tmp_path / "hostile")
    local_variable = [1]
    passed: list[tuple[str, object]] = []
    for hostile in HOSTILE:
        try:
            passed.append((hostile, query(read_point, _with(hostile, places)).rows))
        except LakeError as error:
            if error.__cause__ is not None or "s3cret content" in str(error):
                passed.append((hostile, f"DuckDB was asked: {error}"))
    assert not passed
    assert len(HOSTILE) > 150
    assert local_variable
    assert not list((tmp_path / "hostile" / "out").iterdir())
    assert lab.rows("orders") == [("1", "ann", "1.50"), ("2", "bob", "7.00")]


def test_harmless_statements_run(lab: Lab) -> None:
    read_point = _filled(lab)
    failed = []
    for statement, rows in HARMLESS.items():
        try:
            found: Any = query(read_point, statement).rows
        except LakeError as error:
            if not isinstance(rows, str) or rows not in str(error):
                failed.append((statement, str(error)))
        else:
            if found != rows if rows is not None else not found:
                failed.append((statement, str(found)))
    assert not failed


def test_the_second_door_holds_alone(lab: Lab, tmp_path: Path) -> None:
    """What DuckDB itself refuses, asked past the first door; files of the table that is read excepted."""
    read_point = _filled(lab)
    places = _places(lab, tmp_path / "hostile")
    orders = read_point.pinned[read_point.find("orders")]
    os.environ["SLOTLAKE_SECRET_OF_A_TEST"] = "s3cret"
    places["x"] = tmp_path / "avro.duckdb_extension"  # a real one, which DuckDB could load
    places["x"].write_bytes(_extension_files()[0].read_bytes())
    passed = []
    with new_database() as connection, reading(connection, read_point.lake, {("shop", "orders"): orders}):
        for statement in (
            "SELECT * FROM read_text('{f}')",
            "SELECT * FROM '{f}'",
            "SELECT * FROM glob('/*')",
            "COPY orders TO '{d}/x.csv'",
            "ATTACH '{d}/x.db' AS x",
            "EXPORT DATABASE '{d}'",
            "INSTALL httpfs",
            "LOAD '{f}'",
            "LOAD '{x}'",
            "SET enable_external_access = true",
            "SET allowed_directories = ['/']",
            "SET lock_configuration = false",
            "SET enable_external_file_cache = true",
            "SELECT * FROM places",
            "SELECT getenv('SLOTLAKE_SECRET_OF_A_TEST')",
            "SELECT * FROM read_text('{t}/../../../catalog.db')",
        ):
            try:
                passed.append((statement, connection.execute(_with(statement, places)).fetchall()))
            except duckdb.Error:
                continue
        assert connection.execute("SELECT count(*) FROM orders").fetchall() == [(2,)]
    assert [each for each in passed if each[1] not in ([], [(None,)])] == []
    assert not list((tmp_path / "hostile" / "out").iterdir())


def test_names_that_differ_by_case_only(lab: Lab) -> None:
    lab.init({ORDERS: [{"id": "1", "customer": "ann", "total": "1.00"}], UPPER: [{"id": "7"}]})
    read_point = ReadPoint.latest(lab.lake)
    assert query(read_point, "SELECT id FROM orders").rows == [("1",)]
    assert query(read_point, 'SELECT id FROM "Orders"').rows == [("7",)]
    with pytest.raises(LakeError, match="differ only in the case of letters"):
        query(read_point, 'SELECT * FROM orders, "Orders"')
    with pytest.raises(LakeError, match="no table ORDERS"):
        query(read_point, "SELECT id FROM ORDERS")


def test_what_is_wrong_names_the_way_out(lab: Lab) -> None:
    read_point = _filled(lab)
    for statement, words in (
        ("SELECT nothing FROM orders", "nothing"),
        ("SELECT 1 FROM orders WHERE", "syntax error"),
        ("SELECT get_json_object(customer, '$.a') FROM orders", "get_json_object"),
        ("SELECT id FROM orders VERSION AS OF 1", "syntax error"),
        ("SELECT * FROM orders.snapshots", "snapshots"),
        ("SELECT 1 / 'x'::INT FROM orders", "onver"),
    ):
        with pytest.raises(LakeError, match=words) as error:
            query(read_point, statement)
        assert "--engine spark" in error.value.way_out, statement


def test_a_thousand_parts_and_a_thousand_levels(lab: Lab) -> None:
    read_point = _filled(lab)
    many = " OR ".join(f"id = {i}" for i in range(3000))
    assert query(read_point, f"SELECT count(*) FROM orders WHERE {many}").rows == [("2",)]
    for nested in (f"SELECT {'[' * 3000}1{']' * 3000}", f"SELECT {'(SELECT ' * 2000}1{')' * 2000}"):
        with pytest.raises(LakeError):
            query(read_point, nested)
