"""Removes a pipeline's tables: the catalog's rows first, all at once, then the files.

Only tables that carry this pipeline's property are touched; a reader sees all of them, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from slotlake.decoder.failpoints import reach
from slotlake.spark import lake_files
from slotlake.spark.catalog.open import open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import LakeName, belongs
from slotlake.spark.publish.swap import load
from slotlake.spark.tables.schema import PIPELINE_PROPERTY


def drop_tables(
    lake: LakeSettings,
    pipeline: str,
    only: Collection[LakeName] | None = None,
    *,
    noting: Callable[[list[str]], None] = lambda locations: None,
) -> list[str]:
    """Drop the published tables of a pipeline, `commits` among them; their names in the lake.

    Args:
        only: these and no others.
        noting: is told whose files are about to be removed, before the catalog forgets where they are.

    Raises:
        LakeError: the catalog cannot be reached.
    """
    with open_catalog(lake) as catalog:
        pointers = catalog.pointers()
        wanted = [name for name in sorted(pointers) if belongs(name.namespace, lake.namespace)]
        named = [load(pointers, name) for name in wanted if only is None or name in only]
        mine = [table for table in named if table.metadata["properties"].get(PIPELINE_PROPERTY) == pipeline]
        locations = [table.metadata["location"] for table in mine]
        noting(locations)
        catalog.drop([table.name for table in mine])
        left = {name.namespace for name in catalog.pointers()}
        for namespace in {table.name.namespace for table in mine} - left:
            catalog.drop_namespace(namespace)
    reach("drop.catalog")
    remove_files(locations)
    return [str(table.name) for table in mine]


def remove_files(locations: Collection[str]) -> None:
    """Remove the files of tables that the catalog does not know any more; missing ones are fine."""
    for location in locations:
        lake_files.remove_tree(lake_files.local_path(location))
