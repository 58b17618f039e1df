"""What a DBA runs once, so that a pipeline needs a role with REPLICATION and SELECT only, and no more.

Made from the pipeline file alone, without a connection.  Invariant: the SQL runs as it is (as a superuser, in
the pipeline's database), also a second time, whether or not role and publications exist; it has no password.
"""

from __future__ import annotations

from collections.abc import Sequence

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from slotlake.decoder.catalog.publication_tables import PUBLISHABLE
from slotlake.infra.config.pipeline_file import PipelineFile
from slotlake.infra.config.table_names import exact_names, patterns_in

_NO_USER = "slotlake"


def grants(file: PipelineFile) -> str:
    """The role's attributes and rights, and the publications that are missing, as SQL."""
    role, database = _role_and_database(file)
    parts = [
        f"-- For pipeline {file.name}: run as a superuser in the database {database or 'of source.dsn'}.",
        _ROLE.format(role=_name(role), literal=_literal(role)),
        f"-- Its password, if it has none yet, with psql's  \\password {_name(role)}",
    ]
    if database:
        parts.append(f"GRANT CONNECT ON DATABASE {_name(database)} TO {_name(role)};")
    source = file.source
    parts += [_publication(name, file) for name in source.publications if file.tables]
    parts.append(_READ.format(role=_literal(role), names=_literals(file.source.publications)))
    parts.append(
        "-- Not needed, but status and the monitor then name who holds the slot back, whoever it is:\n"
        f"GRANT pg_read_all_stats TO {_name(role)};"
    )
    return "\n\n".join(parts) + "\n"


_ROLE = """DO $slotlake$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = {literal}) THEN
        CREATE ROLE {role} LOGIN;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication') THEN
        GRANT rds_replication TO {role}; -- which Amazon RDS and Aurora have for it
    ELSIF NOT (SELECT rolsuper OR rolcanlogin AND rolreplication FROM pg_roles WHERE rolname = {literal}) THEN
        ALTER ROLE {role} LOGIN REPLICATION;
    END IF;
END
$slotlake$;"""
_PUBLICATION = """DO $slotlake$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = {literal}) THEN
        CREATE PUBLICATION {name} FOR TABLE {tables}{how};
    END IF;
END
$slotlake$;"""
# What patterns match is known where this runs. A CASE takes the first that is true, as the file does.
_PUBLICATION_OF_PATTERNS = """DO $slotlake$
DECLARE
    listed text := {listed};
BEGIN
    SELECT concat_ws(', ', listed, string_agg(format('%I.%I', n.nspname, c.relname), ', ')) INTO listed
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE {publishable}{whole} AND CASE
{cases}
        ELSE false END;
    IF NOT EXISTS (SELECT FROM pg_publication WHERE pubname = {literal}) THEN
        EXECUTE format('CREATE PUBLICATION %I FOR TABLE ', {literal}) || listed || '{how}';
    END IF;
END
$slotlake$;"""
# What is published, and nothing else: pg_publication_tables knows schemas and partitions too.
_READ = """DO $slotlake$
DECLARE
    published record;
BEGIN
    FOR published IN
        SELECT DISTINCT schemaname, tablename FROM pg_publication_tables WHERE pubname IN ({names})
    LOOP
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', published.schemaname, {role});
        EXECUTE format('GRANT SELECT ON %I.%I TO %I', published.schemaname, published.tablename, {role});
    END LOOP;
END
$slotlake$;"""


def _publication(name: str, file: PipelineFile) -> str:
    exact = {table: not file.tables[text].exclude for table, text in exact_names(file.tables).items()}
    listed = ", ".join(sql.Identifier(*table).as_string(None) for table, named in exact.items() if named)
    through_root = file.source.partitions == "root"
    how = " WITH (publish_via_partition_root = true)" if through_root else ""
    patterns = patterns_in(file.tables)
    if not patterns:
        return _PUBLICATION.format(literal=_literal(name), name=_name(name), tables=listed, how=how)
    cases = [
        f"        WHEN n.nspname = {_literal(schema)} AND c.relname = {_literal(table)} THEN false"
        for schema, table in exact
    ]
    cases += [
        f"        WHEN n.nspname ~ {_whole(each.schema)} AND c.relname ~ {_whole(each.table)} "
        f"THEN {'false' if file.tables[each.text].exclude else 'true'}"
        for each in patterns
    ]
    return _PUBLICATION_OF_PATTERNS.format(
        listed=_literal(listed) if listed else "NULL",
        publishable=PUBLISHABLE,
        whole=" AND NOT c.relispartition" if through_root else "",
        cases="\n".join(cases),
        literal=_literal(name),
        how=how,
    )


def _whole(expression: str) -> str:
    return _literal(f"^(?:{expression})$")


def _role_and_database(file: PipelineFile) -> tuple[str, str | None]:
    try:
        parts = conninfo_to_dict(file.dsn())
    except psycopg.Error:
        return _NO_USER, None
    database = parts.get("dbname")
    return str(parts.get("user") or _NO_USER), None if database is None else str(database)


def _name(name: str) -> str:
    return sql.Identifier(name).as_string(None)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literals(names: Sequence[str]) -> str:
    return ", ".join(_literal(name) for name in names)
