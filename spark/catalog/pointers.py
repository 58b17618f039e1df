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
from slotlake.spark.catalog.open import already_open, open_catalog
from slotlake.spark.catalog.pointer_texts import PointerTexts
from slotlake.spark.catalog.sqlite_looks import texts_of_sqlite
from slotlake.spark.catalog.view_spaces import OWNER
from slotlake.spark.lake import SQLITE_BUSY_SECONDS, LakeSettings

_PREFIXES = ("sqlite:////", "sqlite+pysqlite:////")


def read_listing(lake: LakeSettings) -> Listing:
    """Read the pointers of a lake's own tables.

    Raises:
        LakeError: the catalog cannot be reached.
    """
    lake_files.serve(lake)
    if (catalog := already_open(lake)) is not None:
        return catalog.listing()
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
            return texts_of_sqlite(
                lambda query, asked: connection.execute(query, asked).fetchone(),
                {"catalog": lake.catalog, "owner": OWNER},
            )
    except sqlite3.Error:
        return None
