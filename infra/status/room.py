"""How much room the next run needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.position import source_position
from slotlake.decoder.server.source import source_session

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings

_SIZES = """
SELECT coalesce(sum(pg_table_size(coalesce(p.relid, r.oid))), 0)::bigint
FROM unnest(%s::oid[]) r(oid) LEFT JOIN LATERAL pg_partition_tree(r.oid) p ON true
"""


def needed_bytes(source: SourceSettings, tables: Sequence[SourceTable], position: int | None) -> int | None:
    """Return the bytes that the next run reads: the tables before `init`, then the WAL since the position.

    Args:
        position: the lake's; None before `init`.

    Returns:
        None if the source does not say.
    """
    try:
        if position is not None:
            return max(0, source_position(source) - position)
        if not tables:
            return None
        with source_session(source.dsn, "measuring tables") as connection:
            row = connection.execute(_SIZES, ([table.relation_id for table in tables],)).fetchone()
    except SlotlakeError:
        return None
    return None if row is None else int(row[0])


def size(count: int) -> str:
    """Return a number of bytes as a person reads it."""
    return f"{count / 1e9:,.1f} GB" if count >= 1_000_000_000 else f"{count / 1e6:,.1f} MB"
