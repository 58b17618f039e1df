"""The end of the server's WAL, as a position at which a batch can end.

PostgreSQL gives several numbers for the same place.  The insert position is where the *next* record will
start.  After a full page that is after the next page's header, while all existing records end before the
header.  `settled_position` gives a position that the WAL sender reaches even if nobody writes another byte,
so that a pull up to it always ends.
"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from slotlake.decoder.errors import SourceUnavailableError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.source import SourceSettings, source_session

_POLL_SECONDS = 0.01
_NUDGE_AFTER_SECONDS = 0.2
_GIVE_UP_SECONDS = 20.0
_LONG_HEADER_BYTES = 40
_SHORT_HEADER_BYTES = 24


def page_floor(lsn: int, block_bytes: int = 8192, segment_bytes: int = 16 << 20) -> int:
    """Return the page's start if ``lsn`` is in its header or directly after it, else ``lsn`` itself.

    No record starts between the two (xlog_internal.h: SizeOfXLogShortPHD, SizeOfXLogLongPHD).

    Args:
        segment_bytes: size of a WAL segment, whose first page has a longer header.
    """
    header = _LONG_HEADER_BYTES if lsn % segment_bytes <= _LONG_HEADER_BYTES else _SHORT_HEADER_BYTES
    return lsn - lsn % block_bytes if lsn % block_bytes <= header else lsn


def settled_position(connection: psycopg.Connection[Any]) -> int:
    """A position after all transactions that were committed before the call; the WAL up to it is on disk.

    With ``synchronous_commit = off``, or while a transaction is open that has written, the last
    records are in memory only, and the WAL sender does not send them.  This function waits a moment for
    the WAL writer; then it runs an empty transaction with a transaction id, which makes the server write.

    Raises:
        SourceUnavailableError: the server does not write its WAL to disk.
    """
    if _one(connection, "SELECT pg_is_in_recovery()"):
        return parse_lsn(_one(connection, "SELECT pg_last_wal_replay_lsn()"))
    block, segment = (int(_one(connection, _SETTING, (name,))) for name in _SIZES)
    target = page_floor(parse_lsn(_one(connection, "SELECT pg_current_wal_insert_lsn()")), block, segment)
    begun = time.monotonic()
    nudge_at = begun + _NUDGE_AFTER_SECONDS
    while parse_lsn(_one(connection, "SELECT pg_current_wal_flush_lsn()")) < target:
        now = time.monotonic()
        if now >= nudge_at:
            _one(connection, "SELECT txid_current()")
            nudge_at = now + _NUDGE_AFTER_SECONDS
        if now - begun > _GIVE_UP_SECONDS:
            raise SourceUnavailableError(
                f"the server has not written its WAL to disk up to {format_lsn(target)} "
                f"in {_GIVE_UP_SECONDS:g} s",
                where=f"{connection.info.host}:{connection.info.port}/{connection.info.dbname}",
                way_out="check the server's log and disks, then run the same command again",
            )
        time.sleep(_POLL_SECONDS)
    return target


def source_position(source: SourceSettings) -> int:
    """A position of the source after all transactions that were committed before the call."""
    with source_session(source.dsn, "reading the WAL position") as connection:
        return settled_position(connection)


def writers_open(connection: psycopg.Connection[Any]) -> bool:
    """True if a transaction that has written is open (it has a transaction id; prepared ones count)."""
    return bool(_one(connection, "SELECT EXISTS (SELECT pg_snapshot_xip(pg_current_snapshot()))"))


_SETTING = "SELECT setting FROM pg_settings WHERE name = %s"
_SIZES = ("wal_block_size", "wal_segment_size")


def _one(connection: psycopg.Connection[Any], query: str, parameters: tuple[Any, ...] = ()) -> Any:
    row = connection.execute(query.encode(), parameters or None).fetchone()
    assert row is not None
    return row[0]
