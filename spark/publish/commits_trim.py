"""Rows of `commits` that are older than every kept point go: nobody can stand there any more.

The snapshot that lacks them says what the newest point's says, so that the lake stands where it stood.
"""

from __future__ import annotations

import json

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.table import StaticTable, Table, Transaction
from pyiceberg.table.metadata import TableMetadataUtil
from pyiceberg.table.update import AddSnapshotUpdate

from slotlake.spark.catalog.base import Catalog, Loaded
from slotlake.spark.names import COMMITS
from slotlake.spark.publish.points import oldest_point
from slotlake.spark.storage.file_io import FILE_IO, StoreFileIO
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import MAIN

_WORTH_IT = 100


def trim(catalog: Catalog, commits: Loaded) -> int:
    """Remove the rows, if there are enough of them; how many.

    Raises:
        PointerMovedError: a point was published meanwhile; nothing was changed.
    """
    oldest = oldest_point(commits.metadata)
    removed_rows = 0 if oldest is None else _rows_below(commits, oldest)
    if oldest is None or removed_rows < _WORTH_IT:
        return 0
    point = catalog_metadata.summary(catalog_metadata.newest_of_a_point(commits.metadata))
    properties = {key: value for key, value in point.items() if key.startswith("slotlake.")}
    changes = Transaction(newest_only(commits))
    changes.delete(f"position < {oldest}", snapshot_properties=properties)
    updates = changes._updates  # noqa: SLF001 - it has no other way to say what it would commit
    snapshots = [update.snapshot for update in updates if isinstance(update, AddSnapshotUpdate)]
    added = [json.loads(snapshot.model_dump_json(by_alias=True, exclude_none=True)) for snapshot in snapshots]
    grown = {
        **commits.metadata,
        "snapshots": [*commits.metadata["snapshots"], *added],
        "last-sequence-number": added[-1]["sequence-number"],
    }
    moved = catalog_metadata.with_ref(grown, MAIN, added[-1]["snapshot-id"])
    catalog.move([catalog.prepared(commits, catalog_metadata.without_unreferenced(moved))])
    return removed_rows


def _rows_below(commits: Loaded, position: int) -> int:
    table = StaticTable.from_metadata(commits.location, dict(FILE_IO))
    rows = table.scan(f"position < {position}", selected_fields=("position",)).to_arrow()
    return int(rows.num_rows)


# The table `commits` as pyiceberg is shown it: with its newest snapshot only.


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
