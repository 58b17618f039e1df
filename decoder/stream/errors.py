"""What the server says last on a stream, and what it means: by SQLSTATE and catalog; words are translated."""

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


def stream_error(source: SourceSettings, result: pq.abc.PGresult, at: int) -> SlotlakeError:
    """Return what the server's last word on a stream means to the user.

    Args:
        result: libpq's result that ended the stream.
        at: the position reached.
    """
    where = f"slot {source.slot!r} at {redact(source.dsn)}, after {format_lsn(at)}"
    if result.status != pq.ExecStatus.FATAL_ERROR:
        return SourceUnavailableError(
            "the server ended the replication stream (it is probably shutting down)",
            where=where,
            way_out="run the same command again when it serves: nothing of the unfinished batch was kept",
        )
    state = (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    server_text = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    if state == _UNDEFINED and _slot_is_there(source):
        return _no_publication(server_text, where)
    kind, what, way_out = _meaning(state)
    return kind(f"{what}: {server_text}", where=where, way_out=way_out)


def missing_publication(source: SourceSettings, notice: pq.abc.PGresult) -> SlotlakeError | None:
    """From PostgreSQL 18 on a missing publication is a warning, and its changes are left out.

    It is the only one of these states that pgoutput gives (pgoutput.c, LoadPublications).
    """
    state = (notice.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()
    if state not in _PUBLICATION_SKIPPED:
        return None
    server_text = (notice.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode("utf-8", "replace")
    return _no_publication(server_text, redact(source.dsn))


def _no_publication(server_text: str, where: str) -> SourceError:
    return SourceError(
        f"the server cannot find a publication that the slot's changes are read through: {server_text}",
        where=where,
        way_out="run `slotlake recover`: it makes the publication if it is missing, and a new slot, which it "
        "must be older than",
    )


def _slot_is_there(source: SourceSettings) -> bool:
    """Of what a stream needs by name, the slot; else it is a publication that is undefined.

    The publication may be there now: what counts is whether it was where the stream is.
    """
    try:
        with source_session(source.dsn) as connection:
            return inspect_slot(connection, source.slot) is not None
    except SourceError:
        return False


def _meaning(state: str) -> tuple[type[SlotlakeError], str, str]:
    again = "run the same command again: nothing of the unfinished batch was kept"
    if state == "55006":
        return (
            SlotBusyError,
            "the slot is in use",
            "wait until the other reader ends, or end it; then " + again,
        )
    if state == _UNDEFINED:
        return SlotError, "the replication slot is gone", "run `slotlake recover`"
    if state in ("55000", "58P01"):
        return (
            SlotError,
            "the server has given the slot up, or cannot read from it any more",
            "run `slotlake recover`; raise max_slot_wal_keep_size so that it does not happen again",
        )
    meaning = meaning_of(state)
    return meaning.kind, f"the server ended the replication stream ({meaning.what})", meaning.way_out
