"""Pinned views that the pipeline file asks for since the last publication, or not any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotlake.spark.lake import LakeSettings


def bring_views(lake: LakeSettings) -> None:
    """Make or remove the pinned views of a lake, if no publication has done so yet.

    Args:
        lake: the lake.

    Raises:
        LakeError: a table is where the views are to be, or the catalog cannot be reached.
    """
    from slotlake.spark.catalog.open import open_catalog

    if not lake.is_rest:
        with open_catalog(lake) as catalog:
            catalog.bring_views()
