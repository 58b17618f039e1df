"""Whose a lake is, by its table `commits`; and whether somebody has taken that table away."""

from __future__ import annotations

from slotlake.decoder.errors import LakeError
from slotlake.spark.catalog.base import load
from slotlake.spark.catalog.open import Catalog, open_catalog
from slotlake.spark.lake import LakeSettings
from slotlake.spark.names import COMMITS, belongs, is_copying
from slotlake.spark.publish.commits import commits_name
from slotlake.spark.publish.place import has_files_of_others, table_directory
from slotlake.spark.publish.position import require_known_format
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.schema import PIPELINE_PROPERTY


def is_initialised(lake: LakeSettings, pipeline: str) -> bool:
    """Return whether this pipeline has published its initial copy into this lake.

    Raises:
        LakeError: another pipeline uses this namespace, or the lake cannot be reached.
    """
    with open_catalog(lake) as catalog:
        return is_owned_by(catalog, pipeline)


def is_owned_by(catalog: Catalog, pipeline: str) -> bool:
    """Return whether there is a table `commits`, which must be this pipeline's.

    Raises:
        LakeError: it is another pipeline's, a later version has written the lake, or somebody has taken
            the table away and the others are there.
    """
    name = commits_name(catalog.lake.namespace)
    pointers = catalog.pointers_of([name])
    if name not in pointers:
        _require_never_made(catalog, pipeline)
        return False
    metadata = load(pointers, name).metadata
    owner = metadata.get("properties", {}).get(PIPELINE_PROPERTY)
    if owner != pipeline:
        raise LakeError(
            "the lake's namespace belongs to " + (f"pipeline {owner}" if owner else "something else"),
            where=f"table {name} in {catalog.lake.place}",
            way_out="put `name` back if it was changed; else give it a lake.namespace and a slot of its own",
        )
    require_known_format(metadata, name)
    return True


def _require_never_made(catalog: Catalog, pipeline: str) -> None:
    """Require that the lake has no `commits` because it never had one: its position would be lost with it.

    Where tables are published one after another, a run that was killed leaves tables without it; then
    there is nothing of it where it would be.
    """
    lake = catalog.lake
    directory = table_directory(lake, commits_name(lake.namespace))
    others = [
        name
        for name in catalog.names()
        if belongs(name.namespace, lake.namespace)
        and not is_copying(name.namespace)
        and name.table != COMMITS
    ]
    if not others or not has_files_of_others(directory, pipeline):
        return
    pointers = catalog.pointers_of(others)
    own = sorted(name for name in others if name in pointers and _owner(pointers[name]) == pipeline)
    if own:
        raise LakeError(
            f"the table {commits_name(lake.namespace)}, which says where the lake is, is not in the catalog "
            "any more: somebody dropped it from the catalog, or renamed it",
            where=f"{lake.place}, which has {own[0]}" + (" and others" if len(own) > 1 else ""),
            way_out=f"give it its name back, or register its newest metadata file in {directory} under that "
            "name; nothing was changed. If it cannot be had any more: drop these tables too, and make the "
            "lake again",
        )


def _owner(pointer: str) -> str | None:
    owner: str | None = catalog_metadata.load_top(pointer).get("properties", {}).get(PIPELINE_PROPERTY)
    return owner
