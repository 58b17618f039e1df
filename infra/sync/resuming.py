"""Tables that are set aside come back: each is copied again under a snapshot and published whole at one LSN.

Every sync looks whether the cause may be gone, by the source's catalog: something of the table changed there,
or a while has passed, which is longer after each try that failed.  A refusal that the pipeline file asks for
(`on_conflict`, `on_lossy`: fail) is over when the file asks no more.  `slotlake resume` does not wait for any
of this.  A table that is locked, or not published any more, is left as it is.

Invariant: the swap that publishes the copy takes the table off the record (spark/publish/aside.py), so it is
followed from exactly there on; a try that fails changes nothing but the record.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from slotlake.decoder.catalog.publications import SourceTable, published_names
from slotlake.decoder.errors import LockedError, PipelineFileError, SlotError, SlotlakeError, SourceError
from slotlake.decoder.lsn import format_lsn
from slotlake.decoder.server.source import redact, source_session
from slotlake.infra.advance.steps import confirm_position
from slotlake.infra.config.conflicts import on_conflict
from slotlake.infra.copy.tables import published_tables
from slotlake.infra.reports import ResumeReport
from slotlake.infra.selection.aside import require_columns, tables_aside
from slotlake.infra.selection.types import on_lossy
from slotlake.infra.source.fingerprints import Mark, marks_at
from slotlake.spark.names import lake_table, parse_postgres_name, postgres_name

if TYPE_CHECKING:
    from slotlake.infra.pipeline_open import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.publish.aside import Aside, Name

WAIT_SECONDS = 10.0
_NAMES = 'name it as PostgreSQL writes it: public.orders, "Odd Schema"."Odd Name"'
_FIRST_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 60.0, 86400.0
_TRIES_AT_ONCE = 3

_LOOK = """
SELECT c.oid::bigint, coalesce(c.relacl::text, ''), c.relreplident::text,
       has_schema_privilege(c.relnamespace, 'USAGE'), has_table_privilege(c.oid, 'SELECT'), EXISTS (
           SELECT FROM pg_locks l WHERE l.relation = c.oid AND l.granted AND l.mode = 'AccessExclusiveLock'
             AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())),
       EXISTS (SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
                 AND a.attgenerated = '')
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s
"""


@dataclass(frozen=True)
class _Seen:
    """What the source's catalog says of a table now.

    Attributes:
        locked: somebody holds it so that nobody can read it.
        columns: it has some.
        known_members: it is published by what published it when the lake's content was read.
        fingerprint: of all of it, and of what the pipeline file says of the table.
    """

    locked: bool
    columns: bool
    known_members: bool
    fingerprint: str


def bring_back(pipeline: OpenPipeline, names: Collection[Name], progress: Progressing) -> list[str]:
    """Copy again those of these tables that may be followed again; the tables that are."""
    from slotlake.spark.publish.aside_write import forget

    back = []
    for name, each in tables_aside(pipeline).items() if names else ():
        if name not in names:
            continue
        seen = _look(pipeline, each)
        if seen is None and each.lsn is None:
            forget(pipeline.lake, [name])  # it is gone, and the lake never had it
        if seen is None or seen.locked or not _due(pipeline, each, seen):
            continue
        progress(f"{each.source_name} was set aside: copied again", 0)
        try:
            _copy(pipeline, each, seen, progress)
        except SlotError as error:
            if not error.retryable:
                raise
        except SlotlakeError as error:
            if error.table != each.name:
                raise
        else:
            back.append(each.source_name)
    return back


def resume(pipeline: OpenPipeline, table: str, progress: Progressing) -> ResumeReport:
    """Copy a table again that is set aside, now.

    Raises:
        PipelineFileError: it is neither set aside nor followed.
        SlotlakeError: it cannot be followed yet; it stays set aside.
    """
    from slotlake.spark.read.point import Cut

    started = time.monotonic()
    try:
        name = parse_postgres_name(table)
    except KeyError:
        raise PipelineFileError(f"{table!r} is no name of a table", where="resume", way_out=_NAMES) from None
    aside = tables_aside(pipeline)
    lake_name = str(lake_table(pipeline.lake.namespace, *name))
    if name not in aside:
        if name not in {(held.schema, held.table) for held in Cut.latest(pipeline.lake).tables()}:
            listed = ", ".join(each.source_name for each in aside.values()) or "none is"
            raise PipelineFileError(
                f"the lake has no table {table}", where="resume", way_out=f"set aside now: {listed}"
            )
        at = format_lsn(pipeline.position())
        return ResumeReport(postgres_name(*name), lake_name, at, already=True)
    seen = _look(pipeline, aside[name])
    if seen is None:
        raise SourceError(
            f"the table {table} is not published any more; it stays set aside",
            where=f"publications {', '.join(pipeline.source.publications)}",
            way_out="publish it again, or drop its lake table if nobody reads it",
        ).of(*name)
    lsn, rows = _copy(pipeline, aside[name], seen, progress)
    confirm_position(pipeline)
    seconds = round(time.monotonic() - started, 3)
    return ResumeReport(postgres_name(*name), lake_name, format_lsn(lsn), rows=rows, seconds=seconds)


def _copy(pipeline: OpenPipeline, each: Aside, seen: _Seen, progress: Progressing) -> tuple[int, int]:
    """Copy a table and publish it; the LSN, and its rows. What keeps it from that is noted."""
    from slotlake.infra.backfill.backfill import read_again
    from slotlake.spark.publish.aside_write import write

    try:
        table = _published(pipeline, each.name)
        return read_again(
            pipeline, [table], WAIT_SECONDS, progress, at_slot=not seen.known_members or each.lsn is None
        )
    except SlotlakeError as error:
        if error.table == each.name and (not error.retryable or isinstance(error, LockedError)):
            now = datetime.now(UTC).isoformat(timespec="seconds")
            failed = replace(each, what=error.what, where=error.where, way_out=error.way_out)
            noted = replace(failed, tries=each.tries + 1, tried=now, seen=seen.fingerprint)
            write(pipeline.lake, pipeline.name, [noted])
        raise


def _published(pipeline: OpenPipeline, name: Name) -> SourceTable:
    tables = published_tables(pipeline, to_read=False, aside_too=[name])
    found = next((table for table in tables if (table.schema, table.table) == name), None)
    if found is None:
        raise SourceError(
            f"the table {postgres_name(*name)} is not published any more",
            where=redact(pipeline.source.dsn),
            way_out="ALTER PUBLICATION … ADD TABLE, then resume it",
        ).of(*name)
    require_columns([found])
    return found


def _look(pipeline: OpenPipeline, each: Aside) -> _Seen | None:
    """None if the table is not published now."""
    source = pipeline.source
    with source_session(source.dsn, "looking at a table set aside") as connection:
        if each.name not in published_names(connection, source.publications):
            return None
        row = connection.execute(_LOOK, each.name).fetchone()
    if row is None:
        return None
    oid, *rights, locked, columns = row
    mark = marks_at(pipeline, [oid], None).get(oid)
    told = repr((oid, rights, mark, _asked(pipeline, each.name))).encode()
    known = _members_then(pipeline, each)
    members = frozenset() if mark is None else mark.members
    return _Seen(locked, columns, known == (oid, members), hashlib.sha256(told).hexdigest())


def _asked(pipeline: OpenPipeline, name: Name) -> str:
    """What the pipeline file says of a table: to leave a column out may be what lets it be followed again."""
    own = pipeline.file.tables.items()
    return "".join(section.model_dump_json() for key, section in own if parse_postgres_name(key) == name)


def _members_then(pipeline: OpenPipeline, each: Aside) -> tuple[int, Collection[str]] | None:
    from slotlake.spark.read.point import Cut

    for table in Cut.latest(pipeline.lake).tables():
        if (table.schema, table.table) == each.name and (mark := Mark.from_json(table.mark)) is not None:
            return mark.relation_id, mark.members
    return None


def _due(pipeline: OpenPipeline, each: Aside, seen: _Seen) -> bool:
    if each.cause == "on_conflict":
        return on_conflict(pipeline.file).of(*each.name) != "fail"
    if each.cause == "on_lossy":
        return not on_lossy(pipeline.file).may_fail(*each.name)
    if not seen.columns:
        return False
    if seen.fingerprint != each.seen or each.tries < _TRIES_AT_ONCE:
        return True
    pause = min(_FIRST_PAUSE_SECONDS * 2 ** min(each.tries - _TRIES_AT_ONCE, 32), _PAUSE_SECONDS_MAX)
    return datetime.now(UTC) - datetime.fromisoformat(each.tried) >= timedelta(seconds=pause)
