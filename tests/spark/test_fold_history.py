"""The versions that a batch ends and begins, against a model that does one change after the other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slotlake.decoder.columnar.decoder import TRANSACTIONS_SCHEMA
from slotlake.decoder.compiled.arrays import python_values
from slotlake.spark.fold.segments import segments_with_truncates
from slotlake.spark.history.fold import HistoryFold, Versions
from tests.spark.fold_model import answers
from tests.spark.lake_lab import UNCHANGED, Change, HandBatch, delete, insert, relation, truncate, update

KEYED = relation("t", ["id"], id="int4", v="text", w="text")
BAG = relation("t", [], "f", v="text")
PLAIN = relation("t", [], "n", v="text")
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["insert", "update", "partial", "move", "delete", "truncate", "end", "end"]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    max_size=25,
)
Rows = dict[str, tuple[str | None, ...]]


@dataclass
class Course:
    """Changes as a server would send them, and what the table held after each transaction."""

    changes: list[Change] = field(default_factory=list)
    transactions: list[int] = field(default_factory=list)
    states: list[Counter[Any]] = field(default_factory=list)

    def add(self, change: Change) -> None:
        self.changes.append(change)
        self.transactions.append(len(self.states))

    def batch(self) -> tuple[list[tuple[Any, pa.Table]], pa.Table]:
        made = HandBatch(0, 1, self.changes)
        parts = []
        for version in made.relations:
            rows = made.relation_table(version)
            txn = [self.transactions[seq] for seq in python_values(rows["seq"])]
            place = rows.column_names.index("txn")
            parts.append((version, rows.set_column(place, "txn", pa.array(txn, pa.int32()))))
        moment = datetime(2024, 5, 1, tzinfo=UTC)
        told = [
            {"xid": t, "commit_lsn": _end(t) - 1, "end_lsn": _end(t), "commit_time": moment, "origin": None}
            for t in range(len(self.states) + 1)
        ]
        return parts, pa.Table.from_pylist(told, schema=TRANSACTIONS_SCHEMA)


def _end(txn: int) -> int:
    return 100 + txn * 10


def keyed(steps: Sequence[tuple[str, int, int]], lake: Rows) -> Course:
    course, rows = Course(), dict(lake)
    for number, (step, one, other) in enumerate(steps):
        key, to, v = str(one), str(other), f"v{number}"
        if step == "end":
            course.states.append(Counter((k, *row) for k, row in rows.items()))
        elif step == "truncate":
            course.add(truncate(KEYED))
            rows.clear()
        elif step == "insert" and key not in rows:
            course.add(insert(KEYED, id=key, v=v, w="w"))
            rows[key] = (v, "w")
        elif step == "update" and key in rows:
            course.add(update(KEYED, id=key, v=v, w="u"))
            rows[key] = (v, "u")
        elif step == "partial" and key in rows:
            course.add(update(KEYED, id=key, v=v, w=UNCHANGED))
            rows[key] = (v, rows[key][1])
        elif step == "move" and key in rows and to not in rows:
            course.add(update(KEYED, {"id": key}, id=to, v=v, w=UNCHANGED))
            rows[to] = (v, rows.pop(key)[1])
        elif step == "delete" and key in rows:
            course.add(delete(KEYED, id=key))
            del rows[key]
    course.states.append(Counter((k, *row) for k, row in rows.items()))
    return course


@settings(deadline=None)
@given(STEPS, st.dictionaries(st.sampled_from("0123"), st.just(("lake", "kept"))))
def test_versions_of_a_keyed_table(steps: Sequence[tuple[str, int, int]], lake: Rows) -> None:
    course = keyed(steps, lake)
    open_: dict[str, Any] = {key: (key, *row) for key, row in lake.items()}
    parts, transactions = course.batch()
    found: list[tuple[int, int | None, Any]] = []
    for stretch in map(HistoryFold, segments_with_truncates(parts)):
        asked = stretch.lookup_rows()
        held = {c: int(k in map(int, lake)) for c, k in zip(*_columns(asked, "code", "n0"), strict=True)}
        versions = stretch.versions(answers({c: n for c, n in held.items() if n}), transactions)
        for row in versions.rows.to_pylist():
            if row["close"]:
                found.append((0, row["to_lsn"], open_.pop(str(row["n0"]))))
            else:
                taken = tuple(
                    (str(row["m0"]), *lake[str(row["m0"])])[i] if row.get(f"u{i}") else row[f"n{i}"]
                    for i in range(3)
                )
                found.append((row["from_lsn"], row["to_lsn"], (str(taken[0]), *taken[1:])))
        found += [(0, _rest(versions), row) for row in open_.values()]
        open_ = {}
    found += [(0, None, row) for row in open_.values()]
    agrees(course, found)


def bag(steps: Sequence[tuple[str, int, int]], lake: Counter[str]) -> Course:
    course, rows = Course(), Counter(lake)
    for step, one, other in steps:
        old, new = "abcd"[one], "abcd"[other]
        if step == "end":
            course.states.append(Counter((v,) for v in rows.elements()))
        elif step == "truncate":
            course.add(truncate(BAG))
            rows.clear()
        elif step == "insert":
            course.add(insert(BAG, v=new))
            rows[new] += 1
        elif step in ("update", "partial", "move") and rows[old]:
            course.add(update(BAG, {"v": old}, v=new))
            rows[old] -= 1
            rows[new] += 1
        elif step == "delete" and rows[old]:
            course.add(delete(BAG, v=old))
            rows[old] -= 1
    course.states.append(Counter((v,) for v in rows.elements()))
    return course


@settings(deadline=None)
@given(STEPS, st.lists(st.sampled_from("abcd"), max_size=4))
@example([("truncate", 0, 0), ("insert", 0, 0), ("update", 0, 0)], ["a"])
def test_versions_of_a_bag(steps: Sequence[tuple[str, int, int]], rows: list[str]) -> None:
    lake = Counter(rows)
    course = bag(steps, lake)
    parts, transactions = course.batch()
    found: list[tuple[int, int | None, Any]] = []
    left = Counter(lake)
    for stretch in map(HistoryFold, segments_with_truncates(parts)):
        asked = stretch.lookup_rows()
        held = dict(zip(*_columns(asked, "code", "n0"), strict=True))
        versions = stretch.versions(answers({c: lake[v] for c, v in held.items() if lake[v]}), transactions)
        assert versions.lookup_rows is not None
        named = dict(zip(*_columns(versions.lookup_rows, "code", "n0"), strict=True))
        ended: Counter[str] = Counter()
        for row in versions.rows.to_pylist():
            if row["close"]:
                value = named[row["code"]]
                ended[value] += 1
                assert row["number"] == ended[value]  # the oldest first
                left[value] -= 1
                found.append((0, row["to_lsn"], (value,)))
            else:
                found.append((row["from_lsn"], row["to_lsn"], (row["n0"],)))
        found += [(0, _rest(versions), (value,)) for value in left.elements()]
        left = Counter()
    found += [(0, None, (value,)) for value in left.elements()]
    agrees(course, found)


@settings(deadline=None)
@given(STEPS)
def test_versions_of_a_table_that_nothing_identifies(steps: Sequence[tuple[str, int, int]]) -> None:
    course, rows = Course(), Counter[Any]()
    for step, one, _ in steps:
        if step == "end":
            course.states.append(Counter(rows))
        elif step == "truncate":
            course.add(truncate(PLAIN))
            rows.clear()
        else:
            course.add(insert(PLAIN, v=str(one)))
            rows[(str(one),)] += 1
    course.states.append(Counter(rows))
    parts, transactions = course.batch()
    found = [
        (row["from_lsn"], row["to_lsn"], (row["n0"],))
        for stretch in map(HistoryFold, segments_with_truncates(parts))
        for row in stretch.versions(None, transactions).rows.to_pylist()
    ]
    agrees(course, found)


def _columns(rows: pa.Table, *names: str) -> list[list[Any]]:
    return [rows[name].to_pylist() if name in rows.column_names else [] for name in names]


def _rest(versions: Versions) -> int | None:
    return None if versions.truncated is None else versions.truncated[0]


def agrees(course: Course, found: Sequence[tuple[int, int | None, Any]]) -> None:
    """At the end of each transaction the versions that hold are the rows; none begins where it ends."""
    for txn, state in enumerate(course.states):
        at = _end(txn)
        held = Counter(row for begun, ended, row in found if begun <= at and (ended is None or ended > at))
        assert held == +state, txn
    assert all(ended is None or begun < ended for begun, ended, _ in found)
