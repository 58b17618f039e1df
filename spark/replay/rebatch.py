"""Archived batches as other batches: merged, or cut between transactions.

What a table holds after a stretch of the change log must not depend on where the batches in it end
(spark/fold/batch.py's rule is PostgreSQL's, change by change).  A replay says so with batches that never
were.

A batch made here ends where its last transaction's commit record ends, or where an archived batch does.
Its digest says what went into it.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from slotlake.decoder.changelog.batches import Batch, BatchRelation, batch_name
from slotlake.decoder.compiled.arrays import python_values
from slotlake.decoder.errors import ChangeLogError
from slotlake.decoder.lsn import format_lsn
from slotlake.spark.publish import sidecar

# Changes of a later batch come later; no batch has so many.
_SEQ_STEP = 1 << 40


@dataclass(frozen=True)
class Slice:
    """Transactions ``first`` to ``last`` (without it) of an archived batch."""

    batch: Batch
    first: int
    last: int

    @property
    def whole(self) -> bool:
        """All of the batch."""
        return (self.first, self.last) == (0, self.batch.transactions)

    def rows(self, relation: BatchRelation) -> pa.Table:
        """The slice's changes of a relation version."""
        rows = self.batch.relation_table(relation)
        if self.whole or not rows.num_rows:
            return rows
        inside = pc.and_(pc.greater_equal(rows["txn"], self.first), pc.less(rows["txn"], self.last))
        return rows.filter(inside)

    def transactions(self) -> pa.Table:
        """The slice's transactions."""
        return self.batch.transaction_table().slice(self.first, self.last - self.first)


class Rebatched:
    """A `ChangeBatch` (spark/tables/shapes.py) made of slices that follow each other."""

    def __init__(self, slices: Sequence[Slice], start: int, end: int, committed: Any) -> None:
        self.start_lsn, self.end_lsn = start, end
        self.name = batch_name(start, end)
        slices_text = "".join(f"{s.batch.digest} {s.first} {s.last}\n" for s in slices)
        self.digest = hashlib.sha256(slices_text.encode()).hexdigest()
        self._slices = slices
        self._rows: list[pa.Table] = []
        self.relations: list[BatchRelation] = []
        before = 0
        for number, each in enumerate(slices):
            for relation in each.batch.relations:
                self._add(each, relation, {"seq": number * _SEQ_STEP, "txn": before - each.first})
            before += each.last - each.first
        self.manifest = {
            "transactions": sum(s.last - s.first for s in slices),
            "changes": sum(relation.rows for relation in self.relations),
            "last_commit_time": committed,
        }

    def _add(self, each: Slice, relation: BatchRelation, offsets: Mapping[str, int]) -> None:
        rows = each.rows(relation)
        for name, offset in offsets.items() if rows.num_rows else ():
            index = rows.schema.get_field_index(name)
            moved = pc.add(rows[name], pa.scalar(offset, rows.schema.field(name).type))
            rows = rows.set_column(index, name, moved)
        self.relations.append(replace(relation, ordinal=len(self._rows), rows=rows.num_rows))
        self._rows.append(rows)

    def relation_table(self, relation: BatchRelation) -> pa.Table:
        """The changes of one relation version, ordered by ``seq``."""
        return self._rows[relation.ordinal]

    def transaction_table(self) -> pa.Table:
        """As of an archived batch: row i is transaction number i."""
        return pa.concat_tables([each.transactions() for each in self._slices])

    def relation_bytes(self, relation: BatchRelation) -> int:
        """How many bytes the changes of one relation version take."""
        return int(self.relation_table(relation).nbytes)

    def relation_pieces(self, relation: BatchRelation) -> Iterator[pa.Table]:
        """The changes of one relation version, which are in memory anyway."""
        yield self.relation_table(relation)

    def transactions_between(self, first: int, last: int) -> pa.Table:
        """Some rows of `transaction_table`."""
        return self.transaction_table().slice(first, last - first)


def rebatched(batches: Sequence[Batch], transactions: int | None) -> Iterator[Batch | Rebatched]:
    """The same changes in batches of so many transactions each; as they were, without a number.

    Raises:
        ChangeLogError: a batch is missing, damaged, or does not follow the one before.
    """
    for before, after in itertools.pairwise(batches):
        if before.end_lsn != after.start_lsn:
            raise ChangeLogError(
                f"the change log has no batch between {format_lsn(before.end_lsn)} "
                f"and {format_lsn(after.start_lsn)}",
                where=str(after.path.parent),
                way_out="replay a range that is archived as a whole; changelog.keep_days says for how long",
            )
    for batch in batches:
        batch.verify()
    if transactions is None:
        yield from batches
        return
    # What belongs to a batch holds at its end: such a batch is neither cut nor merged with others.
    alike = itertools.groupby(batches, key=lambda batch: sidecar.place(batch.path).is_dir())
    for has_sidecar, group in [(has_sidecar, list(group)) for has_sidecar, group in alike]:
        yield from group if has_sidecar else _regrouped(group, transactions)


def _regrouped(batches: Sequence[Batch], size: int) -> Iterator[Rebatched]:
    slices: list[Slice] = []
    count, start, committed = 0, batches[0].start_lsn, None
    for batch in batches:
        ends = _ends(batch)
        first = 0
        while first < len(ends):
            last = min(len(ends), first + size - count)
            slices.append(Slice(batch, first, last))
            count, committed, first = count + last - first, ends[last - 1][1], last
            if count == size:
                # The last transaction of a batch ends it: what follows in the WAL belongs to it too.
                end = batch.end_lsn if last == len(ends) else ends[last - 1][0]
                yield Rebatched(slices, start, end, committed)
                slices, count, start = [], 0, end
    if start < batches[-1].end_lsn:
        yield Rebatched(slices, start, batches[-1].end_lsn, committed if slices else None)


def _ends(batch: Batch) -> list[tuple[int, str | None]]:
    """Where each transaction's commit record ends, and when it was committed."""
    if not batch.transactions:
        return []
    table = batch.transaction_table()
    times = [time and time.astimezone(UTC).isoformat() for time in table["commit_time"].to_pylist()]
    return list(zip(python_values(table["end_lsn"]), times, strict=True))
