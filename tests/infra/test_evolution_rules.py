"""What is followed and what is copied again, by what the catalog says; each rule with its history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slotlake.decoder.catalog.fingerprints import Attribute, TableMark
from slotlake.decoder.catalog.publications import SourceColumn, SourceTable
from slotlake.decoder.changelog.batches import BatchColumn, BatchRelation
from slotlake.infra.schema.ddl_events import Altered, told_numbers
from slotlake.infra.schema.rules import Found, judge
from slotlake.infra.source.fingerprints import Mark, marked
from slotlake.spark.tables.schema import TableSchema

TYPES = {
    "int4": (23, -1),
    "text": (25, -1),
    "int8": (20, -1),
    "money": (1700, 393222),
    "more": (1700, 786438),
}
# number → name, type, the transaction that last described it
BEFORE = {1: ("id", "int4", "7"), 2: ("a", "text", "7"), 3: ("b", "money", "7")}


def catalog(
    columns: Any = BEFORE, *, oid: int = 100, storage: int = 100, members: str = "table 1", **more: Any
) -> TableMark:
    """``missing``, ``default``: numbers; a column with the name None is dropped."""
    attributes = {
        number: Attribute(
            number,
            name or "",
            *TYPES[kind],
            since,
            number in more.get("missing", ()),
            number in more.get("default", ()),
            name is None,
        )
        for number, (name, kind, since) in columns.items()
    }
    return TableMark(oid, "public", "t", storage, frozenset({members} if members else ()), attributes)


def source(now: TableMark) -> SourceTable:
    columns = tuple(
        SourceColumn(a.name, a.type_oid, a.typmod, a.name, a.number == 1, a.number == 1, a.has_default)
        for a in now.attributes.values()
        if not a.dropped
    )
    return SourceTable(now.relation_id, "public", "t", "r", "d", columns, ("id",), ("id",), None, True, True)


HELD = marked(TableSchema.of(source(catalog())), catalog())


def message(ordinal: int = 0, **columns: str) -> BatchRelation:
    made = tuple(BatchColumn(name, *TYPES[kind], kind, name == "id") for name, kind in columns.items())
    return BatchRelation(ordinal, 100, "public", "t", "d", ("id",), made, (), 1, 1, 0, 0, 0)


def found(now: TableMark, *messages: BatchRelation, at_end: bool = False) -> Found:
    return judge(HELD, now, source(now), messages, at_end=at_end)


OLD = message(id="int4", a="text", b="money")


def test_nothing_happened() -> None:
    assert found(catalog()) == Found()
    assert found(catalog(), OLD, at_end=True) == Found()


def test_added_and_seen() -> None:
    now = catalog({**BEFORE, 4: ("c", "text", "8")})
    seen = found(now, OLD, message(1, id="int4", a="text", b="money", c="text"))
    assert (seen.copy, seen.numbers[1]) == ("", {"id": 1, "a": 2, "b": 3, "c": 4})
    mark = Mark.from_json(seen.mark)
    assert mark is not None
    assert (mark.last, mark.since) == (4, {1: "7", 2: "7", 3: "7", 4: "8"})
    # Not seen yet: it must be looked at when it comes.
    assert found(now, OLD) == Found()
    assert found(now, OLD, at_end=True).copy == "the table's columns changed, and no row of it"


@pytest.mark.parametrize("kept", ["missing", "default"])
def test_added_with_a_default(kept: str) -> None:
    numbers: dict[str, Any] = {kept: {4}}
    now = catalog({**BEFORE, 4: ("c", "text", "8")}, **numbers)
    assert (
        found(now, message(id="int4", a="text", b="money", c="text")).copy
        == "column c was added with a default"
    )


def test_renamed() -> None:
    now = catalog({1: ("id", "int4", "7"), 2: ("b", "text", "9"), 3: ("a", "money", "9")})
    seen = found(now, OLD, message(1, id="int4", b="text", a="money"))
    assert seen.numbers == {0: {"id": 1, "a": 2, "b": 3}, 1: {"id": 1, "b": 2, "a": 3}}
    between = message(1, id="int4", x="text", a="money")
    assert found(now, OLD, between).copy == "the table's columns changed more than once"


def test_dropped() -> None:
    now = catalog({1: ("id", "int4", "7"), 2: (None, "text", "9"), 3: ("b", "money", "7")})
    assert found(now, OLD, message(1, id="int4", b="money")).numbers[1] == {"id": 1, "b": 3}


@pytest.mark.parametrize(
    ("columns", "seen", "why"),
    [
        # The last column is another one of the same name and type: no message shows it.
        ({3: (None, "money", "9"), 4: ("b", "money", "9")}, OLD, "columns are gone and others are new"),
        # A column came and went, and another came.
        (
            {4: (None, "text", "9"), 5: ("c", "text", "9")},
            message(id="int4", a="text", b="money", c="text"),
            "columns came and went",
        ),
        ({3: ("b", "int8", "9")}, message(id="int4", a="text", b="int8"), "to int8"),
    ],
)
def test_what_could_be_more_than_one_thing(columns: Any, seen: BatchRelation, why: str) -> None:
    assert found(catalog({**BEFORE, **columns}), seen).copy.endswith(why)


def test_a_numeric_that_is_wider() -> None:
    now = catalog({**BEFORE, 3: ("b", "more", "9")})
    seen = found(now, message(id="int4", a="text", b="more"))
    assert (seen.copy, list(seen.numbers)) == ("", [0])


def test_another_file() -> None:
    """TRUNCATE and VACUUM FULL change no column; a rewrite does, or comes with a new one."""
    moved = found(catalog(storage=200), OLD)
    assert moved.copy == ""
    assert moved.moved is not None
    again = judge(moved.moved, catalog(storage=200), source(catalog()), (OLD,), at_end=False)
    assert again == Found()
    assert found(catalog({**BEFORE, 2: ("a", "text", "9")}, storage=200)).copy == "its rows were rewritten"
    assert found(catalog({**BEFORE, 2: ("a", "text", "9")})).copy == ""
    assert found(catalog({**BEFORE, 4: ("c", "text", "9")}, storage=200)).copy == "its rows were rewritten"


WIDER = {1: ("id", "int8", "9"), 2: ("a", "text", "7"), 3: ("b", "more", "9")}


def test_another_file_for_wider_types() -> None:
    """Copied again, unless no value changed; then the lake's columns become wider."""
    now = catalog(WIDER, storage=200)
    for messages in ((), (OLD,), (OLD, message(1, id="int8", a="text", b="more"))):
        seen = found(now, *messages, at_end=True)
        assert seen.copy == "its rows were rewritten"
        assert seen.same is not None
        assert set(seen.same.promoted) == {1, 3}
        assert (seen.same.copy, len(seen.same.numbers)) == ("", len(messages))


