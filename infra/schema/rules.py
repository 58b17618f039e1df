"""Which column is which, and whether rows changed without an event: judged by the catalog. No I/O.

What makes it sound: a column's attribute number is given once and never again, numbers grow, and Relation
messages list columns by them.  So if no column that the lake has is gone, a message can only show these and
the first few of the new ones; if none is new, only these, or these without all that are gone.  Anything
else, and anything that two histories could have led to, is answered with a copy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slotlake.decoder.catalog.fingerprints import TableMark
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.catalog.type_texts import NAME
from slotlake.decoder.types.table import column_type, from_text
from slotlake.infra.source.fingerprints import Mark, marked

if TYPE_CHECKING:
    from slotlake.decoder.changelog.batches import BatchRelation
    from slotlake.spark.tables.schema import TableSchema

Numbers = Mapping[str, int]
Types = Mapping[int, tuple[int, int, str]]
_NO_TYPES: Types = {}


@dataclass(frozen=True)
class Found:
    """What is to be done about a table.

    Attributes:
        copy: why it must be copied again; "" if the lake can follow.
        numbers: relation version → column name → attribute number.
        mark: what it agrees with after the batch, if that is to be noted with the batch.
        constants: attribute number of a new column → what older rows hold in it, as PostgreSQL writes it.
        moved: the table with what it agrees with already, if that is to be noted at once.
        promoted: attribute number → type, of columns that the lake is to widen.
        same: what is to be done instead of the copy if it is proven that all values are what they were.
    """

    copy: str = ""
    numbers: Mapping[int, Numbers] = field(default_factory=dict)
    mark: str = ""
    constants: Mapping[int, str] = field(default_factory=dict)
    moved: TableSchema | None = None
    promoted: Types = field(default_factory=dict)
    same: Found | None = None


def judge(
    held: TableSchema,
    now: TableMark | None,
    published: SourceTable,
    relations: Sequence[BatchRelation],
    *,
    at_end: bool,
    told: Mapping[int, Numbers] | None = None,
    alone: bool = False,
) -> Found:
    """What a batch, and the catalog behind it, ask for.

    Args:
        held: the table as the lake has it.
        now: the catalog of the table that the lake has, None if that table is gone.
        published: the source's table of this name.
        relations: the batch's relation versions of it that have rows, oldest first.
        at_end: the catalog was read exactly where the batch ends.
        told: each version's numbers, if the event trigger proves them (`infra.schema.ddl_events`).
        alone: nothing is kept beside the table that would have to be filled with a constant too.
    """
    mark = Mark.from_json(held.mark)
    if mark is None:
        return _unmarked(held, now, published, relations)
    why = _another(mark, now, published)
    if not why and now is not None:
        why = retold(held, mark, now)
    if why or now is None:
        return Found(copy=why)
    table = _Columns.of(held, mark, now, published)
    numbers = told or {relation.ordinal: table.match(relation) or {} for relation in relations}
    why = table.unseen() if told else table.doubtful(held)
    rewritten = _rewritten(mark, now, table)
    if why or not all(numbers.values()):
        return Found(copy=why or rewritten or "the table's columns changed more than once")
    following = _Following(held, mark, now, published, relations, numbers, table)
    if not rewritten:
        return following.found(at_end=at_end, alone=alone)
    same = following.promoted(at_end=at_end)
    return Found(copy=rewritten, same=same if same is not None and not same.copy else None)


@dataclass(frozen=True)
class _Following:
    """What the lake can follow of a table of which it is known which column is which."""

    held: TableSchema
    mark: Mark
    now: TableMark
    published: SourceTable
    relations: Sequence[BatchRelation]
    numbers: Mapping[int, Numbers]
    table: _Columns

    def found(self, *, at_end: bool, alone: bool, types: Types = _NO_TYPES) -> Found:
        """``types``: of columns that the source has written anew, and in which the values are the same."""
        held, relations, numbers, table = self.held, self.relations, self.numbers, self.table
        last = list(numbers.values())[-1] if numbers else {c.name: c.number for c in held.live}
        constants = _constants(held, table, last.values(), relations) if alone else {}
        why = _unfollowable(held, self.published, relations, numbers, self.now, same_values=bool(types))
        why = why or table.filled(last.values(), constants)
        if not why and at_end and last != table.present:
            why = "the table's columns changed, and no row of it"
        if why:
            return Found(copy=why)
        after = _agreed(self.now, last, self.mark, table).to_json()
        mine = [_described(column) for column in held.live]
        told = [[_described(c) for c in r.columns if c.name in numbers[r.ordinal]] for r in relations]
        if types or any(columns != mine for columns in told):
            return Found(numbers=numbers, mark=after, constants=constants, promoted=types)
        return Found(moved=replace(held, mark=after) if after != held.mark else None)

    def promoted(self, *, at_end: bool) -> Found | None:
        """What is to be done if the rows were written anew for wider types only; None if they were not.

        A column that kept its type was rewritten by an expression: that is hardly ever the same value.
        """
        before, after = self.table.before, self.table.after
        types = {
            number: (column.type_oid, column.typmod, column.type_name)
            for number, column in after.items()
            if number in before and _described(before[number])[1:] != _described(column)[1:]
        }
        if not types or before.keys() != after.keys() or self.held.selection or self.held.partitions:
            return None
        if any(relation.replica_identity == "f" and not relation.key for relation in self.relations):
            return None  # its rows are named by all of their values, in two types
        return self.found(at_end=at_end, alone=False, types=types)


def _agreed(now: TableMark, columns: Numbers, before: Mark, table: _Columns) -> Mark:
    """What the table agrees with; a column that is not published counts as known, one to come does not."""
    mark = Mark.of(now, columns.values(), before)
    coming = set(table.new) - set(columns.values())
    return mark if coming else replace(mark, last=max(now.attributes))


def _another(mark: Mark, now: TableMark | None, published: SourceTable) -> str:
    """Why nothing that the lake has of the table is to be trusted; "" if it is."""
    if now is None or not mark.relation_id == now.relation_id == published.relation_id:
        return "the table was dropped and made again"
    if mark.members and not mark.members & now.members:
        return "the table left the publications and came back"
    if mark.members and mark.unsent(now):
        return "the publications that hold the table, or how they publish it, changed"
    if any(column.name not in now.numbers for column in published.columns):
        return "the table's columns change at this moment"
    return ""


def retold(held: TableSchema, mark: Mark, now: TableMark) -> str:
    """Why values that the lake has are printed otherwise by now; "" if they are not.

    The name of a composite's attribute shows in a struct only.
    """
    gone = mark.printed_otherwise(now)
    for column in held.live:
        if any(column.form or not trait.startswith(NAME) for trait in gone.get(column.number, ())):
            return (
                f"values of column {column.name} are printed otherwise: its type or what it names was altered"
            )
    return ""


def _unmarked(
    held: TableSchema, now: TableMark | None, published: SourceTable, relations: Sequence[BatchRelation]
) -> Found:
    """A lake of an earlier version: its columns are known by name, until the source's are the same."""
    from slotlake.spark.tables.schema import TableSchema

    why = _unfollowable(held, published, relations, {}, now)
    if why:
        return Found(copy=why)
    mine = [_described(column) for column in held.live]
    if (
        mine != [_described(column) for column in published.columns]
        or held.relation_id != published.relation_id
    ):
        return Found()
    if any([_described(c) for c in relation.columns] != mine for relation in relations):
        return Found()
    noted = marked(TableSchema.of(published), now)
    numbers = {column.name: column.number for column in noted.columns}
    columns = tuple(c if c.dropped else replace(c, number=numbers[c.name]) for c in held.columns)
    return Found(moved=replace(held, columns=columns, mark=noted.mark) if noted.mark else None)


