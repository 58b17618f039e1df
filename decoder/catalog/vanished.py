"""Tables that were dropped before slotlake could read them; this is not an error for the other tables.

Invariant: the answer is about now, whatever snapshot a session reads under: the server looks privileges up in
its cache of the catalog (syscache), which ignores snapshots.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import psycopg

from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.server.source import source_session

_DROPPED = """
SELECT oid::bigint FROM unnest(%s::oid[]) oid WHERE pg_catalog.has_table_privilege(oid, 'SELECT') IS NULL
"""


class VanishedError(ChangedMeanwhileError):
    """A table was dropped before it could be read."""


def vanished(dsn: str, relation_ids: Collection[int]) -> set[int]:
    """Those of these OIDs whose tables do not exist any more."""
    if not relation_ids:
        return set()
    with source_session(dsn, "looking for tables") as connection:
        return vanished_for(connection, relation_ids)


def vanished_for(connection: psycopg.Connection[Any], relation_ids: Collection[int]) -> set[int]:
    """As `vanished`, over a session whose transaction has not failed."""
    return {int(oid) for (oid,) in connection.execute(_DROPPED.encode(), (list(relation_ids),)).fetchall()}


def vanished_error(table: str) -> VanishedError:
    """The error for a table of this name, for work that cannot go on without it."""
    return VanishedError("a table was dropped while it was read", where=f"table {table}", way_out="run again")


def require_named(connection: psycopg.Connection[Any], name: str, relation_id: int) -> None:
    """Check that a name still means the same table: COPY looks the name up each time it is used.

    Call it after COPY has begun: the lock that COPY took keeps the name from changing.

    Args:
        name: quoted as in SQL.

    Raises:
        ChangedMeanwhileError: the name belongs to another table now.
    """
    row = connection.execute("SELECT to_regclass(%s)::oid::bigint", (name,)).fetchone()
    if row != (relation_id,):
        raise ChangedMeanwhileError(
            "a table, or a partition of it, was renamed while it was copied",
            where=f"table {name}",
            way_out="run again; nothing was published",
        )
