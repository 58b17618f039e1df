"""What of the source's catalog a lake table agrees with: written into its shape when it is copied.

`decoder.catalog.fingerprints` reads it; `infra.sync.schema.examination` compares it with what the catalog
says later.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import sql

from slotlake.decoder.catalog.fingerprints import WHOLE, TableFingerprint, table_fingerprints
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.remembered_fingerprints import RememberedFingerprints
from slotlake.decoder.catalog.vanished import vanished_error
from slotlake.decoder.errors import ChangedMeanwhileError
from slotlake.decoder.server.source import SourceSettings, source_session

if TYPE_CHECKING:
    from slotlake.infra.opened.open_pipeline import OpenPipeline
    from slotlake.spark.tables.schema import TableSchema


# pg_partition_tree would lock the tables.
_BELOW = """
SELECT c.oid FROM pg_class c
WHERE c.oid = ANY (%(tables)s) AND c.relispartition
      AND EXISTS (SELECT FROM pg_partition_ancestors(c.oid) above WHERE above.relid = ANY (%(roots)s))
"""
# Every batch reads the fingerprints of all tables; with fewer places than tables, each would be parsed again.
_READ_LATELY = 1 << 15
_LEFT = frozenset({"left"})


@dataclass(frozen=True)
class CatalogFingerprint:
    """What of the source's catalog a lake table agrees with.

    Attributes:
        relation_id: as in `decoder.catalog.fingerprints.TableFingerprint`.
        storage: as there.
        members: as there; :data:`_LEFT` of a table that has left the publications.
        last: the highest attribute number that is accounted for.
        since: attribute number → the transaction that had last changed its description; of generated columns
            also where the table does not have them.
        missing: attribute numbers of columns of which the catalog had a constant for older rows.
        why: when and why it was last copied again by itself, for people; "" if it never was.
        ways: as there.
        texts: attribute number → how its type is printed (`decoder.catalog.type_texts`).
        toast: OID of its TOAST table, 0 if it has none; None: an earlier version did not note it.
    """

    relation_id: int
    storage: int
    members: frozenset[str]
    last: int
    since: Mapping[int, str]
    missing: frozenset[int]
    why: str = ""
    ways: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[int, frozenset[str]] = field(default_factory=dict)
    toast: int | None = None

    @property
    def has_left(self) -> bool:
        """The table has left the publications, and a batch has noted it."""
        return self.members == _LEFT

    def of_left(self) -> CatalogFingerprint:
        """Return it with the note that the table has left the publications."""
        return replace(self, members=_LEFT, ways={})

    def to_json(self) -> str:
        """The fingerprint as JSON, for `TableSchema.mark`."""
        fields = {
            "oid": self.relation_id,
            "storage": self.storage,
            "members": sorted(self.members),
            "last": self.last,
            "since": {str(number): since for number, since in sorted(self.since.items())},
            "missing": sorted(self.missing),
            "why": self.why,
            "ways": dict(sorted(self.ways.items())),
            "texts": {str(number): sorted(texts) for number, texts in sorted(self.texts.items())},
            **({} if self.toast is None else {"toast": self.toast}),
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> CatalogFingerprint | None:
        """Parse the fingerprint in a table's shape; None if it has none."""
        return _read(text) if text else None

    @classmethod
    def of(
        cls, now: TableFingerprint, numbers: Collection[int], before: CatalogFingerprint | None = None
    ) -> CatalogFingerprint:
        """Describe what a table with these columns agrees with now.

        Args:
            now: what the catalog says now.
            numbers: attribute numbers of the table's columns.
            before: the fingerprint so far, of a table that follows; None for a table that was just copied.
        """
        attributes = {number: now.attributes[number] for number in numbers if number in now.attributes}
        # One that is computed is published from DROP EXPRESSION on, and no row of it is written for that.
        computed = {n: a for n, a in now.attributes.items() if a.generated and not a.dropped}
        return cls(
            now.relation_id,
            now.storage,
            now.members,
            max(now.attributes) if before is None else max(before.last, *numbers),
            {number: attribute.since for number, attribute in (computed | attributes).items()},
            frozenset(number for number, attribute in attributes.items() if attribute.missing),
            "" if before is None else before.why,
            now.ways,
            {number: attribute.texts for number, attribute in attributes.items() if attribute.texts},
            now.toast,
        )

    def agrees(self, now: CatalogFingerprint) -> bool:
        """Return whether nothing has changed; an earlier version did not note all."""
        return self == (now if self.toast is not None else replace(now, toast=None))

    def unsent(self, now: TableFingerprint) -> bool:
        """Return whether changes may not have been sent, or under another name, of a table published now.

        They were sent if one publication sent them all, and still does; of a partition, what the others do
        counts too.
        """
        same = [member for member in self.members & now.members if self._goes_on(member, now)]
        if len(same) == len(self.members) == len(now.members):
            return False
        return not any(now.ways.get(member, "").endswith(WHOLE) for member in same)

    def printed_otherwise(self, now: TableFingerprint) -> dict[int, frozenset[str]]:
        """Return attribute number → what decided the text of its values, and is not there any more."""
        attributes = {n: now.attributes[n] for n in self.texts if n in now.attributes}
        lost_traits = {
            n: self.texts[n] - attribute.texts for n, attribute in attributes.items() if not attribute.dropped
        }
        return {number: traits for number, traits in lost_traits.items() if traits}

    def _goes_on(self, member: str, now: TableFingerprint) -> bool:
        """Return whether a publication's entry publishes as before. An earlier version did not note that."""
        return member not in self.ways or self.ways[member] == now.ways.get(member)