@dataclass(frozen=True)
class _Columns:
    """The columns that the lake has and those that are published now, by number; ascending."""

    before: Mapping[int, Any]
    after: Mapping[int, Any]
    now: TableMark
    last: int

    @classmethod
    def of(cls, held: TableSchema, mark: Mark, now: TableMark, published: SourceTable) -> _Columns:
        before = {column.number: column for column in held.live}
        after = {now.numbers[column.name]: column for column in published.columns}
        return cls(dict(sorted(before.items())), dict(sorted(after.items())), now, mark.last)

    @property
    def new(self) -> list[int]:
        return [number for number in self.after if number not in self.before]

    @property
    def gone(self) -> list[int]:
        return [number for number in self.before if number not in self.after]

    @property
    def present(self) -> dict[str, int]:
        return {column.name: number for number, column in self.after.items()}

    def doubtful(self, held: TableSchema) -> str:
        """Why a message's columns would not tell which they are; "" if they would."""
        if self.new and self.gone:
            return "columns are gone and others are new"
        if self.new and (why := self.unseen()):
            return why
        renamed = [n for n, c in self.before.items() if n in self.after and self.after[n].name != c.name]
        if held.selection and (self.gone or renamed):
            return "the columns of a table with a filter or a list of columns changed"
        return ""

    def unseen(self) -> str:
        """What the lake cannot follow, even told which column is which; "" for nothing."""
        if any(number <= self.last for number in self.new):
            return "columns are published that were not before"
        passing = any(number > self.last and a.dropped for number, a in self.now.attributes.items())
        return "columns came and went" if passing else ""

    def match(self, relation: BatchRelation) -> Numbers | None:
        """The numbers of a message's columns; None if they are not certain."""
        known = {c.name for c in [*self.before.values(), *self.after.values()]}
        columns = [column for column in relation.columns if column.name in known]
        if len(columns) < len(relation.columns) and not self._hides(relation, known):
            return None
        for numbers in self._possible():
            if len(numbers) == len(columns) and all(map(self._is, numbers, columns)):
                return {column.name: number for number, column in zip(numbers, columns, strict=True)}
        return None

    def _hides(self, relation: BatchRelation, known: set[str]) -> bool:
        """Are the columns that the lake does not know ones that it does not take?"""
        mine = self.now.numbers
        hidden = [column.name for column in relation.columns if column.name not in known]
        return all(name in mine and mine[name] not in self.after for name in hidden)

    def _possible(self) -> list[list[int]]:
        if self.gone:
            return [list(self.before), list(self.after)]
        return [[*self.before, *self.new[:count]] for count in range(len(self.new) + 1)]

    def _is(self, number: int, column: Any) -> bool:
        either = [side[number] for side in (self.before, self.after) if number in side]
        return column.name in {c.name for c in either} and any(
            _described(c)[1:] == _described(column)[1:] for c in either
        )

    def filled(self, numbers: Any, constants: Mapping[int, str]) -> str:
        """Which of these columns are new and had another value in rows from before; "" if none."""
        for number in self.new:
            attribute = self.now.attributes[number]
            if number in set(numbers) - constants.keys() and (attribute.missing or attribute.has_default):
                return f"column {attribute.name} was added with a default"
        return ""


