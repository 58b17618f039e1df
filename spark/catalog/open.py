"""Opens the lake's catalog, of whichever kind it is: SQLite, PostgreSQL, REST, AWS Glue, Hive Metastore.

What a kind needs (SQLAlchemy, pyiceberg, requests) takes half a second to import: only who opens it waits.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from slotlake.spark import exchange, lake_files
from slotlake.spark.catalog.base import Catalog, Move, PointerMovedError
from slotlake.spark.catalog.listing import Listing, listing_of_texts
from slotlake.spark.catalog.sql.sqlite_looks import texts_of_file
from slotlake.spark.lake import LakeSettings

__all__ = [
    "Catalog",
    "Move",
    "PointerMovedError",
    "catalog_stays_open",
    "check_lake",
    "open_catalog",
]


@contextmanager
def open_catalog(lake: LakeSettings) -> Iterator[Catalog]:
    """A catalog for one piece of work.

    Raises:
        LakeError: it cannot be reached.
    """
    from pyiceberg.exceptions import RESTError
    from requests import RequestException

    lake_files.serve(lake)
    if (open_one := _stays_open(lake)) is not None:
        yield open_one
        return
    catalog = _catalog(lake)
    try:
        yield catalog
    except (RESTError, RequestException):  # of pyiceberg's own requests
        from slotlake.spark.catalog.rest.session import explained

        with explained(lake):
            raise
    finally:
        catalog.close()


@dataclass
class _Place:
    """A lake and its catalog: who needs it first opens it, and only who needs the same one waits for that."""

    lake: LakeSettings
    lock: threading.Lock = field(default_factory=threading.Lock)
    catalog: Catalog | None = None

    def opened(self) -> Catalog:
        with self.lock:
            if self.catalog is None:
                self.catalog = _catalog(self.lake)
            return self.catalog

    def close(self) -> None:
        with self.lock:
            if self.catalog is not None:
                self.catalog.close()


class _Shared:
    """The catalogs that the threads of this process use together, while a block of one of them lasts."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._blocks = 0
        self._places: list[_Place] = []

    def begin(self) -> None:
        with self._lock:
            self._blocks += 1

    def end(self) -> None:
        with self._lock:
            self._blocks -= 1
            closing, self._places = ([], self._places) if self._blocks else (self._places, [])
        for place in closing:
            place.close()

    def catalog(self, lake: LakeSettings) -> Catalog | None:
        """The one for a lake, opened if it is not yet; None outside of all blocks."""
        with self._lock:
            if not self._blocks:
                return None
            place = next((each for each in self._places if each.lake == lake), None)
            if place is None:
                place = _Place(lake)
                self._places.append(place)
        return place.opened()


_shared = _Shared()


@contextmanager
def catalog_stays_open() -> Iterator[None]:
    """Within the block, a SQL catalog is opened once, for all threads: each time costs some 20 ms of CPU.

    Other kinds of catalogs keep their connections themselves, or have none.
    """
    _shared.begin()
    try:
        yield
    finally:
        _shared.end()


def _stays_open(lake: LakeSettings) -> Catalog | None:
    return None if lake.is_rest or lake.is_metastore else _shared.catalog(lake)


def _catalog(lake: LakeSettings) -> Catalog:
    if lake.is_rest:
        from slotlake.spark.catalog.rest.lending import serve_lent

        serve_lent(lake)
        if lake.staging:
            from slotlake.spark.catalog.rest.staged import StagedCatalog

            return StagedCatalog(lake)
        from slotlake.spark.catalog.rest.catalog import RestPointers

        return RestPointers(lake)
    if lake.is_glue:
        from slotlake.spark.catalog.metastore.glue import GluePointers

        return GluePointers(lake)
    if lake.is_hive:
        from slotlake.spark.catalog.metastore.hive import HivePointers

        return HivePointers(lake)
    from slotlake.spark.catalog.sql.catalog import SqlPointers

    return SqlPointers(lake)


def check_lake(lake: LakeSettings) -> None:
    """See that catalog and warehouse can be reached and written; makes both if missing.

    Raises:
        LakeError: which of them cannot, and why; or what of the lake a REST server cannot serve.
    """
    lake_files.check_warehouse(lake)
    if lake.is_rest:
        from slotlake.spark.catalog.abilities import require_abilities

        require_abilities(lake)
    elif not lake.is_metastore:
        _make_folder(lake)
    with open_catalog(lake) as catalog:
        catalog.require_room_for_views()
        catalog.make_namespace(lake.namespace)


def _make_folder(lake: LakeSettings) -> None:
    from sqlalchemy.engine import make_url

    url = make_url(lake.sqlalchemy_uri)
    if url.get_backend_name() == "sqlite" and url.database:
        exchange.make_directory(Path(url.database).parent)


# The pointers of all tables, for who only reads: of a SQLite catalog without SQLAlchemy and pyiceberg.
#
# Those take half a second to import, which is most of what a small question takes.  Anything unusual (no such
# file, another driver, a locked database) is left to `open_catalog`, which names what is wrong.


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