@lru_cache(maxsize=_READ_LATELY)
def _read(text: str) -> CatalogFingerprint:
    fields = json.loads(text)
    since = {int(number): value for number, value in fields["since"].items()}
    members, missing = frozenset(fields["members"]), frozenset(fields["missing"])
    ways = fields.get("ways", {})
    texts = {int(number): frozenset(traits) for number, traits in fields.get("texts", {}).items()}
    oid, storage, last, why, toast = (fields.get(key) for key in ("oid", "storage", "last", "why", "toast"))
    return CatalogFingerprint(oid, storage, members, last, since, missing, why, ways, texts, toast)


def with_fingerprint(schema: TableSchema, now: TableFingerprint | None) -> TableSchema:
    """The shape of a table just copied, with its columns' numbers and its fingerprint, if these are known."""
    if now is None or any(column.name not in now.numbers for column in schema.columns):
        return schema
    columns = tuple(replace(c, number=now.numbers[c.name]) for c in schema.columns)
    return replace(
        schema, columns=columns, fingerprint=CatalogFingerprint.of(now, [c.number for c in columns]).to_json()
    )


def fingerprints_at(
    source: SourceSettings, tables: Collection[int], snapshot: str | None
) -> dict[int, TableFingerprint]:
    """Read what the source's catalog says of tables.

    Args:
        snapshot: name of an exported snapshot of the source; None for the catalog of now.

    Returns:
        OID → description; a table that is not there is left out.
    """
    if not tables:
        return {}
    with catalog_at(source.dsn, snapshot) as connection:
        return table_fingerprints(connection, tables, source.publications)


def ask_ahead(pipeline: OpenPipeline, position: int) -> None:
    """Begin to ask what `followed_fingerprints` will, while a batch is on its way.

    Args:
        position: LSN after all that was committed before now.
    """
    if (remembered := pipeline.memory.get(RememberedFingerprints)) is not None:
        remembered.ask_ahead(pipeline.source.dsn, position)


def followed_fingerprints(
    pipeline: OpenPipeline, tables: Collection[int], snapshot: str | None, batch_end: int
) -> Mapping[int, TableFingerprint]:
    """Read what the source's catalog says of all tables that the lake follows.

    As `fingerprints_at`, but what has not changed since this pipeline read it is neither fetched nor read
    again, and is the same object; so is all of it, if nothing has changed.

    Args:
        snapshot: name of an exported snapshot of the source; None for a catalog that is not older than
            the batch.
        batch_end: LSN at which the batch ends.

    Returns:
        OID → description; a table that is not there is left out.
    """
    if not tables:
        return {}
    remembered = pipeline.memory.of(RememberedFingerprints)
    with catalog_at(pipeline.source.dsn, snapshot) as connection:
        publications = pipeline.source.publications
        return remembered.fingerprints(
            connection, tables, publications, batch_end if snapshot is None else None
        )


def partitions_below(
    dsn: str, tables: Collection[int], roots: Collection[int], snapshot: str | None
) -> set[int]:
    """Find the tables that are partitions, on whatever level, of some root.

    Args:
        roots: OIDs of partitioned tables.
        snapshot: name of an exported snapshot of the source; None for the catalog of now.

    Returns:
        The OIDs of those tables that are.
    """
    with catalog_at(dsn, snapshot) as connection:
        rows = connection.execute(_BELOW, {"tables": list(tables), "roots": list(roots)}).fetchall()
    return {int(oid) for (oid,) in rows}


@contextmanager
def catalog_at(dsn: str, snapshot: str | None) -> Iterator[psycopg.Connection[Any]]:
    """Open a session that sees the source's catalog as a snapshot shows it, or as it is now (None)."""
    with (
        source_session(dsn, "reading the tables' columns") as connection,
        connection.transaction(),
    ):
        if snapshot is not None:
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            connection.execute(sql.SQL("SET TRANSACTION SNAPSHOT {}").format(sql.Literal(snapshot)))
        yield connection


def changes_since(
    source: SourceSettings, before: Mapping[int, TableFingerprint], tables: Iterable[SourceTable]
) -> dict[SourceTable, ChangedMeanwhileError]:
    """Find tables that were rewritten or altered since: a snapshot does not hide that.

    A command that rewrites a table leaves nothing for older snapshots to see; a copy read after it is empty
    (PostgreSQL's manual, "Caveats" of multiversion concurrency).

    Args:
        source: where they are.
        before: OID → what the catalog said before.

    Returns:
        Table → what happened to it; of one that was dropped a `VanishedError`.
    """
    after = fingerprints_at(source, before.keys(), None)
    changes: dict[SourceTable, ChangedMeanwhileError] = {}
    for table in tables:
        then, now = before.get(table.relation_id), after.get(table.relation_id)
        if then is not None and now is None:
            changes[table] = vanished_error(table.quoted)
        elif then is None or now is None or (then.storage, then.attributes) != (now.storage, now.attributes):
            changes[table] = changed_error(table, "the table was altered or rewritten while it was copied")
    return changes


def changed_error(table: SourceTable, what: str) -> ChangedMeanwhileError:
    """The error of a table whose copy is not of one moment; it is the table's alone."""
    where, way_out = f"table {table.quoted}", "run again; nothing of it was published"
    return ChangedMeanwhileError(what, where=where, way_out=way_out).of(table.schema, table.table)


def require_unchanged(
    source: SourceSettings, before: Mapping[int, TableFingerprint], tables: Iterable[SourceTable]
) -> None:
    """Check that `changes_since` finds nothing.

    Args:
        source: where they are.
        before: OID → what the catalog said before.

    Raises:
        ChangedMeanwhileError: a table was altered or rewritten.
        VanishedError: one was dropped.
    """
    for error in changes_since(source, before, tables).values():
        raise error
