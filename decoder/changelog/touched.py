"""The keys of the rows that batches have touched: of new rows, and of old rows that a change names.

A key is PostgreSQL's text of each of its columns.  Where the change log does not show the keys of all touched
rows (a TRUNCATE, changes that name their rows by other columns), it says why, and the whole table is meant.
Invariant: memory has each distinct key of a table once, and one piece of a batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.changelog.batches import Batch, BatchRelation
from slotlake.decoder.compiled.wide import one_array
from slotlake.decoder.types.table import column_type, to_text

KEYS_MAX = 2_000_000
_DELETE, _NO_OLD = ord("D"), 0
TRUNCATED = "the table was truncated"
TOO_MANY = f"more than {KEYS_MAX:,} of its keys were touched"
OTHER_KEY = "its changes name their rows by other columns than its key"


@dataclass
class TouchedKeys:
    """What batches have touched in one table.

    Attributes:
        key: the names of the key's columns.
        changes: row changes.
        unknown: why the touched rows are not known one by one; empty if they are.
    """

    key: Sequence[str]
    changes: int = 0
    unknown: str = ""
    _parts: list[pa.Table] = field(default_factory=list)

    @property
    def keys(self) -> pa.Table:
        """The distinct keys, as text, a column for each column of the key."""
        schema = pa.schema([(name, pa.string()) for name in self.key])
        if self.unknown:
            return schema.empty_table()
        self._parts = [_distinct(pa.concat_tables([schema.empty_table(), *self._parts]), self.key)]
        return self._parts[0]

    def add(self, batch: Batch, relation: BatchRelation) -> None:
        """Add what a batch did to one relation version."""
        self.changes += relation.rows
        if relation.truncates:
            self._give_up(TRUNCATED)
        elif (
            not self.key
            or not set(self.key) <= {column.name for column in relation.columns}
            or _named_otherwise(relation, self.key)
        ):
            self._give_up(OTHER_KEY)
        for piece in () if self.unknown else batch.relation_pieces(relation):
            self._parts += [_distinct(part, self.key) for part in self._of(relation, piece)]
            if sum(part.num_rows for part in self._parts) > KEYS_MAX and self.keys.num_rows > KEYS_MAX:
                self._give_up(TOO_MANY)
            if self.unknown:
                return

    def _of(self, relation: BatchRelation, piece: pa.Table) -> list[pa.Table]:
        """The keys of the new rows, and those of the old rows, of some changes."""
        sides = (
            ("n", pc.not_equal(piece["op"], pa.scalar(_DELETE, pa.int8()))),
            ("o", pc.not_equal(piece["old"], pa.scalar(_NO_OLD, pa.int8()))),
        )
        parts = []
        for side, rows in sides:
            chosen = piece.filter(rows)
            if not chosen.num_rows:
                continue
            texts = [_texts(relation, chosen, name, side) for name in self.key]
            if any(text.null_count for text in texts):
                self._give_up(OTHER_KEY)
                return []
            parts.append(pa.Table.from_arrays(texts, names=list(self.key)))
        return parts

    def _give_up(self, why: str) -> None:
        self.unknown, self._parts = why, []


def touched_keys(batches: Iterable[Batch], keys: Mapping[int, Sequence[str]]) -> dict[int, TouchedKeys]:
    """Collect the keys that batches have touched.

    Args:
        keys: OID of a table → its key's columns, at least one.

    Returns:
        OID → what was touched, of the tables that any change touched.

    Raises:
        ChangeLogError: a file of a batch is missing or damaged.
    """
    touched: dict[int, TouchedKeys] = {}
    for batch in batches:
        for relation in batch.relations:
            if relation.rows and relation.relation_id in keys:
                key = keys[relation.relation_id]
                touched.setdefault(relation.relation_id, TouchedKeys(key)).add(batch, relation)
    return touched


def _named_otherwise(relation: BatchRelation, key: Sequence[str]) -> bool:
    """Return whether old rows come without all columns of the key."""
    in_key = {column.name for column in relation.columns if column.in_key}
    return bool(relation.updates or relation.deletes) and not set(key) <= in_key


def _texts(relation: BatchRelation, piece: pa.Table, name: str, side: str) -> pa.Array:
    """The text of a column in the new or the old rows; a new value that was not sent is the old one."""
    index = next(i for i, column in enumerate(relation.columns) if column.name == name)
    column = relation.columns[index]
    kind = column_type(column.type_oid, column.typmod)

    def text(of: str) -> pa.Array | None:
        if f"{of}{index}" not in piece.column_names:
            return None
        exact = piece[f"x{of}{index}"] if f"x{of}{index}" in piece.column_names else None
        return to_text(piece[f"{of}{index}"], exact, kind).cast(pa.string())

    texts, unsent = text(side), f"u{index}"
    if side == "n" and unsent in piece.column_names and (before := text("o")) is not None:
        texts = before if texts is None else pc.if_else(one_array(piece[unsent]), before, texts)
    return pa.nulls(piece.num_rows, pa.string()) if texts is None else texts


def _distinct(keys: pa.Table, names: Sequence[str]) -> pa.Table:
    if len(names) == 1:
        column = pc.unique(keys[names[0]])
        return pa.Table.from_arrays([column], names=list(names))
    return keys.group_by(list(names), use_threads=False).aggregate([]).select(list(names))
