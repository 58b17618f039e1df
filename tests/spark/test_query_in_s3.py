"""`query` of a lake in S3, by DuckDB: the same rows as Spark's, and no other object of the bucket."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from slotlake.decoder.errors import LakeError
from slotlake.infra.local.object_store import LocalObjectStore
from slotlake.spark.lake import LakeSettings
from slotlake.spark.read.duck.answer import query
from slotlake.spark.read.duck.database import new_database, reading, unreadable_reason
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.storage import stores
from slotlake.spark.storage.location import Location
from slotlake.spark.storage.settings import StorageSettings
from tests.spark.lake_lab import Lab, delete, insert, relation, update

ITEMS = relation("items", ["id"], id="int4", v="text")


@pytest.fixture
def lab(session: Any, object_store: LocalObjectStore, tmp_path: Path) -> Lab:
    """A lake in S3 with one table, which has a deletion vector."""
    lake = LakeSettings(
        "lake",
        f"sqlite:///{tmp_path}/catalog.db",
        f"{object_store.warehouse}/{tmp_path.name}",
        "shop",
        storage=StorageSettings(**object_store.storage),
        exchange=tmp_path / "exchange",
    )
    lab = Lab.on(session, lake)
    lab.init({ITEMS: [{"id": str(n), "v": f"v{n}"} for n in range(100)]})
    lab.sync(update(ITEMS, id="1", v="new"), delete(ITEMS, id="2"), insert(ITEMS, id="500", v="more"))
    return lab


def test_rows_of_now_and_of_before(lab: Lab) -> None:
    point = ReadPoint.latest(lab.lake)
    assert unreadable_reason(point) is None
    asked = "SELECT count(*), min(v), max(id) FROM items WHERE id <> 3"
    assert query(point, asked).rows == [("99", "more", "500")]
    first = ReadPoint.at(lab.lake, 0x1000)
    assert query(first, "SELECT count(*) FROM items").rows == [("100",)]


def test_other_objects_and_keys_are_out_of_reach(lab: Lab, object_store: LocalObjectStore) -> None:
    other = Location(f"{object_store.warehouse}/other/secret.csv")
    stores.store_of(lab.lake.root / "x")
    stores.register(other, lab.lake.storage)
    stores.store_of(other).write_new(other, b"a,b\n1,2\n")
    point = ReadPoint.latest(lab.lake)
    for statement in (
        f"SELECT * FROM read_csv('{other}')",
        f"SELECT * FROM '{other}'",
        "SELECT * FROM duckdb_secrets()",
        "CREATE SECRET (TYPE s3, KEY_ID 'x', SECRET 'y')",
        f"COPY items TO '{lab.lake.root}/stolen.csv'",
    ):
        with pytest.raises(LakeError):
            query(point, statement)
    # The second door: what the look at the statement let pass by mistake.
    pinned = point.pinned[point.find("items")]
    with new_database() as connection, reading(connection, lab.lake, {("shop", "items"): pinned}):
        for statement in (f"SELECT * FROM read_csv('{other}')", "SELECT * FROM read_csv('/etc/passwd')"):
            with pytest.raises(Exception, match=r"(?i)permission|disabled|not allowed"):
                connection.execute(statement)


def test_without_keys_spark_is_left_to_read(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    point = ReadPoint.latest(lab.lake)
    object.__setattr__(point.lake, "storage", StorageSettings(endpoint="http://127.0.0.1:1"))
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert "no keys for AWS" in (unreadable_reason(point) or "")
