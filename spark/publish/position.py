"""Where the lake stands: the name of the table `commits`, and what its metadata says of position and format.

Apart from spark/publish/commits.py, which writes the table with pyiceberg: who only reads need not wait for
that to be imported.
"""

from __future__ import annotations

from slotlake.decoder.errors import LakeError
from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.names import COMMITS, LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import LSN, Metadata

# What a lake is made of, beyond Iceberg's own format: its tables' properties, the summaries of its snapshots,
# the columns of `commits`.  A version that changes their meaning raises this number (docs/upgrade.md).  Lakes
# without the property are of format 1.
LAKE_FORMAT = 1
FORMAT_PROPERTY = "slotlake.lake-format"


def commits_name(namespace: str) -> LakeName:
    """The table's name."""
    return LakeName(namespace, COMMITS)


def require_known_format(metadata: Metadata, name: LakeName) -> None:
    """Refuse a lake that a later version has written in a way that this one does not know.

    Raises:
        LakeError: the lake is of another format.
    """
    written = metadata.get("properties", {}).get(FORMAT_PROPERTY, "1")
    if written.isascii() and written.isdecimal() and 1 <= int(written) <= LAKE_FORMAT:
        return
    raise LakeError(
        f"the lake has format {written}, but this version of slotlake knows formats up to {LAKE_FORMAT} only",
        where=f"table {name}",
        way_out="install the version of slotlake that wrote the lake, or a later one (docs/upgrade.md); "
        "nothing was changed",
    )


def position_of(metadata: Metadata, name: LakeName) -> int:
    """The lake's position, from the commits table's metadata; a compaction on top of it changes nothing.

    Raises:
        LakeError: the table's newest snapshot does not say, or a later version has written the lake.
    """
    require_known_format(metadata, name)
    for snapshot in catalog_metadata.ancestry(metadata):
        summary = catalog_metadata.summary(snapshot)
        if LSN in summary:
            return parse_lsn(summary[LSN])
        if summary.get("operation") != "replace":
            break
    raise LakeError(
        "the lake does not say at which position it stands",
        where=f"table {name}",
        way_out="something else wrote to it; roll it back to its last snapshot made by slotlake",
    )
