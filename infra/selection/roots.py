"""Partitioned tables that the pipeline file names: published through themselves, or refused.

A publication that sends partitions under their own names gives the lake a table for each, a new one with each
new partition, and none of the root's name; what the file chooses for the root would choose nothing.

Invariant: of a root that the file names, the lake has a table, or the file says ``source.partitions: leaves``
and chooses nothing for the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import PipelineFileError
from slotlake.infra.config.sections import TableSection
from slotlake.infra.config.table_names import by_name
from slotlake.infra.selection.named import matched_at_source, named_exactly
from slotlake.spark.names import postgres_name

if TYPE_CHECKING:
    from slotlake.infra.config.pipeline_file import PipelineFile

# pg_partition_tree would lock the tables.
_NAMED = """(n.nspname::text, c.relname::text) IN (
    SELECT * FROM unnest(%(schemas)s::text[], %(tables)s::text[]))"""
_BY_LEAF = f"""
SELECT n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind = 'p' AND {_NAMED} AND (
    EXISTS (SELECT FROM unnest(%(published)s::oid[]) AS p (oid), pg_partition_ancestors(p.oid) above
            WHERE above.relid = c.oid)
    OR EXISTS (SELECT FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
               WHERE r.prrelid = c.oid AND p.pubname = ANY (%(publications)s) AND NOT p.pubviaroot))
ORDER BY 1, 2
"""
_BY_ROOT = f"""
SELECT n.nspname, c.relname
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relispartition AND {_NAMED} AND EXISTS (
    SELECT FROM pg_partition_ancestors(c.oid) above
    WHERE above.relid = ANY (%(published)s) AND above.relid <> c.oid)
ORDER BY 1, 2
"""
_PUBLISHING_LEAVES = """
SELECT pubname FROM pg_publication WHERE pubname = ANY (%s) AND NOT pubviaroot ORDER BY 1
"""


def require_roots(
    file: PipelineFile, connection: psycopg.Connection[Any], tables: Sequence[SourceTable]
) -> None:
    """Check that each partitioned table that the file names is published through itself.

    Raises:
        PipelineFileError: partitions are published instead; or the file names a partition of a table that is
            published through its root.
    """
    exact, sections = named_exactly(file), by_name(file.tables)
    # Under `leaves` a pattern chooses for the partitions that it matches, too.
    matched = matched_at_source(file, connection) if file.source.partitions == "root" else frozenset()
    named = (exact | matched) - {(table.schema, table.table) for table in tables}
    if not named:
        return
    parameters = {
        "schemas": [schema for schema, _ in named],
        "tables": [table for _, table in named],
        "published": [table.relation_id for table in tables],
        "publications": list(file.source.publications),
    }
    for schema, table in connection.execute(_BY_LEAF.encode(), parameters).fetchall():
        _refuse_root(file, connection, (schema, table), sections[schema, table])
    for schema, table in connection.execute(_BY_ROOT.encode(), parameters).fetchall():
        raise PipelineFileError(
            f"{postgres_name(schema, table)} is published as a part of the partitioned table above it",
            where="section `tables` of the pipeline file",
            way_out="remove it there, or the table above it; with source.partitions: leaves, `init` makes a "
            "publication that sends each partition under its own name",
        )


def _refuse_root(
    file: PipelineFile,
    connection: psycopg.Connection[Any],
    name: tuple[str, str],
    section: TableSection,
) -> None:
    by_leaf = file.source.partitions == "leaves"
    if by_leaf and section == TableSection():
        return
    rows = connection.execute(_PUBLISHING_LEAVES, (list(file.source.publications),)).fetchall()
    alter = "; ".join(
        sql.SQL("ALTER PUBLICATION {} SET (publish_via_partition_root = true)")
        .format(sql.Identifier(publication))
        .as_string(None)
        for (publication,) in rows
    )
    chosen = ", and what the file chooses for it would choose nothing" if section != TableSection() else ""
    leaves = "remove what is chosen for it" if by_leaf else "write source.partitions: leaves"
    raise PipelineFileError(
        f"{postgres_name(*name)} is a partitioned table, and its partitions are published under their own "
        f"names: the lake would have a table for each of them, and none for it{chosen}",
        where=f"tables.{postgres_name(*name)} of the pipeline file",
        way_out=f"run at the source: {alter}; or, to have a lake table for each partition, {leaves}, and "
        "name partitions where something is to be chosen",
    )
