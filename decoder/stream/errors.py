"""The meaning of the server's last message on a stream, by its SQLSTATE and the catalog.

The words of the message do not count, because a server may translate them.
"""

from __future__ import annotations

from psycopg import pq

from slotlake.decoder.errors import (
    SlotBusyError,
    SlotError,
    SlotlakeError,
    SourceError,
    SourceUnavailableError,
)
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.refusals import meaning_of
from slotlake.decoder.server.source import SourceSettings, redact, source_session
from slotlake.decoder.slots.slot import inspect_slot

_UNDEFINED = "42704"
_PUBLICATION_SKIPPED = ("42704", "55000")
UNDECODABLE = (
    "the server cannot decode a transaction; nothing of this batch was stored. Run the command again. If it "
    "fails again, set source.two_phase: false, if it is on, and run `slotlake recover`: it makes a new slot, "
    "compares, and writes what differs"
)
# Where the server looks up the table of a change: "could not map filenumber … to relation OID", "could not
# open relation with OID …".  No other way to send it helps.
_TABLE_LOOKUPS = (b"ReorderBufferProcessTXN", b"relation_open", b"RelationIdGetRelation")


def stream_error(source: SourceSettings, result: pq.abc.PGresult, at: int) -> SlotlakeError:
    """Return the error for the server's last message on a stream.

    Args:
        at: the position that the stream reached.
    """
    where = f"slot {source.slot!r} at {redact(source.dsn)}, after {format_lsn(at)}"
    if result.status != pq.ExecStatus.FATAL_ERROR:
        return SourceUnavailableError(
            "the server ended the replication stream (it is probably shutting down)",
            where=where,
            way_out="run the same command again when the server accepts connections: nothing of the "
            "unfinished batch was stored",
        )
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    server_text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    if state == _UNDEFINED and _slot_is_there(source):
        return _no_publication(server_text, where)
    kind, what, way_out = _meaning(state)
    return kind(f"{what}: {server_text}", where=where, way_out=way_out)


def about_a_table(result: pq.abc.PGresult) -> bool:
    """Return whether the server did not find a table that it decodes, by the place in its source code."""
    function = result.error_field(pq.DiagnosticField.SOURCE_FUNCTION) or b""
    return function in _TABLE_LOOKUPS


def missing_publication(source: SourceSettings, notice: pq.abc.PGresult) -> SlotlakeError | None:
    """The error for a warning about a missing publication; None if the notice is another one.

    From PostgreSQL 18 on the server only warns, and leaves the publication's changes out.  pgoutput gives
    these states for nothing else (pgoutput.c, LoadPublications).
    """
    state = (notice.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    if state not in _PUBLICATION_SKIPPED:
        return None
    server_text = (notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    return _no_publication(server_text, redact(source.dsn))


def _no_publication(server_text: str, where: str) -> SourceError:
    return SourceError(
        f"a publication of source.publications did not exist at this place in the WAL: {server_text}",
        where=where,
        way_out="run `slotlake recover`: it creates the publication if it is missing, and then a new slot, "
        "because a slot can only use a publication that is older than the slot",
    )


def _slot_is_there(source: SourceSettings) -> bool:
    """True if the slot exists; then the undefined object that the server reports is a publication.

    The publication may exist now: it must have existed at the stream's place in the WAL.
    """
    try:
        with source_session(source.dsn) as connection:
            return inspect_slot(connection, source.slot) is not None
    except SourceError:
        return False


def _meaning(state: str) -> tuple[type[SlotlakeError], str, str]:
    again = "run the same command again: nothing of the unfinished batch was stored"
    if state == "55006":
        return (
            SlotBusyError,
            "the slot is in use",
            "wait until the other reader ends, or end it; then " + again,
        )
    if state == _UNDEFINED:
        return SlotError, "the replication slot does not exist any more", "run `slotlake recover`"
    if state in ("55000", "58P01"):
        return (
            SlotError,
            "the server has invalidated the slot, or cannot read from it any more",
            "run `slotlake recover`; to prevent this in future, raise max_slot_wal_keep_size",
        )
    meaning = meaning_of(state)
    return meaning.kind, f"the server ended the replication stream ({meaning.what})", meaning.way_out