@pytest.mark.parametrize(
    "columns",
    [
        {1: ("id", "int4", "9")},  # its type is kept: an expression
        {3: ("b", "int8", "9")},  # numeric to bigint
        {1: ("id", "int8", "9"), 2: ("a", "int8", "9")},
        {1: ("id", "int8", "9"), 4: ("c", "text", "9")},
        {1: ("id", "int8", "9"), 2: (None, "text", "9")},
    ],
)
def test_another_file_for_more(columns: Any) -> None:
    seen = found(catalog({**BEFORE, **columns}, storage=200))
    assert (bool(seen.copy), seen.same) == (True, None)


def test_wider_types_of_equal_rows() -> None:
    """Rows without a key are named by all of their values: by those of two types in one batch."""
    whole = replace(OLD, replica_identity="f", key=())
    assert found(catalog(WIDER, storage=200), whole).same is None


def test_a_kept_constant_that_moved_into_the_rows() -> None:
    with_constant = catalog(missing={3})
    held = marked(TableSchema.of(source(with_constant)), with_constant)
    now = catalog({**BEFORE, 3: ("b", "money", "9")}, storage=200)
    assert judge(held, now, source(now), (), at_end=False).copy == ""


def test_another_table() -> None:
    assert found(catalog(oid=200)).copy == "the table was dropped and made again"
    assert found(catalog(members="table 2")).copy == "the table left the publications and came back"
    assert (
        judge(HELD, None, source(catalog()), (), at_end=False).copy == "the table was dropped and made again"
    )


def test_a_column_that_is_published_only_now() -> None:
    listed = replace(source(catalog()), columns=source(catalog()).columns[:2])
    held = marked(TableSchema.of(listed), catalog())
    assert judge(held, catalog(), listed, (), at_end=True) == Found()
    why = judge(held, catalog(), source(catalog()), (), at_end=False).copy
    assert why == "columns are published that were not before"


