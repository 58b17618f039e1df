"""How much room the next run needs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import SlotlakeError
from slotlake.decoder.server.position import source_position
from slotlake.decoder.server.source import source_session

if TYPE_CHECKING:
    import psycopg

    from slotlake.decoder.server.source import SourceSettings

_SIZES = """
SELECT r.oid::bigint, coalesce(sum(pg_table_size(coalesce(p.relid, r.oid))), 0)::bigint
FROM unnest(%s::oid[]) r(oid) LEFT JOIN LATERAL pg_partition_tree(r.oid) p ON true GROUP BY r.oid
"""


def bytes_by_table(connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> dict[int, int]:
    """Return the bytes of tables at the source, without indexes and with all partitions, by OID."""
    rows = connection.execute(_SIZES, ([table.relation_id for table in tables],)).fetchall()
    return {int(oid): int(count) for oid, count in rows}


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
            return sum(bytes_by_table(connection, tables).values())
    except SlotlakeError:
        return None


def size(count: int) -> str:
    """Return a number of bytes as a person reads it."""
    return f"{count / 1e9:,.1f} GB" if count >= 1_000_000_000 else f"{count / 1e6:,.1f} MB"
