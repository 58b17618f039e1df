"""Bring what an earlier attempt copied to a later snapshot, without copying it again.

The slot was made at position L1, and has every change since.  The earlier attempt's snapshot S1 has ended
with its session; now there is S2 at L2.  Let K be the keys that the changes between L1 and L2 name, old keys
and new ones.  A row of S2 whose key is not in K is the same version, in the same place, as in S1: it stands
in exactly one range, whichever of the two snapshots that range was read under.  So the table at L2 is what
was read of all ranges, without the rows with a key in K, and the rows with a key in K as S2 shows them.  K
may have more keys than needed, so it does not matter under which later snapshot a range was read, nor what
a filter hides.

Sound only if changes name rows by the table's key, all kinds of changes are published, and the table's file
stayed what it was (`fingerprint`): else the table is copied again.  Why so: docs/adr/0020.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from psycopg import sql

from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.changelog.batches import Batch, BatchRelation
from slotlake.decoder.server.source import source_session
from slotlake.decoder.types.table import column_type, to_text

if TYPE_CHECKING:
    from slotlake.decoder.server.source import SourceSettings
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.infra.progress import Progressing
    from slotlake.spark.publish.place import CopyTarget
    from slotlake.spark.tables.schema import TableSchema

KEYS_MAX = 1_000_000
_SHARE_MAX = 0.5  # of a table's rows: beyond that a new copy costs less
_PUBLISHED = """
SELECT coalesce(string_agg(oid || ' ' || xmin, ',' ORDER BY oid), ''),
       coalesce(bool_and(pubinsert AND pubupdate AND pubdelete), false)
FROM pg_publication WHERE pubname = ANY (%s)
"""


class KeyColumn(Protocol):
    """A column of a key, as `decoder.catalog.publications.SourceColumn`."""

    @property
    def name(self) -> str: ...
    @property
    def type_oid(self) -> int: ...
    @property
    def typmod(self) -> int: ...


class Keyed(Protocol):
    """A source table as far as its keys are concerned."""

    @property
    def relation_id(self) -> int: ...
    @property
    def key(self) -> tuple[str, ...]: ...
    @property
    def columns(self) -> Sequence[KeyColumn]: ...


def resumable(source: SourceSettings) -> bool:
    """Return whether copied ranges can be brought forward at all.

    Not where the stream leaves out changes that a later snapshot shows (``origin: none``).
    """
    return source.plugin == "pgoutput" and source.origin == "any"


def publication_state(source: SourceSettings, snapshot: str) -> tuple[str, bool]:
    """Return the publications as a snapshot shows them, and whether each publishes all kinds of changes."""
    dsn = source.dsn
    with source_session(dsn, "reading the publications") as connection, connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        row = connection.execute(_PUBLISHED, (list(source.publications),)).fetchone()
        assert row is not None
        return str(row[0]), bool(row[1])


def all_kinds_published(connection: psycopg.Connection[Any], publications: Sequence[str]) -> bool:
    """Return whether each publication publishes every kind of row change."""
    row = connection.execute(_PUBLISHED, (list(publications),)).fetchone()
    return row is not None and bool(row[1])


def fingerprint(publications: str, table: SourceTable, schema: TableSchema, target: CopyTarget) -> str:
    """Hash what copied files depend on: shape, filter, the table's file, names and field ids; no partitions.

    Args:
        publications: the publications, as `publication_state` says them.
        schema: the lake table that it becomes.
        target: where its files go, with the names and ids of their columns.

    Returns:
        A SHA-256 digest in hexadecimal.
    """
    shape = replace(schema, partitions="").to_json()
    ids = sorted({**target.field_ids}.items()) + sorted({**target.exact_field_ids}.items())
    inner = sorted((name, list(parts)) for name, parts in target.inner_ids.items())
    text = "\n".join(map(str, (publications, table, shape, ids, inner)))
    return hashlib.sha256(text.encode()).hexdigest()


def changed_keys(
    pipeline: OpenPipeline, positions: tuple[int, int], rows: Mapping[SourceTable, int], progress: Progressing
) -> dict[SourceTable, pa.Table | None]:
    """Read the keys of each table that the changes between two positions name.

    Args:
        positions: LSNs of the slot's start and of the snapshot at hand.
        rows: source table → about how many rows it has.
        progress: called with the bytes that are received.

    Returns:
        Source table → a table of columns ``n<i>`` and, where needed, ``xn<i>`` by the key's columns, each key
        once;
        None if the table must be copied again.
    """
    settings = replace(pipeline.pulling, batch_bytes_max=None)
    progress("what has changed since the copy began: bytes received", 0)
    tell = lambda done: progress(  # noqa: E731
        "what has changed since the copy began: bytes received", done.received_bytes
    )
    batch = settings.pull(*positions, tell)
    try:
        keys = {table: named_keys(batch, table) for table in rows}
        return {table: None if too_many(keys[table], count) else keys[table] for table, count in rows.items()}
    finally:
        # It ends where the lake will begin; nobody applies it.
        shutil.rmtree(batch.path, ignore_errors=True)


def too_many(keys: pa.Table | None, rows: int) -> bool:
    """Return whether a new copy costs less than reading the rows with these keys again.

    Args:
        keys: the keys; None: nothing is to be read again.
        rows: about how many rows the table has.
    """
    return keys is not None and keys.num_rows > min(KEYS_MAX, max(1000, rows * _SHARE_MAX))


def named_keys(batch: Batch, table: Keyed) -> pa.Table | None:
    """The keys of a table that a batch names, each once; None if it names a changed row by something else."""
    versions = [each for each in batch.relations if each.relation_id == table.relation_id and each.rows]
    if not versions:
        return pa.table({})
    if not all(_names_rows(version, table) for version in versions):
        return None
    parts = [part for version in versions for part in _key_parts(batch, version, table)]
    return distinct_keys(parts)


def distinct_keys(keys: Iterable[pa.Table]) -> pa.Table:
    """All of these keys in one table, each once."""
    merged = pa.concat_tables([pa.table({}), *keys], promote_options="default")
    return merged.group_by(merged.column_names).aggregate([]) if merged.num_columns else merged


def _names_rows(version: BatchRelation, table: Keyed) -> bool:
    """Return whether these changes name rows by the table's key, as the lake has it."""
    types = {column.name: (column.type_oid, column.typmod) for column in table.columns}
    same = {c.name: (c.type_oid, c.typmod) for c in version.columns if c.name in table.key}
    return (
        bool(table.key)
        and version.key == table.key
        and not version.truncates
        and all(same.get(name) == types[name] for name in table.key)
    )


