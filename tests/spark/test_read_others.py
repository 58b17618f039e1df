"""Other readers, pinned to a point of the past as docs/reading.md says: Spark, pyiceberg, DuckDB."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.sql import SqlCatalog

from slotlake.decoder.compiled.arrays import python_values
from slotlake.spark.copy.initial import InitialCopy
from slotlake.spark.tables.schema import TableSchema
from tests.spark.lake_lab import PIPELINE, Lab, delete, insert, relation, update, write_rows

ACCOUNTS = relation("accounts", ["id"], id="int8", balance="numeric(10,2)")
BRANCHES = relation("branches", ["id"], id="int8", total="numeric(10,2)")
LSN = "0/1100"
EXPECTED = [(1, "10.00", "15.00"), (2, "5.00", "15.00")]


@pytest.fixture
def past(lab: Lab) -> Lab:
    """Three points; at the middle one only `accounts` was changed, and later both were."""
    lab.init(
        {
            ACCOUNTS: [{"id": str(i), "balance": "5.00"} for i in range(1, 4)],
            BRANCHES: [{"id": "1", "total": "15.00"}],
        }
    )
    lab.sync(update(ACCOUNTS, id="1", balance="10.00"), delete(ACCOUNTS, id="3"))
    lab.sync(insert(ACCOUNTS, id="4", balance="1.00"), update(BRANCHES, id="1", total="16.00"))
    return lab


def test_spark_by_tag_and_by_snapshot(past: Lab) -> None:
    pins = past.session.sql(f"SELECT tables FROM lake.shop.commits WHERE lsn = '{LSN}'").collect()[0][0]
    by_tag = "lsn_0_1100"
    for accounts, branches in (
        (f"'{by_tag}'", f"'{by_tag}'"),
        (pins["shop.accounts"], pins["shop.branches"]),
    ):
        rows = past.session.sql(
            "SELECT a.id, CAST(a.balance AS STRING), CAST(b.total AS STRING) "
            f"FROM lake.shop.accounts VERSION AS OF {accounts} a "
            f"CROSS JOIN lake.shop.branches VERSION AS OF {branches} b ORDER BY 1"
        ).collect()
        assert [tuple(row) for row in rows] == EXPECTED


def test_pyiceberg(past: Lab) -> None:
    catalog = SqlCatalog("lake", uri=past.lake.uri, warehouse=past.lake.warehouse)
    points = catalog.load_table("shop.commits").scan(row_filter=f"lsn = '{LSN}'").to_arrow().to_pylist()
    pins = dict(max(points, key=lambda point: point["published_at"])["tables"])
    read = {
        name: catalog.load_table(f"shop.{name}").scan(snapshot_id=pins[f"shop.{name}"]).to_arrow()
        for name in ("accounts", "branches")
    }
    total = str(read["branches"]["total"][0].as_py())
    rows = [(row["id"], str(row["balance"]), total) for row in read["accounts"].to_pylist()]
    assert sorted(rows) == EXPECTED
    by_tag = catalog.load_table("shop.accounts").scan().use_ref("lsn_0_1100").to_arrow()
    assert sorted(python_values(by_tag["id"])) == [1, 2]


def test_duckdb_by_metadata_file(past: Lab) -> None:
    catalog = SqlCatalog("lake", uri=past.lake.uri, warehouse=past.lake.warehouse)
    where = {
        name: catalog.load_table(f"shop.{name}").metadata_location
        for name in ("accounts", "branches", "commits")
    }
    with _duckdb() as connection:
        (pins,) = connection.execute(
            "SELECT tables FROM iceberg_scan(?) WHERE lsn = ?", [where["commits"], LSN]
        ).fetchone()
        rows = connection.execute(
            "SELECT a.id, a.balance::VARCHAR, b.total::VARCHAR "
            f"FROM iceberg_scan('{where['accounts']}', snapshot_from_id={pins['shop.accounts']}) a, "
            f"iceberg_scan('{where['branches']}', snapshot_from_id={pins['shop.branches']}) b ORDER BY 1"
        ).fetchall()
        assert rows == EXPECTED


WIDE = relation("wide", ["id"], id="int8", v="text")
FILES, ROWS, BATCHES = 8, 250, 8


@pytest.fixture
def vectors(lab: Lab) -> Lab:
    """A table of several data files whose deletion vectors stand together in one Puffin file a batch."""
    copy = InitialCopy.begin(lab.session, lab.lake, PIPELINE, [TableSchema.of(WIDE)], {})
    target = copy.target(TableSchema.of(WIDE))
    for first in range(0, FILES * ROWS, ROWS):
        rows = [{"id": str(i), "v": f"{i:064}"} for i in range(first, first + ROWS)]
        write_rows(target, WIDE, rows)
    copy.register(TableSchema.of(WIDE))
    copy.publish(lab.point("copy"))
    for batch in range(BATCHES):
        keys = range(batch * 3, FILES * ROWS, 23 + batch * 2)
        lab.sync(*(update(WIDE, id=str(i), v=f"{batch}-{i:060}") for i in keys))
    return lab


def test_duckdb_reads_rightly_without_its_file_cache(vectors: Lab) -> None:
    """Puffin files hold several vectors, one a data file; docs/reading.md tells why the setting is needed."""
    catalog = SqlCatalog("lake", uri=vectors.lake.uri, warehouse=vectors.lake.warehouse)
    table = catalog.load_table("shop.wide")
    entries = vectors.session.sql(
        "SELECT file_path, count(*) n FROM lake.shop.wide.delete_files GROUP BY 1 ORDER BY 2 DESC"
    ).collect()
    assert entries[0]["n"] > 1, "several vectors in a file"
    points = [0x1000 + 0x100 * i for i in range(BATCHES + 1)]
    expected = {at: _values(vectors, at) for at in points}
    wrong = {}
    for cached in (True, False):
        with _duckdb() as connection:
            connection.execute(f"SET enable_external_file_cache = {cached}")
            for at in [*points, *reversed(points)]:
                pin = table.metadata.refs[f"lsn_0_{at:X}"].snapshot_id
                scan = f"iceberg_scan('{table.metadata_location}', snapshot_from_id = {pin})"
                found = sorted(connection.execute(f"SELECT id, v FROM {scan}").fetchall())
                if found != expected[at]:
                    wrong[cached, at] = len(expected[at]) - len(found)
    print("wrong, by snapshot (rows too few):", wrong)
    assert not [at for cached, at in wrong if not cached]


def _values(lab: Lab, at: int) -> list[tuple[int, str | None]]:
    return sorted((int(str(id_)), v) for id_, v in lab.rows("wide", at))


def _duckdb() -> Any:
    """A connection with the Iceberg extension, which comes as a wheel: nothing is fetched."""
    import duckdb

    connection = duckdb.connect()
    for name in ("avro", "iceberg"):
        package = importlib.util.find_spec(f"duckdb_extension_{name}")
        assert package is not None
        assert package.origin is not None
        (file,) = Path(package.origin).parent.rglob(f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{file}'")
    connection.execute("SET enable_external_file_cache = false")
    return connection