def test_a_lake_of_an_earlier_version() -> None:
    """Marked when the source's columns are those that it has; until then columns go by name."""
    held = TableSchema.of(source(catalog()))
    first = judge(held, catalog(), source(catalog()), (OLD,), at_end=False)
    assert first.moved == HELD
    now = catalog({**BEFORE, 2: ("z", "text", "9")})
    assert (
        "may be a rename"
        in judge(held, now, source(now), (message(id="int4", z="text", b="money"),), at_end=False).copy
    )
    assert judge(held, now, source(now), (OLD,), at_end=False) == Found()


CONSTANT = {**BEFORE, 4: ("c", "text", "8")}
SEEN = message(1, id="int4", a="text", b="money", c="text")


def constant(*messages: BatchRelation, alone: bool = True, storage: int = 100, text: str = "k") -> Found:
    columns = {**CONSTANT, 4: ("c", "money", "8")} if text == "NaN" else CONSTANT
    now = catalog(columns, missing={4}, default={4}, storage=storage)
    attributes = {**now.attributes, 4: replace(now.attributes[4], constant=text)}
    now = replace(now, attributes=attributes)
    return judge(HELD, now, source(now), messages, at_end=False, alone=alone)


def test_a_constant_is_known() -> None:
    assert (constant(OLD, SEEN).copy, constant(OLD, SEEN).constants) == ("", {4: "k"})
    # Not met yet: it joins with its first row.
    assert constant(OLD).constants == {}


def test_a_constant_is_not_enough() -> None:
    why = "column c was added with a default"
    assert constant(OLD, SEEN, alone=False).copy == why
    assert constant(replace(OLD, replica_identity="f"), SEEN).copy == why
    assert constant(OLD, replace(SEEN, key=("id", "c"))).copy == why
    inexact = message(1, id="int4", a="text", b="money", c="money")
    assert constant(OLD, inexact, text="NaN").copy == why
    assert constant(OLD, SEEN, storage=101).copy == "its rows were rewritten"


def told(*events: Any, now: Any, rows: Any) -> Any:
    """``events``: (place, columns); ``rows``: (relation version, places)."""
    altered = [
        Altered(seq, {n: (name, *TYPES[kind]) for n, (name, kind, _) in c.items()}) for seq, c in events
    ]
    return told_numbers(HELD, altered, rows, catalog(now))


def test_told_which_column_is_which() -> None:
    renamed = {**BEFORE, 3: ("z", "money", "9")}
    added = {**renamed, 4: ("b", "money", "9")}
    middle = message(1, id="int4", a="text", z="money")
    last = message(2, id="int4", a="text", z="money", b="money")
    events = (5, renamed), (5, renamed), (9, added)
    found = told(*events, now=added, rows=[(OLD, [1, 4]), (middle, [6, 8]), (last, [10])])
    assert found == {
        0: {"id": 1, "a": 2, "b": 3},
        1: {"id": 1, "a": 2, "z": 3},
        2: {"id": 1, "a": 2, "z": 3, "b": 4},
    }
    # A row that does not stand where its columns do, a catalog that went on, a name that came back.
    assert told(*events, now=added, rows=[(OLD, [1, 6]), (last, [10])]) is None
    assert told(*events, now={**added, 2: ("y", "text", "11")}, rows=[(OLD, [1])]) is None
    assert told((5, renamed), (9, BEFORE), now=BEFORE, rows=[(OLD, [1, 10]), (middle, [6])]) is None


def test_an_event_may_be_missing() -> None:
    """Unseen, b was dropped and made again; what is told then is of the other one."""
    other = {1: BEFORE[1], 2: BEFORE[2], 4: ("z", "money", "9")}
    after = message(1, id="int4", a="text", z="money")
    assert told((5, other), now=other, rows=[(OLD, [1, 4]), (after, [6])]) is None
    gone = {1: BEFORE[1], 2: BEFORE[2]}
    found = told((5, gone), (7, other), now=other, rows=[(OLD, [1, 4]), (after, [8])])
    assert found[1] == {"id": 1, "a": 2, "z": 4}
    again = {**gone, 4: ("b", "money", "9")}
    assert (
        told((5, gone), (7, again), now=again, rows=[(OLD, [1, 4]), (replace(OLD, ordinal=1), [8])]) is None
    )
