"""Divides a table's copy into parts: ranges of pages, so that several are read at once and none twice.

A part is a range of ctids of one table file: the table itself, or a partition of a table that is published
through its root.  Together the parts are the whole table, whatever is written meanwhile: a version of a row
never moves, the first range begins at the first page, and the last has no end.  From version 14 on PostgreSQL
reads a range of ctids without the rest of the table (nodeTidrangescan.c).  There is only one part for a table
without pages, for one that the role may read through its root only, and for one that it may not read by
ctid (because it may read only some columns).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publication_tables import LEAVES, LOCKED, require_filter
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.types.table import column_type, copy_sql

PART_BYTES = 64 << 20
_FIRST_WITH_RANGES = 140000
_ONLY = "ONLY "


class PlannedTable(Protocol):
    """What is to be known of a table: its OID, and its name with its schema, as in SQL."""

    @property
    def relation_id(self) -> int: ...
    @property
    def quoted(self) -> str: ...


Planned = TypeVar("Planned", bound=PlannedTable)


@dataclass(frozen=True)
class Part:
    """The part of a table that one COPY reads.

    Attributes:
        number: its place among the table's parts.
        relation: the table file as in SQL, with ONLY unless it is a root.
        first, end: pages, ``end`` not included; None for no limit.
        rows, bytes: estimates; 0 if the server does not know. Bytes are the server's, TOAST included.
        relation_id: OID of the relation that had that name when the parts were planned; 0 if not recorded.
    """

    number: int
    relation: str
    first: int | None
    end: int | None
    rows: int
    bytes: int
    relation_id: int = 0

    @property
    def name(self) -> str:
        """The quoted name of the table file, with its schema."""
        return self.relation.removeprefix(_ONLY)

    @property
    def condition(self) -> str | None:
        """The range as SQL; None for the whole table file."""
        bounds = [f"ctid >= '({self.first},0)'::tid"] if self.first is not None else []
        bounds += [f"ctid < '({self.end},0)'::tid"] if self.end is not None else []
        return " AND ".join(bounds) or None

    def as_dict(self) -> dict[str, Any]:
        """For a record on disk; ``Part(**it)`` reads it."""
        return asdict(self)


@dataclass(frozen=True)
class _Leaf:
    relation_id: int
    relation: str
    pages: int
    rows: int
    bytes: int
    ranged: bool


# The size of a locked table is that of its last ANALYZE: there may be a range more or less, but no wait.
_LEAVES = f"""WITH RECURSIVE {LOCKED}, root AS (
    SELECT oid, relkind FROM pg_class WHERE oid = ANY (%s)
), {LEAVES}
SELECT root.oid::bigint, c.oid::bigint, n.nspname, c.relname, root.relkind::text,
       coalesce(CASE WHEN l.relation IS NULL THEN pg_relation_size(c.oid) / b.size ELSE c.relpages END, 0),
       greatest(c.reltuples, 0)::bigint,
       coalesce(CASE WHEN l.relation IS NULL THEN pg_table_size(c.oid) ELSE c.relpages * b.size END, 0),
       c.relkind = 'r' AND coalesce(a.amname = 'heap', false)
           AND coalesce(has_table_privilege(c.oid, 'SELECT'), false),
       coalesce(has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT')
                AND NOT row_security_active(c.oid), false)
FROM root
JOIN leaf ON leaf.root = root.oid
JOIN pg_class c ON c.oid = leaf.relid
JOIN pg_namespace n ON n.oid = c.relnamespace
LEFT JOIN pg_am a ON a.oid = c.relam
LEFT JOIN (SELECT DISTINCT relation FROM locked) l ON l.relation = c.oid,
LATERAL (SELECT current_setting('block_size')::bigint AS size) b
ORDER BY root.oid, c.oid
"""


def plan_parts(
    connection: psycopg.Connection[Any], tables: Iterable[Planned], *, part_bytes: int | None = None
) -> dict[Planned, list[Part]]:
    """The parts of each table, at least one, by one query for all tables.

    Args:
        part_bytes: size of a part in the server's files, at least a page; None: PART_BYTES.
    """
    by_oid = {table.relation_id: table for table in tables}
    ranges, size = connection.info.server_version >= _FIRST_WITH_RANGES, part_bytes or PART_BYTES
    leaves: dict[int, list[_Leaf]] = {oid: [] for oid in by_oid}
    readable = dict.fromkeys(by_oid, True)
    for oid, leaf, schema, name, kind, pages, rows, stored, heap, allowed in connection.execute(
        _LEAVES.encode(), (list(by_oid),)
    ).fetchall():
        readable[oid] &= kind != "p" or allowed
        relation = f"{_ONLY}{sql.Identifier(schema, name).as_string(None)}"
        leaves[oid].append(_Leaf(leaf, relation, int(pages), int(rows), int(stored), bool(heap and ranges)))
    return {
        table: _parts(table, leaves[oid] if readable[oid] else _whole(table, leaves[oid]), size)
        for oid, table in by_oid.items()
    }


def _whole(table: PlannedTable, leaves: list[_Leaf]) -> list[_Leaf]:
    """One leaf for the whole root, because this role may not read its partitions directly."""
    rows, stored = sum(leaf.rows for leaf in leaves), sum(leaf.bytes for leaf in leaves)
    return [_Leaf(table.relation_id, table.quoted, 0, rows, stored, ranged=False)]


def _parts(table: PlannedTable, leaves: list[_Leaf], part_bytes: int) -> list[Part]:
    parts: list[Part] = []
    for leaf in leaves or _whole(table, []):
        count = max(1, -(-leaf.bytes // part_bytes)) if leaf.ranged else 1
        step = max(1, -(-leaf.pages // count))
        firsts = list(range(0, leaf.pages, step)) or [0]
        for at, first in enumerate(firsts):
            begin = first if at else None
            end = None if first == firsts[-1] else first + step
            share = (leaf.rows // len(firsts), leaf.bytes // len(firsts))
            parts.append(Part(len(parts), leaf.relation, begin, end, *share, leaf.relation_id))
    return parts


def part_query(table: SourceTable, part: Part, more: str | None = None) -> str:
    """The COPY command for a part of a table; with ONLY, because child tables are published separately.

    Args:
        more: a further condition, as SQL.

    Raises:
        SourceUnavailableError: the table's row filter could not be read.
    """
    require_filter(table.row_filter, table.quoted)
    columns = ", ".join(
        copy_sql(sql.Identifier(c.name).as_string(None), column_type(c.type_oid, c.typmod))
        for c in table.columns
    )
    conditions = [each for each in (part.condition, table.row_filter, more) if each is not None]
    where = f" WHERE {' AND '.join(f'({each})' for each in conditions)}" if conditions else ""
    return f"COPY (SELECT {columns} FROM {part.relation}{where}) TO STDOUT (FORMAT binary)"


def whole_part(table: SourceTable) -> Part:
    """All of a table as one part."""
    return Part(0, f"{_ONLY if table.kind != 'p' else ''}{table.quoted}", None, None, 0, 0, table.relation_id)
