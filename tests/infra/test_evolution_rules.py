"""What is followed and what is copied again, by what the catalog says; each rule with its history."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from slotlake.decoder.catalog.fingerprints import Attribute, TableFingerprint
from slotlake.decoder.catalog.publications import SourceColumn, SourceTable
from slotlake.decoder.changelog.batches import BatchColumn, BatchRelation
from slotlake.infra.source.fingerprints import CatalogFingerprint, with_fingerprint
from slotlake.infra.sync.schema.ddl_events import AlteredTable, proven_numbers
from slotlake.infra.sync.schema.rules import Verdict, judge
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
) -> TableFingerprint:
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
    return TableFingerprint(oid, "public", "t", storage, frozenset({members} if members else ()), attributes)


def source(now: TableFingerprint) -> SourceTable:
    columns = tuple(
        SourceColumn(a.name, a.type_oid, a.typmod, a.name, a.number == 1, a.number == 1, a.has_default)
        for a in now.attributes.values()
        if not a.dropped
    )
    return SourceTable(now.relation_id, "public", "t", "r", "d", columns, ("id",), ("id",), None, True, True)


MIRROR = with_fingerprint(TableSchema.of(source(catalog())), catalog())


def message(ordinal: int = 0, **columns: str) -> BatchRelation:
    batch_columns = tuple(
        BatchColumn(name, *TYPES[kind], kind, name == "id") for name, kind in columns.items()
    )
    return BatchRelation(ordinal, 100, "public", "t", "d", ("id",), batch_columns, (), 1, 1, 0, 0, 0)


def verdict(now: TableFingerprint, *messages: BatchRelation, at_end: bool = False) -> Verdict:
    return judge(MIRROR, now, source(now), messages, at_end=at_end)


OLD = message(id="int4", a="text", b="money")


def test_nothing_happened() -> None:
    assert verdict(catalog()) == Verdict()
    assert verdict(catalog(), OLD, at_end=True) == Verdict()


def test_added_and_seen() -> None:
    now = catalog({**BEFORE, 4: ("c", "text", "8")})
    result = verdict(now, OLD, message(1, id="int4", a="text", b="money", c="text"))
    assert (result.copy_reason, result.numbers[1]) == ("", {"id": 1, "a": 2, "b": 3, "c": 4})
    fingerprint = CatalogFingerprint.from_json(result.fingerprint)
    assert fingerprint is not None
    assert (fingerprint.last, fingerprint.since) == (4, {1: "7", 2: "7", 3: "7", 4: "8"})
    # Not seen yet: it must be looked at when it comes.
    assert verdict(now, OLD) == Verdict()
    assert (
        verdict(now, OLD, at_end=True).copy_reason
        == "the table's columns changed, and the batch has no row of it"
    )


@pytest.mark.parametrize("how", ["missing", "default"])
def test_added_with_a_default(how: str) -> None:
    numbers: dict[str, Any] = {how: {4}}
    now = catalog({**BEFORE, 4: ("c", "text", "8")}, **numbers)
    assert (
        verdict(now, message(id="int4", a="text", b="money", c="text")).copy_reason
        == "column c was added with a default"
    )


def test_renamed() -> None:
    now = catalog({1: ("id", "int4", "7"), 2: ("b", "text", "9"), 3: ("a", "money", "9")})
    result = verdict(now, OLD, message(1, id="int4", b="text", a="money"))
    assert result.numbers == {0: {"id": 1, "a": 2, "b": 3}, 1: {"id": 1, "b": 2, "a": 3}}
    between = message(1, id="int4", x="text", a="money")
    assert verdict(now, OLD, between).copy_reason == "the table's columns changed more than once"


def test_dropped() -> None:
    now = catalog({1: ("id", "int4", "7"), 2: (None, "text", "9"), 3: ("b", "money", "7")})
    assert verdict(now, OLD, message(1, id="int4", b="money")).numbers[1] == {"id": 1, "b": 3}


@pytest.mark.parametrize(
    ("columns", "seen", "why"),
    [
        # The last column is another one of the same name and type: no message shows it.
        (
            {3: (None, "money", "9"), 4: ("b", "money", "9")},
            OLD,
            "columns were removed and others were added",
        ),
        # A column came and went, and another came.
        (
            {4: (None, "text", "9"), 5: ("c", "text", "9")},
            message(id="int4", a="text", b="money", c="text"),
            "columns were added and dropped again",
        ),
        ({3: ("b", "int8", "9")}, message(id="int4", a="text", b="int8"), "to int8"),
    ],
)
def test_what_could_be_more_than_one_thing(columns: Any, seen: BatchRelation, why: str) -> None:
    assert verdict(catalog({**BEFORE, **columns}), seen).copy_reason.endswith(why)


def test_a_numeric_that_is_wider() -> None:
    now = catalog({**BEFORE, 3: ("b", "more", "9")})
    result = verdict(now, message(id="int4", a="text", b="more"))
    assert (result.copy_reason, list(result.numbers)) == ("", [0])


def test_another_file() -> None:
    """TRUNCATE and VACUUM FULL change no column; a rewrite does, or comes with a new one."""
    first = verdict(catalog(storage=200), OLD)
    assert first.copy_reason == ""
    assert first.new_shape is not None
    again = judge(first.new_shape, catalog(storage=200), source(catalog()), (OLD,), at_end=False)
    assert again == Verdict()
    assert (
        verdict(catalog({**BEFORE, 2: ("a", "text", "9")}, storage=200)).copy_reason
        == "its rows were rewritten"
    )
    assert verdict(catalog({**BEFORE, 2: ("a", "text", "9")})).copy_reason == ""
    assert (
        verdict(catalog({**BEFORE, 4: ("c", "text", "9")}, storage=200)).copy_reason
        == "its rows were rewritten"
    )


WIDER = {1: ("id", "int8", "9"), 2: ("a", "text", "7"), 3: ("b", "more", "9")}


def test_another_file_for_wider_types() -> None:
    """Copied again, unless no value changed; then the lake's columns become wider."""
    now = catalog(WIDER, storage=200)
    for messages in ((), (OLD,), (OLD, message(1, id="int8", a="text", b="more"))):
        result = verdict(now, *messages, at_end=True)
        assert result.copy_reason == "its rows were rewritten"
        assert result.alternative is not None
        assert set(result.alternative.wider_types) == {1, 3}
        assert (result.alternative.copy_reason, len(result.alternative.numbers)) == ("", len(messages))


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
    result = verdict(catalog({**BEFORE, **columns}, storage=200))
    assert (bool(result.copy_reason), result.alternative) == (True, None)


