"""The pointers of all tables, for who only reads: of a SQLite catalog without SQLAlchemy and pyiceberg.

Those take half a second to import, which is most of what a small question takes.  Anything unusual (no such
file, another driver, a locked database) is left to `open_catalog`, which names what is wrong.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from slotlake.spark import lake_files
from slotlake.spark.catalog.listing import Listing, Row, listing_of_rows
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import SQLITE_BUSY_SECONDS, LakeSettings

_PREFIXES = ("sqlite:////", "sqlite+pysqlite:////")
_POINTERS = """
SELECT table_namespace, table_name, metadata_location FROM iceberg_tables
WHERE catalog_name = :catalog AND metadata_location IS NOT NULL AND table_namespace NOT IN (
    SELECT namespace FROM iceberg_namespace_properties
    WHERE catalog_name = :catalog AND property_key = 'slotlake.views-of'
)
"""


def read_listing(lake: LakeSettings) -> Listing:
    """Read the pointers of a lake's own tables.

    Raises:
        LakeError: the catalog cannot be reached.
    """
    lake_files.serve(lake)
    rows = _rows_of_sqlite(lake)
    if rows is not None:
        return listing_of_rows(lake, rows)
    with open_catalog(lake) as catalog:
        return catalog.listing()


def _rows_of_sqlite(lake: LakeSettings) -> list[Row] | None:
    """All pointers in one query; None if this is not a plain SQLite file that can be read."""
    prefix = next((each for each in _PREFIXES if lake.uri.startswith(each)), None)
    if prefix is None or "?" in lake.uri:
        return None
    path = Path("/") / lake.uri.removeprefix(prefix)
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=SQLITE_BUSY_SECONDS)
        ) as connection:
            return connection.execute(_POINTERS, {"catalog": lake.catalog}).fetchall()
    except sqlite3.Error:
        return None