def _key_parts(batch: Batch, version: BatchRelation, table: Keyed) -> Iterable[pa.Table]:
    """Yield the keys of new rows, then of old ones, file by file."""
    places = [[column.name for column in version.columns].index(name) for name in table.key]
    for part in batch.relation_parts(version):
        deleted = pc.equal(part["op"], ord("D"))
        for side, chosen in (("n", pc.invert(deleted)), ("o", pc.not_equal(part["old"], 0))):
            if all(f"{side}{place}" in part.column_names for place in places):
                yield _keys_of_side(part.filter(chosen), side, places)


def _keys_of_side(part: pa.Table, side: str, places: Sequence[int]) -> pa.Table:
    """The key's columns of one side; a key with an unchanged value that was not sent is on the other side."""
    columns: dict[str, pa.ChunkedArray] = {}
    whole = pa.array([True] * part.num_rows, pa.bool_())
    for i, place in enumerate(places):
        typed = part[f"{side}{place}"]
        columns[f"n{i}"] = typed
        present = typed.is_valid()
        if f"x{side}{place}" in part.column_names:
            columns[f"xn{i}"] = part[f"x{side}{place}"]
            present = pc.or_(present, columns[f"xn{i}"].is_valid())
        whole = pc.and_(whole, present)
    return pa.table(columns).filter(whole)


def key_condition(connection: psycopg.Connection, table: SourceTable, keys: pa.Table) -> str:
    """Write the SQL condition that holds for the source's rows with these keys.

    Args:
        connection: to the source; it names types and quotes texts.
        keys: columns ``n<i>`` (typed) and, where needed, ``xn<i>`` (exact text) of the key's i-th column.
    """
    columns = {column.name: column for column in table.columns}
    lists, casts = [], []
    for i, name in enumerate(table.key):
        column = columns[name]
        kind = column_type(column.type_oid, column.typmod)
        exact = keys[f"xn{i}"] if f"xn{i}" in keys.column_names else None
        values = to_text(keys[f"n{i}"], exact, kind).to_pylist()
        row = connection.execute("SELECT format_type(%s, -1)", (column.type_oid,)).fetchone()
        assert row is not None
        lists.append(f"{sql.Literal(values).as_string(connection)}::text[]")
        casts.append(f"u.k{i}::{row[0]}")
    key_columns = ", ".join(sql.Identifier(name).as_string(connection) for name in table.key)
    aliases = ", ".join(f"k{i}" for i in range(len(casts)))
    return f"({key_columns}) IN (SELECT {', '.join(casts)} FROM unnest({', '.join(lists)}) AS u({aliases}))"
