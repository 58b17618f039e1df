"""The replication slot: how it is created, read from the catalog, checked before a pull, and dropped.

A slot is the server's record of this lake's position; the lake itself is the truth (see pull.py).  A slot
that is *ahead* of the lake has released changes that the lake does not have, and only a new copy can bring
them back.

Two things need care.  The creation of a slot waits for every transaction that is open at that moment
(snapbuild.c, SnapBuildWaitSnapshot), so it has a time limit, and the error names the transactions.
Confirming must move ``confirmed_flush_lsn`` exactly to the lake's position and let ``restart_lsn``
follow, or WAL accumulates; see confirm.py.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any

import psycopg

from slotlake.decoder.errors import SlotBusyError, SlotError, SourceError
from slotlake.decoder.lsn import format_lsn, parse_lsn
from slotlake.decoder.server.closing import Closes
from slotlake.decoder.server.source import (
    SourceSettings,
    connect_replication,
    redact,
    source_errors,
    source_session,
)
from slotlake.decoder.slots.failover import FIRST_WITH_FAILOVER, wants_failover
from slotlake.decoder.slots.waits import slot_wait_error, time_limit

BUSY_WAIT_SECONDS = 5.0
CREATE_WAIT_SECONDS = 60.0
_FIRST_WITH_TWO_PHASE = 150000
_FIRST_WITH_ALTER_TWO_PHASE = 180000
_SLOT_NAME = re.compile(r"^[a-z0-9_]{1,63}$")


@dataclass(frozen=True)
class SlotState:
    """One row of pg_replication_slots; positions are integers, None where the server has none.

    Attributes:
        retained_bytes: WAL between ``restart_lsn`` and the present end of the server's WAL.
        safe_wal_size: bytes that may still be written before the slot is lost, None when unlimited.
        invalidation_reason: why the server invalidated the slot (PostgreSQL 17 on), else None.
    """

    name: str
    plugin: str | None
    slot_type: str
    database: str | None
    temporary: bool
    active_pid: int | None
    restart_lsn: int | None
    confirmed_flush_lsn: int | None
    wal_status: str | None
    safe_wal_size: int | None
    retained_bytes: int | None
    two_phase: bool
    failover: bool
    conflicting: bool
    invalidation_reason: str | None
    synced: bool = False  # it is, or was before the promotion, a standby's copy of its primary's slot

    @property
    def lost(self) -> bool:
        """The WAL this slot needs is gone, or the server has invalidated it."""
        return self.wal_status == "lost" or self.conflicting or self.invalidation_reason is not None


class ExportedSnapshot(Closes):
    """A pair (position L, snapshot S): a transaction is visible in S exactly if it commits before L.

    Other sessions can import the snapshot (`SET TRANSACTION SNAPSHOT`) only while this object is open; a
    session that has imported it keeps it for its own transaction.  A temporary slot ends with this object.

    Attributes:
        slot: name of the slot that exported it; empty if there is none (`decoder.slots.visible`).
        settled: its creation waited for all open transactions, so that none of them is older than a change
            of the publications.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        slot: str,
        lsn: int,
        snapshot: str,
        *,
        settled: bool = True,
    ) -> None:
        self.slot = slot
        self.lsn = lsn
        self.snapshot = snapshot
        self.settled = settled
        self._connection = connection

    def close(self) -> None:
        """End the exporting session."""
        self._connection.close()


def inspect_slot(connection: psycopg.Connection[Any], name: str) -> SlotState | None:
    """Read a slot's row of pg_replication_slots; None if the slot does not exist."""
    query = (
        "SELECT s.*, pg_wal_lsn_diff(CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() "
        "ELSE pg_current_wal_insert_lsn() END, restart_lsn)::bigint AS retained "
        "FROM pg_replication_slots s WHERE slot_name = %s"
    )
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        row = cursor.execute(query, (name,)).fetchone()
    return None if row is None else _state(row)


def _state(row: dict[str, Any]) -> SlotState:
    """Columns differ between server versions: conflicting came in 16, invalidation_reason in 17."""

    def lsn(name: str) -> int | None:
        return None if row[name] is None else parse_lsn(row[name])

    return SlotState(
        name=row["slot_name"],
        plugin=row["plugin"],
        slot_type=row["slot_type"],
        database=row["database"],
        temporary=row["temporary"],
        active_pid=row["active_pid"],
        restart_lsn=lsn("restart_lsn"),
        confirmed_flush_lsn=lsn("confirmed_flush_lsn"),
        wal_status=row.get("wal_status"),
        safe_wal_size=row.get("safe_wal_size"),
        retained_bytes=row["retained"],
        two_phase=bool(row.get("two_phase")),
        failover=bool(row.get("failover")),
        conflicting=bool(row.get("conflicting")),
        invalidation_reason=row.get("invalidation_reason"),
        synced=bool(row.get("synced")),
    )