def test_wider_types_of_equal_rows() -> None:
    """Rows without a key are named by all of their values: by those of two types in one batch."""
    whole = replace(OLD, replica_identity="f", key=())
    assert verdict(catalog(WIDER, storage=200), whole).alternative is None


def test_a_kept_constant_that_moved_into_the_rows() -> None:
    with_constant = catalog(missing={3})
    mirror = with_fingerprint(TableSchema.of(source(with_constant)), with_constant)
    now = catalog({**BEFORE, 3: ("b", "money", "9")}, storage=200)
    assert judge(mirror, now, source(now), (), at_end=False).copy_reason == ""


def test_another_table() -> None:
    assert verdict(catalog(oid=200)).copy_reason == "the table was dropped and made again"
    assert verdict(catalog(members="table 2")).copy_reason == "the table left the publications and came back"
    assert (
        judge(MIRROR, None, source(catalog()), (), at_end=False).copy_reason
        == "the table was dropped and made again"
    )


def test_a_column_that_is_published_only_now() -> None:
    listed = replace(source(catalog()), columns=source(catalog()).columns[:2])
    mirror = with_fingerprint(TableSchema.of(listed), catalog())
    assert judge(mirror, catalog(), listed, (), at_end=True) == Verdict()
    why = judge(mirror, catalog(), source(catalog()), (), at_end=False).copy_reason
    assert why == "columns are published that were not before"


