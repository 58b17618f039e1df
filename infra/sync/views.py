"""Pinned views that the pipeline file asks for since the last publication, or not any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slotlake.spark.lake import LakeSettings


def bring_views(lake: LakeSettings) -> None:
    """Make, complete or remove the pinned views of a lake, if no publication has done so yet.

    Raises:
        LakeError: a table is where the views are to be, or the catalog cannot be reached, or cannot
            have views.
    """
    from slotlake.spark.catalog.open import open_catalog

    with open_catalog(lake) as catalog:
        if lake.is_rest and lake.views and not catalog.view_namespaces():
            from slotlake.spark.catalog.probe import probe_catalog

            probe_catalog(lake)
        catalog.bring_views()
