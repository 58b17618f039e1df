"""A table's changes in the change log's form, a subscriber that applies them, a lake that takes them folded.

The subscriber is worker.c read row by row, and what `spark.fold.conflicts` says of applying.
"""

from __future__ import annotations

import datetime
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from slotlake.spark.fold.batch import Folded, SegmentFold, segment_folds

UNCHANGED = object()
Row = dict[str, Any]
Lake = dict[tuple[Any, ...], Row]
NAN = float("nan")
FLOAT8, INT4, TEXT, DATE = 701, 23, 25, 1082
ARROW = {FLOAT8: pa.float64(), INT4: pa.int32(), TEXT: pa.string(), DATE: pa.date32()}
NAMES = {"a": INT4, "b": TEXT, "f": FLOAT8, "d": DATE, "v": INT4, "t": TEXT, "w": INT4}
KEY_VALUES: dict[str, list[Any]] = {
    "a": [1, 2, 3],
    "b": ["1.0", "1.00"],
    "f": [-0.0, 0.0, NAN, 1.5],
    "d": ["2024-02-29", "infinity", "-infinity"],
}


@dataclass(frozen=True)
class Column:
    name: str
    in_key: bool

    @property
    def type_oid(self) -> int:
        return NAMES[self.name]

    @property
    def typmod(self) -> int:
        return -1

    @property
    def type_name(self) -> str:
        return ""


@dataclass(frozen=True)
class Relation:
    columns: tuple[Column, ...]
    key: tuple[str, ...]
    replica_identity: str = "d"
    schema: str = "public"
    table: str = "t"
    relation_id: int = 1
    ordinal: int = 0
    rows: int = 0


def relation(key: Sequence[str], columns: str, identity: str = "d") -> Relation:
    shaped = tuple(Column(name, name in key or identity == "f") for name in columns)
    return Relation(shaped, tuple(key), identity)


@dataclass(frozen=True)
class Message:
    op: str
    relation: Relation
    new: Row | None = None
    old: Row | None = None
    old_kind: str = ""


# ---------------------------------------------------------------- the change log's form, both ways


def table_of(relation: Relation, messages: list[tuple[int, Message]]) -> pa.Table:
    """Messages of one relation version as the change log holds them."""
    columns: dict[str, Any] = {
        "seq": pa.array([seq for seq, _ in messages], pa.int64()),
        "op": pa.array([ord(message.op) for _, message in messages], pa.int8()),
        "txn": pa.array([0] * len(messages), pa.int32()),
        "lsn": pa.array([seq for seq, _ in messages], pa.int64()),
        "old": pa.array([ord(m.old_kind) if m.old_kind else 0 for _, m in messages], pa.int8()),
    }
    for position, column in enumerate(relation.columns):
        for side, rows in (("n", [m.new for _, m in messages]), ("o", [m.old for _, m in messages])):
            values = [None if row is None else row.get(column.name) for row in rows]
            unchanged = [value is UNCHANGED for value in values]
            typed, exact = encode([None if v is UNCHANGED else v for v in values], column.type_oid)
            if side == "n" or any(row is not None and column.name in row for row in rows):
                columns[f"{side}{position}"] = typed
            if exact is not None:
                columns[f"x{side}{position}"] = exact
            if any(unchanged):
                columns[f"u{position}"] = pa.array(unchanged)
    return pa.table(columns)


def encode(values: list[Any], oid: int) -> tuple[pa.Array, pa.Array | None]:
    if oid != DATE:
        return pa.array(values, ARROW[oid]), None
    exact = [value if value is not None and "inf" in value else None for value in values]
    typed = [None if v is None or "inf" in v else datetime.date.fromisoformat(v) for v in values]
    return pa.array(typed, ARROW[oid]), pa.array(exact, pa.string()) if any(exact) else None


def decode(rows: pa.Table, prefix: str, folded: Folded, name: str) -> list[Any]:
    position = [column.name for column in folded.columns].index(name)
    typed = rows[f"{prefix}{position}"].to_pylist()
    if f"x{prefix}{position}" in rows.column_names:
        exact = rows[f"x{prefix}{position}"].to_pylist()
        typed = [t if e is None else e for t, e in zip(typed, exact, strict=True)]
    return [value.isoformat() if isinstance(value, datetime.date) else value for value in typed]


def key_of(row: Row, key: Sequence[str]) -> tuple[Any, ...]:
    """Equality of the lake: floats as PostgreSQL and Spark compare them, the rest by value."""
    values = (row[name] for name in key)
    return tuple(one_float(v) if isinstance(v, float) else v for v in values)


