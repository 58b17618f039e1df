"""Judge by the catalog which column is which, and whether rows changed without an event. No I/O.

Why it is sound: a column's attribute number is given once and never again, numbers grow, and Relation
messages list columns by them.  So if no column that the lake has was removed, a message can only show these
and the first few of the new ones; if none is new, only these, or these without all that were removed.
Anything else, and anything that two histories could have led to, is answered with a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slotlake.decoder.catalog.fingerprints import TableFingerprint
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.type_texts import NAME
from slotlake.decoder.types.table import column_type, from_text
from slotlake.infra.source.fingerprints import CatalogFingerprint, with_fingerprint
from slotlake.infra.sync.schema.numbered_columns import Columns, Numbers, signature

if TYPE_CHECKING:
    from slotlake.decoder.changelog.batches import BatchRelation
    from slotlake.spark.tables.schema import TableSchema

Types = Mapping[int, tuple[int, int, str]]


@dataclass(frozen=True)
class Verdict:
    """What is to be done about a table.

    Attributes:
        copy_reason: why it must be copied again; "" if the lake can follow.
        numbers: relation version → column name → attribute number.
        fingerprint: what it agrees with after the batch, as JSON, if that is written with the batch.
        constants: attribute number of a new column → what older rows hold in it, as PostgreSQL writes it.
        new_shape: the table's shape with the fingerprint of now, if that is written at once.
        wider_types: attribute number → type, of columns that the lake widens.
        alternative: what is done instead of the copy if it is proven that no value changed.
    """

    copy_reason: str = ""
    numbers: Mapping[int, Numbers] = field(default_factory=dict)
    fingerprint: str = ""
    constants: Mapping[int, str] = field(default_factory=dict)
    new_shape: TableSchema | None = None
    wider_types: Types = field(default_factory=dict)
    alternative: Verdict | None = None


def judge(
    mirror: TableSchema,
    now: TableFingerprint | None,
    published: SourceTable,
    relations: Sequence[BatchRelation],
    *,
    at_end: bool,
    proven_numbers: Mapping[int, Numbers] | None = None,
    alone: bool = False,
) -> Verdict:
    """Judge what a batch, and the catalog behind it, ask for.

    Args:
        mirror: the table as the lake has it.
        now: what the catalog says of the table that the lake has; None if that table was dropped.
        published: the source's table of this name.
        relations: the batch's relation versions of it that have rows, oldest first.
        at_end: the catalog was read exactly where the batch ends.
        proven_numbers: each version's numbers, if the event trigger proves them (`ddl_events`).
        alone: the table has no derived tables, which would have to be filled with a constant too.
    """
    fingerprint = CatalogFingerprint.from_json(mirror.fingerprint)
    if fingerprint is None:
        return _verdict_without_fingerprint(mirror, now, published, relations)
    reason = _replacement_reason(fingerprint, now, published)
    if not reason and now is not None:
        reason = reprinted_reason(mirror, fingerprint, now)
    if reason or now is None:
        return Verdict(copy_reason=reason)
    table = Columns.of(mirror, fingerprint, now, published)
    numbers = proven_numbers or {relation.ordinal: table.match(relation) or {} for relation in relations}
    reason = table.obstacle_reason() if proven_numbers else table.ambiguity_reason(mirror)
    rewrite_reason = _rewrite_reason(fingerprint, now, table)
    if reason or not all(numbers.values()):
        return Verdict(copy_reason=reason or rewrite_reason or "the table's columns changed more than once")
    following = _Following(mirror, fingerprint, now, published, relations, numbers, table)
    unlogged_reason = "" if rewrite_reason else _unlogged_reason(mirror, fingerprint, now)
    if not rewrite_reason and not unlogged_reason:
        return following.verdict(at_end=at_end, alone=alone)
    alternative = following.promotion_verdict(at_end=at_end)
    if unlogged_reason:
        alternative = following.verdict(at_end=at_end, alone=alone)
    return Verdict(
        copy_reason=rewrite_reason or unlogged_reason,
        alternative=alternative if alternative is not None and not alternative.copy_reason else None,
    )


@dataclass(frozen=True)
class _Following:
    """A table of which it is known which column is which: what can the lake follow?"""

    mirror: TableSchema
    fingerprint: CatalogFingerprint
    now: TableFingerprint
    published: SourceTable
    relations: Sequence[BatchRelation]
    numbers: Mapping[int, Numbers]
    table: Columns

    def verdict(self, *, at_end: bool, alone: bool, types: Types = MappingProxyType({})) -> Verdict:
        """Judge the batch.

        Args:
            at_end: the catalog was read exactly where the batch ends.
            alone: the table has no derived tables.
            types: new types of columns that the source has rewritten, and in which the values are the same.
        """
        mirror, relations, numbers, table = self.mirror, self.relations, self.numbers, self.table
        last_numbers = list(numbers.values())[-1] if numbers else {c.name: c.number for c in mirror.live}
        constants = _constants(mirror, table, last_numbers.values(), relations) if alone else {}
        reason = _follow_obstacle(
            mirror, self.published, relations, numbers, self.now, same_values=bool(types)
        )
        reason = reason or table.default_reason(last_numbers.values(), constants)
        if not reason and any(_names_whole_rows(relation) for relation in relations):
            reason = table.widened_reason()
        if not reason and at_end and last_numbers != table.present:
            reason = "the table's columns changed, and the batch has no row of it"
        if reason:
            return Verdict(copy_reason=reason)
        fingerprint = _next_fingerprint(self.now, last_numbers, self.fingerprint, table).to_json()
        mirror_columns = [signature(column) for column in mirror.live]
        message_columns = [
            [signature(c) for c in r.columns if c.name in numbers[r.ordinal]] for r in relations
        ]
        if types or any(columns != mirror_columns for columns in message_columns):
            return Verdict(numbers=numbers, fingerprint=fingerprint, constants=constants, wider_types=types)
        return Verdict(
            new_shape=replace(mirror, fingerprint=fingerprint) if fingerprint != mirror.fingerprint else None
        )

    def promotion_verdict(self, *, at_end: bool) -> Verdict | None:
        """Judge the batch as if no value had changed; None if rows were not rewritten for wider types only.

        A column that kept its type was rewritten by an expression: that is hardly ever the same value.
        """
        before, after = self.table.before, self.table.after
        types = {
            number: (column.type_oid, column.typmod, column.type_name)
            for number, column in after.items()
            if number in before and signature(before[number])[1:] != signature(column)[1:]
        }
        if not types or before.keys() != after.keys() or self.mirror.selection or self.mirror.partitions:
            return None
        if any(_names_whole_rows(relation) for relation in self.relations):
            return None  # in two types
        return self.verdict(at_end=at_end, alone=False, types=types)


def _next_fingerprint(
    now: TableFingerprint, columns: Numbers, before: CatalogFingerprint, table: Columns
) -> CatalogFingerprint:
    """The fingerprint after the batch.

    A column that is not published counts as accounted for; one whose first row is still to come does not.
    """
    fingerprint = CatalogFingerprint.of(now, columns.values(), before)
    unpublished_numbers = set(table.added) - set(columns.values())
    return fingerprint if unpublished_numbers else replace(fingerprint, last=max(now.attributes))


def _replacement_reason(
    fingerprint: CatalogFingerprint, now: TableFingerprint | None, published: SourceTable
) -> str:
    """Say why nothing that the lake has of the table can be trusted; "" if it can."""
    if now is None or not fingerprint.relation_id == now.relation_id == published.relation_id:
        return "the table was dropped and made again"
    if fingerprint.members and not fingerprint.members & now.members:
        return "the table left the publications and came back"
    if fingerprint.members and fingerprint.unsent(now):
        return "the publications that hold the table, or how they publish it, changed"
    if any(column.name not in now.numbers for column in published.columns):
        return "the table's columns are being changed"
    return ""


def reprinted_reason(mirror: TableSchema, fingerprint: CatalogFingerprint, now: TableFingerprint) -> str:
    """Say why values that the lake has are printed otherwise by now; "" if they are not.

    The name of a composite's attribute shows in a struct only.

    Args:
        mirror: the table as the lake has it.
        fingerprint: what the catalog said when the lake's content was read.
        now: what the catalog says now.
    """
    lost_traits = fingerprint.printed_otherwise(now)
    for column in mirror.live:
        if any(column.form or not trait.startswith(NAME) for trait in lost_traits.get(column.number, ())):
            return (
                f"values of column {column.name} are printed in another way: its type, or an object that "
                "they name, was altered"
            )
    return ""


def _verdict_without_fingerprint(
    mirror: TableSchema,
    now: TableFingerprint | None,
    published: SourceTable,
    relations: Sequence[BatchRelation],
) -> Verdict:
    """Judge a table of a lake of an earlier version: its columns are known by name only."""
    from slotlake.spark.tables.schema import TableSchema

    reason = _follow_obstacle(mirror, published, relations, {}, now)
    if reason:
        return Verdict(copy_reason=reason)
    mirror_columns = [signature(column) for column in mirror.live]
    if (
        mirror_columns != [signature(column) for column in published.columns]
        or mirror.relation_id != published.relation_id
    ):
        return Verdict()
    if any([signature(c) for c in relation.columns] != mirror_columns for relation in relations):
        return Verdict()
    fresh_shape = with_fingerprint(TableSchema.of(published), now)
    numbers = {column.name: column.number for column in fresh_shape.columns}
    columns = tuple(c if c.dropped else replace(c, number=numbers[c.name]) for c in mirror.columns)
    return Verdict(
        new_shape=replace(mirror, columns=columns, fingerprint=fresh_shape.fingerprint)
        if fresh_shape.fingerprint
        else None
    )


def _constants(
    mirror: TableSchema, table: Columns, numbers: Any, relations: Sequence[BatchRelation]
) -> dict[int, str]:
    """What rows from before hold in new columns, where the catalog proves it and the lake can use it.

    PostgreSQL stores the constant in the catalog from ADD COLUMN on until the rows are rewritten, and never
    changes it.  Old tuples of a batch must not need it: under REPLICA IDENTITY FULL, and in a key, the
    table is copied again.
    """
    key_columns = {name for relation in relations for name in relation.key}
    if mirror.selection or any(relation.replica_identity not in ("d", "i") for relation in relations):
        return {}
    constants = {}
    for number in set(table.added) & set(numbers):
        attribute = table.now.attributes[number]
        text, kind = attribute.constant, column_type(attribute.type_oid, attribute.typmod)
        if text is None or attribute.name in key_columns or from_text(pa.array([text]), kind)[1] is not None:
            continue
        constants[number] = text
    return constants


def has_changes_beyond_lake(mirror: TableSchema, relations: Sequence[BatchRelation]) -> bool:
    """Return whether the lake cannot take these changes, which are of a table that is not published."""
    from slotlake.spark.tables.change import CannotFollowError, schema_after_change

    try:
        for relation in relations:
            mirror = schema_after_change(mirror, relation)
    except CannotFollowError:
        return True
    return False


def _names_whole_rows(relation: BatchRelation) -> bool:
    """Return whether the changes name a row by all of its values."""
    return relation.replica_identity == "f" and not relation.key


def _rewrite_reason(fingerprint: CatalogFingerprint, now: TableFingerprint, table: Columns) -> str:
    """Say that rows were rewritten; "" if they were not.

    VACUUM FULL, CLUSTER, TRUNCATE and SET UNLOGGED give a table another file too, and change no column's
    description.
    """
    if fingerprint.storage == now.storage:
        return ""
    altered = [
        number
        for number, since in fingerprint.since.items()
        if number in table.after
        and now.attributes[number].since != since
        # Rewriting puts a kept constant into the rows, and notes that.
        and not (number in fingerprint.missing and not now.attributes[number].missing)
    ]
    return "its rows were rewritten" if altered or table.added else ""


def _unlogged_reason(mirror: TableSchema, fingerprint: CatalogFingerprint, now: TableFingerprint) -> str:
    """Say that a table may have been unlogged for a while; "" if it was not.

    What is written to an unlogged table is not in the WAL.  SET UNLOGGED and SET LOGGED rewrite the table.
    The server refuses them for a table that a publication names itself (tablecmds.c,
    ATPrepChangePersistence), not for one that is published with all, with its schema or through its root.
    """
    if fingerprint.storage == now.storage or (fingerprint.toast and fingerprint.toast == now.toast):
        return ""
    named = any(member.startswith("table ") for member in fingerprint.members & now.members)
    if named and not mirror.partitions:
        return ""
    return "it has another file: it may have been unlogged meanwhile, and what was written then is not sent"


def _follow_obstacle(
    mirror: TableSchema,
    published: SourceTable,
    relations: Sequence[BatchRelation],
    numbers: Mapping[int, Numbers],
    now: TableFingerprint | None,
    *,
    same_values: bool = False,
) -> str:
    """Say what the lake's table cannot become; "" if it can follow the batch and the catalog after it."""
    from slotlake.spark.tables.change import CannotFollowError, schema_after_change
    from slotlake.spark.tables.schema import TableSchema

    schema = mirror
    try:
        for relation in relations:
            chosen = _lake_columns(relation, numbers.get(relation.ordinal), published)
            named = numbers.get(relation.ordinal, {})
            schema = schema_after_change(schema, chosen, named, same_values=same_values)
        if now is not None and mirror.fingerprint:
            schema_after_change(schema, TableSchema.of(published), now.numbers, same_values=same_values)
    except CannotFollowError as error:
        return error.what.rpartition("cannot follow: ")[2]
    return ""


def _lake_columns(relation: BatchRelation, named: Numbers | None, published: SourceTable) -> Any:
    """The relation version with the columns that the lake takes."""
    names = set(named) if named is not None else {column.name for column in published.columns}
    selection = getattr(published, "selection", "")
    if named is None and not selection:
        return relation
    return replace(relation, columns=tuple(c for c in relation.columns if c.name in names))
