"""The first day: publication, slot and tables, all or nothing, and nothing of anyone else's touched.

A slot holds WAL back, so one that this pipeline made and could not use is dropped again: at once when the
copy fails, or by the next `init` after a crash.  The note `making.json`, written before the slot is
made, is how that one knows the slot for its own; a slot without a note is somebody else's and is left alone.
"""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING

from psycopg import sql

from decoder.errors import SlotError, SlotlakeError, SourceError
from decoder.lsn import format_lsn
from decoder.options import negotiate
from decoder.privileges import require_readable
from decoder.publications import SourceTable, create_publication, missing_publications, unfit_tables
from decoder.slots import create_slot, drop_slot, inspect_slot
from decoder.source import connect, identify, source_errors
from infra.reports import InitReport, TableCopy
from infra.selection import require_published
from infra.tables import copy_all, published_tables
from spark.names import parse_postgres_name

if TYPE_CHECKING:
    from pathlib import Path

    from infra.output import Progressing
    from infra.pipeline import Pipeline

SLOT_WAIT_SECONDS = 60.0


def initialise(pipeline: Pipeline, progress: Progressing) -> InitReport:
    """Make what is missing; when the lake already has this pipeline's tables, say so and change nothing."""
    from spark.initial import initialised

    started = time.monotonic()
    if initialised(pipeline.lake, pipeline.name):
        position = format_lsn(pipeline.position())
        warnings = _slot_missing(pipeline)
        return InitReport(
            pipeline.name, already=True, lsn=position, slot=pipeline.source.slot, warnings=warnings
        )
    identity = identify(pipeline.source.dsn)
    if pipeline.source.plugin == "pgoutput":
        negotiate(pipeline.source, identity.server_version)
    _refuse_foreign_slot(pipeline, identity.system_identifier)
    made = _publications(pipeline)
    tables = published_tables(pipeline)
    require_published(pipeline.file, tables)
    pipeline.session  # noqa: B018  start Spark before the slot: no slot is left if it cannot start
    note = _note(pipeline)
    noted = {
        "slot": pipeline.source.slot,
        "system_identifier": identity.system_identifier,
        "publications": made,
    }
    whole = note.with_suffix(".new")  # a note cut short by a full disk would be taken for somebody else's
    whole.write_text(json.dumps(noted))
    whole.rename(note)
    try:
        with create_slot(pipeline.source, wait_seconds=SLOT_WAIT_SECONDS) as snapshot:
            copies = copy_all(pipeline, tables, snapshot, progress)
            lsn = snapshot.lsn
    except BaseException:
        _undo(pipeline, note)
        raise
    note.rename(note.with_name("made.json"))
    return _report(pipeline, tables, copies, lsn, made, time.monotonic() - started)


def _slot_missing(pipeline: Pipeline) -> list[str]:
    """A lake that `drop` kept has its tables, and no slot any more."""
    source = pipeline.source
    try:
        with connect(source.dsn) as connection, source_errors(source.dsn):
            state = inspect_slot(connection, source.slot)
    except SourceError:
        return []  # nothing is to be made; the next sync says it
    if state is not None:
        return []
    return [f"the lake is there, and the slot {source.slot} is not: slotlake recover begins again from there"]


def publications_made(pipeline: Pipeline) -> list[str]:
    """The publications that `init` made, as it noted them."""
    note = pipeline.file.state_dir / "made.json"
    return list(json.loads(note.read_text())["publications"]) if note.exists() else []


def _report(
    pipeline: Pipeline,
    tables: list[SourceTable],
    copies: list[TableCopy],
    lsn: int,
    made: list[str],
    seconds: float,
) -> InitReport:
    warnings = [f"{found.table}: {found.what}; {found.way_out}" for found in unfit_tables(tables)]
    return InitReport(
        pipeline=pipeline.name,
        already=False,
        lsn=format_lsn(lsn),
        slot=pipeline.source.slot,
        publications_made=made,
        tables=copies,
        rows=sum(copy.rows for copy in copies),
        seconds=seconds,
        warnings=warnings,
    )


def _note(pipeline: Pipeline) -> Path:
    return pipeline.file.state_dir / "making.json"


def _publications(pipeline: Pipeline) -> list[str]:
    source = pipeline.source
    tables = [parse_postgres_name(name) for name in pipeline.file.tables]
    with connect(source.dsn) as connection, source_errors(source.dsn, "making the publication"):
        missing = missing_publications(connection, source.publications)
        if missing:  # what cannot be copied is told before anything is made
            named = [sql.Identifier(*table).as_string(None) for table in tables]
            found = connection.execute("SELECT to_regclass(n)::oid FROM unnest(%s::text[]) n", (named,))
            require_readable(connection, {int(oid): None for (oid,) in found.fetchall() if oid is not None})
        for name in missing:
            create_publication(connection, name, tables)
        return missing
    raise AssertionError("unreachable")


def _refuse_foreign_slot(pipeline: Pipeline, system_identifier: str) -> None:
    """Drop a slot that a crashed `init` of ours left; refuse any other of that name."""
    source = pipeline.source
    with connect(source.dsn) as connection, source_errors(source.dsn):
        state = inspect_slot(connection, source.slot)
    note = _note(pipeline)
    if state is None:
        return
    ours = (
        note.exists()
        and json.loads(note.read_text()).items()
        >= {
            "slot": source.slot,
            "system_identifier": system_identifier,
        }.items()
    )
    if not ours:
        raise SlotError(
            f"the replication slot {source.slot!r} exists already, and this pipeline did not make it",
            where=f"plugin {state.plugin}, database {state.database}",
            way_out="name another slot in source.slot; or, if nothing uses that one, drop it first: "
            f"SELECT pg_drop_replication_slot('{source.slot}')",
        )
    drop_slot(source)


def _undo(pipeline: Pipeline, note: Path) -> None:
    try:
        drop_slot(pipeline.source)
    except SlotlakeError:
        return  # the note stays: the next `init` drops the slot
    note.unlink(missing_ok=True)
