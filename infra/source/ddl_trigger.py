"""The optional event trigger: each ALTER TABLE writes the table's columns into the stream, at its place.

A Relation message names columns; this message numbers them (`infra.sync.schema.ddl_events` reads it).  It
is a transactional logical message, so it comes in order with the rows, and is not sent if it is rolled back.
Invariant: nothing relies on it.  It never fails a command of the source's, and where it is missing the
catalog's fingerprints decide alone (docs/schema.md, docs/adr/0017).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from slotlake.decoder.catalog.ddl_trigger import PREFIX, SCHEMA, TRIGGER, state
from slotlake.decoder.errors import SourceError
from slotlake.decoder.server.source import redact, source_session
from slotlake.infra.reports import TriggerReport
from slotlake.infra.state.notes import DDL_TRIGGER

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline


# Children are altered with their parent, and only the parent is reported.
INSTALL = f"""CREATE SCHEMA {SCHEMA};

CREATE FUNCTION {SCHEMA}.tell() RETURNS event_trigger
LANGUAGE plpgsql SECURITY INVOKER SET search_path = pg_catalog, pg_temp
AS $slotlake$
DECLARE
    told text;
BEGIN
    FOR told IN
        WITH RECURSIVE altered AS (
            SELECT objid AS relid FROM pg_event_trigger_ddl_commands() WHERE classid = 'pg_class'::regclass
            UNION
            SELECT i.inhrelid FROM altered JOIN pg_inherits i ON i.inhparent = altered.relid
        )
        SELECT json_build_object(
            'oid', c.oid::int8, 'schema', n.nspname, 'table', c.relname, 'storage', c.relfilenode::int8,
            'columns', (
                SELECT json_agg(json_build_array(a.attnum, a.attname, a.atttypid::int8, a.atttypmod)
                                ORDER BY a.attnum)
                FROM pg_attribute a
                WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
            ))::text
        FROM altered
        JOIN pg_class c ON c.oid = altered.relid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND c.relpersistence = 'p'
    LOOP
        PERFORM pg_logical_emit_message(true, '{PREFIX}', told);
    END LOOP;
    -- A message stands at its record's end: one more, so that no change of a row stands there too.
    PERFORM pg_logical_emit_message(true, '{PREFIX}', '');
EXCEPTION WHEN OTHERS THEN
    NULL;  -- never in the way of the command; slotlake does without
END
$slotlake$;

CREATE EVENT TRIGGER {TRIGGER} ON ddl_command_end WHEN TAG IN ('ALTER TABLE')
    EXECUTE FUNCTION {SCHEMA}.tell();
ALTER EVENT TRIGGER {TRIGGER} ENABLE ALWAYS;
"""

REMOVE = f"""DROP EVENT TRIGGER IF EXISTS {TRIGGER};
DROP FUNCTION IF EXISTS {SCHEMA}.tell();
DROP SCHEMA IF EXISTS {SCHEMA};
"""


def install(pipeline: OpenPipeline) -> TriggerReport:
    """Install the event trigger, all or nothing; one that is installed already is left alone.

    Raises:
        SourceError: the role may not make event triggers; the way out is to have a superuser do it.
    """
    dsn = pipeline.source.dsn
    with source_session(dsn, "installing the event trigger") as connection:
        trigger_state = state(connection)
        if trigger_state != "not installed":
            return TriggerReport(pipeline.name, trigger_state, already=True)
        try:
            with connection.transaction():
                connection.execute(INSTALL.encode())
        except (psycopg.errors.InsufficientPrivilege, psycopg.errors.DuplicateSchema) as error:
            raise _refused(dsn, error) from None
    DDL_TRIGGER.of(pipeline.file.state_dir).write({"trigger": TRIGGER})
    return TriggerReport(pipeline.name, "installed", already=False)


def _refused(dsn: str, error: psycopg.Error) -> SourceError:
    if isinstance(error, psycopg.errors.DuplicateSchema):
        return SourceError(
            f"there is a schema {SCHEMA} already, without slotlake's event trigger",
            where=redact(dsn),
            way_out=f"drop what is left of an earlier one (DROP SCHEMA {SCHEMA} CASCADE), or do without",
        )
    return SourceError(
        f"the event trigger cannot be installed: {error.diag.message_primary}",
        where=redact(dsn),
        way_out="PostgreSQL lets only a superuser make event triggers: have one run what "
        "`slotlake init PIPELINE.yaml --ddl-trigger --print-sql` prints, in this database; "
        "or do without: it is optional",
    )


def remove(pipeline: OpenPipeline) -> list[str]:
    """Remove the event trigger if this pipeline installed it; return what was done, a line each."""
    note = DDL_TRIGGER.of(pipeline.file.state_dir)
    if not note.exists():
        return []
    dsn = pipeline.source.dsn
    with (
        source_session(dsn, "removing the event trigger") as connection,
        connection.transaction(),
    ):
        connection.execute(REMOVE.encode())
    note.remove()
    return [f"dropped the event trigger {TRIGGER}"]
