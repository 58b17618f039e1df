"""Removes a pipeline's tables: the catalog's rows first, all at once, then the files.

Only tables that carry this pipeline's property are touched; a reader sees all of them, or none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection

from slotlake.decoder.failpoints import reach
from slotlake.spark import lake_files
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.exchange import CONTROL_DIRECTORY, exchange_path
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, belongs
from slotlake.spark.publish.swap import load
from slotlake.spark.storage.location import Location
from slotlake.spark.tables.schema import PIPELINE_PROPERTY


def drop_tables(
    lake: LakeSettings,
    pipeline: str,
    only: Collection[LakeName] | None = None,
    *,
    before_removal: Callable[[list[str]], None] = lambda locations: None,
) -> list[str]:
    """Drop the published tables of a pipeline, `commits` among them, and return their names in the lake.

    Args:
        only: drop these tables only; None: all.
        before_removal: gets the locations of the files before the catalog forgets them.

    Raises:
        LakeError: the catalog cannot be reached.
    """
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers()
        names = [name for name in sorted(pointers) if belongs(name.namespace, lake.namespace)]
        tables = [load(pointers, name) for name in names if only is None or name in only]
        own_tables = [
            table for table in tables if table.metadata["properties"].get(PIPELINE_PROPERTY) == pipeline
        ]
        locations = [table.metadata["location"] for table in own_tables]
        before_removal(locations)
        catalog.drop([table.name for table in own_tables])
        used_namespaces = {name.namespace for name in catalog.pointers()}
        for namespace in {table.name.namespace for table in own_tables} - used_namespaces:
            catalog.drop_namespace(namespace)
    reach("drop.catalog")
    remove_files(locations)
    return [str(table.name) for table in own_tables]


def executors_folder(lake: LakeSettings) -> Location:
    """Return the folder of the notes by which a lake's executors are known to share its warehouse.

    It is in the warehouse; on this machine where keys are lent, which are for tables only.
    """
    digest = hashlib.sha256(f"{lake.place} {lake.namespace}".encode()).hexdigest()[:16]
    if lake.borrows_keys:
        return Location(f"file://{exchange_path(lake, 'executors', digest)}")
    return lake.root / CONTROL_DIRECTORY / "executors" / digest


def remove_files(locations: Collection[str]) -> None:
    """Remove the files of tables that the catalog does not know any more; missing ones are fine."""
    for location in locations:
        lake_files.remove_tree(location)
