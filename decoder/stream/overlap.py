"""Compares the slot's transactions with the change log's, for the part of the WAL that both have.

A server that was restored from a copy of its disks is the same cluster on the same timeline.  Once it has
written as much WAL again, the same positions have other content.  Its slot is then before the lake's
position, as after a crash between publishing and confirming.  The difference shows in the transactions
between the two positions.  A transaction is identified by the start of its commit record, its id, and its
commit time; the first two can be equal by chance, because both histories began from the same state.

Invariant: the slot is only peeked at, never moved; if slot and change log have no common part, there is no
result.  Two histories differ from the place where they separate, and the server collects the whole result of
a peek before it sends it; so only the first PEEK_BYTES of WAL are compared.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from slotlake.decoder.changelog.batches import Batch, batch_positions, batches
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.protocol.cursor import EPOCH_MICROSECONDS
from slotlake.decoder.server.source import SourceSettings, as_stored, stored_texts
from slotlake.decoder.slots.slot import SlotState

PEEK_BYTES = 32 << 20
_FIRST_WITHOUT_EMPTY = 150000  # from here on transactions that publish nothing are not sent
_FIRST_WITH_ORIGIN = 160000
_BEGIN = struct.Struct(">QqI")
_OF_A_DIFFERENCE = 0  # the id of a transaction that no server ever had (difference.py)
Transaction = tuple[int, int, int]


def contradiction(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    slot: SlotState,
    changelog: Path,
    position: int,
) -> str | None:
    """How the slot's transactions differ from the batches that are in the lake; None if they do not."""
    confirmed = slot.confirmed_flush_lsn
    if (
        confirmed is None
        or confirmed >= position
        or slot.active_pid is not None
        or source.plugin != "pgoutput"
    ):
        return None
    until = min(position, confirmed + PEEK_BYTES)
    archived = [
        batch
        for batch in _published(changelog, position)
        if batch.end_lsn > confirmed and batch.start_lsn < until
    ]
    if not archived:
        return None
    slot_transactions = _slot_transactions(connection, source, until)
    for batch in archived:
        # For prepared transactions a two-phase slot shows PREPARE and COMMIT PREPARED, without their begin.
        prepared = {entry["xid"] for entry in batch.manifest.get("resolved", ())}
        batch_transactions = {
            each for each in _transactions(batch) if confirmed <= each[0] < until and each[1] not in prepared
        }
        if any(xid == _OF_A_DIFFERENCE for _, xid, _ in batch_transactions):
            continue
        slot_part = {
            each for each in slot_transactions if batch.start_lsn <= each[0] < min(batch.end_lsn, until)
        }
        if connection.info.server_version < _FIRST_WITHOUT_EMPTY:
            slot_part &= batch_transactions
        if batch_transactions != slot_part:
            first = min(batch_transactions ^ slot_part)[0]
            return f"from {format_lsn(first)} on, the server has other transactions than the lake"
    return None


def _published(changelog: Path, position: int) -> list[Batch]:
    """The batches that are in the lake, as far as the change log still has them."""
    named_positions = ((path, batch_positions(path.name)) for path in batches(changelog))
    return [Batch.open(path) for path, ends in named_positions if ends is not None and ends[1] <= position]


def _transactions(batch: Batch) -> set[Transaction]:
    table = batch.transaction_table()
    times = table["commit_time"].cast(pa.int64())
    columns = (table["commit_lsn"], table["xid"], times)
    return set(zip(*(column.to_pylist() for column in columns), strict=True))


def _slot_transactions(
    connection: psycopg.Connection[Any], source: SourceSettings, until: int
) -> set[Transaction]:
    """The slot's transactions from its confirmed position up to ``until``."""
    names = ",".join(sql.Identifier(name).as_string(None) for name in source.publications)
    options = {"proto_version": "1", "publication_names": names}
    if source.messages:
        options["messages"] = "true"
    if source.origin == "none" and connection.info.server_version >= _FIRST_WITH_ORIGIN:
        options["origin"] = "none"
    given = stored_texts(connection, [text for pair in options.items() for text in pair])
    as_stored(connection, always=True)  # or a value that cannot be translated would fail every run
    rows = connection.execute(
        "SELECT substr(data, 2, 20) FROM pg_logical_slot_peek_binary_changes(%s, %s::pg_lsn, NULL, "
        "VARIADIC ARRAY(SELECT convert_from(given, getdatabaseencoding()) FROM unnest(%s::bytea[]) given)) "
        "WHERE get_byte(data, 0) = 66",
        (source.slot, format_lsn(until), given),
        binary=True,
    ).fetchall()
    connection.execute("SET client_encoding = 'UTF8'")
    begun = (_BEGIN.unpack(row[0]) for row in rows)
    return {(lsn, xid, time + EPOCH_MICROSECONDS) for lsn, time, xid in begun}