def test_a_lake_of_an_earlier_version() -> None:
    """Marked when the source's columns are those that it has; until then columns go by name."""
    mirror = TableSchema.of(source(catalog()))
    first = judge(mirror, catalog(), source(catalog()), (OLD,), at_end=False)
    assert first.new_shape == MIRROR
    now = catalog({**BEFORE, 2: ("z", "text", "9")})
    assert (
        "may be a rename"
        in judge(
            mirror, now, source(now), (message(id="int4", z="text", b="money"),), at_end=False
        ).copy_reason
    )
    assert judge(mirror, now, source(now), (OLD,), at_end=False) == Verdict()


CONSTANT = {**BEFORE, 4: ("c", "text", "8")}
SEEN = message(1, id="int4", a="text", b="money", c="text")


def constant(*messages: BatchRelation, alone: bool = True, storage: int = 100, text: str = "k") -> Verdict:
    columns = {**CONSTANT, 4: ("c", "money", "8")} if text == "NaN" else CONSTANT
    now = catalog(columns, missing={4}, default={4}, storage=storage)
    attributes = {**now.attributes, 4: replace(now.attributes[4], constant=text)}
    now = replace(now, attributes=attributes)
    return judge(MIRROR, now, source(now), messages, at_end=False, alone=alone)


def test_a_constant_is_known() -> None:
    assert (constant(OLD, SEEN).copy_reason, constant(OLD, SEEN).constants) == ("", {4: "k"})
    # Not met yet: it joins with its first row.
    assert constant(OLD).constants == {}


def test_a_constant_is_not_enough() -> None:
    why = "column c was added with a default"
    assert constant(OLD, SEEN, alone=False).copy_reason == why
    assert constant(replace(OLD, replica_identity="f"), SEEN).copy_reason == why
    assert constant(OLD, replace(SEEN, key=("id", "c"))).copy_reason == why
    inexact = message(1, id="int4", a="text", b="money", c="money")
    assert constant(OLD, inexact, text="NaN").copy_reason == why
    assert constant(OLD, SEEN, storage=101).copy_reason == "its rows were rewritten"


def proven(*events: Any, now: Any, rows: Any) -> Any:
    """``events``: (place, columns); ``rows``: (relation version, places)."""
    altered = [
        AlteredTable(seq, {n: (name, *TYPES[kind]) for n, (name, kind, _) in c.items()}) for seq, c in events
    ]
    return proven_numbers(MIRROR, altered, rows, catalog(now))


def test_told_which_column_is_which() -> None:
    renamed = {**BEFORE, 3: ("z", "money", "9")}
    added = {**renamed, 4: ("b", "money", "9")}
    middle = message(1, id="int4", a="text", z="money")
    last = message(2, id="int4", a="text", z="money", b="money")
    events = (5, renamed), (5, renamed), (9, added)
    numbers = proven(*events, now=added, rows=[(OLD, [1, 4]), (middle, [6, 8]), (last, [10])])
    assert numbers == {
        0: {"id": 1, "a": 2, "b": 3},
        1: {"id": 1, "a": 2, "z": 3},
        2: {"id": 1, "a": 2, "z": 3, "b": 4},
    }
    # A row that does not stand where its columns do, a catalog that went on, a name that came back.
    assert proven(*events, now=added, rows=[(OLD, [1, 6]), (last, [10])]) is None
    assert proven(*events, now={**added, 2: ("y", "text", "11")}, rows=[(OLD, [1])]) is None
    assert proven((5, renamed), (9, BEFORE), now=BEFORE, rows=[(OLD, [1, 10]), (middle, [6])]) is None


def test_an_event_may_be_missing() -> None:
    """Unseen, b was dropped and made again; what is told then is of the other one."""
    other = {1: BEFORE[1], 2: BEFORE[2], 4: ("z", "money", "9")}
    after = message(1, id="int4", a="text", z="money")
    assert proven((5, other), now=other, rows=[(OLD, [1, 4]), (after, [6])]) is None
    dropped = {1: BEFORE[1], 2: BEFORE[2]}
    numbers = proven((5, dropped), (7, other), now=other, rows=[(OLD, [1, 4]), (after, [8])])
    assert numbers[1] == {"id": 1, "a": 2, "z": 4}
    again = {**dropped, 4: ("b", "money", "9")}
    assert (
        proven((5, dropped), (7, again), now=again, rows=[(OLD, [1, 4]), (replace(OLD, ordinal=1), [8])])
        is None
    )
