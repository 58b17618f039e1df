"""The pointers of all tables, for who only reads: of a SQLite catalog without SQLAlchemy and pyiceberg.

Those take half a second to import, which is most of what a small question takes.  Anything unusual (no such
file, another driver, a locked database) is left to `open_catalog`, which names what is wrong.
"""

from __future__ import annotations

from slotlake.spark import lake_files
from slotlake.spark.catalog.listing import Listing, listing_of_texts
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.catalog.sqlite_looks import texts_of_file
from slotlake.spark.lake import LakeSettings


def read_listing(lake: LakeSettings) -> Listing:
    """Read the pointers of a lake's own tables.

    Raises:
        LakeError: the catalog cannot be reached.
    """
    lake_files.serve(lake)
    texts = texts_of_file(lake)
    if texts is not None and (listing := listing_of_texts(lake, texts)) is not None:
        return listing
    with open_catalog(lake) as catalog:
        return catalog.listing()