def one_float(value: float) -> Any:
    return "NaN" if math.isnan(value) else value + 0.0


# ---------------------------------------------------------------- worker.c


@dataclass
class Subscriber:
    """One that skips what conflicts, as PostgreSQL's can; or applies it as far as it is known."""

    key: tuple[str, ...]
    rows: Lake = field(default_factory=dict)
    skip: bool = False
    conflicts: Counter[str] = field(default_factory=Counter)

    def apply(self, message: Message) -> None:
        new, old = message.new or {}, message.old or {}
        if message.op == "T":
            self.rows.clear()
            self.conflicts.clear()
        elif message.op == "I":
            self._put({name: new.get(name) for name in NAMES}, "insert_exists")
        elif message.op == "D":
            gone = self.rows.pop(key_of(old, self.key), None)
            self.conflicts["delete_missing"] += gone is None
        else:
            at = key_of(old or new, self.key)
            row = self.rows.get(at)
            known = {n: old.get(n, UNCHANGED) if v is UNCHANGED else v for n, v in new.items()}
            if row is None:
                self.conflicts["update_missing"] += 1
                if not self.skip and UNCHANGED not in known.values():
                    after = dict.fromkeys(NAMES) | known
                    self._put(after, "update_exists" if key_of(after, self.key) != at else "")
                return
            after = row | {n: v for n, v in known.items() if v is not UNCHANGED}
            if key_of(after, self.key) == at or self._put(after, "update_exists"):
                del self.rows[at]
                self.rows[key_of(after, self.key)] = after

    def _put(self, row: Row, conflict: str) -> bool:
        at = key_of(row, self.key)
        if conflict and at in self.rows:
            self.conflicts[conflict] += 1
            if self.skip:
                return False
        self.rows[at] = row
        return True


def replay(lake: Lake, folded: Folded) -> Lake:
    """What a MERGE of the folded rows makes of the lake. Reads only the lake as it was."""
    before = {} if folded.truncated else lake
    after = dict(before)
    rows = folded.rows
    names = [column.name for column in folded.columns]
    values = {name: decode(rows, "n", folded, name) for name in names}
    kept = {
        name: rows[f"u{i}"].to_pylist() if f"u{i}" in rows.column_names else [False] * rows.num_rows
        for i, name in enumerate(names)
    }
    moved = [name for name in folded.key if f"m{names.index(name)}" in rows.column_names]
    origins = {name: decode(rows, "m", folded, name) for name in moved}
    seen = set()
    for i, action in enumerate(bytes(rows["action"].to_numpy().astype(np.uint8)).decode()):
        key = key_of({name: values[name][i] for name in folded.key}, folded.key)
        assert key not in seen, "a key has more than one action"
        seen.add(key)
        at = key_of({n: v[i] for n, v in origins.items()}, folded.key) if action == "M" else key
        lake_row = before.get(at)
        if action in "DM" and (action == "D" or lake_row is None):
            after.pop(key, None)
        elif action == "I" or lake_row is not None:
            assert action != "I" or not any(flags[i] for flags in kept.values())
            base = lake_row if lake_row is not None and action != "I" else dict.fromkeys(NAMES)
            after[key] = base | {n: base[n] if kept[n][i] else values[n][i] for n in names}
    return after


def stretches_of(messages: list[tuple[int, Message]]) -> list[SegmentFold]:
    by_relation: dict[Relation, list[tuple[int, Message]]] = {}
    for seq, message in messages:
        by_relation.setdefault(message.relation, []).append((seq, message))
    return segment_folds([(relation, table_of(relation, found)) for relation, found in by_relation.items()])


def fold_known(lake: Lake, stretch: SegmentFold, skip: bool) -> Folded:
    """Ask the lake about every key, then fold."""
    asked = stretch.lookup_rows()
    values = {name: decode(asked, "n", stretch.fold(), name) for name in stretch.key if asked.num_rows}
    held = {
        asked["code"][i].as_py(): 1
        for i in range(asked.num_rows)
        if key_of({name: values[name][i] for name in stretch.key}, stretch.key) in lake
    }
    return stretch.fold(answers(held), skip=skip)


def answers(counts: Mapping[int, int]) -> pa.Table:
    """What the lake says: code → how many rows."""
    columns = {"code": list(counts), "held": list(counts.values())}
    return pa.table({name: pa.array(values, pa.int64()) for name, values in columns.items()})


def assert_equal(lake: Lake, expected: Lake) -> None:
    def shown(rows: Lake) -> list[str]:
        return sorted(repr((key, sorted(row.items()))) for key, row in rows.items())

    assert shown(lake) == shown(expected)
