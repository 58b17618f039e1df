"""How much WAL a slot retains, and which transactions keep it from releasing WAL.  Nothing is changed.

A slot's ``restart_lsn`` cannot pass the oldest open transaction that has written, in any database of the
server (reorderbuffer.c: ReorderBufferGetOldestTXN; every record with a transaction id makes its transaction
known).  So when WAL accumulates although the slot is read, these transactions and the prepared ones are the
cause.  Invariant: this works for a role without any privilege; the result says what such a role cannot see.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import psycopg

from slotlake.decoder.lsn import parse_lsn
from slotlake.decoder.server.position import page_floor

_UNITS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
_NAMED_MAX = 20


@dataclass(frozen=True)
class Holder:
    """A transaction that keeps slots from releasing WAL; ``seconds`` since it began or was prepared.

    Attributes:
        kind: ``transaction``, ``idle in transaction`` or ``prepared``.
        pid: of the session; None for a prepared one.
        gid: of a prepared one.
    """

    kind: str
    pid: int | None
    gid: str | None
    user: str | None
    application: str | None
    database: str | None
    seconds: float

    def __str__(self) -> str:
        if self.kind == "prepared":
            return (
                f"prepared transaction {self.gid!r} (owner {self.user}, database {self.database}, "
                f"{span(self.seconds)} old)"
            )
        return (
            f"pid {self.pid} (user {self.user}, application {self.application or 'unnamed'}, database "
            f"{self.database}, {self.kind}, open for {span(self.seconds)})"
        )


@dataclass(frozen=True)
class OtherSlot:
    """Another slot of the same server; sizes in bytes."""

    name: str
    slot_type: str
    database: str | None
    active: bool
    retained_bytes: int | None
    wal_status: str | None
    inactive_seconds: float | None


@dataclass(frozen=True)
class Pressure:
    """What a slot retains on its server, and the server's limits.

    Attributes:
        keep_bytes_max: ``max_slot_wal_keep_size``, None when unlimited.
        idle_seconds_max: ``idle_replication_slot_timeout`` (18), None when there is none.
        inactive_seconds: for how long nobody has read the slot (17); None if somebody does, or if unknown.
        holders: the oldest first.
        sees_all: this role sees other users' transactions.
    """

    keep_bytes_max: int | None
    idle_seconds_max: float | None
    inactive_seconds: float | None
    holders: tuple[Holder, ...]
    others: tuple[OtherSlot, ...]
    sees_all: bool


def slot_pressure(connection: psycopg.Connection[Any], slot: str) -> Pressure:
    """Ask the server about a slot, about transactions that keep it from releasing WAL, and other slots."""
    keep = _setting(connection, "max_slot_wal_keep_size")
    idle = _setting(connection, "idle_replication_slot_timeout")
    slots = {each.name: each for each in _slots(connection)}
    own = slots.pop(slot, None)
    row = connection.execute("SELECT pg_has_role('pg_read_all_stats', 'USAGE')").fetchone()
    return Pressure(
        keep_bytes_max=None if keep is None or keep[0] < 0 else int(keep[0]) << 20,
        idle_seconds_max=None if idle is None or idle[0] <= 0 else idle[0] * _UNITS[idle[1]],
        inactive_seconds=None if own is None or own.active else own.inactive_seconds,
        holders=_holders(connection),
        others=tuple(slots.values()),
        sees_all=row == (True,),
    )


def span(seconds: float) -> str:
    """A duration for people: ``45 s``, ``12 min``, ``3.5 h``, ``2.1 days``."""
    for size, name in ((86400.0, "days"), (3600.0, "h")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {name}"
    return f"{seconds / 60:.0f} min" if seconds >= 120 else f"{seconds:.0f} s"


_HOLDERS = """
SELECT CASE WHEN state LIKE 'idle in transaction%%' THEN 'idle in transaction' ELSE 'transaction' END,
       pid, NULL, usename::text, nullif(application_name, ''), datname::text,
       extract(epoch FROM clock_timestamp() - xact_start)::float8 AS seconds
FROM pg_stat_activity
WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
UNION ALL
SELECT 'prepared', NULL, gid, owner::text, NULL, database::text,
       extract(epoch FROM clock_timestamp() - prepared)::float8
FROM pg_prepared_xacts
ORDER BY seconds DESC LIMIT %s
"""
_HOLDER = ("kind", "pid", "gid", "user", "application", "database", "seconds")
_SLOTS = """
SELECT s.*, extract(epoch FROM clock_timestamp())::float8 AS now,
       pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn()
                       ELSE pg_current_wal_insert_lsn() END, restart_lsn)::bigint AS retained
FROM pg_replication_slots s WHERE NOT temporary ORDER BY slot_name
"""


def _holders(connection: psycopg.Connection[Any]) -> tuple[Holder, ...]:
    rows = connection.execute(_HOLDERS.encode(), (_NAMED_MAX,)).fetchall()
    return tuple(Holder(**dict(zip(_HOLDER, row, strict=True))) for row in rows)


def _slots(connection: psycopg.Connection[Any]) -> list[OtherSlot]:
    """Columns differ between server versions: ``inactive_since`` came in 17."""
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        rows = cursor.execute(_SLOTS.encode()).fetchall()
    slots = []
    for row in rows:
        since = row.get("inactive_since")
        slots.append(
            OtherSlot(
                name=row["slot_name"],
                slot_type=row["slot_type"],
                database=row["database"],
                active=row["active"],
                retained_bytes=row["retained"],
                wal_status=row.get("wal_status"),
                inactive_seconds=None if since is None else max(0.0, row["now"] - since.timestamp()),
            )
        )
    return slots


def _setting(connection: psycopg.Connection[Any], name: str) -> tuple[float, str] | None:
    row = connection.execute("SELECT setting, unit FROM pg_settings WHERE name = %s", (name,)).fetchone()
    return None if row is None else (float(row[0]), str(row[1]))


def wal_now(connection: psycopg.Connection[Any]) -> int:
    """The end of the server's WAL (on a standby: of the WAL that it has replayed)."""
    row = connection.execute(
        "SELECT CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
        "ELSE pg_current_wal_insert_lsn() END"
    ).fetchone()
    assert row is not None
    return page_floor(parse_lsn(str(row[0])))
