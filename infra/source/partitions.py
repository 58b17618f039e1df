"""Notice partitions that come and go without a row event, so that their table is copied again.

ATTACH brings rows that no change had; DETACH, DROP and TRUNCATE of one partition remove rows of a table
that is published through its root, and pgoutput sends nothing of it (pgoutput_truncate leaves out
partitions that are not published as themselves).  A leaf that was detached was not published meanwhile.  So
the lake's table has in its shape with which partitions it was copied: of each its storage, and the
transaction that made it a partition.  A partition that was born as one (CREATE TABLE … PARTITION OF) was
empty then; all of its rows came through the stream, and it is only noted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.server.source import source_session
from slotlake.infra.source.fingerprints import changed_error

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.spark.lake import LakeSettings
    from slotlake.spark.tables.schema import TableSchema

# ATTACH changes the description of every column; of a table that was born a partition, some are as the
# command that made it left them.
_TREE = """
WITH RECURSIVE tree AS (
    SELECT inhrelid, xmin FROM pg_inherits
    WHERE inhparent = %(table)s OR inhrelid = %(table)s
    UNION ALL
    SELECT below.inhrelid, below.xmin FROM tree JOIN pg_inherits below ON below.inhparent = tree.inhrelid
)
SELECT c.oid::text, CASE WHEN c.relkind = 'r' AND root.relkind = 'p' THEN c.relfilenode ELSE 0 END,
       i.xmin::text,
       i.xmin = a.xmin AND EXISTS (
           SELECT FROM pg_attribute u
           WHERE u.attrelid = c.oid AND u.attnum > 0 AND u.xmin = a.xmin AND u.cmin = a.cmin)
FROM pg_class root
JOIN tree i ON true
JOIN pg_class c ON c.oid = i.inhrelid
JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum = -1
WHERE root.oid = %(table)s AND (root.relkind = 'p' AND c.oid <> root.oid
    OR root.relkind = 'r' AND root.relispartition AND c.oid = root.oid)
"""
_IN_TREES = """
SELECT oid FROM pg_class WHERE oid = ANY (%(tables)s) AND (relkind = 'p' OR relkind = 'r' AND relispartition)
"""
Nodes = dict[str, list[Any]]


def partitions_at(
    source: SourceSettings, snapshot: str, tables: Iterable[SourceTable]
) -> dict[SourceTable, str]:
    """Read which partitions belong to each table.

    Args:
        snapshot: name of an exported snapshot of the source.

    Returns:
        Table → JSON of its partitions (OID → storage and transaction); "" for a table that has none.
    """
    dsn = source.dsn
    with source_session(dsn, "reading the partitions") as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        tables = list(tables)
        in_trees = _in_trees(connection, [table.relation_id for table in tables])
        nodes = {
            table: _nodes(connection, table.relation_id) if table.relation_id in in_trees else {}
            for table in tables
        }
        parted = {table for table in nodes if nodes[table] or table.kind == "p"}
        return {table: _written(nodes[table]) if table in parted else "" for table in nodes}


def partition_changes(
    source: SourceSettings, before: Mapping[SourceTable, str]
) -> dict[SourceTable, ChangedMeanwhileError]:
    """Find tables of which a partition was rewritten, came with rows, or went, since a snapshot.

    A range of pages is of one file: of a partition that was rewritten between two of its ranges, some rows
    are read twice and others never.

    Args:
        before: `partitions_at` that snapshot.

    Returns:
        Table → what happened to it.
    """
    parted = {table: json.loads(text) for table, text in before.items() if text}
    if not parted:
        return {}
    with source_session(source.dsn, "reading the partitions") as connection:
        changed = [
            table
            for table, recorded in parted.items()
            if _changed(table.relation_id, recorded, _nodes(connection, table.relation_id))
        ]
    what = "a partition was rewritten, attached, detached or dropped while the table was copied"
    return {table: changed_error(table, what) for table in changed}


def repartitioned(lake: LakeSettings, dsn: str, mirrors: Sequence[TableSchema]) -> set[tuple[str, str]]:
    """Find tables that partitions with rows joined or left since the copy; note partitions born since.

    Args:
        mirrors: the tables that the lake follows.

    Returns:
        Schema and name of those tables.
    """
    recorded = {table: json.loads(table.partitions) for table in mirrors if table.partitions}
    if not recorded:
        return set()
    with source_session(dsn, "reading the partitions") as connection:
        now = {table: _nodes(connection, table.relation_id) for table in recorded}
    changed = {table for table in recorded if _changed(table.relation_id, recorded[table], now[table])}
    grown = [t for t in recorded if t not in changed and now[t].keys() > recorded[t].keys()]
    if grown:
        from slotlake.spark.publish.shape import write_schemas

        write_schemas(lake, [replace(table, partitions=_written(now[table])) for table in grown])
    return {(table.schema, table.table) for table in changed}


def upgraded_partitions(
    connection: psycopg.Connection[Any], table: TableSchema, is_older: Callable[[int], bool]
) -> str:
    """Return what a table's shape says of its partitions, as pg_upgrade has made them anew.

    Args:
        connection: to the upgraded source.
        table: a table that the lake follows.
        is_older: whether a transaction id was given before the upgrade ended.

    Returns:
        The same partitions with their new transactions; what was said before if not all are the same.
    """
    before = json.loads(table.partitions) if table.partitions else {}
    if not before:
        return table.partitions
    now = _nodes(connection, table.relation_id)
    same = {
        oid: now[oid]
        for oid in before
        if oid in now and now[oid][0] == before[oid][0] and is_older(int(now[oid][1]))
    }
    return _written(same) if len(same) == len(before) else table.partitions


def _in_trees(connection: psycopg.Connection[Any], relation_ids: Sequence[int]) -> set[int]:
    """Those tables that have partitions, or are one: the others need no query each."""
    rows = connection.execute(_IN_TREES, {"tables": list(relation_ids)}).fetchall()
    return {int(oid) for (oid,) in rows}


def _nodes(connection: psycopg.Connection[Any], relation_id: int) -> Nodes:
    """The partitions below a root, or a leaf itself; nothing for any other table."""
    rows = connection.execute(_TREE.encode(), {"table": relation_id}).fetchall()
    return {oid: [int(storage), since, bool(born)] for oid, storage, since, born in rows}


def _written(nodes: Nodes) -> str:
    return json.dumps({oid: nodes[oid][:2] for oid in sorted(nodes)})


def _changed(relation_id: int, before: Mapping[str, list[Any]], now: Nodes) -> bool:
    if not now and str(relation_id) in before:
        return False  # a leaf that is detached is not published; it is looked at again when it comes back
    if any(oid not in now or now[oid][:2] != before[oid] for oid in before):
        return True
    return any(not now[oid][2] for oid in now.keys() - before.keys())
