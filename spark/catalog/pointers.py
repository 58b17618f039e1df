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
from slotlake.spark.catalog.listing import Listing, listing_of_texts
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.catalog.pointer_texts import TEXTS_OF_SQLITE, PointerTexts
from slotlake.spark.catalog.view_spaces import OWNER
from slotlake.spark.lake import SQLITE_BUSY_SECONDS, LakeSettings

_PREFIXES = ("sqlite:////", "sqlite+pysqlite:////")


def read_listing(lake: LakeSettings) -> Listing:
    """Read the pointers of a lake's own tables.

    Raises:
        LakeError: the catalog cannot be reached.
    """
    lake_files.serve(lake)
    texts = _texts_of_sqlite(lake)
    if texts is not None and (listing := listing_of_texts(lake, texts)) is not None:
        return listing
    with open_catalog(lake) as catalog:
        return catalog.listing()


def _texts_of_sqlite(lake: LakeSettings) -> PointerTexts | None:
    """All pointers in one query; None if this is not a plain SQLite file that can be read."""
    prefix = next((each for each in _PREFIXES if lake.uri.startswith(each)), None)
    if prefix is None or "?" in lake.uri:
        return None
    path = Path("/") / lake.uri.removeprefix(prefix)
    try:
        with closing(
            sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, timeout=SQLITE_BUSY_SECONDS)
        ) as connection:
            row = connection.execute(TEXTS_OF_SQLITE, {"catalog": lake.catalog, "owner": OWNER}).fetchone()
            return PointerTexts(*row)
    except sqlite3.Error:
        return None
