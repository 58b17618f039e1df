"""`query` reads this lake's tables and does nothing else: hostile statements; harmless ones that must work."""

# ruff: noqa: E501 (statements, one a line)

from __future__ import annotations

from pathlib import Path
from typing import Any

from slotlake.decoder.errors import LakeError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.read.query import query
from slotlake.spark.session import open_session
from tests.spark.lake_lab import Lab, insert, relation, update

ORDERS = relation("orders", ["id"], id="int4", customer="text", total="numeric(10,2)")
CUSTOMERS = relation("Sales.customers", ["name"], name="text", doc="text")
# {d}: a folder that nothing may be written to; {f}: a file beside it whose content nobody may see;
# {t}: the folder of a table of this lake.
HOSTILE = [
    # what writes, by whatever road
    "WITH t AS (SELECT 1) INSERT OVERWRITE DIRECTORY '{d}' USING csv SELECT * FROM t",
    "WITH t AS (SELECT 1 AS id) INSERT OVERWRITE DIRECTORY '{t}' USING parquet SELECT * FROM t",
    "INSERT OVERWRITE LOCAL DIRECTORY '{d}' ROW FORMAT DELIMITED FIELDS TERMINATED BY ',' SELECT * FROM orders",
    "FROM orders INSERT INTO orders SELECT * INSERT INTO orders SELECT *",
    "FROM orders INSERT OVERWRITE DIRECTORY '{d}' USING csv SELECT *",
    "WITH x AS (SELECT * FROM orders) INSERT INTO orders SELECT * FROM x",
    "WITH x AS (SELECT * FROM orders) FROM x INSERT INTO lake.shop.orders SELECT *",
    "/* SELECT 1 */ -- SELECT 1\n DELETE FROM orders",
    "UPDATE orders SET total = 0",
    "MERGE INTO orders o USING orders p ON o.id = p.id WHEN MATCHED THEN DELETE",
    "CREATE TABLE {name} USING csv LOCATION '{d}' AS SELECT * FROM orders",
    "CREATE TABLE spark_catalog.default.stolen USING csv LOCATION '{f}'",
    "CREATE TEMPORARY VIEW v USING csv OPTIONS (path '{f}')",
    "CREATE GLOBAL TEMPORARY VIEW v AS SELECT 1",
    "CREATE VIEW v AS SELECT * FROM orders",
    "DROP TABLE orders",
    "TRUNCATE TABLE orders",
    "ALTER TABLE orders DROP COLUMN total",
    "ANALYZE TABLE orders COMPUTE STATISTICS",
    "LOAD DATA LOCAL INPATH '{f}' INTO TABLE orders",
    "REPAIR TABLE orders",
    # what runs something
    "SELECT TRANSFORM(1) USING 'touch {d}/ran'",
    "SELECT * FROM (SELECT TRANSFORM(1) USING 'touch {d}/ran' AS (a) FROM orders)",
    "FROM orders MAP id USING 'touch {d}/ran' AS (a)",
    "FROM orders REDUCE id USING 'touch {d}/ran' AS (a)",
    "SELECT reflect('java.lang.System', 'getProperty', 'user.home')",
    "SELECT java_method('java.lang.System', 'getenv', 'HOME')",
    "SELECT try_reflect('java.lang.System', 'getProperty', 'user.home')",
    "SELECT id FROM orders WHERE (SELECT ReFlect('java.lang.System', 'getenv', 'HOME')) IS NOT NULL",
    "SELECT * FROM VALUES (reflect('java.lang.System', 'getenv', 'HOME'))",
    "SELECT transform(array(1), x -> java_method('java.lang.System', 'getenv', 'HOME'))",
    "SELECT id FROM orders ORDER BY `reflect`('java.lang.System', 'getenv', 'HOME')",
    "SELECT count(*) FILTER (WHERE reflect('java.lang.System', 'getenv', 'HOME') = '') FROM orders",
    "SELECT sum(id) OVER (PARTITION BY reflect('java.lang.System', 'getenv', 'HOME')) FROM orders",
    "SELECT \u0072eflect('java.lang.System', 'getenv', 'HOME')",
    "CALL lake.system.rollback_to_snapshot('shop.orders', 1)",
    "CALL lake.system.remove_orphan_files(table => 'shop.orders', location => '{t}')",
    "EXECUTE IMMEDIATE 'INSERT OVERWRITE DIRECTORY ''{d}'' USING csv SELECT 1'",
    "EXECUTE IMMEDIATE 'SELECT 1'",
    "BEGIN INSERT OVERWRITE DIRECTORY '{d}' USING csv SELECT 1; END",
    "BEGIN SELECT 1; END",
    "SELECT 1; DROP TABLE orders",
    # what changes the session, or brings code into it
    "ADD JAR '{f}'",
    "ADD FILE '{f}'",
    "LIST JARS",
    "CREATE FUNCTION f AS 'java.lang.Runtime' USING JAR '{f}'",
    "CREATE TEMPORARY FUNCTION abs AS 'org.apache.hadoop.hive.ql.udf.generic.GenericUDFReflect'",
    "CREATE TEMPORARY FUNCTION f(x INT) RETURNS INT RETURN x",
    "SET spark.sql.catalog.lake.uri",
    "SET spark.sql.variable.substitute = true",
    "SET",
    "RESET",
    "SET TIME ZONE 'Asia/Tokyo'",
    "SET CATALOG spark_catalog",
    "USE spark_catalog.default",
    "CACHE TABLE orders",
    "CACHE TABLE x AS SELECT * FROM csv.`{f}`",
    "UNCACHE TABLE orders",
    "CLEAR CACHE",
    "REFRESH TABLE orders",
    "REFRESH '{f}'",
    "DECLARE VARIABLE x INT DEFAULT 1",
    # what reads something else
    "SELECT * FROM csv.`{f}`",
    "SELECT * FROM text.`file://{f}`",
    "SELECT * FROM parquet.`{t}/data`",
    "SELECT * FROM iceberg.`{t}`",
    "SELECT * FROM lake.`{t}`",
    "SELECT * FROM `{t}`",
    "SELECT * FROM shop.`{t}`",
    "SELECT * FROM lake.shop.`{t}#files`",
    "TABLE csv.`{f}`",
    "FROM csv.`{f}` |> SELECT *",
    "WITH csv AS (SELECT 1) SELECT * FROM csv.`{f}`",
    "WITH x AS (SELECT * FROM text.`{f}`) SELECT * FROM orders",
    "SELECT id FROM orders WHERE id IN (SELECT 1 FROM text.`{f}`)",
    "SELECT id, (SELECT first(value) FROM text.`{f}`) FROM orders",
    "SELECT * FROM orders, LATERAL (SELECT * FROM text.`{f}`)",
    "SELECT /*+ BROADCAST(orders) */ * FROM orders JOIN text.`{f}` ON true",
    "SELECT * FROM orders UNION ALL SELECT value, value, 1 FROM text.`{f}`",
    "SELECT * FROM IDENTIFIER('text.`{f}`')",
    "SELECT IDENTIFIER('reflect')('java.lang.System', 'getenv', 'HOME')",
    "SELECT * FROM orders WITH ('path' = '{f}')",
    "SELECT * FROM STREAM orders",
    "SELECT * FROM spark_catalog.default.x",
    "SELECT * FROM global_temp.x",
    "SELECT * FROM other.shop.orders",
    "SELECT * FROM lake.other.orders",
    "SELECT * FROM lake.shop.orders.position_deletes.x",
    "SELECT * FROM read_files('{f}')",
    "SELECT * FROM python_worker_logs()",
    "SELECT '${env:HOME}' FROM text.`${env:HOME}/x`",
    "SELECT from_xml('<a>1</a>', 'a INT', map('rowValidationXSDPath', '{f}'))",
    "SELECT schema_of_xml('<a>1</a>', map('rowValidationXSDPath', '{f}'))",
    "SELECT xpath_string('<!DOCTYPE a [<!ENTITY x SYSTEM \"file://{f}\">]><a>&x;</a>', 'a')",
    "SELECT from_avro(CAST('x' AS BINARY), '\"int\"', map('avroSchemaUrl', 'file://{f}'))",
    "SELECT from_protobuf(CAST('x' AS BINARY), 'M', '{f}')",
    "SELECT spark_catalog.default.f(1)",
    "SELECT default.reflect('java.lang.System', 'getenv', 'HOME')",
    # one of these within a statement that only tells
    "EXPLAIN INSERT OVERWRITE DIRECTORY '{d}' USING csv SELECT 1",
    "EXPLAIN EXTENDED SELECT * FROM csv.`{f}`",
    "/* a /* b */ c */ EXPLAIN SELECT * FROM csv.`{f}`",
    "DESCRIBE csv.`{f}`",
    "DESCRIBE QUERY SELECT * FROM text.`{f}`",
    "DESCRIBE FUNCTION EXTENDED reflect",
    "SHOW TABLES IN spark_catalog.default",
    "SHOW CATALOGS",
    "SHOW CREATE TABLE spark_catalog.default.x",
    # deeper inside, and by names written otherwise
    "WITH a AS (WITH b AS (SELECT * FROM parquet.`{t}/data`) SELECT * FROM b) SELECT * FROM a",
    "SELECT transform(array(1), x -> (SELECT max(value) FROM text.`{f}`))",
    "SELECT concat((SELECT first(value) FROM text.`{f}`), 'x')",
    "SELECT * FROM explode((SELECT collect_list(value) FROM text.`{f}`))",
    "SELECT id FROM orders ORDER BY (SELECT first(value) FROM text.`{f}`)",
    "SELECT id FROM orders LIMIT (SELECT length(first(value)) FROM text.`{f}`)",
    "SELECT count(*) FROM orders GROUP BY (SELECT first(value) FROM text.`{f}`)",
    "SELECT sum(id) OVER (ORDER BY (SELECT first(value) FROM text.`{f}`)) FROM orders",
    "SELECT count(*) FROM orders HAVING (SELECT count(*) FROM text.`{f}`) > 0",
    "SELECT * FROM orders TIMESTAMP AS OF (SELECT max(value) FROM text.`{f}`)",
    "SELECT * FROM orders TIMESTAMP AS OF reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT * FROM csv.`{f}` VERSION AS OF 1",
    "SELECT * FROM orders TABLESAMPLE (1 ROWS) JOIN json.`{f}`",
    "SELECT * FROM LATERAL (SELECT * FROM avro.`{f}`)",
    "SELECT * FROM binaryFile.`{f}`",
    "SELECT * FROM `org.apache.spark.sql.execution.datasources.csv.CSVFileFormat`.`{f}`",
    "SELECT * FROM jdbc.`jdbc:sqlite:{f}`",
    "SELECT * FROM lake.`file:{t}`",
    "FROM orders |> WHERE (SELECT count(*) FROM text.`{f}`) > 0",
    "FROM orders |> JOIN text.`{f}` ON true",
    "FROM orders |> SET id = reflect('java.lang.System', 'getenv', 'HOME')",
    "FROM orders |> UNION ALL (SELECT value, value, 1 FROM text.`{f}`)",
    "SELECT * FROM orders PIVOT (max(reflect('java.lang.System', 'getenv', 'HOME')) FOR id IN (1))",
    "SELECT * FROM orders LATERAL VIEW java_method('java.lang.System', 'getenv', 'HOME') t AS x",
    "SELECT * FROM java_method('java.lang.System', 'getenv', 'HOME')",
    "SELECT `system`.`builtin`.`java_method`('java.lang.System', 'getenv', 'HOME')",
    "SELECT builtin.reflect('java.lang.System', 'getenv', 'HOME')",
    "SELECT from_xml('<a>1</a>', schema_of_xml('<a>1</a>', map('rowValidationXSDPath', '{f}')))",
    "SELECT xpath_string('<!DOCTYPE a SYSTEM \"file://{f}\"><a/>', 'a')",
    # what the common parser cannot read, and the one that runs statements can
    "SELECT * FROM csv.`{f}` DISTRIBUTE BY 1",
    "SELECT '${env:HOME}' DISTRIBUTE BY 1",
    "SELECT reflect('java.lang.System', 'getenv', 'HOME') CLUSTER BY 1",
    "SELECT id FROM orders DISTRIBUTE BY (SELECT first(value) FROM text.`{f}`)",
    "SELECT TRANSFORM(id) USING 'touch {d}/ran' FROM orders CLUSTER BY id",
    "SHOW NAMESPACES IN spark_catalog",
    "SHOW FUNCTIONS IN spark_catalog.default",
    "SHOW COLUMNS IN text.`{f}`",
    "SHOW CREATE TABLE csv.`{f}`",
    "DESCRIBE SELECT * FROM csv.`{f}`",
    # more that writes or changes something
    "(INSERT INTO orders SELECT * FROM orders)",
    "WITH x AS (DELETE FROM orders) SELECT 1",
    "INSERT INTO orders REPLACE WHERE id = 1 SELECT * FROM orders",
    "INSERT INTO IDENTIFIER('orders') SELECT * FROM orders",
    "ALTER TABLE orders DROP TAG `{tag}`",
    "DROP NAMESPACE shop CASCADE",
    "EXECUTE IMMEDIATE concat('DROP ', 'TABLE orders')",
    "DECLARE OR REPLACE VARIABLE y STRING DEFAULT (SELECT first(value) FROM text.`{f}`)",
    "SET VARIABLE x = 1",
    "FOR x AS SELECT 1 DO DROP TABLE orders; END FOR",
    "SELECT 1 /* ; */ ; INSERT INTO orders SELECT * FROM orders",
    "EXPLAIN CALL lake.system.expire_snapshots('shop.orders')",
    "",
    ";",
    "no SQL at all",
]  # fmt: skip
HARMLESS = {
    "SELECT id, customer, total FROM orders ORDER BY id": [("1", "ann", "1.50"), ("2", "bob", "7.00")],
    "select ID from orders join shop__Sales.customers c on c.name = customer where total > 1.4": None,
    "SELECT parse_json(c.doc):age, o.total FROM orders o JOIN shop__Sales.customers c ON c.name = o.customer": [
        ("41", "1.50")
    ],
    "SELECT get_json_object(doc, '$.age'), from_json(doc, 'age INT').age FROM `Sales`.customers": [("41", "41")],
    "SELECT k, v FROM shop__Sales.customers LATERAL VIEW explode(from_json(doc, 'map<string,int>')) AS k, v": [
        ("age", "41")
    ],
    "WITH a AS (SELECT id FROM orders), b AS (SELECT * FROM A) SELECT count(*) FROM b": [("2",)],
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 4) SELECT sum(i) FROM n": [("10",)],
    "WITH orders AS (SELECT * FROM orders) SELECT count(*) FROM (WITH x AS (TABLE orders) FROM x)": [("2",)],
    "SELECT id, sum(total) OVER (ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM orders": [
        ("1", "1.50"),
        ("2", "8.50"),
    ],
    "SELECT id, lag(id, 1, 0) OVER w, rank() OVER w FROM orders WINDOW w AS (ORDER BY total DESC)": [
        ("2", "0", "1"),
        ("1", "2", "2"),
    ],
    "SELECT customer, count(*) c FROM orders GROUP BY CUBE (customer) HAVING count(*) > 1": [(None, "2")],
    "SELECT max(id) FILTER (WHERE total > 2), percentile_cont(0.5) WITHIN GROUP (ORDER BY id) FROM orders": [
        ("2", "1.5")
    ],
    "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM shop__Sales.customers c WHERE c.name = customer)": [("1",)],
    "SELECT id FROM orders WHERE customer IN (SELECT name FROM public.orders JOIN Sales.customers ON true)": [
        ("1",)
    ],
    "(SELECT id FROM orders EXCEPT SELECT 1) UNION (VALUES (9)) ORDER BY 1 LIMIT 5": [("2",), ("9",)],
    "SELECT * FROM (SELECT id, customer FROM orders) PIVOT (max(id) FOR customer IN ('ann', 'bob'))": [("1", "2")],
    "SELECT * FROM range(2) AS r(n), LATERAL (SELECT id * 10 FROM orders WHERE orders.id = n + 1)": [
        ("0", "10"),
        ("1", "20"),
    ],
    "SELECT CASE WHEN id BETWEEN 1 AND 1 THEN 'a' || customer ELSE upper(trim(customer)) END FROM orders": [
        ("aann",),
        ("BOB",),
    ],
    "SELECT DATE '2024-05-01' + INTERVAL 1 DAY, extract(year FROM TIMESTAMP '2024-05-01 10:00:00'), CAST('1' AS INT)": [
        ("2024-05-02", "2024", "1")
    ],
    "SELECT /*+ BROADCAST(b), REPARTITION(2) */ count(*) FROM orders a JOIN orders b USING (id)": [("2",)],
    "FROM orders |> WHERE id > 1 |> AGGREGATE sum(total) AS s GROUP BY customer": [("bob", "7.00")],
    "SELECT transform(array(1, 2), x -> x + id), map('a', 1)['a'], named_struct('f', 1).f FROM orders LIMIT 1": [
        ("[2,3]", "1", "1")
    ],
    "SELECT 'reflect(''x'')', '${region} ${env:HOME}', 'INSERT INTO orders', 'csv.`/etc/passwd`' -- reflect(": [
        ("reflect('x')", "${region} ${env:HOME}", "INSERT INTO orders", "csv.`/etc/passwd`")
    ],
    "SELECT * EXCEPT (total) FROM lake.shop.orders WHERE customer RLIKE '^a' AND NOT total IS NULL;": [
        ("1", "ann")
    ],
    "SELECT total FROM orders VERSION AS OF '{tag}' WHERE id = 1": [("1.00",)],
    "SELECT total FROM lake.shop.orders FOR VERSION AS OF {snapshot} o WHERE o.id = 1": [("1.00",)],
    "SELECT count(*) FROM orders TIMESTAMP AS OF current_timestamp()": [("2",)],
    "SELECT total FROM shop.orders.{tag_} WHERE id = 1": [("1.00",)],
    "SELECT count(*) > 0 FROM shop.orders.files": [("t",)],
    "SELECT count(*) > 1 FROM lake.shop.orders.snapshots": [("t",)],
    "SELECT kind FROM commits ORDER BY position": [("copy",), ("batch",)],
    "SELECT lake.system.bucket(4, 7)": [("3",)],
    "SELECT id FROM orders DISTRIBUTE BY id": None,
    "SELECT id FROM orders CLUSTER BY id": None,
    "SELECT id FROM orders DISTRIBUTE BY 1 SORT BY id DESC": [("2",), ("1",)],
    "SELECT struct(*) FROM orders LIMIT 1": [('{"id":1,"customer":"ann","total":1.50}',)],
    "SELECT from_xml('<p><a>1</a></p>', 'a INT').a, schema_of_xml('<p><a>1</a></p>')": [("1", "STRUCT<a: BIGINT>")],
    "SELECT customer AS `kündé 名前` FROM orders WHERE id = 1 -- ö": [("ann",)],
    "SELECT * FROM (SELECT id, customer FROM orders) UNPIVOT (v FOR k IN (customer)) ORDER BY id": [
        ("1", "customer", "ann"),
        ("2", "customer", "bob"),
    ],
    "SELECT filter(array(1, 2), x -> x > 1), aggregate(array(1, 2), 0, (a, x) -> a + x), reduce(array(1), 0, (a, x) -> a)": [
        ("[2]", "3", "0")
    ],
    "SELECT variant_get(parse_json('{\"a\": 1}'), '$.a', 'int'), schema_of_variant(parse_json('[1]'))": [
        ("1", "ARRAY<BIGINT>")
    ],
    "SELECT count(*) FROM variant_explode(parse_json('[1, 2]'))": [("2",)],
    "SELECT listagg(customer, ',') WITHIN GROUP (ORDER BY id) FROM orders": [("ann,bob",)],
    "SELECT customer, sum(total) FROM orders GROUP BY ALL ORDER BY ALL": [("ann", "1.50"), ("bob", "7.00")],
    "SELECT a.id FROM orders a LEFT ANTI JOIN orders b ON a.id = b.id + 1": [("1",)],
    "SELECT id FROM orders WHERE customer LIKE ANY ('a%', 'x%') AND (id, customer) IN (SELECT id, customer FROM orders)": [
        ("1",)
    ],
    "SELECT window(TIMESTAMP '2024-05-17 10:07:00', '10 minutes').start": None,
    "SELECT X'1F', 1e3, 'a' 'b', total::string, try_cast('x' AS INT) FROM orders LIMIT 1": [
        ("\\x1f", "1000", "ab", "1.50", None)
    ],
    "FROM orders |> EXTEND id + 1 AS n |> SET n = n + 1 |> DROP customer |> AS t |> WHERE t.n > 3 |> SELECT n": [("4",)],
    "FROM orders |> UNION ALL (TABLE orders) |> AGGREGATE count(*)": [("4",)],
    "FROM orders SELECT id WHERE id = 1": [("1",)],
    "SELECT input_file_name() <> '', version() <> '', current_user() <> '' FROM orders WHERE _pos >= 0 LIMIT 1": [
        ("t", "t", "t")
    ],
    "SELECT count(*) FROM range(100000)": [("100000",)],
    "WITH t(a, b) AS (VALUES (1, 2)) SELECT a + b FROM t": [("3",)],
    "SELECT CASE '; DROP TABLE orders; --' WHEN '' THEN 1 END; -- done": [(None,)],
    "DESCRIBE SELECT id FROM orders": [("id", "int", None)],
    "SHOW SCHEMAS": None,
    "SHOW FUNCTIONS LIKE 'abs'": [("abs",)],
    "SHOW CREATE TABLE orders": None,
    "SHOW TBLPROPERTIES orders": None,
    "DESCRIBE TABLE orders": None,
    "DESC shop.orders": None,
    "DESCRIBE QUERY SELECT id FROM orders": None,
    "EXPLAIN EXTENDED SELECT id FROM orders": None,
    "SHOW TABLES": None,
    "SHOW TABLES IN lake.shop": None,
    "SHOW COLUMNS IN orders": None,
}  # fmt: skip


