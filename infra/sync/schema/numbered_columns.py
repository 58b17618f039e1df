"""The columns of one table, before and now, by attribute number: which column of a message is which. No I/O.

A column's attribute number is given once and never again, numbers grow, and Relation messages list columns by
them (`infra.sync.schema.rules`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slotlake.decoder.catalog.fingerprints import TableFingerprint
from slotlake.decoder.catalog.publications import SourceTable
from slotlake.decoder.types.table import column_type
from slotlake.infra.source.fingerprints import CatalogFingerprint

if TYPE_CHECKING:
    from slotlake.decoder.changelog.batches import BatchRelation
    from slotlake.spark.tables.schema import TableSchema

Numbers = Mapping[str, int]


@dataclass(frozen=True)
class Columns:
    """The columns that the lake has and those that are published now, by number; ascending.

    Attributes:
        before: attribute number → the lake's column.
        after: attribute number → the published column.
        now: what the catalog says of the table.
        last: the highest attribute number that the lake's content accounts for.
    """

    before: Mapping[int, Any]
    after: Mapping[int, Any]
    now: TableFingerprint
    last: int

    @classmethod
    def of(
        cls,
        mirror: TableSchema,
        fingerprint: CatalogFingerprint,
        now: TableFingerprint,
        published: SourceTable,
    ) -> Columns:
        """Number the columns of a table.

        Args:
            mirror: the table as the lake has it.
            fingerprint: what the catalog said when the lake's content was read.
            now: what the catalog says now.
            published: the source's table, as it is published now.
        """
        before = {column.number: column for column in mirror.live}
        after = {now.numbers[column.name]: column for column in published.columns}
        return cls(dict(sorted(before.items())), dict(sorted(after.items())), now, fingerprint.last)

    @property
    def added(self) -> list[int]:
        """Numbers of columns that are published now, and that the lake lacks."""
        return [number for number in self.after if number not in self.before]

    @property
    def removed(self) -> list[int]:
        """Numbers of columns that the lake has, and that are not published now."""
        return [number for number in self.before if number not in self.after]

    @property
    def present(self) -> dict[str, int]:
        """The published columns' numbers by name."""
        return {column.name: number for number, column in self.after.items()}

    def ambiguity_reason(self, mirror: TableSchema) -> str:
        """Say why a message's columns do not show which columns they are; "" if they do."""
        if self.added and self.removed:
            return "columns were removed and others were added"
        if self.added and (reason := self.obstacle_reason()):
            return reason
        renamed = [n for n, c in self.before.items() if n in self.after and self.after[n].name != c.name]
        if mirror.selection and (self.removed or renamed):
            return "the columns of a table with a filter or a list of columns changed"
        return ""

    def obstacle_reason(self) -> str:
        """Say what the lake cannot follow even if each column is known; "" for nothing."""
        if any(number <= self.last for number in self.added):
            return "columns are published that were not before"
        passing = any(number > self.last and a.dropped for number, a in self.now.attributes.items())
        return "columns were added and dropped again" if passing else ""

    def match(self, relation: BatchRelation) -> Numbers | None:
        """Return the numbers of a message's columns by name; None if they are not certain."""
        known_names = {c.name for c in [*self.before.values(), *self.after.values()]}
        columns = [column for column in relation.columns if column.name in known_names]
        if len(columns) < len(relation.columns) and not self._hides_only(relation, known_names):
            return None
        for numbers in self._candidate_numbers():
            if len(numbers) == len(columns) and all(map(self._matches, numbers, columns)):
                return {column.name: number for number, column in zip(numbers, columns, strict=True)}
        return None

    def _hides_only(self, relation: BatchRelation, known_names: set[str]) -> bool:
        """Return whether the columns that the lake does not know are all ones that it does not take."""
        numbers = self.now.numbers
        hidden = [column.name for column in relation.columns if column.name not in known_names]
        return all(name in numbers and numbers[name] not in self.after for name in hidden)

    def _candidate_numbers(self) -> list[list[int]]:
        """The columns that a message may have, as lists of numbers in the message's order."""
        if self.removed:
            return [list(self.before), list(self.after)]
        return [[*self.before, *self.added[:count]] for count in range(len(self.added) + 1)]

    def _matches(self, number: int, column: Any) -> bool:
        """Return whether a message's column has the name and the type that this number had or has."""
        either = [side[number] for side in (self.before, self.after) if number in side]
        return column.name in {c.name for c in either} and any(
            signature(c)[1:] == signature(column)[1:] for c in either
        )

    def widened_reason(self) -> str:
        """Say which column's type in the lake becomes another one; "" if none.

        Of a table without a key a MERGE takes rows away by their place; right after such a change Iceberg's
        refuses to be planned (IllegalArgumentException: Field _spec_id not found in source schema).
        """
        for number in self.before.keys() & self.after.keys():
            kinds = {
                column_type(c.type_oid, c.typmod).spark for c in (self.before[number], self.after[number])
            }
            if len(kinds) > 1:
                return f"column {self.after[number].name} of a table without a key became wider"
        return ""

    def default_reason(self, numbers: Any, constants: Mapping[int, str]) -> str:
        """Say which added column had a value of its own in rows from before; "" if none.

        Args:
            numbers: attribute numbers of the columns that the batch's last message has.
            constants: attribute number → the constant that the lake can put into those rows.
        """
        for number in self.added:
            attribute = self.now.attributes[number]
            if number in set(numbers) - constants.keys() and (attribute.missing or attribute.has_default):
                return f"column {attribute.name} was added with a default"
        return ""


def signature(column: Any) -> tuple[str, int, int]:
    """A column's name, type OID and type modifier."""
    return column.name, column.type_oid, column.typmod
