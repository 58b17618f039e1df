"""Packs small files of a table without Spark: the same rows in fewer files, one snapshot on ``main``.

A batch takes the smallest files along (`spark.direct.packing`); what is larger is packed after a batch, when
there are many (`spark.maintenance.small_files`).  A `slotlake run` waits for that: Spark takes seconds for
it, and reading and writing a few megabytes here takes a fraction of one.

Invariant: the table has the rows that it had, with the same numbers, or it is as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from slotlake.decoder.errors import LAKE_ALTERED, LakeError
from slotlake.spark import lake_files
from slotlake.spark.catalog.base import Loaded
from slotlake.spark.catalog.open import PointerMovedError, open_catalog
from slotlake.spark.copy.manifests import FORMATS
from slotlake.spark.direct.choice import NEVER, is_unusual, mode
from slotlake.spark.direct.live import FILES_MAX, Live, live_files
from slotlake.spark.direct.packing import with_packed
from slotlake.spark.direct.reading import Reading
from slotlake.spark.direct.rows import fields_of
from slotlake.spark.direct.snapshot import Change, with_packed_files
from slotlake.spark.direct.unsuitable import UnsuitableError
from slotlake.spark.lake import LakeSettings
from slotlake.spark.storage.stores import canonical
from slotlake.spark.tables.metadata import Metadata, head

BYTES_MAX: Final = 32 << 20
ROWS_MAX: Final = 1_000_000


def pack_directly(lake: LakeSettings, table: Loaded, paths: Sequence[str]) -> bool:
    """Pack these data files of a table; False if that is for Spark: nothing was done.

    Args:
        lake: the lake; the pipeline's lock is held, and nothing is staged of the table.

    Raises:
        PointerMovedError: somebody else changed the table meanwhile; it is as it was.
        LakeError: a file cannot be read or written.
    """
    metadata = table.metadata
    try:
        live = live_files(metadata, head(metadata))
        wanted = set(paths)
        locations = [each for each in live.data if canonical(each) in wanted]
        _require_suitable(metadata, live, locations)
        rows = with_packed(fields_of(metadata).empty_table(), Reading(live), locations, {})
    except UnsuitableError:
        return False
    if rows.num_rows != sum(live.live_rows(location) for location in locations):
        raise LakeError(
            "data files have other rows than their manifests say; nothing was packed",
            where=f"table {table.name}",
            way_out=LAKE_ALTERED,
        )
    with open_catalog(lake) as catalog:
        with lake_files.side_by_side():
            packed = with_packed_files(metadata, live, Change([rows], {}, locations))
            move = catalog.prepared(table, packed)
        try:
            catalog.move([move])
        except PointerMovedError:
            catalog.forget([move])
            raise
    return True


def _require_suitable(metadata: Metadata, live: Live, locations: Sequence[str]) -> None:
    files = [live.data[location] for location in locations]
    reasons = (
        (mode() == NEVER, "it is switched off"),
        (not files, "the table has none of the files"),
        (metadata["format-version"] != FORMATS[-1], "the table is of format 2"),
        (len(live.data) > FILES_MAX, "the table has many files"),
        (any(file.spec != metadata["default-spec-id"] for file in files), "files have an earlier layout"),
        (sum(file.size for file in files) > BYTES_MAX, "the files are large"),
        (sum(file.file.record_count for file in files) > ROWS_MAX, "the files have many rows"),
        (any(pa.types.is_nested(field.type) for field in fields_of(metadata)), "a column is nested"),
        (is_unusual(metadata), "the table's files are written in an unusual way"),
    )
    for applies, why in reasons:
        if applies:
            raise UnsuitableError(why)