def _filled(lab: Lab) -> dict[str, Any]:
    """A lake of two tables and two points; what a statement's braces stand for."""
    ann, bob = (
        {"id": str(i), "customer": n, "total": t} for i, n, t in ((1, "ann", "1.00"), (2, "bob", "7.00"))
    )
    lab.init({ORDERS: [ann], CUSTOMERS: [{"name": "ann", "doc": '{"age": 41}'}]})
    lab.sync(update(ORDERS, **ann | {"total": "1.50"}), insert(ORDERS, **bob))
    pins = query(lab.session, lab.lake, "SELECT tables['shop.orders'] FROM commits WHERE position = 4096")
    return {"snapshot": pins.rows[0][0], "tag": "lsn_0_1000", "tag_": "tag_lsn_0_1000"}


def _is_kept_out(lab: Lab, folder: Path, statements: list[str]) -> None:
    (folder / "out").mkdir(parents=True)
    secret = folder / "secret.csv"
    secret.write_text("s3cret content\n")
    table = lab.lake.warehouse_path / "shop" / "orders"
    passed: list[tuple[str, object]] = []
    for hostile in statements:
        sql = _with(hostile, {"d": folder / "out", "f": secret, "t": table, "name": "stolen"})
        try:
            passed.append((hostile, query(lab.session, lab.lake, sql).rows))
        except LakeError as error:
            if error.__cause__ is not None or "s3cret content" in str(error):
                passed.append((hostile, f"Spark was asked: {error}"))
    assert not passed
    assert not list((folder / "out").iterdir())
    assert lab.rows("orders") == [("1", "ann", "1.50"), ("2", "bob", "7.00")]


def _goes_on(lab: Lab, places: dict[str, Any], statements: dict[str, Any]) -> None:
    failed = []
    for statement, rows in statements.items():
        sql = _with(statement, places)
        try:
            found = query(lab.session, lab.lake, sql).rows
        except LakeError as error:
            failed.append((statement, str(error)))
        else:
            if found != rows if rows is not None else not found:
                failed.append((statement, str(found)))
    assert not failed


def _with(statement: str, places: dict[str, Any]) -> str:
    for name, place in places.items():
        statement = statement.replace("{" + name + "}", str(place))
    return statement


def test_hostile_and_harmless_statements(lab: Lab, tmp_path: Path) -> None:
    places = _filled(lab)
    _is_kept_out(lab, tmp_path / "hostile", HOSTILE)
    _goes_on(lab, places, HARMLESS)


def test_some_of_them_over_connect(connect: str, lake: LakeSettings, tmp_path: Path) -> None:
    session = open_session(lake, remote=connect)
    try:
        lab = Lab(session, lake)
        places = _filled(lab)
        _is_kept_out(lab, tmp_path / "hostile", HOSTILE[::6])
        _goes_on(lab, places, dict(list(HARMLESS.items())[::3]))
    finally:
        session.stop()