def check_slot(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    *,
    position: int | None = None,
    wait_seconds: float | None = None,
) -> SlotState:
    """Check that a pull from ``position`` can use the slot.

    A reader that has just died may keep the slot busy for a moment.

    Args:
        position: the lake's position; None: not checked.
        wait_seconds: how long to wait for a busy slot; None: BUSY_WAIT_SECONDS.

    Raises:
        SlotBusyError: another reader uses it.
        SlotError: missing, of another plugin or database, lost, or ahead of the lake.
    """
    deadline = time.monotonic() + (BUSY_WAIT_SECONDS if wait_seconds is None else wait_seconds)
    while True:
        state = inspect_slot(connection, source.slot)
        if state is None or state.active_pid is None or time.monotonic() >= deadline:
            break
        time.sleep(0.1)
    return _judged(connection, source, state, position)


def _judged(
    connection: psycopg.Connection[Any], source: SourceSettings, state: SlotState | None, position: int | None
) -> SlotState:
    where = f"slot {source.slot!r} at {redact(source.dsn)}"
    if state is None:
        raise SlotError(
            f"the replication slot {source.slot!r} does not exist",
            where=where,
            way_out="check source.slot. If the slot was dropped, run `slotlake recover`: it shows how it "
            "makes the lake equal to the source again, and does so with --yes",
        )
    if state.slot_type != "logical" or state.plugin != source.plugin:
        plugin = state.plugin or "no plugin (it is a physical slot)"
        raise SlotError(
            f"the slot's output plugin is {plugin}, not {source.plugin}",
            where=where,
            way_out="set source.slot to another name: another program uses this slot",
        )
    _check_promoted(connection, state, where)
    database = connection.execute("SELECT current_database()").fetchone()
    assert database is not None
    if state.database != database[0]:
        raise SlotError(
            f"the slot belongs to database {state.database!r}, not to {database[0]!r}",
            where=where,
            way_out="correct the database in source.dsn, or set source.slot to another name",
        )
    _check_not_lost(state, where)
    if source.two_phase and not state.two_phase:
        raise _not_two_phase(connection.info.server_version, source.slot, where)
    if state.active_pid is not None:
        raise _busy(connection, state.active_pid, where)
    check_confirmed(state.confirmed_flush_lsn, position, where)
    return state


def _check_promoted(connection: psycopg.Connection[Any], state: SlotState, where: str) -> None:
    """Refuse a standby's copy of a slot: nobody may read it while there is a primary."""
    if not state.synced or connection.execute("SELECT pg_is_in_recovery()").fetchone() == (False,):
        return
    ready = "not complete yet: a promotion now would remove it" if state.temporary else "complete"
    error = SlotError(
        f"the server is a standby, and its slot is a copy of the primary's slot ({ready})",
        where=where,
        way_out="point source.dsn at the primary (several hosts with target_session_attrs=read-write select "
        "it), or promote this server if the primary is gone; then run the same command again",
    )
    error.retryable = True  # type: ignore[misc]  # a failover in progress ends by itself
    raise error


def _not_two_phase(server_version: int, slot: str, where: str) -> SlotError:
    turn_on = (
        f'run ALTER_REPLICATION_SLOT "{slot}" (TWO_PHASE true) over a replication connection'
        if server_version >= _FIRST_WITH_ALTER_TWO_PHASE
        else "this server can set two_phase only when it creates a slot: leave two_phase out, run "
        "`slotlake sync` (a slot that is dropped takes its changes along), drop the slot, set two_phase, "
        "then run `slotlake recover`"
    )
    return SlotError(
        "source.two_phase is true, but the slot was created without two_phase",
        where=where,
        way_out=f"{turn_on}; or leave two_phase out: prepared transactions then come when they commit",
    )


def _check_not_lost(state: SlotState, where: str) -> None:
    if not state.lost and state.restart_lsn is not None:
        return
    reason = state.invalidation_reason or state.wal_status or "no restart_lsn"
    again = "run `slotlake recover`; to prevent this in future, "
    if state.conflicting:
        raise SlotError(
            f"the standby has invalidated the slot ({reason}): the primary has removed what decoding needs",
            where=where,
            way_out=f"{again}set hot_standby_feedback = on and a primary_slot_name on the standby, and keep "
            "wal_level = 'logical' on the primary",
        )
    raise SlotError(
        f"the server has invalidated the slot ({reason}): the WAL that it needs is gone",
        where=where,
        way_out=f"{again}raise max_slot_wal_keep_size (or idle_replication_slot_timeout)",
    )


def check_confirmed(confirmed: int | None, position: int | None, where: str) -> None:
    """Check that the server still has the changes from ``position`` on.

    Args:
        confirmed: the slot's confirmed position; None for a slot that has none.
        position: the lake's; None: not checked.

    Raises:
        SlotError: the slot was confirmed past the lake's position.
    """
    if confirmed is None or position is None or confirmed <= position:
        return
    raise SlotError(
        f"the slot is confirmed up to {format_lsn(confirmed)}, but the lake is at {format_lsn(position)}: "
        "the slot does not send the changes in between any more",
        where=where,
        way_out="if another program has read from this slot, give each lake a slot of its own; then run "
        "`slotlake recover`",
    )


