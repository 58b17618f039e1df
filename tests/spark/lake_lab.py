"""A workbench for tests of the lake: tables, hand-written batches, and what readers see."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import accumulate
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slotlake.decoder.changelog.batches import BatchColumn, BatchRelation, batch_name
from slotlake.decoder.columnar.decoder import TRANSACTIONS_SCHEMA
from slotlake.decoder.types.table import column_type, from_text
from slotlake.spark.apply.stage import Applied, apply_batch
from slotlake.spark.apply.together import Engine
from slotlake.spark.copy.initial import CopyTarget, InitialCopy
from slotlake.spark.fold.conflicts import Choices, OnConflict
from slotlake.spark.lake import LakeSettings
from slotlake.spark.publish.commits import Point
from slotlake.spark.publish.publication import Published, publish_batch
from slotlake.spark.read.point import ReadPoint
from slotlake.spark.session import sibling, use_lake
from slotlake.spark.tables.schema import TableSchema

PIPELINE = "test"
UNCHANGED = object()
OIDS = {
    "int4": 23, "int8": 20, "text": 25, "numeric": 1700, "float8": 701, "date": 1082, "timestamp": 1114,
    "timestamptz": 1184, "bytea": 17, "bool": 16, "uuid": 2950, "int2": 21, "oid": 26, "float4": 700,
    "time": 1083, "interval": 1186,
}  # fmt: skip
Row = Mapping[str, Any]


def relation(name: str, key: Sequence[str], identity: str = "d", /, **columns: str) -> BatchRelation:
    """A relation version; ``money="numeric(10,2)"`` is understood, with any precision and scale."""
    schema, _, table = name.rpartition(".")
    made = tuple(_column(column, kind, column in key or identity == "f") for column, kind in columns.items())
    return BatchRelation(0, 16385, schema or "public", table, identity, tuple(key), made, (), 0, 0, 0, 0, 0)


def _column(name: str, kind: str, in_key: bool) -> BatchColumn:
    kind_name, _, modifiers = kind.rstrip(")").partition("(")
    typmod = -1
    if modifiers:
        precision, scale = map(int, modifiers.split(","))
        typmod = (precision << 16 | scale & 0x7FF) + 4
    return BatchColumn(name, OIDS[kind_name], typmod, kind, in_key)


@dataclass(frozen=True)
class Change:
    """One row change; values are PostgreSQL text, None for NULL, UNCHANGED for unchanged TOAST."""

    op: str
    table: BatchRelation
    new: Row = field(default_factory=dict)
    old: Row | None = None
    old_kind: str = "K"


def insert(table: BatchRelation, /, **new: Any) -> Change:
    return Change("I", table, new)


def update(table: BatchRelation, old: Row | None = None, /, **new: Any) -> Change:
    return Change("U", table, new, old, _old_kind(table))


def delete(table: BatchRelation, /, **old: Any) -> Change:
    return Change("D", table, {}, old, _old_kind(table))


def _old_kind(table: BatchRelation) -> str:
    return "O" if table.replica_identity == "f" else "K"


def truncate(table: BatchRelation) -> Change:
    return Change("T", table)


COMMIT = Change("", relation("none", []))  # what follows is another transaction's


class HandBatch:
    """A batch of the change log that was never on disk."""

    def __init__(self, start: int, end: int, changes: Sequence[Change], digest: str = "") -> None:
        self.start_lsn, self.end_lsn = start, end
        self.name = batch_name(start, end)
        self.digest = digest or f"digest-{self.name}"
        transactions = list(accumulate(int(change is COMMIT) for change in changes))
        numbered = [each for each in zip(changes, transactions, strict=True) if each[0] is not COMMIT]
        changes = [change for change, _ in numbered]
        self._transactions = transactions[-1] + 1 if transactions else 1
        self.manifest = {
            "transactions": self._transactions,
            "changes": len(changes),
            "last_commit_time": datetime(2024, 5, 1, 12, tzinfo=UTC).isoformat(),
        }
        versions = list(dict.fromkeys(change.table for change in changes))
        self._tables: dict[int, pa.Table] = {}
        self.relations = []
        for ordinal, version in enumerate(versions):
            mine = [
                (seq, txn, change) for seq, (change, txn) in enumerate(numbered) if change.table == version
            ]
            self._tables[ordinal] = _table(version, mine)
            self.relations.append(_numbered(version, ordinal, len(mine)))

    def relation_table(self, relation: BatchRelation) -> pa.Table:
        return self._tables[relation.ordinal]

    def relation_bytes(self, relation: BatchRelation) -> int:
        return int(self.relation_table(relation).nbytes)

    def relation_pieces(self, relation: BatchRelation) -> Iterator[pa.Table]:
        yield self.relation_table(relation)

    def transactions_between(self, first: int, last: int) -> pa.Table:
        return self.transaction_table().slice(first, last - first)

    def transaction_table(self) -> pa.Table:
        """The commit record of the last one ends with the batch."""
        ends = range(self.end_lsn + 1 - self._transactions, self.end_lsn + 1)
        return pa.Table.from_pylist(
            [
                {
                    "xid": 700 + number,
                    "commit_lsn": end - 1,
                    "end_lsn": end,
                    "commit_time": datetime(2024, 5, 1, 12, number, tzinfo=UTC),
                    "origin": None,
                }
                for number, end in enumerate(ends)
            ],
            schema=TRANSACTIONS_SCHEMA,
        )


def _numbered(version: BatchRelation, ordinal: int, rows: int) -> BatchRelation:
    return BatchRelation(**{**vars(version), "ordinal": ordinal, "rows": rows})


def _table(version: BatchRelation, changes: Sequence[tuple[int, int, Change]]) -> pa.Table:
    only = [change for *_, change in changes]
    arrays: dict[str, pa.Array] = {
        "seq": pa.array([seq for seq, *_ in changes], pa.int64()),
        "op": pa.array([ord(change.op) for change in only], pa.int8()),
        "txn": pa.array([txn for _, txn, _ in changes], pa.int32()),
        "lsn": pa.array([seq for seq, *_ in changes], pa.int64()),
        "old": pa.array([0 if c.old is None else ord(c.old_kind) for c in only], pa.int8()),
    }
    for i, column in enumerate(version.columns):
        news = [change.new.get(column.name) for change in only]
        olds = [(change.old or {}).get(column.name) for change in only]
        arrays |= _values("n", i, column, [None if v is UNCHANGED else v for v in news])
        if any(v is not None for v in olds):
            arrays |= _values("o", i, column, olds)
        if any(v is UNCHANGED for v in news):
            arrays[f"u{i}"] = pa.array([v is UNCHANGED for v in news])
    return pa.table(arrays)


def _values(prefix: str, i: int, column: BatchColumn, texts: Sequence[Any]) -> dict[str, pa.Array]:
    typed, exact = from_text(pa.array(texts, pa.string()), column_type(column.type_oid, column.typmod))
    found = {f"{prefix}{i}": typed}
    if exact is not None and exact.null_count < len(exact):
        found[f"x{prefix}{i}"] = exact
    return found


@dataclass
class Lab:
    """A lake and a session on it. ``position``: where the lake stands."""

    session: Any
    lake: LakeSettings
    position: int = 0x1000

    @cached_property
    def engine(self) -> Engine:
        return Engine(lambda: self.session)

    @classmethod
    def on(cls, session: Any, lake: LakeSettings) -> Lab:
        own = sibling(session)
        use_lake(own, lake)
        return cls(own, lake)

    def init(
        self,
        tables: Mapping[BatchRelation, Sequence[Row]],
        publish: bool = True,
        modes: Mapping[str, Collection[str]] | None = None,
        *,
        marks: bool = False,
    ) -> InitialCopy:
        """The initial copy: rows as PostgreSQL text; ``marks``: rows that are deleted stay, marked."""
        schemas = {
            replace(TableSchema.of(table), soft_deletes=marks): (table, rows)
            for table, rows in tables.items()
        }
        copy = InitialCopy.begin(self.session, self.lake, PIPELINE, list(schemas), modes or {})
        for schema, (table, rows) in schemas.items():
            write_rows(copy.target(schema), table, rows)
            copy.register(schema)
        if publish:
            copy.publish(self.point("copy"))
        return copy

    def point(self, kind: str, name: str = "") -> Point:
        return Point(PIPELINE, self.position, name or f"{kind}-{self.position:X}", "digest", kind)

    def batch(self, *changes: Change, size: int = 0x100) -> HandBatch:
        return HandBatch(self.position, self.position + size, changes)

    def apply(self, batch: HandBatch, choice: OnConflict = "apply") -> Applied:
        return apply_batch(self.engine, self.lake, batch, PIPELINE, Choices(choice))

    def publish(self, batch: HandBatch) -> Published:
        published = publish_batch(self.lake, batch, PIPELINE)
        self.position = published.position
        return published

    def sync(self, *changes: Change) -> HandBatch:
        """Apply and publish a batch."""
        batch = self.batch(*changes)
        self.apply(batch)
        self.publish(batch)
        return batch

    def conflicts(self, *changes: Change, choice: OnConflict = "apply") -> dict[str, int]:
        """Apply and publish a batch; what its first table met."""
        batch = self.batch(*changes)
        (applied, *_) = self.apply(batch, choice).tables.values()
        self.publish(batch)
        return applied.conflicts.counts

    def rows(self, table: str, at: int | None = None) -> list[tuple[str | None, ...]]:
        cut = ReadPoint.latest(self.lake) if at is None else ReadPoint.at(self.lake, at)
        found = sorted(cut.rows(table), key=repr)
        assert cut.count(table) == len(found)
        return found


def write_rows(target: CopyTarget, table: BatchRelation, rows: Sequence[Row]) -> None:
    """Write rows as decoder/copy/table.py does: one Parquet file with field ids."""
    if not rows:
        return
    fields, arrays = [], []
    for column in table.columns:
        kind = column_type(column.type_oid, column.typmod)
        typed, exact = from_text(pa.array([row.get(column.name) for row in rows], pa.string()), kind)
        fields.append(_field(target.names[column.name], typed.type, target.field_ids[column.name]))
        arrays.append(typed)
        if exact is not None and exact.null_count < len(exact):
            fields.append(
                _field(target.exact_names[column.name], pa.string(), target.exact_field_ids[column.name])
            )
            arrays.append(exact.cast(pa.string()))
    path = target.directory / f"part-{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.Table.from_arrays(arrays, schema=pa.schema(fields)), path, compression="zstd")
    target.deliver([path])


def _field(name: str, kind: pa.DataType, field_id: int) -> pa.Field:
    return pa.field(name, kind, metadata={"PARQUET:field_id": str(field_id)})
