"""Did pg_upgrade bring this slot along, and does the lake have all that the old cluster had?

pg_upgrade makes another cluster (another system identifier), whose WAL begins behind the old one's.  From 17
on it makes the old cluster's logical slots anew there, if each had consumed all WAL; of their positions it
keeps nothing.  So the lake's position and the slot's cannot be compared.  Two traces are left instead:

- It notes the transaction id that the old cluster would have given next, as `datfrozenxid` of the database
  template0 (`set_frozenxids`), and continues to count from there.  A batch notes an id below which all
  transactions had ended before its end.  If both are equal, no transaction has had an id since.
- It begins the new cluster's WAL with a new segment just before it makes the slots, and ends with two
  checkpoints.  So its slots start within the first bytes of a segment.  A slot that is made later, even the
  first one, starts behind these checkpoints; there is no room for a change of a row and its commit.

Invariant: what is not proven raises; then lake and source have to be compared (`slotlake recover`).

Rules: pg_upgrade.c (`copy_xact_xlog_xid`, `create_logical_replication_slots`,
`issue_warnings_and_set_wal_level`), slotfuncs.c.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg import sql

from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.source import SourceSettings, redact, source_session
from slotlake.decoder.server.timeline import HistoryError, Origin
from slotlake.decoder.slots.slot import check_slot

_FIRST_OF_PG_UPGRADE: Final = 180000  # the new cluster's version; the old one is 17 or later
_XIDS: Final = 1 << 32
# Of a segment: header 40, checkpoint 120 (128 from 19 on), parameters 56, a pruned page of the catalog 64.
_BEFORE_SLOTS_BYTES: Final = 288
_SLOT_BYTES: Final = 56  # a slot is made behind one more record of the running transactions
# A slot made later starts behind a checkpoint, with 66 bytes to spare here; a row and its commit need 96.
_SLOTS_AT_LEAST: Final = 2
_QUIET = """SELECT CASE WHEN pg_snapshot_xmin(s) = pg_snapshot_xmax(s) THEN pg_snapshot_xmax(s)::text END
FROM pg_current_snapshot() s"""
_TRACES = """
SELECT s.restart_lsn::text, s.confirmed_flush_lsn::text, s.catalog_xmin::text,
       (SELECT count(*) FROM pg_replication_slots o
        WHERE o.slot_type = 'logical' AND o.restart_lsn < s.restart_lsn),
       (SELECT datfrozenxid::text FROM pg_database WHERE datname = 'template0'),
       pg_size_bytes(current_setting('wal_segment_size'))
FROM pg_replication_slots s WHERE s.slot_name = %s
"""


@dataclass(frozen=True)
class UpgradedSlot:
    """A slot that pg_upgrade made of the old cluster's.

    Attributes:
        position: from where on it sends everything; all before it is in the lake.
        first_xid: the first transaction id that was given after the slot was made.
    """

    position: int
    first_xid: int


def quiet_xid(connection: psycopg.Connection[Any]) -> str | None:
    """Return the id below which all transactions have ended; None if one below it is open.

    Newer ones may be open; they have an id that is not below it.
    """
    row = connection.execute(_QUIET).fetchone()
    return None if row is None or row[0] is None else str(row[0])


def xid_of_snapshot(dsn: str, snapshot: str) -> str:
    """Return the id below which all transactions had ended in a snapshot; "" if an older one was open.

    Args:
        snapshot: name of an exported snapshot.

    Raises:
        SourceError: the snapshot is not exported any more.
    """
    with source_session(dsn, "looking at a snapshot") as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        return quiet_xid(connection) or ""
    raise AssertionError("unreachable")


def is_older(xid: int, than: int) -> bool:
    """Return whether one transaction id was given before another; they are counted round 2^32."""
    return 0 < (than - xid) % _XIDS < _XIDS // 2


def require_upgraded_slot(source: SourceSettings, origin: Origin, position: int) -> UpgradedSlot:
    """Return the slot of an upgraded cluster, after proving that the lake has all that it does not send.

    Args:
        origin: the cluster from which the lake was filled last.

    Raises:
        HistoryError: that is not proven; the message says what is not.
        SlotError: the slot cannot be used at all.
    """
    with source_session(source.dsn, "looking at the slot of an upgraded server") as connection:
        check_slot(connection, source)
        row = connection.execute(_TRACES, (source.slot,)).fetchone()
        assert row is not None
        why = _unproven(connection.info.server_version, origin, position, row)
    if why is None:
        return UpgradedSlot(parse_lsn(row[1]), int(row[2]))
    raise HistoryError(
        f"this is another PostgreSQL cluster than the one from which the lake was filled "
        f"({origin.system_identifier}), and that pg_upgrade has brought the slot along without a gap is not "
        f"proven: {why}",
        where=redact(source.dsn),
        way_out="correct source.dsn; or, if that cluster was upgraded or is gone for good, run `slotlake "
        "recover`: it compares, and shows its plan before it changes anything (docs/runbook/upgraded.md)",
    )


def _unproven(version: int, origin: Origin, position: int, row: tuple[Any, ...]) -> str | None:
    """What is not proven; None if all is."""
    restart, confirmed, _, before, frozen, segment_bytes = row
    if version < _FIRST_OF_PG_UPGRADE:
        return "pg_upgrade keeps slots from PostgreSQL 17 to 18 and later only"
    if not origin.next_xid:
        return "transactions were open when the lake got its last batch"
    if frozen is None:
        return "the database template0, in which pg_upgrade leaves its trace, is gone"
    used = (int(frozen) - int(origin.next_xid)) % _XIDS
    at = format_lsn(position)
    start_max = _BEFORE_SLOTS_BYTES + _SLOT_BYTES * max(_SLOTS_AT_LEAST, before)
    reasons = {
        "its transactions were not counted on from the old cluster's": used >= _XIDS // 2,
        f"the old cluster has begun {used} transactions after the lake's position {at}": used > 0,
        f"its WAL does not begin behind the lake's position {at}": parse_lsn(confirmed) <= position,
        "the slot was made after the upgrade, or read by another program since": (
            parse_lsn(restart) % segment_bytes > start_max
        ),
    }
    return next((why for why, is_so in reasons.items() if is_so), None)
