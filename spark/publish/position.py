"""Where the lake stands: the name of the table `commits`, and the position that its metadata says.

Apart from spark/publish/commits.py, which writes the table with pyiceberg: who only reads need not wait for
that to be imported.
"""

from __future__ import annotations

from slotlake.decoder.errors import LakeError
from slotlake.decoder.lsn import parse_lsn
from slotlake.spark.names import COMMITS, LakeName
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import LSN, Metadata


def commits_name(namespace: str) -> LakeName:
    """The table's name."""
    return LakeName(namespace, COMMITS)


def position_of(metadata: Metadata, name: LakeName) -> int:
    """The lake's position, from the commits table's metadata; a compaction on top of it changes nothing.

    Raises:
        LakeError: the table's newest snapshot does not say.
    """
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
