"""Parts of a large table, so that several connections read it at once, or one reads it in short statements.

A part is a range of pages of the table, or of one of its partitions (`decoder.copy.parts`).  Under a
snapshot the parts are the table, as long as nobody writes its rows to another place (VACUUM FULL, CLUSTER,
ALTER TABLE) between the reading of two parts: locks end with each part.  Invariant: parts count only if the
files of the table are the same before the first part and after the last one (`Divided.stands`); else the
table is read in one statement.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from slotlake.decoder.catalog.publication_tables import LEAVES
from slotlake.decoder.copy.parts import Part, plan_parts
from slotlake.expectations.shapes import Compared

_PARTS_WISHED = 64
_JOINED_MAX = 16  # 1 GiB
_FILES = f"""WITH RECURSIVE root AS (
    SELECT oid, relkind FROM pg_catalog.pg_class WHERE oid = ANY (%s)
), {LEAVES}
SELECT root::bigint, relid::bigint, pg_catalog.pg_relation_filenode(relid)::bigint, c.relfilenode::bigint
FROM leaf JOIN pg_catalog.pg_class c ON c.oid = leaf.relid
"""
Files = frozenset[tuple[int, int | None]]


@dataclass(frozen=True)
class _Planned:
    """A table as `plan_parts` takes it."""

    relation_id: int
    quoted: str


@dataclass(frozen=True)
class Divided:
    """A table and its parts.

    Attributes:
        table: the table.
        parts: more than one.
        files: partition → its file, as the server numbers them, when the parts were planned.
    """

    table: Compared
    parts: tuple[Compared, ...]
    files: Files

    def stands(self, connection: psycopg.Connection[Any]) -> bool:
        """Return whether the table still has these partitions and files.

        Args:
            connection: within a transaction.
        """
        oid = self.table.relation_id
        return files_of(connection, [oid]).get(oid) == self.files


def files_of(connection: psycopg.Connection[Any], oids: Sequence[int]) -> dict[int, Files]:
    """Return the partitions of tables with their files, by the OID of the table.

    The files are those of now, whatever snapshot the connection has.  The savepoint gives the catalog's locks
    back: with a lock that it has already, the server would not look for news (LockRelationOid).

    Args:
        connection: within a transaction.
    """
    files: dict[int, set[tuple[int, int | None]]] = {}
    with connection.transaction(force_rollback=True):
        for root, leaf, file, _ in connection.execute(_FILES.encode(), (list(oids),)).fetchall():
            files.setdefault(int(root), set()).add((int(leaf), file))
    return {root: frozenset(of_root) for root, of_root in files.items()}


def was_rewritten(connection: psycopg.Connection[Any], oid: int) -> bool:
    """Return whether a table, or a partition of it, has other files than the connection's snapshot says.

    TRUNCATE and some kinds of ALTER TABLE are not MVCC-safe: who reads under an older snapshot finds no row
    (manual, "Caveats" of concurrency control).

    Args:
        connection: within a transaction.
    """
    with connection.transaction(force_rollback=True):
        files = connection.execute(_FILES.encode(), ([oid],)).fetchall()
    return any(now != before for _, _, now, before in files)


def divided(connection: psycopg.Connection[Any], tables: Sequence[Compared]) -> dict[Compared, Divided]:
    """Plan the parts of those tables that are large enough.

    Args:
        connection: within a transaction.
        tables: the tables, or some rows of them; of one without an OID there are no parts.
    """
    planned = {table: _Planned(table.relation_id, table.name) for table in tables if table.relation_id}
    files = files_of(connection, [each.relation_id for each in planned.values()])
    with connection.transaction(force_rollback=True):
        parts = plan_parts(connection, dict.fromkeys(planned.values()))
    plans = {}
    for table, each in planned.items():
        pieces = tuple(_part(table, part) for part in _joined(parts[each]))
        if len(pieces) > 1 and each.relation_id in files:
            plans[table] = Divided(table, pieces, files[each.relation_id])
    return plans


def _joined(parts: Sequence[Part]) -> Iterator[Part]:
    """Parts that follow each other as one, so that a very large table has not very many."""
    at_once = min(_JOINED_MAX, -(-len(parts) // _PARTS_WISHED))
    group: list[Part] = []
    for part in parts:
        if group and (len(group) == at_once or part.relation != group[0].relation):
            yield replace(group[0], end=group[-1].end)
            group = []
        group.append(part)
    if group:
        yield replace(group[0], end=group[-1].end)


def _part(table: Compared, part: Part) -> Compared:
    """The rows of a table that are in a part of it."""
    condition, own = part.condition, table.row_filter
    filtered = " AND ".join(filter(None, (f"({own})" if own else None, condition))) or None
    own_id = part.relation_id or table.relation_id
    return replace(table, name=part.name, row_filter=filtered, partitioned=False, relation_id=own_id)
