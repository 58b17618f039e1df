"""Which server the lake was fed from last: in the summary of the newest point of `commits`."""

from __future__ import annotations

from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.timeline import Origin
from slotlake.spark.tables import metadata as catalog_metadata
from slotlake.spark.tables.metadata import Metadata

_SYSTEM, _TIMELINE, _NEXT_XID = "slotlake.system-identifier", "slotlake.timeline", "slotlake.next-xid"


def origin_of(metadata: Metadata) -> Origin | None:
    """The server that the lake was fed from last; None if it was written before it said so."""
    summary = catalog_metadata.summary(catalog_metadata.newest_of_a_point(metadata))
    if _SYSTEM not in summary or _TIMELINE not in summary:
        return None
    return Origin(summary[_SYSTEM], int(summary[_TIMELINE]), summary.get(_NEXT_XID, ""))


def origin_summary(given: Origin | None, position: int, present: Metadata) -> dict[str, str]:
    """What a point says of its server, and of the server's next transaction id at its position, if known.

    Args:
        given: the server that it was read from; None for that of the point before.
        present: of the table `commits`, before the point.
    """
    before = origin_of(present)
    origin = given or before
    if origin is None:
        return {}
    next_xid = given.next_xid if given else ""
    newest = catalog_metadata.newest_of_a_point(present)
    if before == origin and catalog_metadata.summary(newest).get(catalog_metadata.LSN) == format_lsn(
        position
    ):
        next_xid = next_xid or before.next_xid  # a table that joins or is read again at the same position
    said = {_SYSTEM: origin.system_identifier, _TIMELINE: str(origin.timeline)}
    return said | {_NEXT_XID: next_xid} if next_xid else said