def _constants(
    held: TableSchema, table: _Columns, numbers: Any, relations: Sequence[BatchRelation]
) -> dict[int, str]:
    """What rows from before hold in new columns, where the catalog proves it and the lake can be given it.

    It is kept in the catalog from ADD COLUMN on until the rows are written anew, and never changed.  Old
    tuples of a batch must not need it: under REPLICA IDENTITY FULL, and in a key, the table is copied again.
    """
    by_key = {name for relation in relations for name in relation.key}
    if held.selection or any(relation.replica_identity not in ("d", "i") for relation in relations):
        return {}
    found = {}
    for number in set(table.new) & set(numbers):
        attribute = table.now.attributes[number]
        text, kind = attribute.constant, column_type(attribute.type_oid, attribute.typmod)
        if text is None or attribute.name in by_key or from_text(pa.array([text]), kind)[1] is not None:
            continue
        found[number] = text
    return found


def left_behind(held: TableSchema, relations: Sequence[BatchRelation]) -> bool:
    """Are there changes that the lake cannot take? Of a table that cannot be copied: it is not published."""
    from slotlake.spark.tables.change import CannotFollowError, follow

    try:
        for relation in relations:
            held = follow(held, relation)
    except CannotFollowError:
        return True
    return False


def _described(column: Any) -> tuple[str, int, int]:
    return column.name, column.type_oid, column.typmod


def _rewritten(mark: Mark, now: TableMark, table: _Columns) -> str:
    """VACUUM FULL, CLUSTER and TRUNCATE give a table another file too, and change no column's description."""
    if mark.storage == now.storage:
        return ""
    altered = [
        number
        for number, since in mark.since.items()
        if number in table.after
        and now.attributes[number].since != since
        # Rewriting puts a kept constant into the rows, and notes that.
        and not (number in mark.missing and not now.attributes[number].missing)
    ]
    return "its rows were rewritten" if altered or table.new else ""


def _unfollowable(
    held: TableSchema,
    published: SourceTable,
    relations: Sequence[BatchRelation],
    numbers: Mapping[int, Numbers],
    now: TableMark | None,
    *,
    same_values: bool = False,
) -> str:
    """What the lake's table cannot become; "" if it can follow the batch, and the catalog after it."""
    from slotlake.spark.tables.change import CannotFollowError, follow
    from slotlake.spark.tables.schema import TableSchema

    schema = held
    try:
        for relation in relations:
            chosen = _chosen(relation, numbers.get(relation.ordinal), published)
            named = numbers.get(relation.ordinal, {})
            schema = follow(schema, chosen, named, same_values=same_values)
        if now is not None and held.mark:
            follow(schema, TableSchema.of(published), now.numbers, same_values=same_values)
    except CannotFollowError as error:
        return error.what.rpartition("cannot follow: ")[2]
    return ""


def _chosen(relation: BatchRelation, named: Numbers | None, published: SourceTable) -> Any:
    """The relation version with the columns that the lake takes."""
    names = set(named) if named is not None else {column.name for column in published.columns}
    selection = getattr(published, "selection", "")
    if named is None and not selection:
        return relation
    return replace(relation, columns=tuple(c for c in relation.columns if c.name in names))
