"""A scratch copy shares data files with the live lake; dropping it takes nothing of that along."""

from __future__ import annotations

from pathlib import Path

import pytest

from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.maintenance.table_files import TableFiles
from slotlake.spark.names import LakeName
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.replay.scratch import owner, prepare_scratch, scratch_of, spare_shared_files
from slotlake.spark.storage.folder import local_path
from slotlake.spark.tables import metadata as catalog_metadata
from tests.spark.lake_lab import PIPELINE, Lab, delete, relation, update

ITEMS = relation("items", ["id"], id="int8", v="text")


@pytest.fixture
def lived(lab: Lab) -> Lab:
    """A table with deletion vectors."""
    lab.init({ITEMS: [{"id": str(i), "v": "a"} for i in range(1, 50)]})
    lab.sync(update(ITEMS, id="1", v="b"), delete(ITEMS, id="3"))
    return lab


def _files(lab: Lab, name: str) -> set[str]:
    with open_catalog(lab.lake) as catalog:
        metadata = load(catalog.pointers(), LakeName.parse(name)).metadata
    return set(TableFiles().referenced_files(metadata["snapshots"]))


def test_dropping_a_scratch_table_spares_the_live_one(lived: Lab) -> None:
    before, live = lived.rows("items"), _files(lived, "shop.items")
    prepare_scratch(ReadPoint.latest(lived.lake), scratch_of(lived.lake, "scratch"), PIPELINE)
    shared = live & _files(lived, "scratch.items")
    assert {Path(file).suffix for file in shared} == {".parquet", ".puffin"}
    scratch = "SELECT count(*) FROM lake.scratch.items"
    assert lived.session.sql(scratch).collect()[0][0] == len(before)
    with pytest.raises(Exception, match="GC is disabled"):
        lived.session.sql("DROP TABLE lake.scratch.items PURGE").collect()
    # What Trino's DROP TABLE calls, and Java's dropTable with purge: it spares data files, not manifests.
    iceberg = lived.session._jvm.org.apache.iceberg
    table = iceberg.spark.Spark3Util.loadIcebergTable(lived.session._jsparkSession, "lake.scratch.items")
    lived.session.sql("DROP TABLE lake.scratch.items").collect()
    iceberg.CatalogUtil.dropTableData(table.io(), table.operations().current())
    assert all(local_path(file).exists() for file in live)
    assert lived.rows("items") == before
    assert lived.session.sql("SELECT count(*) FROM lake.shop.items").collect()[0][0] == len(before)


def test_scratch_tables_of_earlier_versions_are_protected_when_a_replay_goes_on(lived: Lab) -> None:
    scratch = scratch_of(lived.lake, "scratch")
    prepare_scratch(ReadPoint.latest(lived.lake), scratch, PIPELINE)
    with open_catalog(scratch) as catalog:
        table = load(catalog.pointers(), LakeName("scratch", "items"))
        assert table.metadata["properties"]["slotlake.pipeline"] == owner(PIPELINE)
        earlier = catalog_metadata.with_properties(table.metadata, {"gc.enabled": None})
        catalog.move([catalog.prepared(table, earlier)])
    spare_shared_files(scratch, PIPELINE)
    with pytest.raises(Exception, match="GC is disabled"):
        lived.session.sql("DROP TABLE lake.scratch.items PURGE").collect()