def _busy(connection: psycopg.Connection[Any], pid: int, where: str) -> SlotBusyError:
    row = connection.execute(
        "SELECT usename, application_name, client_addr::text FROM pg_stat_activity WHERE pid = %s", (pid,)
    ).fetchone()
    who = f"pid {pid}"
    if row is not None:
        who += f" (user {row[0]}, application {row[1] or 'unnamed'}, from {row[2] or 'a local socket'})"
    return SlotBusyError(
        f"the slot is in use by {who}",
        where=where,
        way_out="wait until that reader ends, or end it (SELECT pg_terminate_backend(pid)); then run the "
        "same command again",
    )


def create_slot(
    source: SourceSettings,
    *,
    temporary: bool = False,
    failover: bool | None = None,
    wait_seconds: float = CREATE_WAIT_SECONDS,
) -> ExportedSnapshot:
    """Create the pipeline's slot, or with ``temporary`` one for a verification, and export its snapshot.

    A permanent slot decodes prepared transactions if the source's settings have ``two_phase``; with
    ``failover`` the server's standbys keep a copy of it (see failover.py).

    Args:
        temporary: create one for a verification, which ends with its session.
        failover: standbys keep it; None: as the source's settings say.
        wait_seconds: how long to wait for transactions that are open now.

    Raises:
        SlotError: the name is used or not allowed, or the creation waited ``wait_seconds`` for open
            transactions: the error names them and no slot is left.
        SourceError: no free slot, WAL sender or privilege; wal_level; the server lacks two-phase slots
            (before 15) or failover slots (before 17).
    """
    name = f"{source.slot[:40]}_verify_{time.time_ns() & 0xFFFFFFFF:08x}" if temporary else source.slot
    if not _SLOT_NAME.match(name):
        raise SlotError(
            f"{name!r} cannot be the name of a slot",
            where="source.slot",
            way_out="use at most 63 lower-case letters, digits and underscores",
        )
    connection = connect_replication(source.dsn)
    try:
        two_phase = source.two_phase and not temporary
        with source_errors(source.dsn):
            version = connection.info.server_version
            if failover is None:
                failover = not temporary and wants_failover(connection, source)
        options = _slot_options(version, two_phase=two_phase, failover=failover, where=redact(source.dsn))
        kind = "TEMPORARY " if temporary else ""
        command = f'CREATE_REPLICATION_SLOT "{name}" {kind}LOGICAL "{source.plugin}" {options}'
        row = _create(connection, source, name, command, wait_seconds)
        return ExportedSnapshot(connection, name, parse_lsn(row[1]), row[2])
    except BaseException:
        connection.close()
        raise


def _slot_options(server_version: int, *, two_phase: bool, failover: bool, where: str) -> str:
    choices = {"two_phase": (two_phase, _FIRST_WITH_TWO_PHASE), "failover": (failover, FIRST_WITH_FAILOVER)}
    chosen = {name: floor for name, (on, floor) in choices.items() if on}
    for name, floor in chosen.items():
        if server_version < floor:
            raise SourceError(
                f"PostgreSQL {server_version // 10000} cannot create a slot with {name}",
                where=where,
                way_out=f"leave source.{name} out, or use PostgreSQL {floor // 10000} or later",
            )
    if server_version < _FIRST_WITH_TWO_PHASE:  # older servers know the old spelling only
        return "EXPORT_SNAPSHOT"
    return "(" + ", ".join(["SNAPSHOT 'export'", *(f"{name.upper()} true" for name in chosen)]) + ")"


def _create(
    connection: psycopg.Connection[Any], source: SourceSettings, name: str, command: str, wait_seconds: float
) -> tuple[Any, ...]:
    with (
        source_errors(source.dsn, f"creating slot {name}"),
        time_limit(connection, source, wait_seconds) as limit,
    ):
        try:
            row: tuple[Any, ...] | None = connection.execute(command.encode()).fetchone()
        except psycopg.errors.QueryCanceled:
            if limit.holders is None:
                raise
            raise slot_wait_error(name, wait_seconds, limit, source) from None
        except psycopg.errors.DuplicateObject:
            raise SlotError(
                f"the replication slot {name!r} exists already",
                where=redact(source.dsn),
                way_out="set source.slot to another name: whoever made that slot may need the changes in it",
            ) from None
        assert row is not None
        return row


def drop_slot(source: SourceSettings) -> bool:
    """Drop the pipeline's slot; False if it did not exist.

    Raises:
        SlotBusyError: a reader uses it.
    """
    with source_session(source.dsn) as connection:
        state = inspect_slot(connection, source.slot)
        if state is None:
            return False
        try:
            connection.execute("SELECT pg_drop_replication_slot(%s)", (source.slot,))
        except psycopg.errors.ObjectInUse:
            where = f"slot {source.slot!r} at {redact(source.dsn)}"
            raise _busy(connection, state.active_pid or 0, where) from None
    return True
