"""The table `commits` as pyiceberg is shown it: with its newest snapshot only."""

from __future__ import annotations

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataUtil

from slotlake.spark.catalog.base import Loaded
from slotlake.spark.names import COMMITS
from slotlake.spark.storage.file_io import StoreFileIO
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN


def newest_only(table: Loaded) -> Table:
    """Return the table as pyiceberg sees it, without its past."""
    metadata = table.metadata
    newest = catalog_metadata.ref(metadata, MAIN)
    head = catalog_metadata.snapshot(metadata, newest)
    alone = {
        **metadata,
        "snapshots": [head] if head else [],
        "refs": {MAIN: {"snapshot-id": newest, "type": "branch"}} if head else {},
        "snapshot-log": [],
        "metadata-log": [],
    }
    parsed = TableMetadataUtil.parse_obj(alone)
    return Table(("slotlake", COMMITS), parsed, table.location, StoreFileIO(), NoopCatalog("slotlake"))
